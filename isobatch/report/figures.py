"""A study's figures as Plotly's data and layout: plain dicts, without colours of page or text.

What comes from files, such as arms' names, passes through `label`: Plotly reads markup in texts.
"""

from __future__ import annotations

import html
import math
import textwrap
from collections.abc import Sequence
from typing import Any

import numpy as np

from isobatch.report.summary import Band
from isobatch.study.stats import Estimate, Floats

Figure = dict[str, Any]

# Okabe and Ito's colours that stand out on white and on black.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f")
DASHES = ("solid", "dash", "dot", "dashdot", "longdash")
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross")
HEIGHT = 360
MOST_DOTTED_ARMS = 5
"""Beyond this the pairs of arms make a matrix, not a list."""
MOST_NUMBERED_ARMS = 12
"""Beyond this a matrix's cells are too small to write in."""
LEGEND = {
    "orientation": "h", "x": 0, "xanchor": "left", "y": 0, "yref": "container", "yanchor": "bottom",
}  # fmt: skip


def label(text: str, width: int = 24) -> str:
    """Return a name as a figure may show it: its markup inert, long ones broken over lines."""
    lines = textwrap.wrap(text, width) or [""]
    return "<br>".join(html.escape(line, quote=False) for line in lines)


def rounded(values: Floats) -> list[float | int | None]:
    """Return values with four significant digits, None for NaN: a page holds many of them."""
    return [_rounded(float(value)) for value in values]


def aggregate(name: str, estimates: dict[str, Estimate]) -> Figure:
    """Draw an aggregate of every arm with its interval."""
    traces = [dot(row, estimate, row) for row, estimate in enumerate(estimates.values())]
    better = "lower is better" if name == "Optimality gap" else "higher is better"
    names = [label(arm, 18) for arm in estimates]
    return rows_figure(f"{name} of normalised scores", better, traces, names)


def profiles(bands: dict[str, Band], at: Floats) -> Figure:
    """Draw the share of runs above each normalised score."""
    layout = base_layout(
        "Performance profiles", "normalised score", "share of runs above", len(bands)
    )
    layout["yaxis"]["range"] = [-0.02, 1.02]
    # A profile keeps its value from one threshold to the next.
    return {"data": banded(at, bands, list(bands), shape="hv"), "layout": layout}


def learning(
    env: str, budget: int, runs: dict[str, dict[int, Floats]], bands: dict[str, Band], at: Floats
) -> Figure:
    """Draw an environment's mean learning curves, and its single runs for whoever asks."""
    arms = list(runs)
    single = [
        _run(at, curve, label(arm), index)
        for index, arm in enumerate(arms)
        for curve in runs[arm].values()
    ]
    layout = _steps_layout(env, "training return", budget, len(arms))
    return {"data": [*single, *banded(at, bands, arms)], "layout": layout}


def metric(env: str, arms: Sequence[str], budget: int, at: Floats) -> Figure:
    """Draw one empty line per arm, which the page fills with the metric chosen."""
    traces = [_line(at, label(arm), index) for index, arm in enumerate(arms)]
    return {"data": traces, "layout": _steps_layout(env, "", budget, len(arms))}


def improvement(arms: Sequence[str], pairs: dict[tuple[str, str], Estimate]) -> Figure:
    """Draw how probably one arm's run beats another's, for every pair."""
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


def shapes(scores: dict[tuple[int, int], float]) -> Figure:
    """Draw the mean normalised score over environments x steps."""
    n_envs, n_steps = (sorted({shape[axis] for shape in scores}) for axis in (0, 1))
    cells = [[scores.get((n, t), math.nan) for n in n_envs] for t in n_steps]
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


def heat_map(values: Floats, name: str, numbered: bool = True) -> Figure:
    """Draw a matrix in colours that grow evenly lighter, with its numbers written in."""
    trace: Figure = {
        "type": "heatmap", "z": [rounded(row) for row in values], "colorscale": "Cividis",
        "hoverongaps": False, "xgap": 2, "ygap": 2, "hovertemplate": "%{z:.3f}<extra></extra>",
        "colorbar": {"title": {"text": name}, "thickness": 12},
    }  # fmt: skip
    return trace | ({"texttemplate": "%{z:.2f}"} if numbered else {})


def rows_figure(title: str, x_title: str, traces: list[Figure], names: list[str]) -> Figure:
    """Lay dots out one below the other, the first on top."""
    lines = sum(1 + name.count("<br>") for name in names)
    layout = base_layout(title, x_title, "", 0)
    layout["yaxis"] |= ticks(names) | {"range": [len(names) - 0.5, -0.5]}
    layout["height"] = 110 + 16 * (len(names) + lines)
    return {"data": traces, "layout": layout}


