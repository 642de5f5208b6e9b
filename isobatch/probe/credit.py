"""Credit-assignment noise: what chance after a state and an action adds to the gradient's variance.

Given s and a, the gradient A grad log pi(a|s) varies only through A: by the rewards and states that
follow. That part is E[Var(A | s, a) |grad log pi|^2] of one sample's variance. It takes the same
state and action twice, in different environments: half the mean squared difference of their
advantages is then Var(A | s, a) without bias. How far from the rollout's end a row stands counts
as chance too. Where no state comes twice, as in nearly all continuous environments, the data at
hand cannot tell it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
import torch
from torch import Tensor

from isobatch.envs import Observation

ENOUGH = 0.5
"""Of the rows must have a twin, or the rest may be another matter."""


@dataclass(frozen=True)
class Credit:
    """The credit-assignment noise of a batch's gradient."""

    variance: float
    """Its part of the variance of the batch's gradient; NaN where it cannot be estimated."""
    covered: float
    """Share of the rows whose state and action were seen in another environment too."""

    @property
    def is_identified(self) -> bool:
        """True where enough rows have a twin."""
        return math.isfinite(self.variance)


def numbered(observations: Observation, actions: Tensor) -> Tensor:
    """Number the pairs of state and action [L, M], the same ones alike: an observation is a state.

    `observations` may have more rows than `actions` [L, M, K].
    """
    count = actions.shape[0] * actions.shape[1]
    parts = [each[: len(actions)] for each in observations.values()]
    rows = [each.reshape(count, -1).contiguous().numpy() for each in (*parts, actions)]
    known: dict[bytes, int] = {}
    found = [known.setdefault(_digest(rows, k), len(known)) for k in range(count)]
    return torch.tensor(found).view(actions.shape[:2])


def _digest(parts: Sequence[np.ndarray], row: int) -> bytes:
    """Return a row of all parts in a few bytes: images are large."""
    return blake2b(b"".join(part[row].tobytes() for part in parts), digest_size=16).digest()


def credit_noise(
    scales: Tensor, squares: Tensor, pairs: Tensor, valid: Tensor, samples: int
) -> Credit:
    """Estimate the noise of batches of so many samples, all [C, T]: advantages, |grad log pi|^2.

    Of the pairs of rows i, j with one state and action in different environments,
    Var(A | s, a) = mean (A_i - A_j)^2 / 2.
    """
    groups = pairs[valid]
    owners = torch.arange(len(scales))[:, None].expand_as(scales)[valid]
    values = scales[valid].double()
    groups = groups.unique(return_inverse=True)[1]
    visits = (groups * len(scales) + owners).unique(return_inverse=True)[1]
    # Of all pairs of a group, those within one environment do not count.
    number, differences = _differences(values, groups)
    number_alike, differences_alike = _differences(values, visits)
    group_of = torch.zeros(len(number_alike), dtype=torch.long).scatter_(0, visits, groups)
    number = number.index_add(0, group_of, -number_alike)
    differences = differences.index_add(0, group_of, -differences_alike)
    known = (number > 0)[groups]
    covered = float(known.double().mean()) if len(known) else 0.0
    if covered < ENOUGH:
        return Credit(math.nan, covered)
    spread = (differences / number.clamp(min=1) / 2)[groups][known]
    return Credit(float((spread * squares[valid].double()[known]).mean()) / samples, covered)


def _differences(values: Tensor, groups: Tensor) -> tuple[Tensor, Tensor]:
    """Return each group's number of ordered pairs, and the sum of their squared differences."""
    zero = torch.zeros(int(groups.max()) + 1 if len(groups) else 0, dtype=torch.float64)
    count = zero.index_add(0, groups, torch.ones_like(values))
    total = zero.index_add(0, groups, values)
    squares = zero.index_add(0, groups, values.square())
    return count.square() - count, 2 * (count * squares - total.square())
