"""The numbers on a study's page, before they become figures and tables."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from scipy.special import stdtrit

from isobatch.batch import Shape
from isobatch.errors import UserError
from isobatch.estimate import Estimate
from isobatch.pages.figures import Band
from isobatch.recipe import Recipe
from isobatch.study.design import Cell
from isobatch.study.results import Results
from isobatch.study.stats import (
    Floats,
    bootstrap_ci,
    bootstrap_pair_ci,
    iqm,
    mean,
    optimality_gap,
    performance_profile,
    probability_of_improvement,
)
from isobatch.text import counted

LEVEL = 0.95
FEWEST_SEEDS = 2
"""Below this no interval can be drawn from scores."""
FEWEST_CURVES = 3
"""Below this a band around a mean curve would be wider than the figure."""
FEWEST_SHAPES = 4
"""Below this a map of shapes is mostly empty."""
CURVE_POINTS = 100
MOST_NUMBERS = 60_000
"""Of all logged metrics together; the page of a large study draws them more coarsely."""
Curves = list[list[dict[int, Floats]]]
"""Of a metric, by environment, arm and seed."""
AGGREGATES: dict[str, Callable[[Floats], float]] = {
    "IQM": iqm,
    "Mean": mean,
    "Optimality gap": optimality_gap,
}


def countable(results: Results) -> Results:
    """Return the part of a study that has runs to show: environments with a finished run."""
    study = results.study
    present = {record.cell.env for record in results.having("done")}
    if not present:
        raise UserError("no run of the study is finished: there is nothing to report")
    envs = tuple(env for env in study.envs if env in present)
    records = [record for cell, record in results.records.items() if cell.env in present]
    return Results(replace(study, envs=envs), records)


def complete_scores(results: Results, normalise: bool = True) -> dict[str, Floats]:
    """Return each arm's scores [seeds, environments] over the same, complete seeds."""
    arms = list(results.study.arms)
    seeds = results.seeds(arms)
    return {arm: results.scores(arm, seeds, normalise=normalise) for arm in arms if seeds}


def aggregates(scores: dict[str, Floats]) -> dict[str, dict[str, Estimate]]:
    """Return every aggregate by its name, then by arm; {} where there are no scores."""
    if not scores:
        return {}
    return {
        name: {arm: _estimate(array, statistic) for arm, array in scores.items()}
        for name, statistic in AGGREGATES.items()
    }


def thresholds(scores: dict[str, Floats]) -> Floats:
    """Return the scores at which profiles are drawn: from just below the lowest to the highest."""
    low = min(array.min() for array in scores.values())
    high = max(array.max() for array in scores.values())
    margin = 0.02 * (high - low or 1.0)
    return np.linspace(low - margin, high + margin, CURVE_POINTS + 1)


def profiles(scores: dict[str, Floats], at: Floats) -> dict[str, Band]:
    """Return the share of runs above each threshold, by arm."""

    def profile(array: Floats) -> Floats:
        return performance_profile(array, at)

    return {
        arm: Band(profile(array), *map(np.asarray, bootstrap_ci(array, profile, level=LEVEL)))
        for arm, array in scores.items()
    }


def improvements(scores: dict[str, Floats]) -> dict[tuple[str, str], Estimate]:
    """Return how probably a run of the first arm beats one of the second, for every pair."""
    return {
        (x, y): Estimate(
            float(probability_of_improvement(scores[x], scores[y])),
            *map(float, bootstrap_pair_ci(scores[x], scores[y], level=LEVEL)),
        )
        for x, y in itertools.combinations(scores, 2)
    }


def step_grid(budget: int, points: int) -> Floats:
    """Return evenly spaced numbers of environment steps up to the budget, without 0."""
    return np.linspace(0, budget, points + 1)[1:]


