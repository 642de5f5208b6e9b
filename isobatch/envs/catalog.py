"""Which environments there are, which family each belongs to, and who makes it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Literal

from isobatch.envs.pool import pool_registry
from isobatch.envs.tensor import BUILT_IN
from isobatch.errors import UserError, nearest

POOL_FAMILIES = {
    "envpool.classic_control": "classic",
    "envpool.box2d": "box2d",
    "envpool.toy_text": "toy-text",
    "envpool.atari": "atari",
    "envpool.minigrid": "minigrid",
    "envpool.mujoco.gym": "mujoco",
    "envpool.mujoco.dmc": "dmc",
    "envpool.mujoco.playground": "playground",
    "envpool.mujoco.robotics": "robotics",
    "envpool.mujoco.metaworld": "metaworld",
    "envpool.mujoco.myosuite": "myosuite",
    "envpool.highway": "highway",
    "envpool.vizdoom": "vizdoom",
    "envpool.jumanji": "jumanji",
    "envpool.gfootball": "gfootball",
    "envpool.pgx": "pgx",
}
GYMNASIUM_FAMILIES = {
    "gymnasium.envs.classic_control": "classic",
    "gymnasium.envs.box2d": "box2d",
    "gymnasium.envs.toy_text": "toy-text",
    "gymnasium.envs.mujoco": "mujoco",
}


@dataclass(frozen=True)
class Source:
    """Where an environment comes from."""

    maker: Literal["envpool", "gymnasium", "tensor", "python"]
    id: str
    family: str


@cache
def pool_ids() -> dict[str, str]:
    """Return EnvPool's ids and their families."""
    return {env_id: _pool_family(env_id, spec[0]) for env_id, spec in pool_registry().items()}


def gymnasium_ids() -> dict[str, str]:
    """Return Gymnasium's registered ids and their families."""
    import gymnasium

    return {
        env_id: _gymnasium_family(str(spec.entry_point))
        for env_id, spec in gymnasium.registry.items()
    }


def families() -> dict[str, list[str]]:
    """Return every family with its ids; Gymnasium's only where EnvPool lacks them."""
    listed: dict[str, list[str]] = {}
    for env_id, family in pool_ids().items():
        listed.setdefault(family, []).append(env_id)
    for env_id, family in gymnasium_ids().items():
        if env_id not in pool_ids():
            listed.setdefault(family, []).append(f"gymnasium:{env_id}")
    listed["tensor"] = [f"tensor:{env_id}" for env_id in BUILT_IN]
    return listed


def resolve(env_id: str) -> Source:
    """Return who makes `env_id`: EnvPool where it can, else Gymnasium.

    `gymnasium:Id` asks for Gymnasium's, `tensor:Id` for a built-in tensor environment, and
    `module:Id` imports the module first, as Gymnasium does.
    """
    prefix, colon, rest = env_id.partition(":")
    if prefix == "tensor" and colon:
        if rest not in BUILT_IN:
            raise UserError(f"unknown tensor environment {rest!r}; there is {', '.join(BUILT_IN)}")
        return Source("tensor", rest, "tensor")
    if colon and prefix != "gymnasium":
        return Source("gymnasium", env_id, "gymnasium")
    if not colon and env_id in pool_ids():
        return Source("envpool", env_id, pool_ids()[env_id])
    name = rest if colon else env_id
    known = gymnasium_ids()
    if name in known:
        return Source("gymnasium", name, known[name])
    everything = list(known) if colon else [*pool_ids(), *known]
    raise UserError(f"unknown environment {env_id!r}.{nearest(name, everything)}")


def require_trusted(env_id: str, given: str | None) -> None:
    """Refuse to import a module that only a file names; `given` is what the user typed.

    `module:Id` runs the module's code. That is the user's wish on the command line or in Python,
    not a recipe file's.
    """
    prefix, colon, _ = env_id.partition(":")
    if colon and prefix not in ("gymnasium", "tensor", "python") and given != env_id:
        raise UserError(
            f"the recipe's env {env_id!r} imports a module: allow it with --env {env_id}"
        )


def _pool_family(env_id: str, module: str) -> str:
    if module == "envpool.procgen":
        return "procgen-easy" if "Easy" in env_id else "procgen-hard"
    return POOL_FAMILIES.get(module, module.rpartition(".")[2])


def _gymnasium_family(entry_point: str) -> str:
    for module, family in GYMNASIUM_FAMILIES.items():
        if entry_point.startswith(module):
            return family
    return "gymnasium"
