"""Updates whose numbers are none: the run stops with its batch kept, or the update is undone."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import torch

from isobatch.algos import Learned, Learner
from isobatch.algos.learner import Awaits
from isobatch.errors import UserError
from isobatch.experience import Rollout, to_tensors
from isobatch.run.store import DIVERGED, RunDirectory
from isobatch.state import TrainState
from isobatch.text import counted

MOST_SKIPPED = 10
"""Updates in a row that may be undone."""


class Diverged(UserError):
    """Losses, gradients or weights are not finite."""


class Guard:
    """Lets a learner learn, and looks at what comes of it before that reaches a checkpoint."""

    def __init__(self, learner: Learner, directory: RunDirectory, alone: bool = True) -> None:
        self._learner, self._directory, self._alone = learner, directory, alone
        self.columns = learner.columns
        self._in_a_row = 0

    async def learn(self, state: TrainState, rollout: Rollout) -> Learned:
        """Learn from a rollout; stop a run that diverges, or undo it where the recipe says so."""
        return await self.watch(state, lambda: self._learn(rollout), lambda: rollout)

    async def watch(
        self,
        state: TrainState,
        learn: Callable[[], Awaitable[Learned]],
        rollout: Callable[[], Rollout],
    ) -> Learned:
        """As `learn`, whatever it is that learns; `rollout` gives the one to keep."""
        skips = state.recipe.optimizer.on_divergence == "skip"
        before = Before(state) if skips else None
        learned = await learn()
        lost = _lost(state, learned.statistics)
        if lost is None:
            self._in_a_row = 0
            return _with(learned, {"skipped_updates": 0}) if skips else learned
        self._in_a_row += 1
        if before is None or self._in_a_row > MOST_SKIPPED:
            self._keep(state, rollout(), lost)
            times = f", {self._in_a_row} times in a row" if skips else ""
            raise Diverged(
                f"training diverged after {counted(state.counters.env_steps, 'env step')}: {lost} "
                f"is not finite{times}; lower the learning rate (the batch is in {DIVERGED})"
            )
        before.restore(state)
        return Learned({"skipped_updates": 1}, phase_iterations=learned.phase_iterations)

    async def _learn(self, rollout: Rollout) -> Learned:
        if self._alone or not isinstance(self._learner, Awaits):
            return self._learner.learn(rollout)
        return await self._learner.learning(rollout)

    def _keep(self, state: TrainState, rollout: Rollout, lost: str) -> None:
        """Write the rollout for who wants to know why."""
        tensors = {name.removeprefix("0."): each for name, each in to_tensors([rollout]).items()}
        data = {"env_steps": state.counters.env_steps, "not_finite": lost}
        with suppress(OSError):  # A full disk is not why it stops.
            self._directory.save_diverged(tensors, data)


class Before:
    """A copy of what an update changes."""

    def __init__(self, state: TrainState) -> None:
        self._tensors = {name: each.detach().clone() for name, each in state.tensors().items()}
        self._running = state.reward_normalizer.running.clone()
        # Episodes are added to what there is; no update changes them.
        none = {"returns": [], "lengths": [], "finished": state.episodes.finished}
        self._numbers: dict[str, Any] = state.numbers() | {"episodes": none}

    def restore(self, state: TrainState) -> None:
        """Undo the update."""
        state.load(self._tensors, self._numbers)
        state.reward_normalizer.running = self._running


def _with(learned: Learned, statistics: dict[str, float]) -> Learned:
    return learned._replace(statistics=learned.statistics | statistics)


def _lost(state: TrainState, statistics: dict[str, float]) -> str | None:
    """Name what is not finite, None where everything is."""
    for name, value in statistics.items():
        if not math.isfinite(value):
            return name
    return None if bool(torch.isfinite(state.parameters.vector).all()) else "a weight"
