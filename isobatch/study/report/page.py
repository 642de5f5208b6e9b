"""From a study directory to the text of its page."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np

from isobatch import files
from isobatch.errors import UserError
from isobatch.pages.figures import Figure, rounded
from isobatch.pages.page import fill, number
from isobatch.run.store import safe_name
from isobatch.scores import not_normalised
from isobatch.study.design import Cell, Study
from isobatch.study.report import figures, reproduce, summary
from isobatch.study.results import Record, Results
from isobatch.study.stats import Floats
from isobatch.study.verdict import LEVEL, Verdict, describe, verdicts

OUTCOMES = ("done", "failed", "damaged", "missing")
SYMBOLS = {"supported": "✓", "contradicted": "✗", "undecided": "?"}
MOST_BANDED_ARMS = 5
"""Beyond this bands hide each other, so they wait until the reader asks for them."""
FIRST_METRIC = "entropy"
"""Shown until the reader chooses another."""


def render(root: str | Path) -> str:
    """Return the page of the study in a directory."""
    results = Results.load(root)
    shown = summary.countable(results)
    scores, curves, metrics = _scores(results, shown), _curves(shown), _metrics(shown)
    data = {
        "name": safe_name(results.study.name),
        "figures": scores["drawn"] | curves["drawn"] | metrics["drawn"],
        "metrics": metrics["means"],
    }
    return fill(
        "isobatch.study.report",
        data,
        **_head(results, Path(root)),
        **_runs(results),
        **_reproduce(results.study),
        scores=scores,
        curves=curves,
        metrics=metrics,
    )


def _head(results: Results, root: Path) -> dict[str, Any]:
    study = results.study
    judged = verdicts(results)
    return {
        "study": study,
        "counts": {kind: len(results.having(kind)) for kind in OUTCOMES},
        "left_out": _left_out(results, root),
        "verdicts": [_card(verdict) for verdict in judged],
        "verdict_level": f"{100 * (1 - LEVEL / max(1, len(judged))):.3g}%",
        "most_banded": MOST_BANDED_ARMS,
        "arms": {arm: _settings(fields) for arm, fields in study.arms.items()},
        "base": _settings(study.base),
    }


def _left_out(results: Results, root: Path) -> list[dict[str, Any]]:
    """Group the runs that are not counted by what became of them and why."""
    groups: dict[tuple[str, str], list[Cell]] = {}
    for outcome in OUTCOMES[1:]:
        for record in results.having(outcome):
            # A page is passed on: where the study lay on this machine is nobody's business.
            reason = record.problem.replace(f"{root}/", "")
            groups.setdefault((outcome, reason), []).append(record.cell)
    return [
        {"outcome": outcome, "reason": reason, "cells": cells}
        for (outcome, reason), cells in groups.items()
    ]


def _card(verdict: Verdict) -> dict[str, Any]:
    claim = verdict.claim
    return {
        "verdict": verdict,
        "symbol": SYMBOLS[verdict.verdict],
        "sides": f"{describe(claim.better)} against {describe(claim.than)}",
    }


def _settings(fields: dict[str, Any]) -> str:
    return ", ".join(f"{name} = {value}" for name, value in fields.items())


def _scores(results: Results, shown: Results) -> dict[str, Any]:
    """Return what comes of the final scores of the seeds with which every arm is complete."""
    seeds = results.seeds(list(results.study.arms))
    scores = {} if results.unscaled else summary.complete_scores(results)
    aggregates = summary.aggregates(scores)
    drawn = {safe_name(name): figures.aggregate(name, each) for name, each in aggregates.items()}
    shapes = summary.shape_scores(results, scores)
    if shapes:
        drawn["shapes"] = figures.shapes(shapes)
    pairs = {}
    if len(seeds) >= summary.FEWEST_SEEDS:
        # Which of two runs in an environment is better needs no normalisation.
        pairs = summary.improvements(summary.complete_scores(results, normalise=False))
        if scores:
            at = summary.thresholds(scores)
            drawn["profiles"] = figures.profiles(summary.profiles(scores, at), at)
    if pairs:
        drawn["improvement"] = figures.improvement(list(results.study.arms), pairs)
    return {
        "seeds": seeds,
        "unscaled": not_normalised(results.unscaled) if results.unscaled else "",
        "fewest": summary.FEWEST_SEEDS,
        "aggregates": aggregates,
        "pairs": pairs,
        "drawn": drawn,
        "scales": shown.scales,
        "means": _means(shown),
    }


def _means(results: Results) -> dict[str, Any]:
    """Return every arm's mean score in every environment as a table, its longer side down."""

    def cell(arm: str, env: str) -> str:
        values = list(results.raw(arm, env).values())
        if len(values) < 2:
            return f"{number(values[0])} (1)" if values else "-"
        spread = number(float(np.std(values, ddof=1)))
        return f"{number(float(np.mean(values)))} ± {spread} ({len(values)})"

    arms, envs = list(results.study.arms), list(results.study.envs)
    if len(arms) >= len(envs):
        return {"columns": envs, "rows": {arm: [cell(arm, env) for env in envs] for arm in arms}}
    return {"columns": arms, "rows": {env: [cell(arm, env) for arm in arms] for env in envs}}


