"""EnvPool's environments, batched in C++."""

from __future__ import annotations

import importlib.util
import sys
import warnings
from contextlib import AbstractContextManager
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from isobatch.envs.qt import preload_qt
from isobatch.envs.spaces import ActionLayout, ObservationLayout
from isobatch.envs.step import Observation, Step
from isobatch.errors import UserError, nearest, one_line
from isobatch.machine import one_core, thread_ids
from isobatch.recipe import Environment

FAMILIES = {
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

NO_LIMIT = (1 << 31) - 1
"""EnvPool's time limit of environments that have none."""


class PoolEnv:
    """A synchronous EnvPool, which resets on the next step.

    The row after a done is a reset: its action is ignored and its reward 0, so it is not `valid`;
    the observation before it is the true final one (EnvPool 1.2.5).

    At the time limit EnvPool calls every end a truncation. Atari and MuJoCo Playground tell beside
    it whether the task ended, and that is believed: such an end is a termination. The others do
    not, so a task that ends by itself in exactly the last step counts as truncated there, and is
    bootstrapped with its final observation's value. An Atari life lost in that step, too.
    """

    def __init__(
        self,
        env_id: str,
        seeds: list[int],
        *,
        threads: int = 0,
        episodic_life: bool = False,
        sign_rewards: bool = False,
        options: dict[str, Any] | None = None,
    ) -> None:
        self.name = env_id
        self.n_envs = len(seeds)
        arguments = dict(options or {})
        if episodic_life:
            arguments["episodic_life"] = True
        if sign_rewards:
            arguments["reward_clip"] = True
        others = thread_ids()
        self._pool = _make_pool(env_id, seeds, threads, arguments)
        # A single worker and the caller only ever wait for each other.
        self._taking_turns = thread_ids() - others if threads == 1 else set()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Gymnasium remarks on EnvPool's float64 bounds.
            observation_space = self._pool.observation_space
            action_space = self._pool.action_space
        self.observation_layout = ObservationLayout.of(observation_space, env_id)
        self.action_layout = ActionLayout.of(action_space, env_id)
        self._keys = {key: place for place, key in enumerate(self._pool._state_keys)}
        self._paths = _observation_paths(self._keys)
        self._tells = "info:terminated" in self._keys
        self._scored = self._tells and "info:reward" in self._keys
        self._ids = np.arange(self.n_envs, dtype=np.int32)
        self._action_dtype = self._pool._spec._action_spec[-1][0]
        self._done = np.zeros(self.n_envs, bool)

    def reset(self) -> Observation:
        """Start all environments."""
        self._pool.async_reset()
        self._done = np.zeros(self.n_envs, bool)
        return self._observation(self._pool._recv())

    def step(self, actions: Tensor) -> Step:
        """Step all environments; `actions` [N, K] in policy form."""
        self.send(actions)
        return self.receive()

    def send(self, actions: Tensor) -> None:
        """Begin a step, which `receive` ends."""
        native = self.action_layout.native(actions.cpu().numpy())
        if len(native) != self.n_envs:
            raise ValueError(f"{len(native)} actions for {self.n_envs} environments")
        native = native.astype(self._action_dtype, order="C")
        # EnvPool's own step() spends longer on dictionaries than CartPole on physics.
        self._pool._send([self._ids, self._ids, native])

    def receive(self) -> Step:
        """End the step under way."""
        state = self._pool._recv()
        done, truncated = state[self._keys["done"]], state[self._keys["trunc"]]
        self._elapsed = state[self._keys["elapsed_step"]]
        valid, self._done = ~self._done, done
        score = over = None
        if self._tells:
            ended = state[self._keys["info:terminated"]] != 0
            if self._scored:
                score = torch.from_numpy(state[self._keys["info:reward"]]).float()
                over = torch.from_numpy(ended | truncated)
            truncated = truncated & ~ended
        return Step(
            observation=self._observation(state),
            reward=torch.from_numpy(state[self._keys["reward"]]),
            terminated=torch.from_numpy(done & ~truncated),
            truncated=torch.from_numpy(truncated),
            valid=torch.from_numpy(valid),
            score=score,
            over=over,
        )

    def restart(self, which: Tensor, actions: Tensor) -> Step:
        """Begin a new episode in some environments, `which` [N] bool, then step all.

        EnvPool waits for all of them, so the others, all where none begins, take a step of their
        own meanwhile. It then
        mixes up the rows it gives back; the step after that is in order again, and its elapsed
        steps say which of them are resets.
        """
        resets = which.numpy()
        native = self.action_layout.native(actions.cpu().numpy())
        native = native.astype(self._action_dtype, order="C")
        others = self._ids[~resets]
        if len(others):
            self._pool._send([others, others, np.ascontiguousarray(native[~resets])])
        if resets.any():
            self._pool._reset(self._ids[resets])
        self._pool._recv()
        step = self.step(actions)
        return step._replace(valid=torch.from_numpy(self._elapsed != 0))

    def stepping(self) -> AbstractContextManager[None]:
        """Hold a single worker on the caller's core."""
        return one_core(self._taking_turns)

    def close(self) -> None:
        """Stop EnvPool's threads."""
        self._pool.close()

    def _observation(self, state: list[np.ndarray]) -> Observation:
        if self._paths is None:
            return self.observation_layout.encode(state[self._keys["obs"]])
        nested: dict[str, Any] = {}
        for path, place in self._paths:
            node = nested
            for key in path[:-1]:
                node = node.setdefault(key, {})
            node[path[-1]] = state[place]
        return self.observation_layout.encode(nested)


def pool_registry() -> dict[str, Any]:
    """Return EnvPool's environments: id -> (module, ...)."""
    load_envpool()
    from envpool.registration import registry

    return registry.specs


@cache
def load_envpool() -> None:
    """Import EnvPool, after Qt and without what draws Jumanji.

    To register their ids EnvPool imports the packages of all families. That of Jumanji imports
    Matplotlib, half a second in every run of anything else. So its ids are registered without the
    package, which is imported when one of its environments is made.
    """
    preload_qt()
    found = importlib.util.find_spec("envpool")
    if "envpool" in sys.modules or found is None or not found.submodule_search_locations:
        return
    empty = ModuleType("envpool.jumanji")
    empty.__path__ = [str(Path(each, "jumanji")) for each in found.submodule_search_locations]
    sys.modules[empty.__name__] = empty
    try:
        import envpool  # noqa: F401
    finally:
        del sys.modules[empty.__name__]


@cache
def ids() -> dict[str, str]:
    """Return EnvPool's ids and their families."""
    return {env_id: _family(env_id, spec[0]) for env_id, spec in pool_registry().items()}


def make(env_id: str, seeds: list[int], settings: Environment, training: bool) -> PoolEnv:
    """Make EnvPool's environments; to evaluate, Atari plays whole games for their own score."""
    return PoolEnv(
        env_id,
        seeds,
        threads=settings.env_threads,
        episodic_life=settings.episodic_life and training,
        sign_rewards=settings.sign_rewards and training,
        options=settings.options,
    )


def time_limit(env_id: str, settings: Environment) -> int | None:
    """Return the steps after which an episode is truncated, None where there is no such limit."""
    if _is_unlimited(env_id):
        return None
    load_envpool()
    import envpool

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            known = envpool.make_spec(env_id).config._asdict()
    except Exception:
        return None  # Making it says what is wrong.
    limit = (known | settings.options).get("max_episode_steps")
    return limit if isinstance(limit, int) and 0 < limit < NO_LIMIT else None


def _family(env_id: str, module: str) -> str:
    if module == "envpool.procgen":
        return "procgen-easy" if "Easy" in env_id else "procgen-hard"
    return FAMILIES.get(module, module.rpartition(".")[2])


def _make_pool(env_id: str, seeds: list[int], threads: int, arguments: dict[str, Any]) -> Any:
    load_envpool()
    import envpool

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            known = envpool.make_spec(env_id).config._asdict()
            for name in arguments:
                if name not in known:
                    raise UserError(f"{env_id} has no option {name!r}.{_hint(name, known, env_id)}")
            if "max_episode_steps" in arguments and _is_unlimited(env_id):
                raise UserError(
                    f"{env_id} ignores max_episode_steps: EnvPool would let its episodes "
                    "continue and report every later end as a truncation"
                )
            if known.get("max_num_players", 1) > 1:
                raise UserError(
                    f"{env_id} has several players; only single-agent environments work"
                )
            return envpool.make(
                env_id,
                env_type="gymnasium",
                num_envs=len(seeds),
                num_threads=min(threads, len(seeds)),
                seed=seeds,
                **arguments,
            )
    except UserError:
        raise
    except Exception as error:
        reason = one_line(error)
        if isinstance(error, ImportError) and "Qt" in reason:
            reason = (
                "Qt 5 was not loaded; call isobatch.envs.qt.preload_qt() before importing envpool"
            )
        raise UserError(f"EnvPool cannot make {env_id}: {reason}") from error


def _hint(name: str, known: dict[str, Any], env_id: str) -> str:
    """Say what was meant: another option, or one of Gymnasium's environment of that name."""
    import gymnasium

    gymnasiums = f" gymnasium:{env_id} takes Gymnasium's keyword arguments."
    return nearest(name, list(known)) or (gymnasiums if env_id in gymnasium.registry else "")


def _is_unlimited(env_id: str) -> bool:
    """True of families whose episodes end at their own time, whatever limit they are given."""
    return ids().get(env_id, "") in ("procgen-easy", "procgen-hard", "highway")


def _observation_paths(keys: dict[str, int]) -> list[tuple[tuple[str, ...], int]] | None:
    """Return where each entry of a Dict observation stands, or None for a plain array."""
    if "obs" in keys:
        return None
    return [
        (tuple(key.removeprefix("obs:").split(".")), place)
        for key, place in keys.items()
        if key.startswith("obs:")
    ]
