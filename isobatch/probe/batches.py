"""Batches of one shape, taken apart: variance, noise scale, agreement."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from isobatch.batch import Shape
from isobatch.estimate import Estimate
from isobatch.noise.clusters import Clusters
from isobatch.noise.scale import PARTS, Estimator, NoiseScale, noise_of_clusters
from isobatch.noise.variance import Decomposition, decompose_clusters
from isobatch.probe import agreement
from isobatch.probe.collection import Experience
from isobatch.probe.credit import Credit, credit_noise
from isobatch.probe.gradients import Directions
from isobatch.probe.plan import Question, gae_lambda
from isobatch.recipe import Recipe


@dataclass(frozen=True)
class Batches:
    """As many batches of one shape as the environments collected make up, decomposed."""

    shape: Shape
    batches: int
    """How many: at least those asked for."""
    raw: Decomposition
    normalized: Decomposition | None
    """With advantages normalised in each batch; None of the value function."""
    across: tuple[float | None, float | None]
    """The variance of the batches' gradients itself, raw and normalised; None of one batch."""
    noise: list[NoiseScale]
    credit: Credit
    minibatches: agreement.Minibatches
    agreement: agreement.Agreement
    lags: agreement.Lags

    def noise_scale(self, estimator: Estimator) -> Estimate:
        """Return the noise scale by one of its estimators."""
        return next(each.noise_scale for each in self.noise if each.estimator == estimator)


def take_apart(
    experience: Experience,
    found: Directions,
    pairs: Tensor,
    shape: Shape,
    count: int,
    question: Question,
    recipe: Recipe,
) -> Batches:
    """Decompose batches of a shape: each the first T steps of N environments.

    Every environment counts, as in the curve, so that both see the same gradient. The first `count`
    batches are compared with each other. `pairs` [rows, M] number the states and actions that were
    seen: `credit.numbered`.
    """
    n_envs, n_steps = shape
    batches = experience.rollout.valid.shape[1] // n_envs
    total = batches * n_envs
    objective = recipe.objective
    advantages = experience.advantages(n_steps, n_steps, objective.gamma, gae_lambda(recipe))
    scales = advantages[:, :total].T
    valid = experience.rollout.valid[:n_steps, :total].T
    vectors = found.vectors[:n_steps, :total].transpose(0, 1)
    squares = found.squares[:n_steps, :total].T
    raw = Clusters.scaled(scales, vectors, squares, valid, PARTS)
    within = _normalized(scales, valid, batches)
    apart = question.loss == "policy"
    normal = Clusters.scaled(within, vectors, squares, valid) if apart else None

    def batched(rows: Tensor) -> Tensor:
        return rows.unflatten(0, (batches, n_envs))

    def means(rows: Tensor) -> Tensor:
        return agreement.batch_means(batched(rows), batched(vectors), batched(valid))

    def first(rows: Tensor) -> Tensor:
        return batched(rows)[:count]

    return Batches(
        shape,
        batches,
        raw=decompose_clusters(raw, n_envs, n_steps),
        normalized=decompose_clusters(normal, n_envs, n_steps) if normal else None,
        across=(
            _across(means(scales)),
            _across(means(within)) if apart else None,
        ),
        noise=list(noise_of_clusters(raw).values()),
        credit=credit_noise(scales, squares, pairs[:n_steps, :total].T, valid, shape.samples),
        minibatches=agreement.minibatches(
            first(scales), first(vectors), first(valid), recipe.batch.minibatch_size
        ),
        agreement=agreement.agreement(first(scales), first(vectors), first(squares), first(valid)),
        lags=agreement.lagged(scales, vectors, squares, valid),
    )


def _normalized(scales: Tensor, valid: Tensor, count: int) -> Tensor:
    """Normalise advantages [K N, T] over each of K batches."""
    groups = scales.unflatten(0, (count, -1)).flatten(1)
    known = valid.unflatten(0, (count, -1)).flatten(1)
    rows = known.sum(1, keepdim=True).clamp(min=1)
    mean = torch.where(known, groups, 0).sum(1, keepdim=True) / rows
    spread = torch.where(known, groups - mean, 0).square().sum(1, keepdim=True) / rows
    return ((groups - mean) / (spread.sqrt() + 1e-8)).view_as(scales)


def _across(means: Tensor) -> float | None:
    """Return the variance of K batches' mean gradients [K, P], as they are."""
    if len(means) < 2:
        return None
    return float(means.double().var(0).sum())
