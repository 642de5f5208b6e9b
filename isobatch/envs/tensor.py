"""Environments that take and give torch tensors, thousands at a time.

The protocol is the shape of Isaac Lab's and ManiSkill's vectors; `TensorCartPole` is a small
environment that speaks it.
"""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from isobatch.envs.faults import failed
from isobatch.envs.spaces import ActionLayout, ObservationLayout
from isobatch.envs.step import Observation, Step, owned
from isobatch.errors import UserError
from isobatch.recipe import Environment


class TensorEnv(Protocol):
    """A batched environment on a device, which resets on the same step.

    `step` returns (observation, reward [N], terminated [N], truncated [N], info); where episodes
    ended, `observation` is the new episode's first, and info["final_observation"] (or "final_obs")
    holds the last ones [N, ...].
    """

    num_envs: int
    device: torch.device
    single_observation_space: spaces.Space
    single_action_space: spaces.Space

    def reset(self, seed: int | None = None) -> tuple[Any, dict]:
        """Start all environments."""
        ...

    def step(self, actions: Tensor) -> tuple[Any, Tensor, Tensor, Tensor, dict]:
        """Take one action in each environment."""
        ...


class TensorAdapter:
    """A `TensorEnv` as a `BatchedEnv`."""

    def __init__(self, env: TensorEnv, name: str, seeds: list[int]) -> None:
        self.name = name
        self.n_envs = env.num_envs
        self.observation_layout = ObservationLayout.of(env.single_observation_space, name)
        self.action_layout = ActionLayout.of(env.single_action_space, name)
        self._env = env
        self._seed = seeds[0]
        self._steps = 0
        self._valid = torch.ones(self.n_envs, dtype=torch.bool, device=env.device)

    def reset(self) -> Observation:
        """Start all environments."""
        self._steps = 0
        try:
            observation, _ = self._env.reset(seed=self._seed)
        except Exception as error:
            raise failed(self.name, self._steps, error) from error
        return owned(self.observation_layout.encode(observation))

    def step(self, actions: Tensor) -> Step:
        """Step all environments; `actions` [N, K] in policy form."""
        native = self.action_layout.native_tensor(actions.to(self._env.device))
        self._steps += 1
        try:
            observation, reward, terminated, truncated, info = self._env.step(native)
        except Exception as error:
            raise failed(self.name, self._steps, error) from error
        last = info.get("final_observation", info.get("final_obs"))
        if last is None and bool(truncated.any()):
            raise UserError(
                f"{self.name}: episodes were truncated but info has no final_observation, "
                "without which their value cannot be bootstrapped"
            )
        return Step(
            observation=owned(self.observation_layout.encode(observation)),
            reward=reward.float().clone(),
            terminated=terminated.bool().clone(),
            truncated=truncated.bool() & ~terminated.bool(),
            valid=self._valid,
            final=None if last is None else owned(self.observation_layout.encode(last)),
        )

    def restart(self, which: Tensor, actions: Tensor) -> Step:
        """Not for these: a `TensorEnv` starts all of its environments at once."""
        raise UserError(
            f"{self.name}: stagger restarts environments one by one, which a TensorEnv cannot",
            field="stagger",
        )

    def stepping(self) -> AbstractContextManager[None]:
        """Nothing to hold."""
        return nullcontext()

    def close(self) -> None:
        """Close the environment where it can be closed."""
        close = getattr(self._env, "close", None)
        if close is not None:
            close()


class TensorCartPole:
    """CartPole-v1 (Barto, Sutton & Anderson 1983, Gymnasium's constants) for N carts at once."""

    GRAVITY, CART, POLE, HALF_LENGTH = 9.8, 1.0, 0.1, 0.5
    FORCE, SECONDS, LIMIT = 10.0, 0.02, 500
    FAR, TILTED = 2.4, 12 * 2 * math.pi / 360

    def __init__(self, num_envs: int, device: str = "cpu") -> None:
        self.num_envs = num_envs
        self.device = torch.device(device)
        bound = np.array([2 * self.FAR, np.inf, 2 * self.TILTED, np.inf], np.float32)
        self.single_observation_space: spaces.Space = spaces.Box(-bound, bound)
        self.single_action_space: spaces.Space = spaces.Discrete(2)
        self._generator = torch.Generator(self.device)
        self._state = torch.zeros(num_envs, 4, device=self.device)
        self._age = torch.zeros(num_envs, dtype=torch.long, device=self.device)

    def reset(self, seed: int | None = None) -> tuple[Tensor, dict]:
        """Start every cart near the middle."""
        if seed is not None:
            self._generator.manual_seed(seed)
        self._state = self._fresh()
        self._age.zero_()
        return self._state, {}

    def step(self, actions: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, dict]:
        """Push each cart left (0) or right (1); Euler's method."""
        _, speed, angle, spin = self._state.unbind(1)
        force = self.FORCE * (2.0 * actions - 1.0)
        sine, cosine = angle.sin(), angle.cos()
        mass, lever = self.CART + self.POLE, self.POLE * self.HALF_LENGTH
        push = (force + lever * spin**2 * sine) / mass
        inertia = self.HALF_LENGTH * (4 / 3 - self.POLE * cosine**2 / mass)
        swing = (self.GRAVITY * sine - cosine * push) / inertia
        thrust = push - lever * swing * cosine / mass
        change = torch.stack([speed, thrust, spin, swing], 1)
        final = self._state + self.SECONDS * change
        self._age += 1
        terminated = (final[:, 0].abs() > self.FAR) | (final[:, 2].abs() > self.TILTED)
        truncated = (self._age >= self.LIMIT) & ~terminated
        done = terminated | truncated
        self._state = torch.where(done[:, None], self._fresh(), final)
        self._age.masked_fill_(done, 0)
        reward = torch.ones(self.num_envs, device=self.device)
        return self._state, reward, terminated, truncated, {"final_observation": final}

    def _fresh(self) -> Tensor:
        draw = torch.rand(self.num_envs, 4, generator=self._generator, device=self.device)
        return 0.1 * draw - 0.05


BUILT_IN = {"CartPole-v1": TensorCartPole}
"""Tensor environments by id, given on the command line as tensor:Id."""


def ids() -> dict[str, str]:
    """Return the built-in ids, which are a family of their own."""
    return dict.fromkeys(BUILT_IN, "tensor")


def make(env_id: str, seeds: list[int], settings: Environment, training: bool) -> TensorAdapter:
    """Make a built-in environment as wide as there are seeds."""
    return TensorAdapter(BUILT_IN[env_id](len(seeds)), f"tensor:{env_id}", seeds)
