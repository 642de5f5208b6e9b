"""Environments that fail on purpose, for the tests of faults: failing_envs:Failing-v0."""

from __future__ import annotations

import ctypes
import os
import time
from pathlib import Path

import gymnasium
import numpy as np
from gymnasium import spaces


class Failing(gymnasium.Env):
    """Counts steps, is paid 1 for each, ends after `length`; its `at`-th step of all goes wrong.

    With `once`, a file, only where there is no such file yet: what replaces it works.
    """

    def __init__(self, how="raise", at=20, length=5, once=None, told=None):
        self.observation_space = spaces.Box(0, np.inf, (2,), np.float32)
        self.action_space = spaces.Discrete(2)
        self.how, self.at, self.length = how, at, length
        self.once, self.told = (None if path is None else Path(path) for path in (once, told))
        self.taken = self.age = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if self.how == "reset" and self.taken >= self.at:
            raise RuntimeError("no reset")
        self.age = 0
        return self.observation(), {}

    def step(self, action):
        self.taken += 1
        self.age += 1
        observation, reward = self.observation(), 1.0
        if self.taken == self.at and not self.is_over():
            if self.told is not None:
                self.told.touch()
            observation, reward = FAULTS[self.how](observation, reward)
        return observation, reward, self.age >= self.length, False, {}

    def observation(self):
        return np.array([self.age, self.np_random.random()], np.float32)

    def is_over(self):
        if self.once is None:
            return False
        try:
            self.once.touch(exist_ok=False)
        except FileExistsError:
            return True
        return False


def broken(observation, reward):
    raise RuntimeError("a wheel\ncame off")


def hung(observation, reward):
    while True:
        time.sleep(60)


def deaf(observation, reward):
    """Neither ends nor lets an exception end it."""
    while True:
        try:
            time.sleep(60)
        except BaseException:
            continue


FAULTS = {
    "raise": broken,
    "hang": hung,
    "deaf": deaf,
    "crash": lambda observation, reward: ctypes.string_at(0),
    "exit": lambda observation, reward: os._exit(7),
    "leave": lambda observation, reward: exit(3),
    "shape": lambda observation, reward: (np.zeros(3, np.float32), reward),
    "text": lambda observation, reward: (np.array(["a", "b"]), reward),
    "nan": lambda observation, reward: (observation * np.nan, reward),
    "reward": lambda observation, reward: (observation, "much"),
    "nan reward": lambda observation, reward: (observation, np.nan),
    "reset": lambda observation, reward: (observation, reward),
}
gymnasium.register("Failing-v0", entry_point="failing_envs:Failing")
