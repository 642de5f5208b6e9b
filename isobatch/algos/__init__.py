"""Algorithms: each a composition of the rooms above, behind one small protocol."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from isobatch.algos.ppg import Ppg, check_phase_memory
from isobatch.algos.ppo import Ppo
from isobatch.algos.pqn import Pqn
from isobatch.algos.reinforce import Reinforce
from isobatch.algos.stale import Stale
from isobatch.recipe import Recipe
from isobatch.rollout import Rollout
from isobatch.state import TrainState

__all__ = ["Learner", "check_phase_memory", "make_learner"]


class Learner(Protocol):
    """Learns from one rollout after another, changing the run's state."""

    columns: tuple[str, ...]
    """The statistics an iteration may have."""

    def learn(self, rollout: Rollout) -> dict[str, float]:
        """Learn from a rollout; return the iteration's statistics, those of `columns` it has."""
        ...

    def adopt(self, recipe: Recipe) -> None:
        """Go on with another batch and hyperparameters."""
        ...

    def close(self) -> None:
        """Give back what is held outside the state."""
        ...


def make_learner(
    state: TrainState,
    recipe: Recipe,
    chunk_size: int,
    directory: Path,
    note: Callable[[str], None] = lambda text: None,
) -> Learner:
    """Return the learner of the recipe's algorithm.

    `directory` is for files it may need while it runs; `note` is told what goes on in an iteration
    that takes long.
    """
    learner = _algorithm(state, recipe, chunk_size, directory, note)
    if recipe.objective.staleness:
        return Stale(learner, state, recipe.objective, chunk_size)
    return learner


def _algorithm(
    state: TrainState,
    recipe: Recipe,
    chunk_size: int,
    directory: Path,
    note: Callable[[str], None],
) -> Learner:
    if recipe.is_phasic:
        return Ppg(state, recipe, chunk_size, directory / "phase.bin", note)
    if recipe.algo == "reinforce":
        return Reinforce(state, recipe, chunk_size)
    if recipe.algo == "pqn":
        return Pqn(state, recipe, chunk_size)
    return Ppo(state, recipe, chunk_size)
