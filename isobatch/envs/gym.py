"""Gymnasium environments, one by one or as vectors, in each of the three autoreset modes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from torch import Tensor

from isobatch.envs.spaces import ActionLayout, ObservationLayout, add_batch_axis
from isobatch.envs.step import Observation, Step, owned
from isobatch.errors import UserError, one_line
from isobatch.recipe import Environment

FAMILIES = {
    "gymnasium.envs.classic_control": "classic",
    "gymnasium.envs.box2d": "box2d",
    "gymnasium.envs.toy_text": "toy-text",
    "gymnasium.envs.mujoco": "mujoco",
}


class GymEnv:
    """A Gymnasium vector environment in any autoreset mode.

    Next-step vectors behave as EnvPool does. Same-step vectors give the final observation in
    `final`; where autoreset is disabled, ended environments are reset here, which is the same.
    """

    def __init__(self, vector: VectorEnv, name: str, seeds: list[int]) -> None:
        self.name = name
        self.n_envs = vector.num_envs
        self.observation_layout = ObservationLayout.of(vector.single_observation_space, name)
        self.action_layout = ActionLayout.of(vector.single_action_space, name)
        self._vector = vector
        self._seeds = seeds
        self._mode = _autoreset_mode(vector, name)
        self._action_dtype: Any = vector.single_action_space.dtype
        self._done = np.zeros(self.n_envs, bool)

    def reset(self) -> Observation:
        """Start all environments with the seeds given."""
        self._done = np.zeros(self.n_envs, bool)
        # Only these take a seed per environment; a vector of another make takes one for all.
        each = isinstance(self._vector.unwrapped, SyncVectorEnv | AsyncVectorEnv)
        seed: Any = self._seeds if each else self._seeds[0]
        observation, _ = self._vector.reset(seed=seed)
        return owned(self.observation_layout.encode(observation))

    def step(self, actions: Tensor) -> Step:
        """Step all environments; `actions` [N, K] in policy form."""
        native = self.action_layout.native(actions.cpu().numpy()).astype(self._action_dtype)
        raw, reward, terminated, truncated, info = self._vector.step(native)
        # An end is an end, even as the time runs out: there is no value to bootstrap.
        truncated = np.logical_and(truncated, np.logical_not(terminated))
        observation = owned(self.observation_layout.encode(raw))
        done = np.logical_or(terminated, truncated)
        valid = np.ones(self.n_envs, bool)
        final = None
        if self._mode is AutoresetMode.NEXT_STEP:
            valid, self._done = ~self._done, done
        elif done.any() and self._mode is AutoresetMode.SAME_STEP:
            final = self._final_from(info, observation, done)
        elif done.any():
            final = observation
            raw, _ = self._vector.reset(options={"reset_mask": done})
            observation = owned(self.observation_layout.encode(raw))
        return Step(
            observation=observation,
            reward=torch.from_numpy(np.array(reward, np.float32)),
            terminated=torch.from_numpy(np.array(terminated, bool)),
            truncated=torch.from_numpy(np.array(truncated, bool)),
            valid=torch.from_numpy(valid),
            final=final,
        )

    def restart(self, which: Tensor, actions: Tensor) -> Step:
        """Begin a new episode in some environments, `which` [N] bool, then step all."""
        if not isinstance(self._vector.unwrapped, SyncVectorEnv | AsyncVectorEnv):
            raise UserError(
                f"{self.name}: stagger restarts environments one by one, which only Gymnasium's "
                "own vectors can",
                field="stagger",
            )
        resets = which.numpy()
        self._vector.reset(options={"reset_mask": resets})
        self._done &= ~resets
        return self.step(actions)

    def stepping(self) -> AbstractContextManager[None]:
        """Nothing to hold."""
        return nullcontext()

    def close(self) -> None:
        """Close the vector and its environments."""
        self._vector.close()

    def _final_from(self, info: dict, observation: Observation, done: np.ndarray) -> Observation:
        """Collect the final observations a same-step vector leaves in `info`."""
        if "final_obs" not in info:
            raise UserError(
                f"{self.name}: a vector environment with autoreset mode SAME_STEP must put "
                "final_obs into its info"
            )
        final = owned(observation)
        for index in np.flatnonzero(done):
            single = add_batch_axis(info["final_obs"][index])
            for part, tensor in self.observation_layout.encode(single).items():
                final[part][index] = tensor[0]
        return final


def ids() -> dict[str, str]:
    """Return Gymnasium's registered ids and their families."""
    return {env_id: _family(str(spec.entry_point)) for env_id, spec in gymnasium.registry.items()}


def make(env_id: str, seeds: list[int], settings: Environment, training: bool) -> GymEnv:
    """Make Gymnasium's environments, which evaluate as they train."""
    return from_id(env_id, seeds, settings.vectorization, settings.options)


def _family(entry_point: str) -> str:
    for module, family in FAMILIES.items():
        if entry_point.startswith(module):
            return family
    return "gymnasium"


def from_id(
    env_id: str, seeds: list[int], vectorization: str, options: dict[str, Any] | None = None
) -> GymEnv:
    """Make a registered Gymnasium environment (`Id` or `module:Id`)."""

    def make() -> gymnasium.Env:
        # Its checker only prints; what matters is checked here, once per rollout.
        return gymnasium.make(env_id, disable_env_checker=True, **(options or {}))

    try:
        return from_factory(make, env_id, seeds, vectorization)
    except UserError:
        raise
    except Exception as error:
        reason = one_line(error)
        raise UserError(f"Gymnasium cannot make {env_id}: {reason}") from error


def from_factory(
    make_env: Callable[[], Any], name: str, seeds: list[int], vectorization: str
) -> GymEnv:
    """Vectorise environments made one by one by `make_env`."""
    kind = SyncVectorEnv if vectorization == "sync" else AsyncVectorEnv
    vector = kind([make_env] * len(seeds), autoreset_mode=AutoresetMode.NEXT_STEP)
    return GymEnv(vector, name, seeds)


def _autoreset_mode(vector: VectorEnv, name: str) -> AutoresetMode:
    mode = vector.metadata.get("autoreset_mode")
    if isinstance(mode, AutoresetMode):
        return mode
    raise UserError(
        f"{name}: the vector environment does not declare its autoreset mode; set "
        "metadata['autoreset_mode'] to a gymnasium.vector.AutoresetMode"
    )
