"""A probe's figures as Plotly's data and layout, in the manner of a study's."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from isobatch.batch import Shape
from isobatch.estimate import Estimate
from isobatch.pages.figures import (
    COLOURS,
    MOST_NUMBERED_ARMS,
    Band,
    Figure,
    axis,
    banded,
    base_layout,
    dot,
    heat_map,
    label,
    rounded,
    rows_figure,
    ticks,
)
from isobatch.probe.reference import BIASES, NAMES

Measured = Sequence[float | None] | float | None
"""A value, alone or with the bounds of its interval; None for what is not known."""
Entry = dict[str, Any]

GREY = COLOURS[-1]
LOG = {"type": "log", "exponentformat": "none"}
CURVE = {"bias2": "bias²", "variance": "variance", "error": "error: bias² + variance"}
MARKS = {
    "best": ("best per transition", "star", 15, COLOURS[4]),
    "fastest": ("best per second", "diamond-open", 22, COLOURS[3]),
    "own": ("the recipe's shape", "circle-open", 30, GREY),
}
WITHIN_OR_ACROSS = {"within": "same environment", "across": "different environments"}
DEEPEST = 1e3
"""How far below the smallest error the curve is drawn: deeper parts decide nothing."""
GAP = 0.02
"""Between panels, as a share of the figure's width."""


def curve(entry: Entry) -> Figure:
    """Draw error, squared bias and variance of every shape of as many samples."""
    names = [Shape(shape["n_envs"], shape["n_steps"]).name for shape in entry["shapes"]]
    series = {
        name: _band([shape[kind] for shape in entry["shapes"]])
        for kind, name in (CURVE | {"bias2": f"{BIASES[entry['reference']]}²"}).items()
    }
    floor = _floor(series)
    title = f"Against {NAMES[entry['reference']]}"
    layout = base_layout(title, "environments x steps", "relative to |G|²", 6)
    layout["xaxis"] |= ticks([label(name) for name in names])
    layout["yaxis"] |= LOG | {"range": [math.log10(floor), None]}
    layout |= {"height": 460, "hovermode": "x"}
    layout["legend"] = layout["legend"] | {"itemsizing": "constant"}
    errors = series[CURVE["error"]].middle
    marks = [
        _mark(names.index(entry[kind]), errors, entry[kind], *look)
        for kind, look in MARKS.items()
        if entry[kind] in names
    ]
    highest = max(_finite(series), default=1.0)
    lines = _lines({name: _clipped(band, floor, highest) for name, band in series.items()})
    lines[-1]["line"]["width"] = 4
    return {"data": [*lines, *marks], "layout": layout}


TALLEST = 2.5
"""A figure of variances is at most so many times as high as the largest of them."""


def decomposition(kind: str, entries: list[Entry]) -> Figure:
    """Draw what single samples and their covariance add to the variance, times the samples."""
    samples = np.array([entry["n_envs"] * entry["n_steps"] for entry in entries])
    parts = {"individual": COLOURS[0], "covariance": COLOURS[1]}
    bars = [
        _bars(name, samples * _band([entry[name] for entry in entries]).middle, colour)
        for name, colour in parts.items()
    ]
    total = _band([entry["total"] for entry in entries])
    layout = base_layout(f"Gradient variance times samples, {kind} advantages", "", "", 3)
    layout["xaxis"] |= ticks([label(entry["shape"], 12) for entry in entries])
    # Few environments may leave an interval without end: it runs out of the figure.
    tallest = float(np.nanmax([samples * total.middle, *(bar["y"] for bar in bars)]))
    lowest = float(np.nanmin([np.zeros(len(samples)), *(bar["y"] for bar in bars)]))
    layout["yaxis"] |= {"zerolinewidth": 2, "range": [1.2 * lowest, TALLEST * tallest]}
    layout["barmode"] = "relative"
    beyond = 2 * TALLEST * tallest
    bounded = Band(*(np.minimum(samples * each, beyond) for each in total))
    return {"data": [*bars, _total(bounded)], "layout": layout}


def noise(entries: list[Entry], samples: int) -> Figure:
    """Draw each estimate of the noise scale, beside the recipe's own number of samples."""
    scales = [_estimate(entry["noise_scale"]) for entry in entries]
    known = [number for scale in scales for number in scale if number > 0]
    known.append(samples)
    least, most = min(known) / 2, max(known) * 2
    estimators = list(dict.fromkeys(entry["estimator"] for entry in entries))
    traces = [
        _open_ended(row, scale, estimators.index(entry["estimator"]), 10 * most)
        for row, (entry, scale) in enumerate(zip(entries, scales, strict=True))
    ]
    names = [f"{label(entry['shape'])}<br>{label(entry['estimator'])}" for entry in entries]
    figure = rows_figure("Noise scale", "transitions", traces, names)
    figure["layout"]["xaxis"] |= LOG | {"range": [math.log10(least), math.log10(most)]}
    figure["layout"]["shapes"] = [
        {"type": "line", "x0": samples, "x1": samples, "y0": 0, "y1": 1, "yref": "paper",
         "line": {"color": GREY, "width": 1, "dash": "dot"}}
    ]  # fmt: skip
    return figure


