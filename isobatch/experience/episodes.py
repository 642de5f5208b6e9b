"""How episodes are scored: by the environment's own rewards, from reset to the end of the game."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from isobatch.experience.rollout import Rollout


class Episode(NamedTuple):
    """An episode that ended."""

    env: int
    """Which environment's."""
    score: float
    """Its undiscounted return, of the environment's own rewards."""
    length: int


class EpisodeScores:
    """Adds up the rewards of N environments' episodes, in training and in evaluation alike.

    An episode counts from a reset to the end of the whole game; a lost life or a reset row is
    neither its end nor part of it.
    """

    def __init__(self, n_envs: int, under_way: bool = False) -> None:
        """With `under_way`, each environment is in an episode whose beginning was not seen."""
        self._return = np.zeros(n_envs)
        self._length = np.zeros(n_envs, np.int64)
        self._unknown = np.full(n_envs, under_way)

    def take_in(
        self, scores: Tensor, over: Tensor, valid: Tensor, dropped: Tensor | None = None
    ) -> list[Episode]:
        """Take in some steps, each [T, N]; return the episodes that ended, in that order.

        An episode that is `dropped` counts no more, nor as one that ended.
        """
        counted = valid.cpu().numpy()
        totals = np.where(counted, scores.cpu().numpy(), 0.0).cumsum(0, dtype=float)
        steps = counted.cumsum(0)
        totals += self._return
        steps += self._length
        ends = over.cpu().numpy() & counted
        lost = np.zeros_like(ends) if dropped is None else dropped.cpu().numpy()
        ceased = ends | lost
        if not ceased.any():  # Of single steps, most.
            self._return, self._length = totals[-1], steps[-1]
            return []
        ended = np.zeros_like(self._return), np.zeros_like(self._length)
        episodes = []
        for t, n in np.argwhere(ceased):
            score, length = totals[t, n] - ended[0][n], steps[t, n] - ended[1][n]
            if not self._unknown[n] and not lost[t, n]:
                episodes.append(Episode(int(n), float(score), int(length)))
            self._unknown[n] = False
            ended[0][n], ended[1][n] = totals[t, n], steps[t, n]
        self._return, self._length = totals[-1] - ended[0], steps[-1] - ended[1]
        return episodes

    def tensors(self) -> dict[str, Tensor]:
        """Return the episodes under way, for environments that are brought back to them."""
        return {
            "return": torch.from_numpy(self._return.copy()),
            "length": torch.from_numpy(self._length.copy()),
            "unknown": torch.from_numpy(self._unknown.copy()),
        }

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore from `tensors`."""
        self._return = tensors["return"].numpy().copy()
        self._length = tensors["length"].numpy().copy()
        self._unknown = tensors["unknown"].numpy().copy()


class EpisodeTracker:
    """Returns and lengths of the last episodes of training."""

    WINDOW = 100

    def __init__(self, n_envs: int) -> None:
        self.returns: deque[float] = deque(maxlen=self.WINDOW)
        self.lengths: deque[int] = deque(maxlen=self.WINDOW)
        self.finished = 0
        self.restart(n_envs)

    def restart(self, n_envs: int, under_way: bool = False) -> None:
        """Forget the episodes under way: there are `n_envs` new environments.

        With `under_way` they are within episodes, whose scores are then not known.
        """
        self.under_way = EpisodeScores(n_envs, under_way)

    def update(self, rollout: Rollout) -> None:
        """Take in a rollout; episodes are recorded in the order they ended."""
        for episode in self.under_way.take_in(
            rollout.scores, rollout.over, rollout.valid, rollout.dropped
        ):
            self.returns.append(episode.score)
            self.lengths.append(episode.length)
            self.finished += 1

    @property
    def mean_return(self) -> float | None:
        """Mean return of the last 100 episodes, None before the first ended."""
        return float(np.mean(self.returns)) if self.returns else None

    @property
    def mean_length(self) -> float | None:
        """Mean length of the last 100 episodes, None before the first ended."""
        return float(np.mean(self.lengths)) if self.lengths else None

    def state_dict(self) -> dict:
        """Return what a checkpoint keeps; episodes under way are lost with their environments."""
        return {
            "returns": list(self.returns),
            "lengths": list(self.lengths),
            "finished": self.finished,
        }

    def load_state_dict(self, state: dict) -> None:
        """Restore from `state_dict`."""
        self.returns.extend(state["returns"])
        self.lengths.extend(state["lengths"])
        self.finished = state["finished"]