def ticks(names: list[str]) -> Figure:
    """Name the places 0, 1, 2: categories would merge names that look alike."""
    return {
        "tickvals": list(range(len(names))), "ticktext": names, "showgrid": False,
        "zeroline": False, "ticks": "",
    }  # fmt: skip


def dot(row: int, estimate: Estimate, index: int) -> Figure:
    """Draw an estimate and its interval in a row of its own."""
    trace: Figure = {
        "type": "scatter", "mode": "markers", "x": [_rounded(estimate.value)], "y": [row],
        "marker": {"color": _colour(index), "size": 10, "symbol": SYMBOLS[index % len(SYMBOLS)]},
        "hovertemplate": "%{x}<extra></extra>",
    }  # fmt: skip
    if not math.isnan(estimate.low):
        trace["error_x"] = {
            "type": "data", "symmetric": False, "thickness": 2, "width": 5,
            "array": [_rounded(estimate.high - estimate.value)],
            "arrayminus": [_rounded(estimate.value - estimate.low)],
        }  # fmt: skip
    return trace


def banded(
    at: Floats, bands: dict[str, Band], arms: Sequence[str], shape: str = "linear"
) -> list[Figure]:
    """Draw curves over their bands, all bands below all curves."""
    around, lines = [], []
    for arm, band in bands.items():
        line = _line(at, label(arm), arms.index(arm), shape)
        lines.append(line | {"y": rounded(band.middle)})
        if not np.isnan(band.low).all():
            around += _around(line, band, _faint(_colour(arms.index(arm))))
    return around + lines


def _around(line: Figure, band: Band, colour: str) -> list[Figure]:
    """Fill the area between a band's bounds: Plotly fills from a trace to the one before it."""
    bound = line | {
        "line": {"width": 0, "shape": line["line"]["shape"]}, "meta": "band", "showlegend": False,
        "hoverinfo": "skip", "hovertemplate": "",
    }  # fmt: skip
    filled = {"fill": "tonexty", "fillcolor": colour, "y": rounded(band.high)}
    return [bound | {"y": rounded(band.low)}, bound | filled]


def _run(at: Floats, curve: Floats, name: str, index: int) -> Figure:
    """Draw a single run."""
    trace = _line(at, name, index) | {"y": rounded(curve), "opacity": 0.4, "hovertemplate": ""}
    trace["line"]["width"] = 1
    return trace | {"meta": "run", "showlegend": False, "hoverinfo": "skip"}


def _line(at: Floats, name: str, index: int, shape: str = "linear") -> Figure:
    """Draw an arm's line over evenly spaced places, given by the first and their distance."""
    dash = DASHES[index // len(COLOURS) % len(DASHES)]
    return {
        "type": "scatter", "mode": "lines", "name": name, "legendgroup": name,
        "x0": float(at[0]), "dx": float(at[1] - at[0]),
        "line": {"color": _colour(index), "width": 2, "dash": dash, "shape": shape},
        "hovertemplate": "%{y}<extra>%{fullData.name}</extra>",
    }  # fmt: skip


def _steps_layout(env: str, y_title: str, budget: int, arms: int) -> Figure:
    layout = base_layout(label(env, 40), "environment steps", y_title, arms)
    layout["xaxis"] |= {"range": [0, budget], "tickformat": "~s"}
    layout["hovermode"] = "x"
    return layout


def base_layout(title: str, x_title: str, y_title: str, arms: int) -> Figure:
    """Return what all figures share; those with a legend get room for it."""
    return {
        "title": {"text": title, "x": 0, "pad": {"l": 6}, "font": {"size": 15}},
        "xaxis": axis(x_title),
        "yaxis": axis(y_title),
        "legend": LEGEND,
        "showlegend": arms > 0,
        "height": HEIGHT + 8 * arms,
        "margin": {"l": 16, "r": 16, "t": 44, "b": 16},
    }


def axis(title: str) -> Figure:
    """Return an axis that makes room for its labels."""
    return {"title": {"text": title, "standoff": 8, "font": {"size": 13}}, "automargin": True}


def _colour(index: int) -> str:
    return COLOURS[index % len(COLOURS)]


def _faint(colour: str) -> str:
    red, green, blue = (int(colour[place : place + 2], 16) for place in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.16)"


def _rounded(value: float) -> float | int | None:
    if not math.isfinite(value):
        return None
    short = float(f"{value:.4g}")
    return int(short) if short.is_integer() else short