def scatter(entry: Entry, entries: list[Entry]) -> Figure:
    """Draw a batch's samples against every batch's mean gradient: a panel each, all axes alike."""
    layout = base_layout(label(entry["shape"]), "", "cosine similarity", 0)
    most = 1.05 * max(abs(cosine) for cosine in _dots(entries, "cosine")) or 1.0
    layout["yaxis"] |= {"range": [-most, most], "zerolinewidth": 2}
    layout |= {"height": 260, "shapes": [], "annotations": []}
    layout["margin"] = layout["margin"] | {"t": 64}
    edges = pairwise(np.linspace(0, 1 + GAP, len(entry["scatter"]) + 1))
    lengths = _lengths(entries)
    traces = []
    for place, (panel, (start, end)) in enumerate(zip(entry["scatter"], edges, strict=True)):
        number = place + 1 if place else ""
        domain = {"domain": [start, end - GAP], "range": lengths, "nticks": 4, "anchor": "y"}
        layout[f"xaxis{number}"] = axis("norm") | LOG | domain
        layout["annotations"].append(_above(place, f"x{number} domain"))
        layout["shapes"].append(_level(float(np.mean(panel["cosine"])), f"x{number} domain"))
        traces.append(_cloud(panel, f"x{number}"))
    return {"data": traces, "layout": layout}


def cosines(entry: Entry) -> Figure:
    """Draw the cosine of every two batches' mean gradients."""
    values = np.array(entry["cosines"], dtype=float)
    names = [str(place) for place in range(len(values))]
    layout = base_layout(label(entry["shape"]), "batch", "batch", 0)
    layout["xaxis"] |= ticks(names)
    layout["yaxis"] |= ticks(names) | {"autorange": "reversed"}
    trace = heat_map(values, "cosine", numbered=len(values) <= MOST_NUMBERED_ARMS)
    return {"data": [trace | {"zmin": -1, "zmax": 1}], "layout": layout}


def lags(entries: list[Entry]) -> Figure:
    """Draw the correlation of gradients by lag, within trajectories and across them."""
    every = sorted({lag for entry in entries for lag in entry["lag"]})
    series = {
        f"{entry['shape']} {name}": _placed(entry["lag"], every, entry[kind])
        for entry in entries
        for kind, name in WITHIN_OR_ACROSS.items()
    }
    traces = _lines(series)
    for place, trace in enumerate(traces):
        shape, across = divmod(place, 2)
        colour = COLOURS[shape % len(COLOURS)]
        trace["line"] |= {"color": colour, "dash": "dot" if across else "solid"}
    title = "Correlation of per-sample gradients"
    layout = base_layout(title, "lag (steps)", "correlation", len(series))
    layout["xaxis"] |= ticks([f"{lag:,}" for lag in every])
    return {"data": traces, "layout": layout}


def bias(entries: list[Entry]) -> Figure:
    """Draw the gradient's bias by the rollout's length."""
    return _by_length(entries, "bias", "Bias of the gradient, not rescaled", "|b| / |G|")


def advantage_error(entries: list[Entry]) -> Figure:
    """Draw the advantages' error by the rollout's length."""
    return _by_length(entries, "advantage_error", "Advantage error", "relative RMS error")


def _by_length(entries: list[Entry], kind: str, title: str, unit: str) -> Figure:
    every = sorted({steps for entry in entries for steps in entry["n_steps"]})
    series = {
        f"{BIASES[entry['reference']].removesuffix(' bias')}, λ = {entry['gae_lambda']}": _placed(
            entry["n_steps"], every, entry[kind]
        )
        for entry in entries
    }
    layout = base_layout(title, "rollout length T (steps)", unit, len(series))
    layout["xaxis"] |= ticks([f"{steps:,}" for steps in every])
    layout["yaxis"]["rangemode"] = "tozero"
    layout["hovermode"] = "x"
    return {"data": _lines(series), "layout": layout}


def _estimate(measured: Measured) -> Estimate:
    """Return a value and its bounds, NaN for what is not known."""
    triple = measured if isinstance(measured, Sequence) else (measured, None, None)
    return Estimate(*(math.nan if number is None else number for number in triple))


def _band(measured: Sequence[Measured]) -> Band:
    """Return values and their bounds; one without, among others with, is its own bounds.

    One with a lower bound only is not bounded above.
    """
    middle, low, high = np.array([_estimate(each) for each in measured], dtype=float).T
    if np.isnan(low).all():
        return Band(middle, low, high)
    high = np.where(np.isnan(high), np.where(np.isnan(low), middle, math.inf), high)
    return Band(middle, np.where(np.isnan(low), middle, low), high)


