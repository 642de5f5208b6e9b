"""Whole episodes, played for their scores: evaluation, in training and after it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from isobatch.envs import BatchedEnv, Observation
from isobatch.experience.actor import Actor
from isobatch.experience.episodes import EpisodeScores

Choose = Callable[[Observation], Tensor]
"""Observations [N, ...] -> actions [N, K]."""
MOST_ENVS = 16
"""Evaluation environments at most; each plays as many episodes as the others, to within one."""
NOISE_STEPS = 64
"""Steps whose random numbers are drawn at once, each policy's by itself."""


@dataclass(frozen=True)
class Evaluation:
    """Returns and lengths of evaluation episodes."""

    returns: list[float] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    actions: Literal["sampled", "deterministic"] = "sampled"
    """Whether actions were drawn from the policy, or the most likely ones were taken."""

    @property
    def mean(self) -> float:
        """Mean return."""
        return float(np.mean(self.returns))

    @property
    def std(self) -> float:
        """Standard deviation of the returns."""
        return float(np.std(self.returns))


def play(choose: Choose, env: BatchedEnv, episodes: int) -> Evaluation:
    """Play whole episodes.

    Every environment plays the same number of episodes, to within one, so that short episodes are
    not counted more often than long ones.
    """
    (played,) = play_together(choose, env, episodes, 1)
    return played


@torch.inference_mode()
def play_together(choose: Choose, env: BatchedEnv, episodes: int, shares: int) -> list[Evaluation]:
    """As `play`, `episodes` in each of equal shares of the environments.

    What a share plays does not depend on the others. All are stepped until the last is done.
    """
    n_envs = env.n_envs // shares
    quota = np.full((shares, n_envs), episodes // n_envs)
    quota[:, : episodes % n_envs] += 1
    quota = quota.reshape(-1)
    scores, played = EpisodeScores(env.n_envs), [Evaluation() for _ in range(shares)]
    observation = env.reset()
    with env.stepping():
        while quota.any():
            step = env.step(choose(observation))
            observation = step.observation
            dropped = None if step.dropped is None else step.dropped[None]
            rows = step.scored[None], step.ended[None], step.valid[None], dropped
            for episode in scores.take_in(*rows):
                if quota[episode.env]:
                    share = played[episode.env // n_envs]
                    share.returns.append(episode.score)
                    share.lengths.append(episode.length)
                    quota[episode.env] -= 1
    return played


def drawing(actor: Actor, n_envs: int, device: torch.device) -> Choose:
    """Return how actions are drawn from an actor's policy as it is now."""
    draw, like = actor.drawing(n_envs), torch.zeros((), device=device)
    steps = actor.hold * math.ceil(NOISE_STEPS / actor.hold)
    noise = itertools.chain.from_iterable(
        actor.noise(steps, n_envs, like) for _ in itertools.count()
    )

    def choose(observation: Observation) -> Tensor:
        return draw({k: each.to(device) for k, each in observation.items()}, next(noise)).actions

    return choose
