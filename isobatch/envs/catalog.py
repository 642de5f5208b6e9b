"""Which environments there are, which family each belongs to, and who makes it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from isobatch import registry
from isobatch.envs import gym, own, pool, tensor
from isobatch.envs.remade import RemadeEnv
from isobatch.envs.step import BatchedEnv
from isobatch.envs.views import bare
from isobatch.envs.wrappers import only_gymnasium, viewed
from isobatch.errors import UserError, nearest
from isobatch.recipe import Environment


class Maker(NamedTuple):
    """A source of environments: a module with these two functions."""

    ids: Callable[[], dict[str, str]]
    """Its ids, and the family of each."""
    make: Callable[[str, list[int], Environment, bool], BatchedEnv]
    """(id, seeds, settings, whether to train or to evaluate) -> environments, one per seed."""
    time_limit: Callable[[str, Environment], int | None] = lambda env_id, settings: None
    """(id, settings) -> steps after which an episode is truncated, None where that is not known."""


MAKERS = {
    "envpool": Maker(pool.ids, pool.make, pool.time_limit),
    "gymnasium": Maker(gym.ids, gym.make, gym.time_limit),
    "tensor": Maker(tensor.ids, tensor.make),
    "python": Maker(own.ids, own.make),
}
"""By the prefix of an id, `maker:Id`."""
UNPREFIXED = ("envpool", "gymnasium")
"""Who is asked for an id without a prefix, in this order."""


class Source(NamedTuple):
    """Where an environment comes from."""

    maker: str
    id: str
    family: str

    def make(self, seeds: list[int], settings: Environment, training: bool) -> BatchedEnv:
        """Make its environments, one per seed, in their wrappers."""
        env = MAKERS[self.maker].make(self.id, seeds, settings, training)
        if self.maker == "gymnasium":
            return env
        try:
            return viewed(env, settings.wrappers)
        except UserError:
            env.close()
            raise

    def time_limit(self, settings: Environment) -> int | None:
        """Return the steps after which its episodes are truncated, None where that is not known."""
        return MAKERS[self.maker].time_limit(self.id, settings)


def families() -> dict[str, list[str]]:
    """Return every family with its ids, each as `resolve` takes it and from its first maker."""
    listed: dict[str, list[str]] = {}
    known: set[str] = set()
    for name, maker in MAKERS.items():
        first = name == UNPREFIXED[0]
        for env_id, family in maker.ids().items():
            if name not in UNPREFIXED or env_id not in known:
                listed.setdefault(family, []).append(env_id if first else f"{name}:{env_id}")
        known |= set(maker.ids())
    return listed


def resolve(env_id: str, wrappers: Sequence[str] = ()) -> Source:
    """Return who makes `env_id`: EnvPool where it can, also in its `wrappers`, else Gymnasium.

    `gymnasium:Id` asks for Gymnasium's, `tensor:Id` for a built-in tensor environment,
    `python:name` for what the user registered, and `module:Id` imports the module first, as
    Gymnasium does.
    """
    prefix, colon, rest = env_id.partition(":")
    if colon and prefix not in MAKERS:
        return Source("gymnasium", env_id, "gymnasium")
    name, asked = (rest, [prefix]) if colon else (env_id, list(UNPREFIXED))
    if not colon and only_gymnasium(wrappers):
        asked = ["gymnasium"]
    for maker in asked:
        family = MAKERS[maker].ids().get(name)
        if family is not None:
            return Source(maker, name, family)
    if prefix == "python":
        raise own.unregistered(name)
    everything = [known for maker in asked for known in MAKERS[maker].ids()]
    raise UserError(
        f"unknown environment {env_id!r}.{nearest(name, everything)} One of your own: "
        f"{registry.IMPORT_IT}",
        field="env",
    )


def described(env: BatchedEnv) -> str:
    """Return an environment's name, who made it and its family: Hopper-v4 (envpool, mujoco)."""
    if isinstance(env, RemadeEnv):
        env = env.parts[0].env
    env = bare(env)
    kinds = {
        "envpool": pool.PoolEnv,
        "gymnasium": gym.GymEnv | gym.SupervisedEnv,
        "tensor": tensor.TensorAdapter,
    }
    maker = next((name for name, kind in kinds.items() if isinstance(env, kind)), None)
    if maker is None:
        return env.name
    family = MAKERS[maker].ids().get(env.name.removeprefix(f"{maker}:"))
    return f"{env.name} ({maker}, {family or 'your own'})"


def require_trusted(env_id: str, given: str | None) -> None:
    """Refuse to import a module that only a file names; `given` is what the user typed.

    `module:Id` runs the module's code. That is the user's wish on the command line, there by
    --import too, or in Python, not a recipe file's.
    """
    prefix, colon, _ = env_id.partition(":")
    if colon and prefix not in MAKERS and prefix not in registry.IMPORTED and given != env_id:
        raise UserError(
            f"the recipe's env {env_id!r} imports a module: allow it with --import {prefix} or "
            f"--env {env_id}"
        )
