"""Environments as clusters: what the estimates need of gradients, and how sure they are.

Steps of one environment depend on each other, environments do not. So the environment is what
is resampled: a function of sums over environments is estimated with its interval by the
studentised bootstrap (Efron 1979; Hall 1992), which stays near its level for as few as eight.

Everything follows from inner products of the environments' mean gradients, so that the gradients
themselves need not be kept.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.func import jacrev, vmap

from isobatch.estimate import Estimate

RESAMPLES = 1000
LEVEL = 0.05
"""Intervals miss the truth this often."""
NO_BOUND = 1e6
"""Of what is positive, a bound this many times the estimate, or as far below it, is none."""


class Sums(NamedTuple):
    """Sums over environments, each a number (or [R] of as many resamples).

    Row counts T_n, mean gradients g_n, and m, the mean over all rows.
    """

    n_clusters: Tensor
    sampled: Tensor
    """1 where the environments are a sample, 0 where they are all there are, as those at hand are
    to the resamples drawn from them; n_clusters - sampled is then the degrees of freedom."""
    rows: Tensor
    """sum T_n."""
    rows_squared: Tensor
    """sum T_n^2."""
    rows_cubed: Tensor
    """sum T_n^3."""
    within: Tensor
    """sum_n sum_t |g_nt - g_n|^2."""
    squares: Tensor
    """sum_n sum_t |g_nt|^2."""
    between: Tensor
    """sum T_n |g_n - m|^2."""
    between_squared: Tensor
    """sum T_n^2 |g_n - m|^2."""
    mean_square: Tensor
    """|m|^2."""
    part_square: Tensor
    """Mean over the parts of |m_part|^2; 0 where there are none."""


class Terms(NamedTuple):
    """What each of C environments adds to the J sums, in R resamples."""

    fixed: Tensor
    """[F, C]: to the first F, the same in every resample, so that these need no more than a matrix
    product."""
    moving: list[Tensor]
    """J - F times [R, C]: to the others, which depend on m."""

    def summed(self, weights: Tensor) -> Sums:
        """Sum over environments, each counted as often as `weights` [R, C] say."""
        moving = ((weights * each).sum(1) for each in self.moving)
        return Sums(*(weights @ self.fixed.T).unbind(1), *moving)

    def along(self, slopes: Tensor) -> Tensor:
        """Return each environment's part [R, C] in sum_j slopes_j sum_j, of `slopes` [R, J]."""
        count = len(self.fixed)
        total = slopes[:, :count] @ self.fixed
        for slope, each in zip(slopes[:, count:].unbind(1), self.moving, strict=True):
            total.addcmul_(slope[:, None], each)
        return total