def _placed(at: list[int], every: list[int], measured: Sequence[Measured]) -> Band:
    """Return a band over all places, of which it knows some."""
    known = dict(zip(at, measured, strict=True))
    return _band([known.get(place) for place in every])


def _clipped(band: Band, floor: float, highest: float) -> Band:
    """Return what a logarithmic axis can draw of a band; one without bound ends at the top.

    A value below the axis is not drawn, since the part of its band that is would not hold it.
    """
    middle = np.where(band.middle >= floor, band.middle, math.nan)
    return Band(middle, np.maximum(band.low, floor), np.clip(band.high, floor, highest))


def _finite(series: dict[str, Band]) -> list[float]:
    """Return every bound and value there is."""
    return [
        float(each)
        for band in series.values()
        for part in band
        for each in part
        if math.isfinite(each)
    ]


def _floor(series: dict[str, Band]) -> float:
    """Return the lowest number to draw: below are only parts that decide nothing."""
    values = [value for band in series.values() for value in band.middle if value > 0]
    errors = [value for value in series[CURVE["error"]].middle if value > 0]
    return max(min(values, default=1.0), min(errors, default=1.0) / DEEPEST) / 1.5


def _lines(series: dict[str, Band]) -> list[Figure]:
    """Draw lines over the places 0, 1, 2, and dots where there is a number."""
    places = np.arange(1.0 + max(len(band.middle) for band in series.values()))
    return [
        trace if trace.get("meta") == "band" else trace | {"mode": "lines+markers"}
        for trace in banded(places, series, list(series))
    ]


def _mark(
    place: int, errors: np.ndarray, shape: str, meaning: str, symbol: str, size: int, colour: str
) -> Figure:
    """Mark a shape on the line of errors."""
    return {
        "type": "scatter", "mode": "markers", "name": f"{meaning}: {label(shape)}",
        "x": [place], "y": rounded(errors[[place]]), "hoverinfo": "skip",
        "marker": {
            "symbol": symbol, "size": size, "color": colour, "line": {"width": 2, "color": colour},
        },
    }  # fmt: skip


def _bars(name: str, heights: np.ndarray, colour: str) -> Figure:
    return {
        "type": "bar", "name": name, "y": rounded(heights), "marker": {"color": colour},
        "width": 0.5, "hovertemplate": "%{y}<extra>%{fullData.name}</extra>",
    }  # fmt: skip


def _total(band: Band) -> Figure:
    """Draw the sum of bars to their right: it would hide in them where one is below zero."""
    return {
        "type": "scatter", "mode": "markers", "name": "total", "y": rounded(band.middle),
        "x0": 0.34, "dx": 1, "marker": {"symbol": "diamond", "size": 10, "color": GREY},
        "error_y": {
            "type": "data", "symmetric": False, "thickness": 2, "width": 5,
            "array": rounded(band.high - band.middle),
            "arrayminus": rounded(band.middle - band.low),
        },
        "hovertemplate": "%{y}<extra>total</extra>",
    }  # fmt: skip


def _open_ended(row: int, scale: Estimate, index: int, beyond: float) -> Figure:
    """Draw an estimate whose upper bound, or itself, may be infinite: out of the figure."""
    unbounded = math.isnan(scale.value)
    high = beyond if math.isnan(scale.high) else scale.high
    trace = dot(row, Estimate(scale.low if unbounded else scale.value, scale.low, high), index)
    if unbounded:
        trace["marker"] |= {"symbol": "triangle-right", "size": 15}
    return trace


def _lengths(entries: list[Entry]) -> list[float]:
    """Return the range of the lengths of all samples' gradients, as powers of ten."""
    norms = [norm for norm in _dots(entries, "norm") if norm > 0] or [1.0]
    return [math.log10(min(norms) / 1.3), math.log10(max(norms) * 1.3)]


def _dots(entries: list[Entry], kind: str) -> list[float]:
    return [value for entry in entries for panel in entry["scatter"] for value in panel[kind]]


def _cloud(panel: Entry, x_axis: str) -> Figure:
    return {
        "type": "scatter", "mode": "markers", "x": rounded(panel["norm"]),
        "y": rounded(panel["cosine"]), "xaxis": x_axis, "hoverinfo": "skip",
        "marker": {"color": COLOURS[0], "size": 3.5, "opacity": 0.7},
    }  # fmt: skip


def _above(place: int, reference: str) -> Figure:
    """Name a panel by the batch whose mean gradient it is about."""
    text = f"batch {place}" if place else "batch 0 (own)"
    return {
        "text": text, "showarrow": False, "x": 0, "xref": reference, "xanchor": "left", "y": 1,
        "yref": "paper", "yanchor": "bottom", "font": {"size": 13},
    }  # fmt: skip


def _level(height: float, reference: str) -> Figure:
    """Draw a panel's mean cosine."""
    return {
        "type": "line", "x0": 0, "x1": 1, "xref": reference, "y0": height, "y1": height,
        "line": {"color": COLOURS[1], "width": 2},
    }  # fmt: skip