def run_curves(results: Results, arm: str, env: str, column: str, at: Floats) -> dict[int, Floats]:
    """Return a metric of an arm's finished runs by seed, without those that never had a value."""
    curves = {
        seed: results.curve(Cell(arm, env, seed), column, at) for seed in results.raw(arm, env)
    }
    return {seed: curve for seed, curve in curves.items() if not np.isnan(curve).all()}


def learning_curves(results: Results, arm: str, env: str, at: Floats) -> dict[int, Floats]:
    """Return the evaluated returns of an arm's finished runs by seed.

    Runs that were not evaluated while training, as those of the first version, have none.
    """
    return {
        seed: results.learning_curve(cell, at)
        for seed in results.raw(arm, env)
        if results.records[cell := Cell(arm, env, seed)].evaluations
    }


def seeds_note(drawn: int, seeds: int) -> str:
    """Return 4 of 5 seeds; '' where all of them are drawn."""
    return f"{drawn} of {counted(seeds, 'seed')}" if drawn < seeds else ""


def mean_curve(curves: dict[int, Floats]) -> Floats:
    """Return the mean over runs, NaN where not all have a value: it is always of the same ones.

    Empty where there is no run.
    """
    return np.mean(list(curves.values()), axis=0) if curves else np.array([])


def mean_band(curves: dict[int, Floats]) -> Band:
    """Return the mean over runs with Student's t interval at each point.

    mean +- t_{n-1, 0.975} s / sqrt(n)
    """
    middle, count = mean_curve(curves), len(curves)
    if count < FEWEST_CURVES:
        return Band(middle, np.full_like(middle, np.nan), np.full_like(middle, np.nan))
    deviation = np.std(list(curves.values()), axis=0, ddof=1)
    half = stdtrit(count - 1, (1 + LEVEL) / 2) * deviation / math.sqrt(count)
    return Band(middle, middle - half, middle + half)


def metric_points(results: Results, columns: list[str]) -> int:
    """Return how many points of each metric's curves the page has room for."""
    series = len(columns) * len(results.study.arms) * len(results.study.envs)
    return max(20, min(CURVE_POINTS, MOST_NUMBERS // max(1, series)))


def metric_curves(results: Results, columns: list[str], at: Floats) -> dict[str, Curves]:
    """Return each metric's curves by environment, then by arm, then by seed."""
    study = results.study
    return {
        column: [
            [run_curves(results, arm, env, column, at) for arm in study.arms] for env in study.envs
        ]
        for column in columns
    }


def shape_scores(results: Results, scores: dict[str, Floats]) -> dict[Shape, float]:
    """Return the mean normalised score by shape, or {} where the arms span no plane.

    Arms of the same shape are averaged. An arm whose shape is not the same in all environments
    has no place on the map, and then there is none.
    """
    if not scores:
        return {}
    by_shape: dict[Shape, list[float]] = {}
    for arm, array in scores.items():
        shapes = _shapes(results, arm)
        if len(shapes) != 1:
            return {}
        by_shape.setdefault(shapes.pop(), []).append(float(mean(array)))
    n_envs, n_steps = ({shape[axis] for shape in by_shape} for axis in (0, 1))
    if min(len(n_envs), len(n_steps)) < 2 or len(by_shape) < FEWEST_SHAPES:
        return {}
    return {shape: float(np.mean(values)) for shape, values in by_shape.items()}


def _shapes(results: Results, arm: str) -> set[Shape]:
    """Return the shapes that the arm's runs had."""
    seed = results.seeds(list(results.study.arms))[0]
    paths = [results.records[Cell(arm, env, seed)].path for env in results.study.envs]
    return {Recipe.load(path / "recipe.toml").batch.shape for path in paths}


def _estimate(array: Floats, statistic: Callable[[Floats], float]) -> Estimate:
    """Return a statistic with its bootstrap interval, NaN where there are too few seeds for one."""
    if len(array) < FEWEST_SEEDS:
        return Estimate(float(statistic(array)), math.nan, math.nan)
    low, high = bootstrap_ci(array, statistic, level=LEVEL)
    return Estimate(float(statistic(array)), float(low), float(high))
