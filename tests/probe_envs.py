"""Small environments with known values, for the tests of environments, runs and commands."""

from __future__ import annotations

from dataclasses import dataclass, field

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

MODES = list(AutoresetMode)
BOTH_PARTS = spaces.Dict(
    {
        "camera": spaces.Box(0, 255, (40, 36, 3), np.uint8),
        "state": spaces.Box(-np.inf, np.inf, (2,), np.float32),
    }
)


@dataclass
class Journal:
    """What environments of this process were asked to do."""

    seeds: list[int] = field(default_factory=list)
    transitions: int = 0


class Counter(gymnasium.Env):
    """Observes the number of steps its episode has taken, is paid it, and ends after `length`.

    The final observation is `length` and the reset one 0, so none is mistaken for the other; an
    episode of 3 steps returns 1 + 2 + 3 = 6.
    """

    def __init__(self, length=3, ending="truncated", journal=None):
        self.observation_space = spaces.Box(0, np.inf, (1,), np.float32)
        self.action_space = spaces.Discrete(2)
        self.length, self.ending = length, ending
        self.journal = Journal() if journal is None else journal
        self.age = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if seed is not None:
            self.journal.seeds.append(seed)
        self.age = 0
        return self.observation(), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        self.age += 1
        self.journal.transitions += 1
        over = self.age >= self.length
        terminated = over and self.ending in ("terminated", "both")
        truncated = over and self.ending in ("truncated", "both")
        return self.observation(), self.reward(), terminated, truncated, {}

    def observation(self):
        return np.array([self.age], np.float32)

    def reward(self):
        return float(self.age)


class Faulty(Counter):
    """A counter whose reward or observation is not finite at one step of its episode."""

    def __init__(self, step, part, value=np.nan, length=1000, actions=None):
        super().__init__(length)
        self.fault, self.part, self.value = step, part, value
        self.action_space = actions or self.action_space

    def observation(self):
        given = super().observation()
        return given + self.value if (self.part, self.age) == ("observation", self.fault) else given

    def reward(self):
        return self.value if (self.part, self.age) == ("reward", self.fault) else 1.0


class Both(Counter):
    """A counter seen through an image (height, width, channels) and a vector at once."""

    def __init__(self, length=3, ending="truncated", journal=None):
        super().__init__(length, ending, journal)
        self.observation_space = BOTH_PARTS

    def observation(self):
        camera = np.full((40, 36, 3), self.age, np.uint8)
        camera[..., 2] += 100
        return {"camera": camera, "state": np.array([self.age, -self.age], np.float32)}


class Acting(Counter):
    """A counter with an action space of choice, which refuses actions outside it."""

    def __init__(self, actions, length=3):
        super().__init__(length)
        self.action_space = actions


class Odd(Counter):
    """A counter that claims observation and action spaces of choice."""

    def __init__(self, observations=None, actions=None):
        super().__init__()
        self.observation_space = observations or self.observation_space
        self.action_space = actions or self.action_space


class Signs(gymnasium.Env):
    """Shows a random sign; the action that names it gives 1. A perfect episode returns 8."""

    BEST = 8

    def __init__(self):
        self.observation_space = spaces.Box(-1, 1, (1,), np.float32)
        self.action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.age = 0
        return self._draw(), {}

    def step(self, action):
        self.age += 1
        reward = float((self.sign > 0) == (action == 1))
        return self._draw(), reward, self.age == self.BEST, False, {}

    def _draw(self):
        self.sign = self.np_random.choice([-1.0, 1.0])
        return np.array([self.sign], np.float32)


class TensorCounter:
    """`Counter` in the tensor protocol.

    With `in_place` every step gives the same tensors, written anew, as simulators on a GPU do:
    who keeps what they gave must copy it.
    """

    def __init__(self, num_envs, length=3, gives_final=True, in_place=False):
        self.num_envs, self.device = num_envs, torch.device("cpu")
        self.single_observation_space = spaces.Box(0, np.inf, (1,), np.float32)
        self.single_action_space = spaces.Discrete(2)
        self.length, self.gives_final = length, gives_final
        self.given = (lambda tensor: tensor) if in_place else torch.clone
        self.age = torch.zeros(num_envs, 1)
        self.final = torch.zeros(num_envs, 1)
        self.reward = torch.zeros(num_envs)
        self.terminated = torch.zeros(num_envs, dtype=torch.bool)
        self.truncated = torch.zeros(num_envs, dtype=torch.bool)

    def reset(self, seed=None):
        self.age.zero_()
        return self.given(self.age), {}

    def step(self, actions):
        self.age += 1
        self.final.copy_(self.age)
        self.reward.copy_(self.age[:, 0])
        self.truncated.copy_(self.age[:, 0] >= self.length)
        self.age.masked_fill_(self.truncated[:, None], 0)
        info = {"final_observation": self.given(self.final)} if self.gives_final else {}
        parts = self.age, self.reward, self.terminated, self.truncated
        return *(self.given(part) for part in parts), info


def vector_of(mode, *factories, copy=True):
    """Return a function that makes a synchronous vector with this autoreset mode."""
    return lambda: SyncVectorEnv(list(factories), autoreset_mode=mode, copy=copy)
