"""A study's figures."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from isobatch.batch import Shape
from isobatch.estimate import Estimate
from isobatch.pages.figures import (
    COLOURS,
    MOST_NUMBERED_ARMS,
    Band,
    Figure,
    banded,
    base_layout,
    dot,
    heat_map,
    label,
    line,
    rounded,
    rows_figure,
    ticks,
)
from isobatch.study.stats import Floats

MOST_DOTTED_ARMS = 5
"""Beyond this the pairs of arms make a matrix, not a list."""


def aggregate(name: str, estimates: dict[str, Estimate]) -> Figure:
    """Draw an aggregate of every arm with its interval."""
    traces = [dot(row, estimate, row) for row, estimate in enumerate(estimates.values())]
    better = "lower is better" if name == "Optimality gap" else "higher is better"
    names = [label(arm, 18) for arm in estimates]
    return rows_figure(f"{name} of normalised scores", better, traces, names)


def profiles(bands: dict[str, Band], at: Floats) -> Figure:
    """Draw the share of runs above each normalised score."""
    layout = base_layout(
        "Performance profiles", "normalised score", "fraction of runs above", len(bands)
    )
    layout["yaxis"]["range"] = [-0.02, 1.02]
    # A profile keeps its value from one threshold to the next.
    return {"data": banded(at, bands, list(bands), shape="hv"), "layout": layout}


def learning(
    env: str,
    budget: int,
    runs: dict[str, dict[int, Floats]],
    bands: dict[str, Band],
    notes: dict[str, str],
    at: Floats,
) -> Figure:
    """Draw an environment's mean learning curves, and its single runs for whoever asks.

    `notes` are of arms whose curve is not of all their seeds, and stand beside their names.
    """
    arms = list(runs)
    single = [
        _run(at, curve, label(arm), index)
        for index, arm in enumerate(arms)
        for curve in runs[arm].values()
    ]
    names = {arm: noted(arm, notes.get(arm, "")) for arm in bands}
    means = banded(at, bands, arms, names=names)
    layout = _steps_layout(env, "return of evaluation episodes", budget, len(arms))
    return {"data": [*single, *means], "layout": layout}


def noted(arm: str, note: str) -> str:
    """Return an arm's name as a figure shows it, with a note where there is one."""
    return label(f"{arm} ({note})" if note else arm)


def metric(env: str, arms: Sequence[str], budget: int, at: Floats) -> Figure:
    """Draw one empty line per arm, which the page fills with the metric chosen."""
    traces = [line(at, label(arm), index) for index, arm in enumerate(arms)]
    return {"data": traces, "layout": _steps_layout(env, "", budget, len(arms))}


def improvement(arms: Sequence[str], pairs: dict[tuple[str, str], Estimate]) -> Figure:
    """Draw the probability of improvement for every pair of arms."""
    if len(arms) > MOST_DOTTED_ARMS:
        return _improvement_matrix(arms, pairs)
    traces = [dot(row, estimate, 0) for row, estimate in enumerate(pairs.values())]
    names = [f"{label(x, 18)}<br>{label(f'over {y}', 18)}" for x, y in pairs]
    figure = rows_figure("Probability of improvement", "probability", traces, names)
    figure["layout"]["xaxis"]["range"] = [-0.03, 1.03]
    figure["layout"]["shapes"] = [
        {"type": "line", "x0": 0.5, "x1": 0.5, "y0": 0, "y1": 1, "yref": "paper",
         "line": {"color": COLOURS[-1], "width": 1, "dash": "dot"}}
    ]  # fmt: skip
    return figure


def shapes(scores: dict[Shape, float]) -> Figure:
    """Draw the mean normalised score over environments x steps."""
    n_envs, n_steps = (sorted({shape[axis] for shape in scores}) for axis in (0, 1))
    cells = [[scores.get(Shape(n, t), math.nan) for n in n_envs] for t in n_steps]
    layout = base_layout("Mean normalised score by shape", "environments, N", "steps, T", 0)
    layout["xaxis"] |= ticks([str(n) for n in n_envs])
    layout["yaxis"] |= ticks([str(t) for t in n_steps])
    layout["height"] = 160 + 56 * len(n_steps)
    return {"data": [heat_map(np.array(cells), "score")], "layout": layout}


def _improvement_matrix(arms: Sequence[str], pairs: dict[tuple[str, str], Estimate]) -> Figure:
    order = {arm: index for index, arm in enumerate(arms)}
    values = np.full((len(arms), len(arms)), math.nan)
    for (x, y), pair in pairs.items():
        values[order[x], order[y]] = pair.value
        values[order[y], order[x]] = 1 - pair.value
    trace = heat_map(values, "P", numbered=len(arms) <= MOST_NUMBERED_ARMS) | {"zmin": 0, "zmax": 1}
    layout = base_layout("P(row beats column)", "", "", 0)
    names = [label(arm) for arm in arms]
    layout["xaxis"] |= ticks(names)
    layout["yaxis"] |= ticks(names) | {"autorange": "reversed"}
    layout["height"] = 160 + 36 * len(arms)
    return {"data": [trace], "layout": layout}


def _run(at: Floats, curve: Floats, name: str, index: int) -> Figure:
    """Draw a single run."""
    trace = line(at, name, index) | {"y": rounded(curve), "opacity": 0.4, "hovertemplate": ""}
    trace["line"]["width"] = 1
    return trace | {"meta": "run", "showlegend": False, "hoverinfo": "skip"}


def _steps_layout(env: str, y_title: str, budget: int, arms: int) -> Figure:
    layout = base_layout(label(env, 40), "environment steps", y_title, arms)
    layout["xaxis"]["range"] = [0, budget]
    layout["hovermode"] = "x"
    return layout
