"""Statistics of a study's scores: aggregates, intervals and tests.

Scores are normalised, higher is better: float arrays [runs, tasks]; a flat [runs] is one task.
Aggregates also take a stack [..., runs, tasks] and answer [...], which makes a bootstrap fast.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtr, stdtr

from isobatch.estimate import Estimate

Floats = NDArray[np.float64]
Statistic = Callable[[Floats], Any]
"""A function of [runs, tasks]; quicker to bootstrap if also of [..., runs, tasks], giving [...]."""
PairStatistic = Callable[[Floats, Floats], Any]
"""The same of two arrays, [runs_x, tasks] and [runs_y, tasks]."""


def mean(scores: ArrayLike) -> float:
    """Mean over runs and tasks."""
    return _scores(scores).mean(axis=(-2, -1))


def iqm(scores: ArrayLike) -> float:
    """Interquartile mean over all runs and tasks (Agarwal et al. 2021, section 4.3).

    The mean of what is left of n sorted scores without the floor(n / 4) at either end; below
    four scores, the plain mean.
    """
    array = _scores(scores)
    ordered = np.sort(array.reshape(*array.shape[:-2], -1), axis=-1)
    count = ordered.shape[-1]
    cut = count // 4
    return ordered[..., cut : count - cut].mean(axis=-1)


def optimality_gap(scores: ArrayLike, gamma: float = 1.0) -> float:
    """How far scores fall short of `gamma` (Agarwal et al. 2021, section 4.3); lower is better.

    gamma - mean(min(score, gamma))
    """
    return gamma - np.minimum(_scores(scores), gamma).mean(axis=(-2, -1))


def performance_profile(scores: ArrayLike, thresholds: ArrayLike) -> Floats:
    """Fraction of runs above each threshold, tasks counting alike: [..., len(thresholds)].

    F(tau) = mean over tasks of (1 / runs) #{score > tau} (Agarwal et al. 2021, section 4.2)
    """
    above = _scores(scores)[..., None] > np.asarray(thresholds, float)
    return above.mean(axis=(-3, -2))


def probability_of_improvement(x: ArrayLike, y: ArrayLike) -> float:
    """How probably a run of x beats a run of y on the same task (Agarwal et al. 2021, section 4.3).

    mean over tasks of P(X > Y) + P(X = Y) / 2, over all pairs of runs (Mann and Whitney 1947)
    """
    # A task at a time: all pairs of a bootstrap of a large benchmark would be gigabytes.
    tasks = zip(*(np.moveaxis(array, -1, 0) for array in _two(x, y)), strict=True)
    order = [np.sign(a[..., :, None] - b[..., None, :]).mean(axis=(-2, -1)) for a, b in tasks]
    return 0.5 + 0.5 * np.mean(order, axis=0)


def bootstrap_ci(
    scores: ArrayLike,
    statistic: Statistic = iqm,
    reps: int = 2000,
    level: float = 0.95,
    seed: int = 0,
) -> tuple[float, float]:
    """Percentile bootstrap interval of a statistic, stratified by task.

    The (1 - level) / 2 and (1 + level) / 2 quantiles of the statistic over `reps` resamples, in
    each of which every task draws its runs anew from its own, with replacement (Efron 1979;
    Agarwal et al. 2021, section 4.1). Too narrow with few runs. A statistic that answers with
    arrays gets arrays of bounds.
    """
    return _bootstrap(statistic, [_scores(scores)], reps, level, seed)


def bootstrap_pair_ci(
    x: ArrayLike,
    y: ArrayLike,
    statistic: PairStatistic = probability_of_improvement,
    reps: int = 2000,
    level: float = 0.95,
    seed: int = 0,
) -> tuple[float, float]:
    """As `bootstrap_ci`, for a statistic of two arrays, resampled independently of each other."""
    return _bootstrap(statistic, _two(x, y), reps, level, seed)


def bootstrap_difference(
    x: ArrayLike,
    y: ArrayLike,
    statistic: Statistic = iqm,
    reps: int = 2000,
    level: float = 0.95,
    seed: int = 0,
) -> tuple[float, float]:
    """Percentile bootstrap interval of statistic(x) - statistic(y), resampled independently."""
    return bootstrap_pair_ci(x, y, lambda a, b: statistic(a) - statistic(b), reps, level, seed)


def paired_differences(x: ArrayLike, y: ArrayLike) -> Floats:
    """x - y, [runs, tasks], where the same row means the same seed."""
    a, b = _two(x, y)
    if a.shape != b.shape:
        raise ValueError(f"pairs need the same seeds: {len(a)} runs of x, {len(b)} of y")
    return a - b


def paired_mean(
    x: ArrayLike, y: ArrayLike, reps: int = 2000, level: float = 0.95, seed: int = 0
) -> Estimate:
    """Mean of x - y by seed with its bootstrap interval: whole pairs drawn, stratified by task."""
    differences = paired_differences(x, y)
    return Estimate(mean(differences), *bootstrap_ci(differences, mean, reps, level, seed))


def van_elteren(x: ArrayLike, y: ArrayLike) -> tuple[float, float]:
    """Stratified Wilcoxon rank-sum test, strata = tasks: (z, two-sided p) (van Elteren 1960).

    z = sum_h w_h (W_h - E W_h) / sqrt(sum_h w_h^2 Var W_h),  w_h = 1 / (n_h + 1)

    W_h is the sum of x's mid-ranks among the n_h runs of task h, and Var W_h =
    n_x n_y / (n_h (n_h - 1)) sum_i (rank_i - mean rank)^2, which is the tie-corrected variance.
    All tasks have as many runs here, so that the weights cancel. z > 0: x is better. The normal
    p has no continuity correction; scores that are all tied give (0, 1).
    """
    a, b = _two(x, y)
    pooled = np.concatenate([a, b])
    count = len(pooled)
    # Half of (runs below - runs above) is a run's mid-rank less the mean rank.
    ranks = 0.5 * np.sign(pooled[:, None] - pooled[None]).sum(axis=1)
    variance = len(a) * len(b) / (count * (count - 1)) * np.square(ranks).sum()
    if variance == 0:
        return 0.0, 1.0
    z = float(ranks[: len(a)].sum() / math.sqrt(variance))
    return z, float(2 * ndtr(-abs(z)))


def equivalence(x: ArrayLike, y: ArrayLike, margin: float) -> float:
    """Two one-sided Welch tests: p of |mean_x - mean_y| >= margin (Schuirmann 1987, Welch 1947).

    p = P(T_nu <= (|mean_x - mean_y| - margin) / s),  s^2 = sum_k v_k,  v_k = var_k / (n_k H^2)
    nu = s^4 / sum_k (v_k^2 / (n_k - 1))                                    (Satterthwaite 1946)

    k runs over the H tasks of x and of y, var_k being the sample variance of n_k runs; the means
    are those of task means. A small p says that the two differ by less than `margin`. Without
    any variance p is 0 or 1, as the difference says.
    """
    a, b = _two(x, y)
    if margin <= 0:
        raise ValueError(f"the margin must be above 0, got {margin}")
    if min(len(a), len(b)) < 2:
        raise ValueError(f"two runs or more of each are needed, got {len(a)} and {len(b)}")
    beyond = abs(mean(a) - mean(b)) - margin
    terms = [array.var(axis=0, ddof=1) / (len(array) * array.shape[1] ** 2) for array in (a, b)]
    variance = float(sum(term.sum() for term in terms))
    if variance == 0:
        return float(beyond >= 0)
    spread = sum(
        np.square(term / variance).sum() / (len(array) - 1)
        for term, array in zip(terms, (a, b), strict=True)
    )
    return float(stdtr(1 / spread, beyond / math.sqrt(variance)))


def bonferroni(p_values: Sequence[float], count: int | None = None) -> list[float]:
    """Each p times their number, at most 1: all hold together at the level (Dunn 1961).

    `count` is the number of all tests, where these are not all.
    """
    return [min(1.0, p * (count or len(p_values))) for p in p_values]


def area_under_curve(
    steps: Sequence[float], values: Sequence[float | None], budget: float
) -> float:
    """Mean height of a learning curve over [0, budget].

    (1 / budget) integral_0^budget v(s) ds,  v linear between points

    The first value is held back to step 0, the last on to the budget; what lies beyond the budget
    is cut off. Rows without a value (None or NaN, before the first episode ended) are left out.
    """
    at, heights = np.asarray(steps, float), np.asarray(values, float)
    if at.shape != heights.shape:
        raise ValueError(f"{at.size} steps for {heights.size} values")
    if budget <= 0:
        raise ValueError(f"the budget must be above 0, got {budget}")
    at, heights = at[~np.isnan(heights)], heights[~np.isnan(heights)]
    if not at.size:
        raise ValueError("the curve has no value: no episode ended")
    if not (np.diff(at) > 0).all():
        raise ValueError("the steps of the curve must increase")
    grid = np.concatenate([[0.0], at[(at > 0) & (at < budget)], [budget]])
    return float(np.trapezoid(np.interp(grid, at, heights), grid) / budget)


def _scores(scores: ArrayLike) -> Floats:
    """Return [..., runs, tasks], checked."""
    array = np.asarray(scores, float)
    if array.ndim == 1:
        array = array[:, None]
    if array.ndim == 0 or array.size == 0:
        raise ValueError(f"no scores: an array of shape {array.shape}, not [runs, tasks]")
    broken = array.size - np.count_nonzero(np.isfinite(array))
    if broken:
        raise ValueError(f"{broken} of {array.size} scores are NaN or infinite")
    return array


def _two(x: ArrayLike, y: ArrayLike) -> tuple[Floats, Floats]:
    """Return both arrays, checked to be of the same tasks."""
    a, b = _scores(x), _scores(y)
    if a.shape[-1] != b.shape[-1]:
        raise ValueError(f"x has {a.shape[-1]} tasks, y has {b.shape[-1]}")
    return a, b


def _bootstrap(
    statistic: Callable[..., Any], arrays: Sequence[Floats], reps: int, level: float, seed: int
) -> tuple[Any, Any]:
    if reps < 1 or not 0 < level < 1:
        raise ValueError(f"reps {reps} must be 1 or more, level {level} between 0 and 1")
    random = np.random.default_rng(seed)
    stacks = [_resampled(array, reps, random) for array in arrays]
    values = np.asarray(statistic(*stacks))
    if values.shape[:1] != (reps,):
        # It takes no stacks, as np.mean does not: one resample at a time.
        values = np.array([statistic(*each) for each in zip(*stacks, strict=True)])
    low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2], axis=0)
    return low, high


def _resampled(scores: Floats, reps: int, random: np.random.Generator) -> Floats:
    """Draw each task's runs with replacement: [reps, runs, tasks]."""
    runs, tasks = scores.shape
    return scores[random.integers(runs, size=(reps, runs, tasks)), np.arange(tasks)]
