"""Numbers of many rows side by side, so that those of a minibatch are picked at once."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor


class Table:
    """Vectors [R, K] and numbers [R] of R rows, by name, in one matrix [R, C].

    Whole numbers are kept as floats, exactly up to 2^24, and come back as what they were.
    """

    def __init__(self, vectors: Mapping[str, Tensor], numbers: Mapping[str, Tensor]) -> None:
        self._kinds = {name: each.dtype for name, each in vectors.items()}
        self._widths = [each.shape[1] for each in vectors.values()]
        self._places = {name: k + sum(self._widths) for k, name in enumerate(numbers)}
        self._sizes = [*self._widths, len(numbers)]
        columns = torch.stack(list(numbers.values()), 1)
        self.matrix = torch.cat([*(each.to(columns) for each in vectors.values()), columns], 1)

    @property
    def width(self) -> int:
        """Numbers of a row, C."""
        return self.matrix.shape[1]

    def place(self, name: str) -> int:
        """Return the column that a number is in."""
        return self._places[name]

    def vector(self, matrix: Tensor, name: str) -> Tensor:
        """Return where a vector is in rows [b, C]: a view [b, K]."""
        at = list(self._kinds).index(name)
        return matrix.narrow(1, sum(self._widths[:at]), self._widths[at])

    def take(self, rows: Tensor, out: Tensor | None = None) -> Tensor:
        """Return some rows [b, C]."""
        return torch.index_select(self.matrix, 0, rows, out=out)

    def unpack(self, matrix: Tensor) -> dict[str, Tensor]:
        """Return the vectors and numbers of rows [b, C] by name."""
        *vectors, columns = matrix.split(self._sizes, 1)
        found = {
            name: each if kind is each.dtype else each.to(kind)
            for (name, kind), each in zip(self._kinds.items(), vectors, strict=True)
        }
        # Each number's own b end to end: strided ones take the losses twice as long.
        found.update(zip(self._places, columns.T.contiguous().unbind(), strict=True))
        return found
