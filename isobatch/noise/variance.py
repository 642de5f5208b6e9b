"""Where the variance of a batch's gradient comes from: single samples, or their correlation."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from isobatch.errors import UserError
from isobatch.estimate import Estimate
from isobatch.noise.clusters import Clusters, Sums, estimate
from isobatch.noise.estimators import intraclass, sample_variance, variance


@dataclass(frozen=True)
class Decomposition:
    """The variance of G, the mean gradient of N x T samples; traces of covariance matrices.

    Var(G) = sum Var(g) / (NT)^2  [individual]  +  sum_{i != j} Cov(g_i, g_j) / (NT)^2  [covariance]
    """

    n_envs: int
    n_steps: int
    total: Estimate
    """Var(G)."""
    individual: Estimate
    """What it would be of independent samples, sigma^2 / NT."""
    covariance: Estimate
    """The rest, from correlation within rollouts; below zero where steps make up for each other."""
    icc: Estimate
    """Intraclass correlation: the mean correlation of two steps of one rollout."""
    design_effect: Estimate
    """total / individual = 1 + (T - 1) icc."""
    effective_samples: Estimate
    """NT / design effect: as many independent samples would do as well."""


def decompose(gradients: Tensor, valid: Tensor | None = None) -> Decomposition:
    """Decompose the variance of the mean of per-sample gradients [N, T, P].

    Environments are the clusters, of T_n valid rows; with g_n an environment's mean:

    V    = sum_n |g_n - G|^2 / (N (N - 1))                    the total
    MSB  = T sum_n |g_n - G|^2 / (N - 1)
    MSW  = sum_nt |g_nt - g_n|^2 / (N (T - 1))
    icc  = (MSB - MSW) / (MSB + (T - 1) MSW)
    sigma^2 = MSW + (MSB - MSW) / T,  individual = sigma^2 / NT,  covariance = V - individual

    `valid` [N, T] leaves rows out; the formulas are then those of unequal clusters. Gradients
    [K, N, T, P] are K independent batches, through which even N = 1 has a variance; the result is
    still that of one batch. Intervals are by resampling environments.
    """
    if gradients.ndim not in (3, 4):
        raise ValueError(f"gradients [N, T, P] or [K, N, T, P], got {tuple(gradients.shape)}")
    n_envs, n_steps = gradients.shape[-3], gradients.shape[-2]
    if valid is not None:
        valid = valid.reshape(-1, n_steps)
    clusters = Clusters.of(gradients.reshape(-1, *gradients.shape[-2:]), valid)
    return decompose_clusters(clusters, n_envs, n_steps)


def decompose_clusters(clusters: Clusters, n_envs: int, n_steps: int) -> Decomposition:
    """The same from what is left of the gradients; `n_envs` of the clusters make a batch."""
    if len(clusters) < 2:
        raise UserError(
            "one environment and one batch have no variance to measure: take two environments or "
            "more, or two batches"
        )

    def total(sums: Sums) -> Tensor:
        return sums.n_clusters / n_envs * variance(sums)

    def individual(sums: Sums) -> Tensor:
        return sample_variance(sums) * sums.n_clusters / (n_envs * sums.rows)

    def covariance(sums: Sums) -> Tensor:
        return total(sums) - individual(sums)

    def design_effect(sums: Sums) -> Tensor:
        return total(sums) / individual(sums)

    effect = estimate(clusters, design_effect, positive=True)
    rows = n_envs * float(clusters.counts.mean())
    single = n_steps == 1
    return Decomposition(
        n_envs=n_envs,
        n_steps=n_steps,
        total=estimate(clusters, total, positive=True),
        individual=estimate(clusters, individual, positive=True),
        covariance=Estimate(0.0, 0.0, 0.0) if single else estimate(clusters, covariance),
        icc=Estimate(math.nan) if single else estimate(clusters, intraclass),
        design_effect=effect,
        effective_samples=Estimate(
            rows / effect.value,
            rows / effect.high,
            rows / effect.low if effect.low else math.inf,
        ),
    )
