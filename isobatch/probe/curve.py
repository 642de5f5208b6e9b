"""The iso-batch curve: bias and variance of the gradient for every N x T of the same size.

Long trajectories are cut into windows of T steps, each bootstrapped at its own end, as a rollout of
that length would be. With A_T the advantages then and A those that look on, m a window's mean of
A_T grad log pi, G(T) = E m, and G the mean of A grad log pi:

b(T) = G(T) - G                  what bootstrapping at the end of T steps does
v(T) = E |m|^2 - |G(T)|^2        one rollout's variance; N of them have v(T) / N

Short rollouts mostly shrink the gradient, which a step size corrects. So each shape's gradient is
rescaled until its component along G is right, s = |G|^2 / <G(T), G>:

bias^2(T) = |s G(T) - G|^2,  variance(N, T) = s^2 v(T) / N,  in units of |G|^2

Their sum is 1 / cos^2 - 1 for the cosine between a batch's gradient and G, so that the shape with
the least of it makes the most of a step of any length. All of these are free of their own noise:
squared norms and inner products are between different environments only.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from isobatch.batch import Shape
from isobatch.estimate import Estimate
from isobatch.noise.clusters import LEVEL, Clusters, Sums, estimate, scattered
from isobatch.noise.estimators import squared_gradient
from isobatch.probe.collection import Experience
from isobatch.probe.gradients import Directions


@dataclass(frozen=True)
class Length:
    """What rollouts of one length are like."""

    n_steps: int
    difference: Clusters
    """Of each environment, what bootstrapping at the windows' ends changes in its gradient."""
    windows: Clusters
    """Of each environment, its mean gradient and its windows' mean squared norm."""
    advantage_error: float
    """Root mean square of A_T - A, relative to A's."""


@dataclass(frozen=True)
class Bias:
    """The bias of short rollouts against their length."""

    gae_lambda: float
    lengths: list[Length]
    reference: Clusters
    """Of each environment, the gradient with advantages that look on."""

    @property
    def signal(self) -> float:
        """|G|^2 of the reference, its noise taken off; at least a hundredth of what is seen."""
        once = torch.ones(1, len(self.reference), dtype=torch.float64)
        sums, _ = self.reference.sums(once)
        return max(float(squared_gradient(sums)), 0.01 * float(sums.mean_square)) or 1.0

    @property
    def share_without_signal(self) -> float:
        """Share of bootstrap resamples of the environments in which |G|^2 is not positive."""
        return float((scattered(self.reference, squared_gradient)[1:] <= 0).double().mean())

    def norm(self, length: Length) -> Estimate:
        """Return |b(T)| / |G|; 0 where the estimate of |b(T)|^2 is not positive."""
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


def bias(
    experience: Experience,
    directions: Directions,
    lengths: list[int],
    gamma: float,
    gae_lambda: float,
) -> Bias:
    """Measure rollouts of several lengths, all from the same trajectories."""
    rows = len(directions.squares)
    valid = experience.rollout.valid[:rows]
    reference = experience.full_advantages(rows, gamma, gae_lambda)
    measured = [
        _length(experience, directions, reference, n_steps, gamma, gae_lambda)
        for n_steps in lengths
    ]
    return Bias(gae_lambda, measured, _clusters(reference, directions, valid))


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
    errors = [_errors(measured, length, n) for length, n in zip(lengths, sizes, strict=True)]
    resampled = torch.stack([each.total for each in errors], 1)[1:]
    times = [
        seconds(n_envs, length.n_steps) if seconds else None
        for n_envs, length in zip(sizes, lengths, strict=True)
    ]
    shares, shares_per_second = _best_shares(resampled), _best_shares_per_second(resampled, times)
    return [
        Point(
            Shape(sizes[k], length.n_steps),
            bias2=_quantiles(errors[k].bias2),
            variance=_quantiles(errors[k].variance),
            error=_quantiles(errors[k].total),
            best_share=shares[k],
            steps_per_second=None if (spent := times[k]) is None else samples / spent,
            best_share_per_second=shares_per_second[k],
        )
        for k, length in enumerate(lengths)
    ]


def _length(
    experience: Experience,
    directions: Directions,
    reference: Tensor,
    n_steps: int,
    gamma: float,
    gae_lambda: float,
) -> Length:
    rows = len(reference) // n_steps * n_steps
    valid = experience.rollout.valid[:rows]
    advantages = experience.advantages(n_steps, rows, gamma, gae_lambda)
    difference = advantages - reference[:rows]
    error = difference[valid].square().mean() / reference[:rows][valid].square().mean()
    return Length(
        n_steps,
        difference=_clusters(difference, directions, valid),
        windows=_windows(advantages, directions, valid, n_steps),
        advantage_error=float(error.sqrt()),
    )


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


class _Errors(NamedTuple):
    """The squared errors of a shape [1 + R]: as estimated, then over resamples of environments."""

    bias2: Tensor
    variance: Tensor

    @property
    def total(self) -> Tensor:
        return self.bias2 + self.variance


def _errors(measured: Bias, length: Length, n_envs: int) -> _Errors:
    """Return the errors of N rollouts of a length, rescaled to be right along the gradient.

    <G(T), G> comes from the three squared norms, |G(T)|^2 + |G|^2 - |b(T)|^2 being twice it.
    Infinite where |G|^2 or <G(T), G> of a resample is not positive.
    """
    own = scattered(length.windows, squared_gradient)
    reference = scattered(measured.reference, squared_gradient)
    along = (own + reference - scattered(length.difference, squared_gradient)) / 2
    spread = scattered(length.windows, _window_variance).clamp(min=0)
    factor = reference / along.square()
    undefined = (reference <= 0) | (along <= 0)
    # Cauchy and Schwarz hold for the truth, not for every estimate of it.
    bias2 = (own * factor - 1).clamp(min=0)
    return _Errors(
        torch.where(undefined, math.inf, bias2),
        torch.where(undefined, math.inf, spread * factor / n_envs),
    )


def _quantiles(scattered: Tensor) -> Estimate:
    """Return the estimate and its resamples' outer quantiles."""
    ordered = scattered[1:].sort().values
    last = len(ordered) - 1
    low, high = (ordered[round(each * last)] for each in (LEVEL / 2, 1 - LEVEL / 2))
    return Estimate(float(scattered[0]), float(low), float(high))


def _best_shares(errors: Tensor) -> list[float]:
    """Return how often each of the columns [R, shapes] is the smallest."""
    defined = torch.isfinite(errors).any(1)
    best = errors[defined].argmin(1)
    return [float((best == k).sum()) / max(1, len(best)) for k in range(errors.shape[1])]


def _best_shares_per_second(errors: Tensor, times: list[float | None]) -> list[float | None]:
    """The same for error x seconds, among the shapes that were timed."""
    known = [k for k, each in enumerate(times) if each is not None]
    shares: list[float | None] = [None] * len(times)
    spent = torch.tensor([times[k] for k in known], dtype=errors.dtype)
    for k, share in zip(
        known, _best_shares(errors[:, known] * spent) if known else [], strict=True
    ):
        shares[k] = share
    return shares
