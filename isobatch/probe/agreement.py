"""Do batches agree, and do the steps of one rollout repeat each other?"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from isobatch.estimate import Estimate
from isobatch.noise.clusters import LEVEL, Clusters
from isobatch.noise.estimators import squared_gradient

MOST_POINTS = 512
"""Of a scatter's panel."""
SHUFFLES = 8
"""How often a batch is dealt into minibatches: an interval takes more than one epoch has."""


@dataclass(frozen=True)
class Agreement:
    """How K independent batches' gradients lie to each other."""

    cosines: Tensor
    """[K, K]: of the batches' mean gradients."""
    norms: Tensor
    """[K]: of the mean gradients."""
    sample_norms: Tensor
    """[S]: |g| of the first batch's samples."""
    sample_cosines: Tensor
    """[K, S]: their cosines to each batch's mean; to its own too, which they are part of."""


def agreement(scales: Tensor, vectors: Tensor, squares: Tensor, valid: Tensor) -> Agreement:
    """Compare batches of gradients, `scales` [K, N, T] times `vectors` [K, N, T, P].

    `squares` [K, N, T] are the vectors' squared norms; rows that are not `valid` do not count.
    """
    means = batch_means(scales, vectors, valid)
    norms = means.norm(dim=1)
    units = means / norms.clamp(min=1e-30)[:, None]
    rows = valid[0].flatten().nonzero().squeeze(1)
    if len(rows) > MOST_POINTS:
        rows = rows[torch.linspace(0, len(rows) - 1, MOST_POINTS).long()]
    length = squares[0].flatten()[rows].sqrt().to(vectors.dtype)
    along = vectors[0].flatten(0, 1)[rows] @ units.T / length.clamp(min=1e-30)[:, None]
    factor = scales[0].flatten()[rows].to(vectors.dtype)
    return Agreement(
        cosines=units @ units.T,
        norms=norms,
        sample_norms=factor.abs() * length,
        sample_cosines=(along * factor.sign()[:, None]).T,
    )


def batch_means(scales: Tensor, vectors: Tensor, valid: Tensor) -> Tensor:
    """Return the mean gradients [K, P] of batches, `scales` [K, N, T] x `vectors` [K, N, T, P]."""
    weights = torch.where(valid, scales, 0).to(vectors.dtype)
    counts = valid.flatten(1).sum(1).clamp(min=1)
    return torch.einsum("knt,kntp->kp", weights, vectors) / counts[:, None]


@dataclass(frozen=True)
class Minibatches:
    """How minibatches' gradients lie to the gradient of the rollout they are drawn from."""

    size: int
    """Rows of one; as many as the rollout where that has no more."""
    cosine: Estimate
    """The mean, and the bounds that hold 95% of the minibatches."""
    by_chance: float
    """The cosine of pure noise, sqrt(rows / rows of the rollout): a minibatch is part of it."""


def minibatches(scales: Tensor, vectors: Tensor, valid: Tensor, size: int) -> Minibatches:
    """Deal each batch's rows into minibatches, as an epoch does, a few times over.

    `scales` [K, N, T] times `vectors` [K, N, T, P] are the gradients.
    """
    generator = torch.Generator().manual_seed(0)
    wholes = batch_means(scales, vectors, valid)
    found, shares = [], []
    for scale, vector, known, whole in zip(scales, vectors, valid, wholes, strict=True):
        rows = known.flatten().nonzero().squeeze(1)
        weights, flat = scale.flatten().to(vector.dtype), vector.flatten(0, 1)
        count = max(1, round(len(rows) / size))
        for _ in range(SHUFFLES if count > 1 else 1):
            order = rows[torch.randperm(len(rows), generator=generator)]
            means = torch.stack([weights[part] @ flat[part] for part in order.tensor_split(count)])
            found.append(torch.cosine_similarity(means, whole[None], eps=1e-30))
        shares.append(1 / count)
    cosines = torch.cat(found).double()
    outer = torch.tensor([LEVEL / 2, 1 - LEVEL / 2], dtype=torch.float64)
    low, high = torch.quantile(cosines, outer).tolist()
    share = sum(shares) / len(shares)
    rows_each = round(float(valid.flatten(1).sum(1).double().mean()) * share)
    return Minibatches(rows_each, Estimate.around(float(cosines.mean()), low, high), share**0.5)


@dataclass(frozen=True)
class Lags:
    """Correlation of gradients some steps apart."""

    lags: list[int]
    within: list[float]
    """Of one trajectory: rho_k in Var(mean) = sigma^2 / T (1 + 2 sum_k (1 - k / T) rho_k)."""
    across: list[float]
    """Of two: near 0 unless environments are in step."""


def lagged(scales: Tensor, vectors: Tensor, squares: Tensor, valid: Tensor) -> Lags:
    """Correlate gradients [C, T] x [C, T, P] of C environments at lags 1, 2, 4 ... < T.

    rho_k = (mean <g_{n,t}, g_{n,t+k}> - |G|^2) / sigma^2

    |G|^2 is free of its own noise, as `squared_gradient` estimates it.
    """
    n_envs, n_steps = scales.shape
    weights = torch.where(valid, scales, 0).to(vectors.dtype)
    present = valid.to(vectors.dtype)
    rows = present.sum()
    clusters = Clusters.scaled(scales, vectors, squares, valid)
    sums = clusters.sums(torch.ones(1, len(clusters), dtype=torch.float64))
    signal = squared_gradient(sums)[0].to(vectors.dtype)
    spread = (weights.double().square() * squares.double()).sum() / rows - signal
    lags = [k for k in (1 << j for j in range(12)) if k < n_steps]
    at_step = torch.einsum("ct,ctp->tp", weights, vectors)
    within, across = [], []
    for lag in lags:
        early, late = slice(0, n_steps - lag), slice(lag, n_steps)
        same = _products(weights, vectors, early, late)
        number = (present[:, early] * present[:, late]).sum()
        all_pairs = (at_step[early] * at_step[late]).sum()
        all_number = (present[:, early].sum(0) * present[:, late].sum(0)).sum()
        within.append(float((same / number - signal) / spread))
        other = (all_pairs - same) / (all_number - number) if n_envs > 1 else signal
        across.append(float((other - signal) / spread))
    return Lags(lags, within, across)


def _products(weights: Tensor, vectors: Tensor, early: slice, late: slice) -> Tensor:
    """Sum the inner products of each environment's gradients at two stretches of steps."""
    total = weights.new_zeros(())
    for scale, vector in zip(weights, vectors, strict=True):  # One at a time bounds the memory.
        along = (vector[early] * vector[late]).sum(1)
        total = total + (scale[early] * scale[late] * along).sum()
    return total
