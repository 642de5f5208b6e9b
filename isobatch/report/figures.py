"""The figures of a run, or of several overlaid.

A figure's `along` names for each trace where its points lie: the page has the places once, on each
axis that it can be switched to.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isobatch.errors import UserError, nearest, shown
from isobatch.pages.figures import (
    COLOURS,
    DASHES,
    LEGEND,
    Figure,
    base_layout,
    colour,
    label,
    ticks,
)
from isobatch.report.bands import Advised
from isobatch.report.course import AXES, TIMES, Course, Floats, numbers, thinned

BAND = "rgba(0,158,115,0.14)"
SPREAD = 0.16
SEVERITIES = {"problem": COLOURS[1], "warning": COLOURS[4], "note": COLOURS[6]}
AS_IN_THE_BARS = LEGEND | {"traceorder": "normal"}
"""The legend of stacked bars: Plotly would reverse it."""
Values = list[float | int | None]


class Places:
    """Where points lie on each axis, each set of them once."""

    def __init__(self) -> None:
        self.sets: dict[str, dict[str, Values]] = {}
        self._known: dict[str, str] = {}

    def name(self, places: dict[str, Any]) -> str:
        """Return the name of a set of places."""
        exact_places = {axis: exact(values) for axis, values in places.items()}
        name = self._known.setdefault(repr(exact_places), f"places-{len(self._known)}")
        self.sets[name] = exact_places
        return name


def exact(values: Sequence[float] | Floats) -> Values:
    """Return values as they are in the files, None for what is no number."""
    return [
        None if not math.isfinite(value) else int(value) if float(value).is_integer() else value
        for value in map(float, values)
    ]


def column(
    courses: Sequence[Course],
    parts: dict[str, str],
    title: str,
    places: Places,
    advised: Advised | None = None,
    env: str | None = None,
) -> Figure | None:
    """Draw columns of the runs, of one environment where `env` says so; None where none has them.

    `parts` names them: actor and critic of one number, or the number itself as ''.
    """
    traces, along, drawn = [], [], set()
    for index, course in enumerate(courses):
        if env is not None and course.recipe.env != env:
            continue
        for dash, (name, part) in enumerate(parts.items()):
            series = course.series(name)
            if series is None:
                continue
            drawn.add(index)
            shown = [course.name] * (len(courses) > 1) + [part] * (len(parts) > 1)
            trace = _curve(
                ", ".join(shown) or name, index if len(courses) > 1 else dash, series.values
            )
            if len(courses) > 1:
                trace["line"]["dash"] = DASHES[dash % len(DASHES)]
            if series.is_sparse or _has_lone_point(series.values):
                trace |= {"mode": "lines+markers", "marker": {"size": 5}}
            traces.append(trace)
            along.append(places.name(course.places(series.rows)))
    if not traces:
        return None
    names = sorted(parts, key=len)
    shared = names[0].removesuffix(f"_{parts[names[0]]}") if len(parts) > 1 else names[0]
    title += _of_all(len(drawn), courses, env)
    layout = _layout(title, label(shared, 40), len(traces) if len(traces) > 1 else 0)
    # Of zeros only Plotly would draw the axis from -1 to 1.
    if all(value is None or value >= 0 for trace in traces for value in trace["y"]):
        layout["yaxis"]["rangemode"] = "nonnegative"
    if advised is not None:
        layout["shapes"] = [
            {"type": "rect", "xref": "paper", "x0": 0, "x1": 1, "y0": advised.low,
             "y1": advised.high, "fillcolor": BAND, "line": {"width": 0}, "layer": "below"}
        ]  # fmt: skip
        ends = [0.0, advised.high]
        layout["yaxis"]["autorangeoptions"] = {"include": ends}
    return {"data": traces, "layout": layout, "along": along}


def over_env_steps(course: Course, name: str | None = None) -> Figure:
    """Draw a column of one run, or its return, whole: with the places of its points in it."""
    places = Places()
    found = evaluation([course], places, "Evaluation return", course.recipe.env)
    if name is not None or found is None:
        title = "Training return" if name is None else label(name, 40)
        found = column([course], {name or "episode_return": ""}, title, places)
    if found is None:
        raise UserError(
            f"no row of {course.name} has a number in {shown(name or 'episode_return')}."
            f"{nearest(name or '', course.columns)}"
        )
    for trace, along in zip(found["data"], found.pop("along"), strict=True):
        trace["x"] = places.sets[along]["env_steps"]
    return found


def evaluation(courses: Sequence[Course], places: Places, title: str, env: str) -> Figure | None:
    """Draw the mean return of each evaluation; of one run its episodes' spread too."""
    traces, along, drawn = [], [], 0
    for index, course in enumerate(courses):
        if course.recipe.env != env:
            continue  # Returns of different environments share no scale.
        means = numbers(course.evaluations, "episode_return")
        rows = thinned(np.flatnonzero(np.isfinite(means)))
        if not len(rows):
            continue
        name = places.name({axis: at[rows] for axis, at in course.evaluation_places.items()})
        if len(courses) == 1:
            spread = numbers(course.evaluations, "episode_return_std")[rows]
            traces += _spread(means[rows], spread)
            along += [name, name]
        trace = _curve(course.name, index, means[rows])
        traces.append(trace | {"mode": "lines+markers", "marker": {"size": 6}})
        along.append(name)
        drawn += 1
    if not traces:
        return None
    title += _of_all(drawn, courses, env)
    count = len(courses) if len(courses) > 1 else 0
    return {
        "data": traces,
        "layout": _layout(title, "mean return of evaluations", count),
        "along": along,
    }