@dataclass(frozen=True)
class Clusters:
    """Inner products of C environments' gradients, in float64."""

    counts: Tensor
    """[C]: rows of each, T_n."""
    gram: Tensor
    """[C, C]: inner products of mean gradients."""
    squares: Tensor
    """[C]: sum over rows of |g|^2."""
    part_counts: Tensor | None = None
    """[M, C]: rows of each environment in each of M parts the rows were dealt into."""
    part_gram: Tensor | None = None
    """[M, C, C]: inner products of the parts' sums, within each part."""

    @classmethod
    def of(cls, gradients: Tensor, valid: Tensor | None = None, parts: int = 0) -> Clusters:
        """Reduce gradients [C, T, P]; only `valid` [C, T] rows count.

        With `parts`, rows are also dealt at random into so many parts, for the two-batch estimate.
        """
        scales = torch.ones(gradients.shape[:2])
        squares = gradients.square().sum(2, dtype=torch.float64)
        return cls.scaled(scales, gradients, squares, valid, parts)

    @classmethod
    def scaled(
        cls,
        scales: Tensor,
        vectors: Tensor,
        squares: Tensor,
        valid: Tensor | None = None,
        parts: int = 0,
    ) -> Clusters:
        """The same of gradients that are `scales` [C, T] times `vectors` [C, T, P].

        `squares` [C, T] are the vectors' squared norms. The products are never written down.
        """
        if valid is None:
            valid = torch.ones(scales.shape, dtype=torch.bool)
        counts = valid.sum(1)
        known = counts > 0
        if not bool(known.all()):  # The usual case is spared a copy.
            scales, vectors, squares, valid = (
                each[known] for each in (scales, vectors, squares, valid)
            )
        weights = torch.where(valid, scales, 0).to(vectors.dtype)
        counts = counts[known].double()
        means = torch.einsum("ct,ctp->cp", weights, vectors).double() / counts[:, None]
        dealt = {}
        if parts:
            share = _dealt(valid, parts)
            sums = torch.einsum("mct,ctp->mcp", share * weights, vectors).double()
            dealt = {
                "part_counts": share.sum(2).double(),
                "part_gram": torch.einsum("mcp,mdp->mcd", sums, sums),
            }
        total = (weights.double().square() * squares.double()).sum(1)
        return cls(counts, means @ means.T, total, **dealt)

    def __len__(self) -> int:
        return len(self.counts)

    def sums(self, weights: Tensor, sampled: float = 1.0) -> Sums:
        """Sum over environments, each counted as often as `weights` [R, C] say."""
        return self.terms(weights, sampled).summed(weights)

    def terms(self, weights: Tensor, sampled: float = 1.0) -> Terms:
        """Return each environment's part in the sums, linearised where m itself moves with it.

        This is what the infinitesimal jackknife takes.
        """
        counts = self.counts
        rows = weights @ counts
        share = weights * counts / rows[:, None]
        along = share @ self.gram
        mean_square = (along * share).sum(1)
        distance = (self.gram.diagonal() - 2 * along + mean_square[:, None]).clamp(min=0)
        within = (self.squares - counts * self.gram.diagonal()).clamp(min=0)
        pull = 2 * counts / rows[:, None] * (along - mean_square[:, None])
        ones = torch.ones_like(counts)
        fixed = [
            ones, ones * sampled / len(counts), counts, counts**2, counts**3, within, self.squares,
        ]  # fmt: skip
        moving = [
            distance * counts,
            distance * counts**2,
            mean_square[:, None] / len(counts) + pull,
            self._part_square(weights),
        ]
        return Terms(torch.stack(fixed), moving)

    def _part_square(self, weights: Tensor) -> Tensor:
        """Return each environment's part [R, C] in the parts' mean squared gradient."""
        if self.part_gram is None or self.part_counts is None:
            return torch.zeros_like(weights)
        total = torch.zeros_like(weights)
        for gram, counts in zip(self.part_gram, self.part_counts, strict=True):
            rows = (weights @ counts).clamp(min=1)[:, None]
            along = weights @ gram / rows
            square = (along * weights).sum(1, keepdim=True) / rows
            total += square / len(self) + 2 * (along - counts * square) / rows
        return total / len(self.part_gram)


def _dealt(valid: Tensor, parts: int) -> Tensor:
    """Deal the valid rows [C, T] into parts at random: [M, C, T] bool."""
    generator = torch.Generator().manual_seed(0)
    order = torch.rand(valid.shape, generator=generator).masked_fill(~valid, 2).flatten().argsort()
    part = torch.full((valid.numel(),), -1)
    part[order[: int(valid.sum())]] = torch.arange(int(valid.sum())) % parts
    return torch.stack([part.view(valid.shape) == k for k in range(parts)])


Statistic = Callable[[Sums], Tensor]
"""Sums over environments, each a number -> a number; differentiable."""


