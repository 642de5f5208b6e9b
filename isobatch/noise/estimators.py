"""The estimates themselves, once each: of sums over environments, whoever made the sums.

The laboratory makes them of per-sample gradients, with resamples to tell how sure they are;
training of a few groups of environments. The formulas are the same.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

from isobatch.noise.clusters import Sums


class ClusterSums(Protocol):
    """Sums over clusters of T_n rows with mean gradients g_n, numbers or tensors of them."""

    @property
    def sampled(self) -> Any:
        """1 where they are a sample, 0 where they are all there are."""
        ...

    @property
    def rows(self) -> Any:
        """sum T_n."""
        ...

    @property
    def rows_squared(self) -> Any:
        """sum T_n^2."""
        ...

    @property
    def rows_cubed(self) -> Any:
        """sum T_n^3."""
        ...

    @property
    def between_squared(self) -> Any:
        """sum T_n^2 |g_n - m|^2, m the mean over all rows."""
        ...

    @property
    def mean_square(self) -> Any:
        """|m|^2."""
        ...


def variance(sums: ClusterSums) -> Any:
    """Variance of the mean over all clusters' rows, as a ratio estimate.

    With shares p_n = T_n / sum T_n and P_k = sum p_n^k,

    V = sum p_n^2 |g_n - m|^2 / (1 - 2 P_3 / P_2 + P_2),

    for C equal clusters sum |g_n - m|^2 / (C (C - 1)). The mean m leans towards large clusters,
    so their distances from it come out too small; the divisor makes up for it without bias where
    the g_n vary alike, since E |g_n - m|^2 = sigma^2 (1 - 2 p_n + P_2).
    """
    second = sums.rows_squared / sums.rows**2
    third = sums.rows_cubed / sums.rows**3
    seen = 1 - sums.sampled * (2 * third / second - second)
    return sums.between_squared / sums.rows**2 / seen


def squared_gradient(sums: ClusterSums) -> Any:
    """|G|^2, the squared norm of the true mean: |m|^2 without its own noise; may be below zero."""
    return sums.mean_square - sums.sampled * variance(sums)


def two_batch_trace(small_square: Any, big_square: Any, small: Any, big: Any) -> Any:
    """tr(Sigma) of one row from the squared gradients of batches of two sizes.

    S = (|g_s|^2 - |g_b|^2) / (1 / B_s - 1 / B_b)  (McCandlish et al. 2018, appendix A)
    """
    return (small_square - big_square) / (1 / small - 1 / big)


def two_batch_squared_gradient(small_square: Any, big_square: Any, small: Any, big: Any) -> Any:
    """|G|^2 from the same, (B_b |g_b|^2 - B_s |g_s|^2) / (B_b - B_s)."""
    return (big * big_square - small * small_square) / (big - small)


def sample_variance(sums: Sums) -> Tensor:
    """sigma^2, the variance of one sample's gradient, within and between clusters."""
    between, within, steps = _mean_squares(sums)
    return within + (between - within) / steps


def intraclass(sums: Sums) -> Tensor:
    """Correlation of two samples of one cluster."""
    between, within, steps = _mean_squares(sums)
    return (between - within) / (between + (steps - 1) * within)


def _mean_squares(sums: Sums) -> tuple[Tensor, Tensor, Tensor]:
    """Return MSB, MSW and the clusters' size as analysis of variance has it."""
    count = sums.n_clusters
    freedom = count - sums.sampled
    between = sums.between / freedom
    free = sums.rows - count
    within = sums.within / torch.where(free > 0, free, 1)
    steps = (sums.rows - sums.rows_squared / sums.rows) / (count - 1)
    return between, within, steps
