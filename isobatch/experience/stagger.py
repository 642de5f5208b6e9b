"""Environments spread over their episodes before anything counts.

Environments that are all reset at once stay in step for a while, for ever where every episode is
as long as the next; and the more there are, the less of the budget it takes to see the end of an
episode. So comparisons of N would compare phases of episodes too.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from isobatch.envs import BatchedEnv
from isobatch.experience.actor import Actor
from isobatch.experience.collect import Collector
from isobatch.experience.episodes import EpisodeTracker
from isobatch.experience.rollout import Rollout

PIECE = 64
"""Steps at a time."""
BURN_IN, BURN_IN_IMAGES = 1024, 256
"""Most steps until each environment has ended an episode."""
SPREAD, SPREAD_IMAGES = 512, 128
"""Most steps that environments are spread over."""


def limits(env: BatchedEnv) -> tuple[int, int]:
    """Return the most steps of the two parts, until episodes have ended and of the spread."""
    if env.observation_layout.image is not None:
        return BURN_IN_IMAGES, SPREAD_IMAGES
    return BURN_IN, SPREAD


def burn_in(act: Callable[[int], Rollout], env: BatchedEnv) -> tuple[int, float | None, int]:
    """Step until each environment has ended an episode, or for `BURN_IN` steps.

    Return the steps, the mean length of episodes, and over how many steps to spread: one episode.
    """
    n_envs, (most, widest) = env.n_envs, limits(env)
    episodes, ended, steps = EpisodeTracker(n_envs), torch.zeros(n_envs, dtype=torch.bool), 0
    while steps < most and not bool(ended.all()):
        rollout = act(PIECE)
        episodes.update(rollout)
        ended |= rollout.over.any(0).cpu()
        steps += PIECE
    length = episodes.mean_length
    return steps, length, max(1, min(widest, round(length or widest)))


def stagger(collector: Collector, actor: Actor, generator: torch.Generator) -> int:
    """Leave each environment at a step of its own in an episode; return the transitions it took.

    They are stepped until each has ended an episode, or for `BURN_IN` steps; then over about an
    episode's length, each beginning a new one at a random step of these.
    """
    n_envs, taken = collector.env.n_envs, 0

    def act(steps: int) -> Rollout:
        nonlocal taken
        rollout = collector.collect(actor, steps)
        taken += rollout.n_valid
        return rollout

    _, _, spread = burn_in(act, collector.env)
    draw = torch.randint(spread, (n_envs,), generator=generator, device=generator.device).cpu()
    for step in range(spread):
        begins = draw == step
        taken += int(collector.advance(actor, begins if bool(begins.any()) else None).sum())
    return taken