def estimate(
    clusters: Clusters, statistic: Statistic, positive: bool = False, resample: bool = True
) -> Estimate:
    """Return a statistic and its interval over environments, by the studentised bootstrap.

    A resample's deviation from what it was drawn from is measured in its own standard error,
    t* = (x* - x_all) / se*; the interval is [x - t*_{0.975} se, x - t*_{0.025} se]. Of what is
    `positive`, on the log scale. Without `resample`, t* is Student's. Where environments are too
    few to tell a bound, it is infinite, or 0 below what is positive.
    """
    count = len(clusters)
    once = torch.ones(1, count, dtype=torch.float64)
    value, error = (float(each) for each in _with_errors(clusters, statistic, once))
    if count < 3 or not (math.isfinite(value) and error > 0) or (positive and value <= 0):
        return Estimate(value)
    if resample:
        least, most = _deviations(clusters, statistic, positive)
    else:
        from scipy.special import stdtrit  # Slow to import: only where it is used.

        most = float(stdtrit(count - 1, 1 - LEVEL / 2))
        least = -most
    if positive:
        low, high = (value * _factor(-each * error / value) for each in (most, least))
        return Estimate.around(value, low, high)
    return Estimate.around(value, value - most * error, value - least * error)


def _factor(power: float) -> float:
    """Return e^power; infinite or 0 where that is no bound."""
    if abs(power) > math.log(NO_BOUND):
        return math.inf if power > 0 else 0.0
    return math.exp(power)


def scattered(clusters: Clusters, statistic: Statistic) -> Tensor:
    """Return a statistic and how it scatters over resamples of the environments: [1 + R].

    x, then x + (x* - x_all): a resample is as far from what it was drawn from as the sample is
    from the truth. The same environments are drawn every time, so that statistics can be compared.
    """
    once = torch.ones(1, len(clusters), dtype=torch.float64)
    value = _values(clusters, statistic, once)
    values = _values(clusters, statistic, _drawn(len(clusters)))
    return torch.cat([value, value + values - _everything(clusters, statistic)])


def _deviations(clusters: Clusters, statistic: Statistic, positive: bool) -> tuple[float, float]:
    """Return the outer quantiles of t* over resamples of the environments."""
    values, errors = _with_errors(clusters, statistic, _drawn(len(clusters)))
    everything = _everything(clusters, statistic)
    if positive:
        errors = errors / values
        values, everything = values.log(), everything.log()
    deviations = (values - everything) / errors
    deviations = deviations[torch.isfinite(deviations)]
    if len(deviations) < RESAMPLES // 2:
        return math.nan, math.nan
    outer = torch.tensor([LEVEL / 2, 1 - LEVEL / 2], dtype=torch.float64)
    least, most = torch.quantile(deviations, outer).tolist()
    return least, most


def _drawn(count: int) -> Tensor:
    """Draw `count` environments with replacement, again and again: how often each, [R, C]."""
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randint(count, (RESAMPLES, count), generator=generator)
    weights = torch.zeros(RESAMPLES, count, dtype=torch.float64)
    return weights.scatter_add_(1, drawn, torch.ones(drawn.shape, dtype=torch.float64))


def _everything(clusters: Clusters, statistic: Statistic) -> Tensor:
    """Return the statistic of all environments there are, were they those at hand."""
    once = torch.ones(1, len(clusters), dtype=torch.float64)
    sums = clusters.sums(once, sampled=0.0)
    return statistic(Sums(*(each[0] for each in sums)))


def _values(clusters: Clusters, statistic: Statistic, weights: Tensor) -> Tensor:
    sums = clusters.sums(weights)
    return vmap(lambda row: statistic(Sums(*row.unbind())))(torch.stack(list(sums), 1))


def _with_errors(
    clusters: Clusters, statistic: Statistic, weights: Tensor
) -> tuple[Tensor, Tensor]:
    """Return a statistic [R] and its standard error [R] by the infinitesimal jackknife."""
    terms = clusters.terms(weights)
    stacked = torch.stack(list(terms.summed(weights)), 1)

    def one(row: Tensor) -> Tensor:
        return statistic(Sums(*row.unbind()))

    values = vmap(one)(stacked)
    slopes = vmap(jacrev(one))(stacked)
    count = len(clusters)
    influence = terms.along(slopes) - (slopes * stacked).sum(1, keepdim=True) / count
    error = (weights * influence.square()).sum(1).mul(count / max(1, count - 1)).sqrt()
    return values, error
