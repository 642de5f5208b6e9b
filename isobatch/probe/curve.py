"""The iso-batch curve: bias and variance of the gradient for every N x T of the same size.

Long trajectories are cut into windows of T steps, each bootstrapped at its own end, as a rollout of
that length would be. With A_T the advantages then and A those of a reference (`reference`), m a
window's mean of A_T grad log pi, G(T) = E m, and G the mean of A grad log pi:

b(T) = G(T) - G                  what the rollout's length does, and where the reference is whole
                                 returns, what the value function's errors do too
v(T) = E |m|^2 - |G(T)|^2        one rollout's variance; N of them have v(T) / N

Shapes are compared by `noise.errors`. Everything in it is free of its own noise: |m|^2 - V of C
equal clusters is the mean inner product of two different environments' gradients, and environments
are independent, so that its expectation is |G|^2 however noisy each is.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from isobatch.batch import Shape
from isobatch.estimate import Estimate
from isobatch.noise.clusters import LEVEL, Clusters, Sums, estimate, scattered
from isobatch.noise.errors import GradientError, gradient_error
from isobatch.noise.estimators import squared_gradient
from isobatch.probe.collection import Experience
from isobatch.probe.gradients import Directions
from isobatch.probe.reference import Kind

UPDATES = 10
"""Adam's mean gradient is one of about as many: their noise averages out, their bias does not."""
TOLD = 0.95
"""A gradient is distinguishable from noise where |G|^2 is positive in this share of resamples."""


@dataclass(frozen=True)
class Length:
    """What rollouts of one length are like."""

    n_steps: int
    difference: Clusters
    """Of each environment, its gradient less the reference."""
    advantage_error: float
    """Root mean square of A_T - A, relative to A's."""
    windows: Clusters
    """Of each environment, its mean gradient and its windows' mean squared norm."""


@dataclass(frozen=True)
class Bias:
    """The bias of rollouts against their length."""

    kind: Kind
    gae_lambda: float
    """Of the rollouts."""
    lengths: list[Length]
    reference: Clusters
    """Of each environment, the reference gradient."""
    endless: Length
    """Rollouts that look on as far as the trajectories go: what no length makes up for."""

    @property
    def signal(self) -> float:
        """|G|^2 of the reference, its noise taken off; at least a hundredth of what is seen."""
        once = torch.ones(1, len(self.reference), dtype=torch.float64)
        sums = self.reference.sums(once)
        return max(float(squared_gradient(sums)), 0.01 * float(sums.mean_square)) or 1.0

    @property
    def share_without_signal(self) -> float:
        """Share of bootstrap resamples of the environments in which |G|^2 is not positive."""
        return float((scattered(self.reference, squared_gradient)[1:] <= 0).double().mean())

    @cached_property
    def is_decided(self) -> bool:
        """True where the reference gradient is distinguishable from its noise."""
        return self.share_without_signal <= 1 - TOLD

    def norm(self, length: Length) -> Estimate:
        """Return |b(T)| / |G|; 0 where the estimate of |b(T)|^2 is not positive.

        Not a number where |G| is not significantly different from zero: there is nothing to be
        relative to.
        """
        if not self.is_decided:
            return Estimate(math.nan)
        squared = estimate(length.difference, squared_gradient) * (1 / self.signal)
        return Estimate(*(max(each, 0.0) ** 0.5 for each in squared))


@dataclass(frozen=True)
class Point:
    """One shape on the curve; squared errors relative to the squared gradient."""

    shape: Shape
    bias2: Estimate
    variance: Estimate
    error: Estimate
    """bias^2 + variance."""
    best_share: float
    """Share of bootstrap resamples of the environments in which it has the smallest error."""
    best_share_over_updates: float
    """The same for the mean of `UPDATES` batches' gradients."""
    steps_per_second: float | None = None
    best_share_per_second: float | None = None
    """The same for error x seconds per iteration."""

    @property
    def name(self) -> str:
        """8x128."""
        return self.shape.name

    @property
    def n_steps(self) -> int:
        """T."""
        return self.shape.n_steps

    def error_over(self, updates: int) -> float:
        """Return bias^2 + variance / updates: the error of several batches' mean gradient."""
        return self.bias2.value + self.variance.value / updates


