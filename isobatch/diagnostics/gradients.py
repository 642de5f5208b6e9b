"""How heavy the tails of gradients are."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

SMALLEST = 1e-8
"""Added to |g| before its logarithm, which zero has none of."""


@torch.no_grad()
def kurtosis(values: Tensor) -> float:
    """Pearson's kurtosis of all values, in float64: 3 for a normal law, 1.8 uniform, 6 Laplace.

    kurtosis = mean (x - m)^4 / (mean (x - m)^2)^2,  m = mean x

    Of the values as they are, without correction for a small sample, like scipy's
    `kurtosis(fisher=False)`. nan where all values are the same: there is no spread to measure by.
    """
    values = values.reshape(-1)
    if not len(values) or bool((values == values[0]).all()):
        return math.nan
    values = values.double()
    squares = (values - values.mean()).square_()
    return float(squares.dot(squares) / len(squares) / squares.mean().square())


@torch.no_grad()
def gradient_kurtosis(gradients: Tensor | Iterable[Tensor]) -> float:
    """Kurtosis (Pearson's) of log(|g| + 1e-8), pooled over all entries of a batch's gradient.

    The gradient is one tensor of any shape, or those of several parameters. Entries that are zero,
    as those of dead units are, count with log 1e-8 (Mayor et al. 2025, arXiv 2506.03404).
    """
    parts = [gradients] if isinstance(gradients, Tensor) else list(gradients)
    if not parts:
        return math.nan
    entries = torch.cat([part.reshape(-1) for part in parts])
    return kurtosis(entries.abs().add_(SMALLEST).log_())


def gradient_norm_kurtosis(norms: Tensor) -> float:
    """Kurtosis (Pearson's) of the norms of single samples' gradients, [B] (Garg et al. 2021)."""
    return kurtosis(norms)
