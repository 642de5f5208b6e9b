"""What a run keeps of what it has seen, so that diagnostics look at the same thing all the time."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor

from isobatch.diagnostics.coverage import StateCoverage, VisitCounts

HELD_ROWS = 512
"""Observations that ranks and dormant units are measured on."""
HELD_BYTES = 1 << 23
"""Their size at most: 297 stacks of Atari frames. They are in every checkpoint."""

Pick = Callable[[Tensor], dict[str, Tensor]]
"""Numbers of rows [b] -> their observations, [b, ...] each part, in memory of their own."""


class Seen:
    """Observations held out from the first rollout, and what is counted of all that were seen."""

    def __init__(self) -> None:
        self.held: dict[str, Tensor] = {}
        """Rows [H, ...] as the environment gave them; empty before the first rollout."""
        self.coverage = StateCoverage()
        self.visits = VisitCounts()

    def update(self, observations: Mapping[str, Tensor], count_visits: bool = False) -> None:
        """Take in a rollout's transitions [B, ...]; of the first, hold out evenly spread ones."""

        def pick(rows: Tensor) -> dict[str, Tensor]:
            return {part: each[rows.to(each.device)] for part, each in observations.items()}

        size = sum(each[:1].numel() * each.element_size() for each in observations.values())
        self.take_in(self.coverage.hashes(observations), pick, size, count_visits)

    def take_in(self, hashes: np.ndarray, pick: Pick, row_bytes: int, count_visits: bool) -> None:
        """Take in a rollout's B transitions by their `hashes` (`StateCoverage.hashes`).

        Of the first rollout, hold out evenly spread ones: `pick` gives the observations of some of
        the B, and `row_bytes` is the size of one.
        """
        if not len(hashes):
            return
        if not self.held:
            wanted = min(len(hashes), HELD_ROWS, max(1, HELD_BYTES // row_bytes))
            self.held = pick(torch.linspace(0, len(hashes) - 1, wanted).long())
        self.coverage.count(hashes)
        if count_visits:
            self.visits.update(hashes)

    def state_dict(self) -> dict[str, Tensor]:
        """Return what a checkpoint keeps."""
        parts = {
            "coverage": self.coverage.state_dict(),
            "visits": self.visits.state_dict(),
            "held": self.held,
        }
        return {f"{part}.{name}": each for part, own in parts.items() for name, each in own.items()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore from `state_dict`; of nothing, as older checkpoints have it, begin anew.

        So begin the counts of checkpoints with a scale, whose bins were of another kind.
        """
        parts: dict[str, dict[str, Tensor]] = {"coverage": {}, "visits": {}, "held": {}}
        for name, each in state.items():
            part, _, rest = name.partition(".")
            parts[part][rest] = each
        self.held = parts["held"]
        if parts["coverage"] and not len(parts["coverage"].get("scale", ())):
            self.coverage.load_state_dict(parts["coverage"])
            self.visits.load_state_dict(parts["visits"])
