"""From runs as they went to the text of their page."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

from isobatch import reproduce, text
from isobatch.advice import Finding
from isobatch.advice.answer import counts
from isobatch.errors import UserError
from isobatch.pages import diagram
from isobatch.pages.figures import Figure, label
from isobatch.pages.page import fill, number
from isobatch.report import bands, figures
from isobatch.report.course import AXES, TIMES, Course
from isobatch.report.diagnostics import DIAGNOSTICS, parts_of
from isobatch.run.store import safe_name
from isobatch.text import counted, duration

UPDATES = {
    "policy_loss": "Policy loss",
    "value_loss": "Value loss",
    "entropy": "Entropy",
    "approx_kl": "Approximate KL of an iteration",
    "clip_fraction": "Clip fraction",
    "explained_variance": "Explained variance",
    "grad_norm": "Gradient norm",
    "learning_rate": "Learning rate",
}
"""Columns of the update, as figures are titled."""
MOST_OTHERS = 200
"""Columns to choose from beside those with a figure of their own."""
WIDTHS = (720, 340)
"""Of the batch's picture: for a screen, and for a phone."""


def render(courses: Sequence[Course]) -> str:
    """Return the page of one run, or of several overlaid."""
    if not courses:
        raise UserError("a report needs a run")
    places = figures.Places()
    drawn = _drawn(courses, places)
    others = _others(courses, places, drawn)
    name = courses[0].name if len(courses) == 1 else "runs"
    page = {
        "name": safe_name(name),
        "figures": drawn | others,
        "places": places.sets,
        "axes": AXES,
    }
    first = courses[0].recipe
    return fill(
        "isobatch.report",
        page,
        title=f"{first.env}, {first.algo}: {name}" if len(courses) == 1 else _together(courses),
        runs=[_run(course, place) for place, course in enumerate(courses, start=1)],
        drawn=drawn,
        returns=[name for name in drawn if name.startswith(("evaluation", "training"))],
        not_evaluated=[each.name for each in courses if not _is_evaluated(each)],
        without_episode=[each.name for each in courses if each.series("episode_return") is None],
        evaluated=any(name.startswith("evaluation") for name in drawn),
        actions=" or ".join(sorted({each.recipe.eval_actions for each in courses})),
        parts=list(TIMES.items()),
        others={key: key.partition(":")[2] for key in others},
        updates=[name for name in UPDATES if name in drawn],
        advised=_advised(courses),
        diagnostics={name: DIAGNOSTICS[name] for name in DIAGNOSTICS if name in drawn},
        axes=_axes(courses),
        differences=_differences(courses),
    )


def _drawn(courses: Sequence[Course], places: figures.Places) -> dict[str, Figure]:
    """Return the figures there is something for, in the order of the page."""
    advised = _advised(courses)
    found = {
        **_returns(courses, places),
        **{
            name: figures.column(courses, {name: ""}, title, places, advised.get(name))
            for name, title in UPDATES.items()
        },
        **{
            name: figures.column(courses, parts_of(name, _columns(courses)), each.title, places)
            for name, each in DIAGNOSTICS.items()
        },
        "time": figures.shares(courses[0], places)
        if len(courses) == 1
        else figures.mean_shares(courses),
        "timeline": figures.timeline(courses, places),
    }
    return {name: figure for name, figure in found.items() if figure is not None}


def _returns(courses: Sequence[Course], places: figures.Places) -> dict[str, Figure | None]:
    """Return the figures of evaluations and of training returns, environment by environment."""
    envs = list(dict.fromkeys(course.recipe.env for course in courses))
    found: dict[str, Figure | None] = {}
    for place, env in enumerate(envs, start=1):
        ending, on = (f"-{place}", f", {label(env)}") if len(envs) > 1 else ("", "")
        title = f"Evaluation return{on}"
        found[f"evaluation{ending}"] = figures.evaluation(courses, places, title, env)
        found[f"training{ending}"] = figures.column(
            courses, {"episode_return": ""}, f"Training return{on}", places, env=env
        )
    return found


def _is_evaluated(course: Course) -> bool:
    return course.score is not None and course.score.measure == "evaluation"


def _others(
    courses: Sequence[Course], places: figures.Places, drawn: dict[str, Figure]
) -> dict[str, Figure]:
    """Return a figure for every other column, to choose from."""
    shown = {*drawn, *AXES, *TIMES, "episode_return", "iterations", "time"}
    shown |= {name for each in DIAGNOSTICS for name in parts_of(each, _columns(courses))}
    names = [name for name in _columns(courses) if name not in shown][:MOST_OTHERS]
    found = {
        f"column:{name}": figures.column(courses, {name: ""}, label(name, 40), places)
        for name in names
    }
    return {name: figure for name, figure in found.items() if figure is not None}


def _columns(courses: Sequence[Course]) -> list[str]:
    return list(dict.fromkeys(name for course in courses for name in course.columns))


