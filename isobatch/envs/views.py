"""Environments seen otherwise than they show themselves: whole batches of them, of any make."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from isobatch.envs.spaces import ObservationLayout
from isobatch.envs.step import BatchedEnv, Observation, Step
from isobatch.errors import UserError

MISSION_CODES = "abcdefghijklmnopqrstuvwxyz ,"
"""The characters that MiniGrid's FlatObsWrapper knows, in its order."""


class View(ABC):
    """A batch of environments, with other observations than it gives."""

    def __init__(self, env: BatchedEnv, layout: ObservationLayout) -> None:
        self.env: Any = env
        self.name, self.n_envs, self.action_layout = env.name, env.n_envs, env.action_layout
        self.observation_layout = layout

    def reset(self) -> Observation:
        """Start all environments."""
        return self.first(self.env.reset())

    def step(self, actions: Tensor) -> Step:
        """Step all environments."""
        return self.seen(self.env.step(actions))

    def send(self, actions: Tensor) -> None:
        """Begin a step, which `receive` ends."""
        self.env.send(actions)

    def receive(self) -> Step:
        """End the step under way."""
        return self.seen(self.env.receive())

    def restart(self, which: Tensor, actions: Tensor) -> Step:
        """Begin a new episode in some environments, `which` [N] bool, then step all."""
        return self.seen(self.env.restart(which, actions))

    def stepping(self) -> AbstractContextManager[None]:
        """Hold what the environments hold."""
        return self.env.stepping()

    def close(self) -> None:
        """Close the environments."""
        self.env.close()

    @abstractmethod
    def first(self, observation: Observation) -> Observation:
        """Return the first observation of all as it is seen."""

    @abstractmethod
    def seen(self, step: Step) -> Step:
        """Return a step with its observations as they are seen."""


def bare(env: BatchedEnv) -> BatchedEnv:
    """Return the environments behind all views."""
    return bare(env.env) if isinstance(env, View) else env


class FrameStack(View):
    """The last `frames` observations of each environment at once, the newest last.

    What lies before an episode's first observation is zeros, and the final observation of an
    episode is stacked on those before it, as in SB3's VecFrameStack. A `restart`, of which the
    environments show the second observation only, leaves out the first.
    """

    def __init__(self, env: BatchedEnv, frames: int) -> None:
        self.leaves = env.observation_layout.leaves
        super().__init__(env, env.observation_layout.stacked(frames))
        self.frames = frames

    def first(self, observation: Observation) -> Observation:
        """Begin with zeros."""
        self._frames = {
            part: each.new_zeros(self.n_envs, self.frames, *each.shape[1:])
            for part, each in observation.items()
        }
        self._frames = self._with(observation)
        return self._joined(self._frames)

    def seen(self, step: Step) -> Step:
        """Stack the step's observations on those before."""
        final = None
        now = self._with(step.observation)
        begins = ~step.valid
        if step.final is not None:
            final = self._joined(self._with(step.final))
            begins = begins | step.terminated | step.truncated
        if bool(begins.any()):
            for each in now.values():
                each[begins, :-1] = 0
        self._frames = now
        return step._replace(observation=self._joined(now), final=final)

    def restart(self, which: Tensor, actions: Tensor) -> Step:
        """Forget the episodes that are given up."""
        for each in self._frames.values():
            each[which] = 0
        return super().restart(which, actions)

    def _with(self, observation: Observation) -> Observation:
        """Return the frames [N, K, ...] with the oldest dropped and one added."""
        return {
            part: torch.cat([each[:, 1:], observation[part][:, None]], 1)
            for part, each in self._frames.items()
        }

    def _joined(self, frames: Observation) -> Observation:
        """Return frames as the stacked layout encodes them: each array's frames side by side."""
        found: dict[str, list[Tensor]] = {part: [] for part in frames}
        begins = dict.fromkeys(frames, 0)
        for leaf in self.leaves:
            part = "image" if leaf.kind == "image" else "vector"
            begin = begins[part]
            begins[part] = begin + leaf.size
            found[part].append(frames[part][:, :, begin : begins[part]].flatten(1, 2))
        return {part: torch.cat(each, 1) for part, each in found.items()}


class FlatMission(View):
    """EnvPool's MiniGrid as MiniGrid's FlatObsWrapper shows it: [N, 147 + 96 x 28].

    The image, and for each character of the mission a one-hot vector; no direction.
    """

    def __init__(self, env: BatchedEnv) -> None:
        leaves, begin = {}, 0
        for leaf in env.observation_layout.leaves:
            leaves[leaf.path] = slice(begin, begin + leaf.size)
            begin += leaf.size
        if env.observation_layout.image or not leaves.keys() >= {("image",), ("mission",)}:
            raise UserError(f"wrappers flat_obs is for MiniGrid, not {env.name}", field="wrappers")
        self._image, self._mission = leaves["image",], leaves["mission",]
        self._codes = torch.zeros(256, len(MISSION_CODES))
        for place, character in enumerate(MISSION_CODES):
            self._codes[[ord(character), ord(character.upper())], place] = 1
        pixels = self._image.stop - self._image.start
        length = self._mission.stop - self._mission.start
        width = pixels + length * len(MISSION_CODES)
        super().__init__(
            env, ObservationLayout.of(spaces.Box(0, 255, (width,), np.uint8), env.name)
        )

    def first(self, observation: Observation) -> Observation:
        """Return it flat."""
        rows = observation["vector"]
        mission = self._codes.to(rows.device)[rows[:, self._mission].long()]
        return {"vector": torch.cat([rows[:, self._image], mission.flatten(1)], 1)}

    def seen(self, step: Step) -> Step:
        """Return it flat."""
        final = None if step.final is None else self.first(step.final)
        return step._replace(observation=self.first(step.observation), final=final)