def tells(reference: Bias, points: list[Point]) -> bool:
    """Say whether shapes compare: the reference stands out of its noise, some error is finite."""
    return reference.is_decided and any(math.isfinite(each.error.value) for each in points)


def bias(
    experience: Experience,
    directions: Directions,
    lengths: list[int],
    gamma: float,
    gae_lambda: float,
) -> Bias:
    """Measure rollouts of several lengths against GAE that looks on, from the same trajectories.

    That shares the value function, and with it the value function's errors: what is left is the
    cost of ending a rollout.
    """
    rows = len(directions.squares)
    valid = experience.rollout.valid[:rows]
    reference = experience.full_advantages(rows, gamma, gae_lambda)

    def measured(advantages: Tensor, n_steps: int) -> Length:
        known = valid[: len(advantages)]
        return Length(
            n_steps,
            *_off(advantages, reference, directions, known),
            windows=_windows(advantages, directions, known, n_steps),
        )

    found = [
        measured(experience.advantages(n, rows // n * n, gamma, gae_lambda), n) for n in lengths
    ]
    clusters = _clusters(reference, directions, valid)
    return Bias("gae", gae_lambda, found, clusters, endless=measured(reference, rows))


def against_returns(
    measured: Bias,
    returns: Tensor,
    experience: Experience,
    directions: Directions,
    gamma: float,
) -> Bias:
    """Hold the same rollouts against whole returns [rows, M], less their baseline.

    These have no error of the value function, so that the bias is all there is.
    """
    rows = len(returns)
    valid = experience.rollout.valid[:rows]

    def held(length: Length, advantages: Tensor) -> Length:
        difference, error = _off(advantages, returns, directions, valid[: len(advantages)])
        return replace(length, difference=difference, advantage_error=error)

    found = [
        held(length, experience.advantages(length.n_steps, cut, gamma, measured.gae_lambda))
        for length in measured.lengths
        if (cut := rows // length.n_steps * length.n_steps)
    ]
    endless = experience.full_advantages(rows, gamma, measured.gae_lambda)
    clusters = _clusters(returns, directions, valid)
    return Bias(
        "monte-carlo", measured.gae_lambda, found, clusters, held(measured.endless, endless)
    )


def curve(
    measured: Bias, samples: int, seconds: Callable[[int, int], float | None] | None = None
) -> list[Point]:
    """Return every shape N x T = `samples` at the lengths measured, shortest rollouts first.

    `seconds` returns how long an iteration of N x T takes, None where it is not known.
    """
    lengths = [each for each in measured.lengths if samples % each.n_steps == 0]
    sizes = [samples // each.n_steps for each in lengths]
    if not lengths:
        return []
    found = [errors(measured, length, n) for length, n in zip(lengths, sizes, strict=True)]
    resampled = torch.stack([each.total for each in found], 1)[1:]
    averaged = torch.stack([each.over(UPDATES) for each in found], 1)[1:]
    times = [
        seconds(n_envs, length.n_steps) if seconds else None
        for n_envs, length in zip(sizes, lengths, strict=True)
    ]
    shares, shares_over_updates = best_shares(resampled), best_shares(averaged)
    shares_per_second = _best_shares_per_second(resampled, times)
    return [
        Point(
            Shape(sizes[k], length.n_steps),
            bias2=quantiles(found[k].bias2),
            variance=quantiles(found[k].variance),
            error=quantiles(found[k].total),
            best_share=shares[k],
            best_share_over_updates=shares_over_updates[k],
            steps_per_second=None if (spent := times[k]) is None else samples / spent,
            best_share_per_second=shares_per_second[k],
        )
        for k, length in enumerate(lengths)
    ]


def _off(
    advantages: Tensor, reference: Tensor, directions: Directions, valid: Tensor
) -> tuple[Clusters, float]:
    """Return how far gradients are off the reference, and the advantages' own relative error."""
    reference = reference[: len(advantages)]
    difference = advantages - reference
    error = difference[valid].square().mean() / reference[valid].square().mean()
    return _clusters(difference, directions, valid), float(error.sqrt())


def _clusters(scales: Tensor, directions: Directions, valid: Tensor) -> Clusters:
    """Return each environment's mean gradient, one row to an environment."""
    means = _means(scales, directions.vectors[: len(scales)], valid)
    ones = torch.ones(len(means), dtype=torch.float64)
    return Clusters(ones, means @ means.T, means.square().sum(1))


def _windows(scales: Tensor, directions: Directions, valid: Tensor, n_steps: int) -> Clusters:
    count, n_envs = len(scales) // n_steps, scales.shape[1]
    total = torch.zeros(n_envs, directions.vectors.shape[2], dtype=torch.float64)
    squares, number = torch.zeros(n_envs, dtype=torch.float64), torch.zeros(n_envs)
    for k in range(count):
        rows = slice(k * n_steps, (k + 1) * n_steps)
        means = _means(scales[rows], directions.vectors[rows], valid[rows])
        total += means
        squares += means.square().sum(1)
        number += valid[rows].any(0)
    number = number.clamp(min=1).double()
    means = total / number[:, None]
    return Clusters(torch.ones(n_envs, dtype=torch.float64), means @ means.T, squares / number)


def _means(scales: Tensor, vectors: Tensor, valid: Tensor) -> Tensor:
    """Return the mean gradients [M, P] over rows [R, M], in float64."""
    weights = torch.where(valid, scales, 0).to(vectors.dtype)
    sums = torch.einsum("tn,tnp->np", weights, vectors).double()
    return sums / valid.sum(0).clamp(min=1).double()[:, None]


def _window_variance(sums: Sums) -> Tensor:
    """Variance of one window's mean gradient, E |m|^2 - |E m|^2."""
    return sums.squares / sums.n_clusters - squared_gradient(sums)


def errors(measured: Bias, length: Length, n_envs: int) -> GradientError:
    """Return the errors of N rollouts of a length [1 + R]: as estimated, then over resamples.

    <G(T), G> comes from the three squared norms, |G(T)|^2 + |G|^2 - |b(T)|^2 being twice it.
    """
    own = scattered(length.windows, squared_gradient)
    reference = scattered(measured.reference, squared_gradient)
    along = (own + reference - scattered(length.difference, squared_gradient)) / 2
    spread = scattered(length.windows, _window_variance)
    return gradient_error(own, along, reference, spread / n_envs)


def endless_bias(measured: Bias) -> Estimate:
    """Return the squared bias of rollouts without end, over |G|^2."""
    return quantiles(errors(measured, measured.endless, 1).bias2)


def quantiles(scattered: Tensor) -> Estimate:
    """Return the estimate and its resamples' outer quantiles, given [1 + R]."""
    ordered = scattered[1:].sort().values
    last = len(ordered) - 1
    low, high = (ordered[round(each * last)] for each in (LEVEL / 2, 1 - LEVEL / 2))
    return Estimate.around(float(scattered[0]), float(low), float(high))


def best_shares(errors: Tensor) -> list[float]:
    """Return how often each of the columns [R, shapes] is the smallest."""
    defined = torch.isfinite(errors).any(1)
    best = errors[defined].argmin(1)
    return [float((best == k).sum()) / max(1, len(best)) for k in range(errors.shape[1])]


def _best_shares_per_second(errors: Tensor, times: list[float | None]) -> list[float | None]:
    """The same for error x seconds, among the shapes that were timed."""
    known = [k for k, each in enumerate(times) if each is not None]
    shares: list[float | None] = [None] * len(times)
    spent = torch.tensor([times[k] for k in known], dtype=errors.dtype)
    for k, share in zip(known, best_shares(errors[:, known] * spent) if known else [], strict=True):
        shares[k] = share
    return shares