def _axes(courses: Sequence[Course]) -> dict[str, str]:
    """Return the axes that every run with rows has."""
    with_rows = [course for course in courses if course.rows]
    return {
        name: title
        for name, title in AXES.items()
        if with_rows and all(name in course.columns for course in with_rows)
    }


def _advised(courses: Sequence[Course]) -> dict[str, bands.Advised]:
    """Return the bands that all runs have in common."""
    every = [bands.advised(course.recipe) for course in courses]
    return {
        name: band
        for name, band in every[0].items()
        if all(other.get(name) == band for other in every)
    }


def _together(courses: Sequence[Course]) -> str:
    envs = list(dict.fromkeys(course.recipe.env for course in courses))
    shown = ", ".join(envs[:3]) + (f" and {len(envs) - 3} more" if len(envs) > 3 else "")
    return f"{counted(len(courses), 'run')} on {shown}"


def _run(course: Course, place: int) -> dict[str, Any]:
    """Return what the page says of one run."""
    return {
        "id": f"run-{place}",
        "name": course.name,
        "recipe": course.recipe,
        "text": course.text,
        "command": reproduce.command(course.recipe),
        "from_file": reproduce.from_file(course.recipe),
        "findings": [_card(finding) for finding in course.findings],
        "counts": counts(course.findings),
        "verdict": course.verdict,
        "score": course.score,
        "result": _result(course),
        "progress": _progress(course),
        "is_finished": course.is_finished,
        "rows": len(course.rows),
        "iterations": course.last("iterations"),
        "env_steps": course.env_steps,
        "grad_steps": course.last("grad_steps"),
        "seconds": course.last("seconds"),
        "every": course.every,
        "reads_every": course.reads_every,
        "times": _times(course),
        "profile": course.profile,
        "stages": course.stages,
        "pictures": [Markup(diagram.svg(course.recipe, width)) for width in WIDTHS],
        "video": course.video,
        "faults": course.faults,
    }


def _card(finding: Finding) -> dict[str, Any]:
    """Return a finding as the page shows it."""
    facts = {
        "measured": text.number(finding.number),
        "threshold": text.number(finding.threshold),
        "since": f"{finding.since:,} environment steps",
        "rule": finding.rule,
        "source": finding.source,
    }
    return {"finding": finding, "facts": {name: fact for name, fact in facts.items() if fact}}


def _result(course: Course) -> str:
    """Say what the run came to."""
    score = course.score
    if score is None:
        return "No episode has ended yet." if course.rows else ""
    at = "" if math.isnan(score.env_steps) else f" at {score.env_steps:,.0f} environment steps"
    over = f" over {counted(score.episodes, 'episode')}" if score.episodes else ""
    if score.measure == "training":
        over = f" over the last {counted(score.episodes, 'episode')}" if score.episodes else ""
        return (
            f"Training return {number(score.value)}{over}{at}. The policy was not evaluated "
            "while training (--eval-marks)."
        )
    best = (
        f"; the best was {number(score.best)}" if score.best != score.value else ", the best of all"
    )
    how = f", with {course.recipe.eval_actions} actions"
    return f"Last evaluation: mean return {number(score.value)}{over}{at}{how}{best}."


def _progress(course: Course) -> str:
    """Say how far the run is."""
    total = course.recipe.total_timesteps
    if not course.rows:
        return f"No iteration is recorded yet, of {total:,} environment steps asked for."
    spent = (
        f"{counted(int(course.last('iterations')), 'iteration')}, "
        f"{counted(int(course.last('grad_steps')), 'gradient step')}, "
        f"{duration(course.last('seconds'))} of training"
    )
    if course.is_finished:
        return f"Finished: {course.env_steps:,} environment steps, {spent}."
    written = str(course.rows[-1].get("time", ""))[:19].replace("T", " ")
    when = f" The last row was written at {written} UTC." if written else ""
    return (
        f"Not finished: {course.env_steps:,} of {total:,} environment steps, {spent}.{when} "
        "If it was stopped, isobatch resume continues it."
    )


def _times(course: Course) -> list[dict[str, Any]]:
    """Return the mean iteration's parts."""
    if course.times is None:
        return []
    means, shares = figures.mean_times(course)
    return [
        {"name": name, "column": column, "seconds": seconds, "share": share}
        for (column, name), seconds, share in zip(TIMES.items(), means, shares, strict=True)
    ]


def _differences(courses: Sequence[Course]) -> dict[str, list[str]]:
    """Return the recipe fields in which runs differ, a value a run."""
    values = [course.recipe.values for course in courses]
    names = dict.fromkeys(name for each in values for name in each)
    shown = {name: [_setting(each.get(name)) for each in values] for name in names}
    return {name: each for name, each in shown.items() if len(set(each)) > 1}


def _setting(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return " ".join(map(str, value)) or "none"
    return "none" if value is None or value == "" else f"{value:,}" if isinstance(value, int) else (
        str(value)
    )  # fmt: skip
