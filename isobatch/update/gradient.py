"""The update as a pure function: (parameters, samples, hyperparameters) -> sums over rows.

Rows are summed in one place, `sums`, and divided by their number in one place, `means`. Whatever
deals rows out (chunks, replicas, padding for a compiled function) adds sums up and divides once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from isobatch.update.table import Table

PIXELS_PER_CHUNK = 1 << 18
"""Image pixels per forward-backward pass: 64 Procgen frames, whose activations stay in cache."""
NATURE_PIXELS_PER_CHUNK = 1 << 20
"""Of the Nature network: 148 Atari frames. It keeps a tenth of the numbers for a pixel, and each
pass goes over its many dense weights and their gradient several times."""
ROWS_PER_CHUNK = 8192
"""Vector rows per pass: large enough to amortise dispatch, small enough to bound memory."""

Call = Callable[[Any], Any]
"""The model at some parameters, as a function of observations."""
Gather = Callable[[Tensor], Any]
"""Flat rows [b] -> what the losses need of them, tensors [b, ...]."""


class Joinable(Protocol):
    """A gather whose rows may stand end to end with those of other runs' like it."""

    table: Table
    scalars: Mapping[str, Tensor]
    """Numbers that are the same for all of its rows."""

    def __call__(self, rows: Tensor) -> Any:
        """Return what the losses need of flat rows [b]."""
        ...

    def take(self, rows: Tensor, out: Tensor) -> None:
        """Write it to `out` [b, C], in the order of the table's columns."""
        ...

    def samples(self, matrix: Tensor, scalars: Mapping[str, Tensor]) -> Any:
        """Return what the losses need of rows taken [b, C]; `scalars` are numbers, or [b]."""
        ...


Evaluate = Callable[[Call, Any], tuple[Tensor, dict[str, Tensor]]]
"""(model, gathered rows) -> (losses [b], statistics by name, each [b]); pure."""


class RowSums(NamedTuple):
    """Sums over some rows."""

    loss: Tensor
    """Of the losses: a number that can be differentiated."""
    names: list[str]
    statistics: Tensor
    """[S]: of each statistic, detached."""


def sums(evaluate: Evaluate, call: Call, samples: Any, counted: Tensor | None = None) -> RowSums:
    """Sum losses and statistics over the rows of `samples`.

    `counted` [b] is 1 for rows that count and 0 for padding; without it all count.
    """
    losses, statistics = evaluate(call, samples)
    values = torch.stack([value.detach() for value in statistics.values()])
    if counted is None:
        return RowSums(losses.sum(), list(statistics), values.sum(1))
    return RowSums((losses * counted).sum(), list(statistics), values @ counted)


def padded(rows: Tensor, capacity: int) -> tuple[Tensor, Tensor]:
    """Return `capacity` rows, and as many numbers: 1 for each that counts and 0 for padding."""
    counted = torch.ones(capacity, device=rows.device)
    missing = capacity - len(rows)
    if not missing:
        return rows, counted
    counted[len(rows) :] = 0
    return torch.cat([rows, rows[:1].expand(missing)]), counted


def means(names: Sequence[str], parts: Sequence[Tensor], count: int | Tensor) -> dict[str, Tensor]:
    """Return the statistics' means over `count` rows, from their sums [S] over parts of them."""
    total = (parts[0] if len(parts) == 1 else torch.stack(list(parts)).sum(0)) / count
    return dict(zip(names, total.unbind(), strict=True))


def chunk_rows(image: tuple[int, int, int] | None, encoder: str = "custom", chosen: int = 0) -> int:
    """Return the rows of one forward-backward pass: `chosen`, or a cache-sized number.

    `encoder` is the recipe's name for the network.
    """
    if chosen:
        return chosen
    if image is None:
        return ROWS_PER_CHUNK
    pixels = NATURE_PIXELS_PER_CHUNK if encoder in ("auto", "nature") else PIXELS_PER_CHUNK
    return max(16, pixels // (image[1] * image[2]))
