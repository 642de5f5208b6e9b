"""The gradient noise scale: how large a batch may be before more of it stops helping."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from isobatch.errors import UserError
from isobatch.estimate import Estimate
from isobatch.noise.clusters import Clusters, Statistic, Sums, estimate
from isobatch.noise.estimators import (
    squared_gradient,
    two_batch_squared_gradient,
    two_batch_trace,
    variance,
)

Estimator = Literal["per-sample", "two-batch", "per-environment", "minibatch"]
PARTS = 16
"""Small batches of the two-batch estimate: each a sixteenth of the rows."""


@dataclass(frozen=True)
class NoiseScale:
    """tr(Sigma) / |G|^2 (McCandlish et al. 2018): the batch with as much noise as signal."""

    estimator: Estimator
    noise_scale: Estimate
    """In samples; infinite where the signal is not significantly different from zero."""
    signal: Estimate
    """|G|^2 of the true gradient, the noise's own share taken off: it may be below zero."""
    trace: Estimate
    """tr(Sigma) of one sample."""


def noise_scale(gradients: Tensor, valid: Tensor | None = None) -> dict[Estimator, NoiseScale]:
    """Estimate the noise scale of per-sample gradients [N, T, P], or [K, N, T, P], in four ways.

    per-sample       tr = sum |g_i - m|^2 / (B - 1),  |G|^2 = |m|^2 - tr / B
    two-batch        tr = (|g_s|^2 - |g_b|^2) / (1 / B_s - 1 / B_b),
                     |G|^2 = (B_b |g_b|^2 - B_s |g_s|^2) / (B_b - B_s)
    per-environment  tr = B V,  |G|^2 = |m|^2 - V
    minibatch        tr = sum |g_i - m|^2 / (B - 1),  |G|^2 = |m|^2 - V

    with m the mean of all B samples and V its variance as environments' means have it. The first
    two take samples as independent, which those of one rollout are not: they hold for minibatches
    drawn at random from very many environments. The third counts whole rollouts of T steps: at
    that length it is the number of samples at which a rollout's noise is as large as its signal.
    The fourth is for minibatches drawn at random from a rollout: their noise is that of single
    samples, and the gradient is what environments agree on.
    """
    steps = gradients.shape[-2]
    if valid is not None:
        valid = valid.reshape(-1, steps)
    return noise_of_clusters(
        Clusters.of(gradients.reshape(-1, *gradients.shape[-2:]), valid, PARTS)
    )


def noise_of_clusters(clusters: Clusters) -> dict[Estimator, NoiseScale]:
    """The same from what is left of the gradients."""
    if len(clusters) < 2:
        raise UserError("one environment and one batch have no noise scale: take two or more")
    kinds: dict[Estimator, tuple[Statistic, Statistic]] = {
        "per-sample": (_sample_trace, _sample_signal),
        "per-environment": (_cluster_trace, squared_gradient),
        "minibatch": (_sample_trace, squared_gradient),
    }
    if clusters.part_gram is not None:
        parts = len(clusters.part_gram)
        kinds["two-batch"] = (
            lambda sums: _two_batch_trace(sums, parts),
            lambda sums: _two_batch_signal(sums, parts),
        )
    return {kind: _measured(clusters, kind, *pair) for kind, pair in kinds.items()}


def _measured(
    clusters: Clusters, kind: Estimator, trace: Statistic, square: Statistic
) -> NoiseScale:
    # The ratio is estimated upside down: its numerator may cross zero, its denominator does not.
    # The parts of the two-batch estimate stay as dealt in every resample, so that it takes their
    # noise twice: Student's interval does not.
    resample = kind != "two-batch"
    ratio = estimate(clusters, lambda sums: square(sums) / trace(sums), resample=resample)
    upside = [math.inf if not each > 0 else 1 / each for each in ratio]
    scale = Estimate(upside[0], upside[2], upside[1])
    if math.isnan(ratio.low):
        scale = Estimate(upside[0])
    return NoiseScale(
        kind,
        noise_scale=scale,
        signal=estimate(clusters, square, resample=resample),
        trace=estimate(clusters, trace, positive=True, resample=resample),
    )


def _sample_trace(sums: Sums) -> Tensor:
    return (sums.squares - sums.rows * sums.mean_square) / (sums.rows - 1)


def _sample_signal(sums: Sums) -> Tensor:
    return sums.mean_square - sums.sampled * _sample_trace(sums) / sums.rows


def _cluster_trace(sums: Sums) -> Tensor:
    return variance(sums) * sums.rows


def _two_batch_trace(sums: Sums, parts: int) -> Tensor:
    return two_batch_trace(sums.part_square, sums.mean_square, sums.rows / parts, sums.rows)


def _two_batch_signal(sums: Sums, parts: int) -> Tensor:
    small = sums.rows / parts
    return two_batch_squared_gradient(sums.part_square, sums.mean_square, small, sums.rows)
