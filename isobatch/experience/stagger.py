"""Environments spread over their episodes before anything counts.

Environments that are all reset at once stay in step for a while, for ever where every episode is
as long as the next; and the more there are, the less of the budget it takes to see the end of an
episode. So comparisons of N would compare phases of episodes too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from isobatch.envs import BatchedEnv
from isobatch.experience.actor import Actor, Several, Single
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


class BurnIn:
    """Watches N environments until each has ended an episode."""

    def __init__(self, n_envs: int, widest: int) -> None:
        self._episodes, self._widest = EpisodeTracker(n_envs), widest
        self._ended = torch.zeros(n_envs, dtype=torch.bool)

    def see(self, rollout: Rollout) -> None:
        """Take in the next steps."""
        self._episodes.update(rollout)
        self._ended |= rollout.over.any(0).cpu()

    @property
    def is_over(self) -> bool:
        """True where each has."""
        return bool(self._ended.all())

    @property
    def length(self) -> float | None:
        """The mean length of episodes, None where none has ended."""
        return self._episodes.mean_length

    @property
    def spread(self) -> int:
        """Over how many steps to spread the environments: one episode."""
        return max(1, min(self._widest, round(self.length or self._widest)))


def burn_in(act: Callable[[int], Rollout], env: BatchedEnv) -> tuple[int, float | None, int]:
    """Step until each environment has ended an episode, or for `BURN_IN` steps.

    Return the steps, the mean length of episodes, and over how many steps to spread.
    """
    most, widest = limits(env)
    watch, steps = BurnIn(env.n_envs, widest), 0
    while steps < most and not watch.is_over:
        watch.see(act(PIECE))
        steps += PIECE
    return steps, watch.length, watch.spread


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
    draw = _draw(spread, n_envs, generator)
    for step in range(spread):
        begins = draw == step
        taken += int(collector.advance(actor, begins if bool(begins.any()) else None).sum())
    return taken


def stagger_together(collector: Collector, actors: Sequence[Single]) -> list[int]:
    """As `stagger`, for several policies, each in a share of the environments of its own.

    All are stepped as often, `BURN_IN` + `SPREAD` times, so that where a policy's environments are
    left depends on no other's. Each policy's are spread over the last of these steps, as many as
    its own episodes are long. Return the transitions of each: until its environments have ended an
    episode, and while they are spread; what it is stepped between these is not counted.
    """
    env, together = collector.env, Several(actors)
    n_envs, (most, widest) = env.n_envs // len(actors), limits(env)
    taken, watches = [0] * len(actors), [BurnIn(n_envs, widest) for _ in actors]
    for _ in range(0, most, PIECE):
        rollout = collector.collect(together, PIECE)
        for place, watch in enumerate(watches):
            if not watch.is_over:
                share = rollout.share(place, n_envs)
                watch.see(share)
                taken[place] += share.n_valid
    begin = torch.cat(
        [
            widest - watch.spread + _draw(watch.spread, n_envs, each.generator)
            for watch, each in zip(watches, actors, strict=True)
        ]
    )
    with env.stepping():
        for step in range(widest):
            # Where nobody begins too: a restart may take others a step further.
            valid = collector.advance(together, begin == step).view(len(actors), n_envs).sum(1)
            for place, watch in enumerate(watches):
                taken[place] += int(valid[place]) if step >= widest - watch.spread else 0
    return taken


def _draw(spread: int, n_envs: int, generator: torch.Generator) -> torch.Tensor:
    """Return at which of the steps each environment begins a new episode."""
    return torch.randint(spread, (n_envs,), generator=generator, device=generator.device).cpu()
