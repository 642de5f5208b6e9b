"""Whole episodes, played for their scores: evaluation, in training and after it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from isobatch.envs import BatchedEnv, Observation
from isobatch.experience.episodes import EpisodeScores

MOST_ENVS = 16
"""Evaluation environments at most; each plays as many episodes as the others, to within one."""


@dataclass(frozen=True)
class Evaluation:
    """Returns and lengths of evaluation episodes."""

    returns: list[float] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)

    @property
    def mean(self) -> float:
        """Mean return."""
        return float(np.mean(self.returns))

    @property
    def std(self) -> float:
        """Standard deviation of the returns."""
        return float(np.std(self.returns))


@torch.inference_mode()
def play(act: Callable[[Observation], Tensor], env: BatchedEnv, episodes: int) -> Evaluation:
    """Play whole episodes; `act` gives actions [N, K] for observations.

    Every environment plays the same number of episodes, to within one, so that short episodes are
    not counted more often than long ones.
    """
    quota = np.full(env.n_envs, episodes // env.n_envs)
    quota[: episodes % env.n_envs] += 1
    scores, played = EpisodeScores(env.n_envs), Evaluation()
    observation = env.reset()
    with env.stepping():
        while quota.any():
            step = env.step(act(observation))
            observation = step.observation
            dropped = None if step.dropped is None else step.dropped[None]
            rows = step.scored[None], step.ended[None], step.valid[None], dropped
            for episode in scores.take_in(*rows):
                if quota[episode.env]:
                    played.returns.append(episode.score)
                    played.lengths.append(episode.length)
                    quota[episode.env] -= 1
    return played
