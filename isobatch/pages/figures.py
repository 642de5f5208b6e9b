"""Figures as Plotly's data and layout: plain dicts, without colours of page or text.

What comes from files, such as arms' names, passes through `label`: Plotly reads markup in texts.
"""

from __future__ import annotations

import html
import math
import textwrap
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from isobatch.estimate import Estimate

Figure = dict[str, Any]
Floats = NDArray[np.float64]

# Okabe and Ito's colours that stand out on white and on black.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f")
DASHES = ("solid", "dash", "dot", "dashdot", "longdash")
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross")
HEIGHT = 360
MOST_NUMBERED_ARMS = 12
"""Beyond this a matrix's cells are too small to write in."""
LEGEND = {
    "orientation": "h", "x": 0, "xanchor": "left", "y": 0, "yref": "container", "yanchor": "bottom",
}  # fmt: skip


class Band(NamedTuple):
    """A curve with an interval at each point; NaN where there is none."""

    middle: Floats
    low: Floats
    high: Floats


def label(text: str, width: int = 24) -> str:
    """Return a name as a figure may show it: its markup inert, long ones broken over lines."""
    lines = textwrap.wrap(text, width) or [""]
    return "<br>".join(html.escape(line, quote=False) for line in lines)


def rounded(values: Floats) -> list[float | int | None]:
    """Return values with four significant digits, None for NaN: a page holds many of them."""
    return [_rounded(float(value)) for value in values]


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
        "marker": {"color": colour(index), "size": 10, "symbol": SYMBOLS[index % len(SYMBOLS)]},
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
    at: Floats,
    bands: dict[str, Band],
    arms: Sequence[str],
    shape: str = "linear",
    names: dict[str, str] | None = None,
) -> list[Figure]:
    """Draw curves over their bands, all bands below all curves; `names` are arms' as shown."""
    around, lines = [], []
    for arm, band in bands.items():
        name = names[arm] if names else label(arm)
        drawn = line(at, name, arms.index(arm), shape)
        lines.append(drawn | {"y": rounded(band.middle)})
        if not np.isnan(band.low).all():
            around += _around(drawn, band, _faint(colour(arms.index(arm))))
    return around + lines


def _around(drawn: Figure, band: Band, tint: str) -> list[Figure]:
    """Fill the area between a band's bounds: Plotly fills from a trace to the one before it."""
    bound = drawn | {
        "line": {"width": 0, "shape": drawn["line"]["shape"]}, "meta": "band", "showlegend": False,
        "hoverinfo": "skip", "hovertemplate": "",
    }  # fmt: skip
    filled = {"fill": "tonexty", "fillcolor": tint, "y": rounded(band.high)}
    return [bound | {"y": rounded(band.low)}, bound | filled]


def line(at: Floats, name: str, index: int, shape: str = "linear") -> Figure:
    """Draw an arm's line over evenly spaced places, given by the first and their distance."""
    dash = DASHES[index // len(COLOURS) % len(DASHES)]
    return {
        "type": "scatter", "mode": "lines", "name": name, "legendgroup": name,
        "x0": float(at[0]), "dx": float(at[1] - at[0]),
        "line": {"color": colour(index), "width": 2, "dash": dash, "shape": shape},
        "hovertemplate": "%{y}<extra>%{fullData.name}</extra>",
    }  # fmt: skip


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


def colour(index: int) -> str:
    """Return the colour of the index-th arm."""
    return COLOURS[index % len(COLOURS)]


def _faint(tint: str) -> str:
    red, green, blue = (int(tint[place : place + 2], 16) for place in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.16)"


def _rounded(value: float) -> float | int | None:
    if not math.isfinite(value):
        return None
    short = float(f"{value:.4g}")
    return int(short) if short.is_integer() else short