def shares(course: Course, places: Places) -> Figure | None:
    """Draw what part of each iteration's time went where."""
    if course.times is None:
        return None
    rows = thinned(np.flatnonzero(np.isfinite(course.times).all(axis=0)))
    parts = course.times[:, rows]
    whole = parts.sum(axis=0)
    traces = [
        _curve(name, index, 100 * part / np.where(whole > 0, whole, math.nan))
        | {"stackgroup": "time", "line": {"width": 0.5, "color": colour(index)}, "fillcolor":
           _faint(colour(index), 0.75), "hovertemplate": "%{y:.1f}%<extra>%{fullData.name}</extra>"}
        for index, (name, part) in enumerate(zip(TIMES.values(), parts, strict=True))
    ]  # fmt: skip
    layout = _layout("Time of an iteration", "percent of the iteration", len(traces))
    layout["yaxis"]["range"] = [0, 100]
    layout["legend"] = AS_IN_THE_BARS
    name = places.name(course.places(rows))
    return {"data": traces, "layout": layout, "along": [name] * len(traces)}


def mean_shares(courses: Sequence[Course]) -> Figure | None:
    """Draw the mean share of each part of the time, a bar a run."""
    timed = [course for course in courses if course.times is not None]
    if not timed:
        return None
    means = np.array([mean_times(course)[1] for course in timed])
    traces = [
        {
            "type": "bar", "orientation": "h", "name": name, "y": list(range(len(timed))),
            "x": exact(100 * means[:, index]), "marker": {"color": colour(index)},
            "hovertemplate": "%{x:.1f}%<extra>%{fullData.name}</extra>",
        }
        for index, name in enumerate(TIMES.values())
    ]  # fmt: skip
    layout = base_layout("Time of an iteration", "percent of the time", "", len(traces))
    layout["yaxis"] |= ticks([label(course.name) for course in timed]) | {"autorange": "reversed"}
    layout |= {"barmode": "stack", "height": 170 + 34 * len(timed)}
    layout["xaxis"]["range"] = [0, 100]
    layout["legend"] = AS_IN_THE_BARS
    return {"data": traces, "layout": layout}


def mean_times(course: Course) -> tuple[list[float], list[float]]:
    """Return the mean seconds of an iteration's parts, and the shares of their sum."""
    assert course.times is not None
    means = np.nanmean(course.times, axis=1)
    return means.tolist(), (means / (means.sum() or math.nan)).tolist()


def timeline(courses: Sequence[Course], places: Places) -> Figure | None:
    """Draw from when on each finding holds, a line each."""
    traces, along, names = [], [], []
    for course in courses:
        for finding in course.findings if course.rows else ():
            tint = SEVERITIES[finding.severity]
            begins, ends = course.place(finding.since), course.place(course.env_steps)
            # The sentence as text: a template would look for its own words in it.
            trace: Figure = {
                "type": "scatter", "mode": "lines+markers", "y": [len(names)] * 2,
                "text": [label(finding.sentence, 60)] * 2, "line": {"color": tint, "width": 7},
                "marker": {"color": tint, "size": [15, 1], "symbol": "line-ns-open",
                           "line": {"width": 4}},
                "hovertemplate": "%{text}<extra></extra>",
            }  # fmt: skip
            traces.append(trace)
            run = f"{course.name}: " if len(courses) > 1 else ""
            names.append(label(f"{run}{finding.rule}", 20))
            along.append(places.name({axis: [begins[axis], ends[axis]] for axis in AXES}))
    if not traces:
        return None
    layout = _layout("Findings", "", 0)
    layout["yaxis"] |= ticks(names) | {"range": [len(names) - 0.5, -0.5]}
    lines = sum(1 + name.count("<br>") for name in names)
    layout |= {"height": 110 + 18 * (len(names) + lines), "hovermode": "closest"}
    return {"data": traces, "layout": layout, "along": along}


def _of_all(drawn: int, courses: Sequence[Course], env: str | None) -> str:
    """Say of how many runs a figure has curves, where that is not all that it could have."""
    count = sum(env is None or course.recipe.env == env for course in courses)
    return f" ({drawn} of {count} runs)" if drawn < count else ""


def _curve(name: str, index: int, values: Floats) -> Figure:
    dash = DASHES[index // len(COLOURS) % len(DASHES)]
    return {
        "type": "scatter", "mode": "lines", "name": label(name), "y": exact(values),
        "line": {"color": colour(index), "width": 2, "dash": dash},
        "hovertemplate": "%{y}<extra>%{fullData.name}</extra>",
    }  # fmt: skip


def _has_lone_point(values: Floats) -> bool:
    """Say whether a point has gaps on both sides: it would have no line."""
    known = np.r_[False, np.isfinite(values), False]
    return bool((known[1:-1] & ~known[:-2] & ~known[2:]).any())


def _spread(means: NDArray[np.float64], spread: Floats) -> list[Figure]:
    """Fill one standard deviation either side of means."""
    spread = np.where(np.isfinite(spread), spread, 0.0)
    bound = {"type": "scatter", "mode": "lines", "line": {"width": 0}, "hoverinfo": "skip",
             "showlegend": False}  # fmt: skip
    filled = {"fill": "tonexty", "fillcolor": _faint(COLOURS[0], SPREAD)}
    return [
        bound | {"y": exact(means - spread)},
        bound | filled | {"y": exact(means + spread)},
    ]


def _faint(tint: str, opacity: float) -> str:
    red, green, blue = (int(tint[place : place + 2], 16) for place in (1, 3, 5))
    return f"rgba({red},{green},{blue},{opacity})"


def _layout(title: str, y_title: str, traces: int) -> Figure:
    layout = base_layout(title, AXES["env_steps"], y_title, traces)
    layout["xaxis"]["rangemode"] = "tozero"
    layout["hovermode"] = "x"
    layout["height"] = 300 + 8 * traces + (20 if traces else 0)
    return layout