def _curves(results: Results) -> dict[str, Any]:
    """Return the learning curves, environment by environment, and which lack seeds."""
    study = results.study
    at = np.linspace(0, study.budget, summary.CURVE_POINTS + 1)
    runs = {
        env: {arm: summary.learning_curves(results, arm, env, at) for arm in study.arms}
        for env in study.envs
    }
    notes = {
        env: {
            arm: note
            for arm, curves in arms.items()
            if (note := summary.seeds_note(len(curves), len(study.seeds)))
        }
        for env, arms in runs.items()
    }
    return {
        "fewest": summary.FEWEST_CURVES,
        "notes": {env: arms for env, arms in notes.items() if arms},
        "drawn": {
            f"curves-{safe_name(env)}": _learning(study, env, runs[env], notes[env], at)
            for env in study.envs
        },
    }


def _learning(
    study: Study,
    env: str,
    runs: dict[str, dict[int, Floats]],
    notes: dict[str, str],
    at: Floats,
) -> Figure:
    bands = {arm: summary.mean_band(curves) for arm, curves in runs.items() if curves}
    return figures.learning(env, study.budget, runs, bands, notes, at)


def _metrics(results: Results) -> dict[str, Any]:
    """Return the mean curves of every metric, and a figure per environment to show one in."""
    study = results.study
    columns = [each for each in results.columns if each not in ("env_steps", "cohort_width")]
    at = summary.step_grid(study.budget, summary.metric_points(results, columns))
    drawn = {
        f"metric-{safe_name(env)}": figures.metric(env, list(study.arms), study.budget, at)
        for env in study.envs
    }
    curves = summary.metric_curves(results, columns, at)
    means = {
        "points": len(at),
        "values": {column: _compact(each) for column, each in curves.items()},
        "names": {column: _names(study, each) for column, each in curves.items()},
        "figures": list(drawn),
    }
    return {
        "columns": columns,
        "first": FIRST_METRIC if FIRST_METRIC in columns else (columns or [""])[0],
        "drawn": drawn if columns else {},
        "means": means,
    }


def _names(study: Study, curves: summary.Curves) -> list[dict[int, str]]:
    """Return by environment the names, by their place, of arms whose curve lacks seeds."""
    return [
        {
            place: figures.noted(arm, note)
            for place, arm in enumerate(study.arms)
            if (note := summary.seeds_note(len(arms[place]), len(study.seeds)))
        }
        for arms in curves
    ]


def _compact(curves: summary.Curves) -> list[list[Any]]:
    """Return means over seeds as lists; one that never changes as its one number."""

    def short(curve: Floats) -> Any:
        values = rounded(curve)
        return values[0] if values and len(set(values)) == 1 else values

    return [[short(summary.mean_curve(seeds)) for seeds in arms] for arms in curves]


def _runs(results: Results) -> dict[str, Any]:
    """Return the table of runs, and each recipe in it once."""
    recipes: dict[str, dict[str, Any]] = {}
    rows = []
    for record in results.records.values():
        text = _recipe(results.study, record)
        name = f"{record.cell.arm}, {record.cell.env}"
        recipe = recipes.setdefault(text, {"id": f"recipe-{len(recipes) + 1}", "names": []})
        if name not in recipe["names"]:
            recipe["names"].append(name)
        rows.append({"record": record, "result": record.result, "recipe": recipe["id"]})
    return {"rows": rows, "recipes": recipes}


def _recipe(study: Study, record: Record) -> str:
    """Return a run's recipe without its seed: as it was run, else as it would be."""
    try:
        if record.outcome == "done":
            text = files.read_text(record.path / "recipe.toml")
        else:
            text = study.recipe(record.cell).to_toml()
    except UserError as error:
        return f"# {error}\n"
    return re.sub(r"^seed = .*\n", "", text, count=1, flags=re.MULTILINE)


def _reproduce(study: Study) -> dict[str, Any]:
    return {
        "command": reproduce.command(study),
        "is_preset": reproduce.is_preset(study),
        "design": reproduce.design(study),
    }
