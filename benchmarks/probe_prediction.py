"""Does the shape with the smallest gradient error learn fastest? First predict, then look.

    isobatch study docs/results/prediction-reference.toml   # policies to probe, own seeds
    python benchmarks/probe_prediction.py predict studies/prediction-reference prediction.json
    isobatch study docs/results/prediction.toml             # the same environments, arms = shapes
    python benchmarks/probe_prediction.py check prediction.json studies/prediction

`predict` probes the reference's runs at half of their budget, or later where no gradient is
distinguishable from its noise. A shape's predicted error is the geometric mean over runs, of one
update and of the mean of 10 and of 100, against Monte-Carlo returns and against GAE. A reference
whose gradient is not distinguishable from its noise tells nothing and is left out. `check` ranks
the shapes that have been trained by the area under their evaluation curves
and correlates both ranks (Spearman), environment by environment. Intervals are 95%, from 2,000
bootstrap resamples of points, of training seeds and, for the mean, of environments.

It also checks what the probe says doubling buys. The study has the reference's batch with twice the
minibatch and with twice the rollout. Predicted: transitions to the same progress, over those of the
reference (simple noise model), the geometric mean over points. Trained: env steps until the mean
evaluation curve reaches the reference's at half of the budget, over the reference's own.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import rankdata

import isobatch
from isobatch.batch import Shape
from isobatch.probe import Question, investigate
from isobatch.study.design import Cell
from isobatch.study.results import Results

SHAPES = ("4x256", "8x128", "32x32", "128x8", "256x4")
UPDATES = (1, 10, 100)
REFERENCES = ("monte-carlo", "gae")
HEADLINE = "as answered, 10"
"""What `isobatch probe` answers by: the error over ten updates, against Monte-Carlo returns or, in
an environment where they tell nothing, GAE."""
PARTS = (0.5, 0.75, 1.0)
"""Of the budget; the first at which a reference tells is taken."""
BATCHES = 4
"""Of the widest shape: 1,024 environments. 256 told nothing on FrozenLake and LunarLander."""
RESAMPLES = 2000
OWN = "32x32"
DOUBLED = {"minibatch": "double-minibatch", "rollout": "double-rollout"}
"""The arm in which so much is doubled of the reference's batch, `OWN`."""

Points = dict[str, list[list[float]]]
"""By reference and number of updates, log errors [points][shapes]."""


def predict(study: Path, out: Path) -> None:
    """Probe every run of the reference study and write the log errors down."""
    shapes = tuple(Shape.parse(name) for name in SHAPES)
    table: dict[str, Any] = {"shapes": SHAPES, "parts": PARTS, "points": {}, "asked": {}}
    table["doubled"] = {}
    for env, run in _runs(study):
        points = table["points"].setdefault(env, {})
        doubled = table["doubled"].setdefault(env, {name: [] for name in DOUBLED})
        for part in PARTS:
            table["asked"][env] = table["asked"].get(env, 0) + 1
            question = Question(shapes=shapes, batches=BATCHES, speed=False)
            found = investigate(isobatch.load(run, at=part), question)
            for name, sizing in (("minibatch", found.minibatch), ("rollout", found.rollout)):
                if sizing.verdict != "cannot tell":
                    doubled[name].append([sizing.verdict, sizing.samples.value])
            for reference in REFERENCES:
                if not found.is_decided(reference):
                    continue
                curve = {point.name: point for point in found.curves[reference]}
                for updates in UPDATES:
                    errors = np.array([curve[name].error_over(updates) for name in SHAPES])
                    if np.isfinite(errors).all():
                        key = f"{reference}, {updates}"
                        points.setdefault(key, []).append(np.log(errors).tolist())
            if points:
                break
        told = len(_points(points, HEADLINE))
        print(f"{env}: {told} of {table['asked'][env]} points tell", flush=True)
        out.write_text(json.dumps(table, indent=1) + "\n")


def _runs(study: Path) -> Iterator[tuple[str, Path]]:
    """Every environment's first seed, then the next: what is written is whole at any time."""
    records = Results.load(study).having("done")
    for record in sorted(records, key=lambda each: each.cell.seed):
        yield record.cell.env, record.path


def check(prediction: Path, study: Path, out: Path | None) -> None:
    """Hold the predictions against the areas under the study's evaluation curves."""
    told, results = json.loads(prediction.read_text()), Results.load(study)
    names = {env: [name for name in told["shapes"] if _is_trained(results, name, env)]
             for env in results.study.envs}  # fmt: skip
    areas = {
        env: np.array([list(results.raw(name, env, "curve").values()) for name in each])
        for env, each in names.items()
    }
    summary = {}
    keys = [f"{reference}, {updates}" for reference in REFERENCES for updates in UPDATES]
    for key in (HEADLINE, *keys):
        points = {
            env: np.array(
                [
                    [row[told["shapes"].index(name)] for name in names[env]]
                    for row in _points(told["points"][env], key)
                ]
            )
            for env in areas
        }
        asked = {env: told["asked"][env] for env in areas}
        summary[key] = judged(points, areas, asked, names)
    doubled = {
        env: {
            name: doubling(results, env, name, told)
            for name, arm in DOUBLED.items()
            if _is_trained(results, arm, env)
        }
        for env in areas
    }
    for line in (*lines(summary, areas, names, told["shapes"]), "", *doubled_lines(doubled)):
        print(line)
    if out is not None:
        kept = {env: each.tolist() for env, each in areas.items()}
        found = {"shapes": names, "areas": kept, "summary": summary, "doubled": doubled}
        out.write_text(json.dumps(found, indent=1) + "\n")


def _points(points: Points, key: str) -> list[list[float]]:
    """Return an environment's log errors [points][shapes] by a reference, or as answered."""
    if key == HEADLINE:
        return points.get("monte-carlo, 10") or points.get("gae, 10") or []
    return points.get(key, [])


def _is_trained(results: Results, arm: str, env: str) -> bool:
    """Say whether an arm has as many runs in an environment as the one that was probed."""
    return len(results.raw(arm, env, "curve")) == len(results.raw(OWN, env, "curve"))


def doubling(results: Results, env: str, name: str, told: dict[str, Any]) -> dict[str, Any]:
    """Return what doubling the minibatch or the rollout was said to cost, and what it did.

    `trained` and its interval over seeds are infinite where the level is not reached.
    """
    points = told["doubled"][env][name]
    grid = np.linspace(0, results.study.budget, 201)
    curves = [_curves(results, arm, env, grid) for arm in (OWN, DOUBLED[name])]
    draw = np.random.default_rng(0)
    resampled = [
        slower(grid, *(each[draw.integers(len(each), size=len(each))] for each in curves))
        for _ in range(RESAMPLES)
    ]
    # An infinite one cannot be interpolated to.
    outer = np.quantile(resampled, [0.025, 0.975], method="lower")
    ratios = [ratio for _, ratio in points]
    return {
        "verdicts": [verdict for verdict, _ in points],
        "predicted": float(np.exp(np.log(ratios).mean())) if ratios else None,
        "trained": slower(grid, *curves),
        "interval": outer.tolist(),
    }


def _curves(results: Results, arm: str, env: str, grid: np.ndarray) -> np.ndarray:
    cells = [Cell(arm, env, seed) for seed in results.raw(arm, env, "curve")]
    return np.array([results.learning_curve(cell, grid) for cell in cells])


def slower(grid: np.ndarray, own: np.ndarray, other: np.ndarray) -> float:
    """Return env steps of `other` [seeds, steps] to the level that `own` has at half, over its."""
    best = [np.maximum.accumulate(each.mean(0)) for each in (own, other)]
    level = best[0][len(grid) // 2]
    first = [grid[int(np.argmax(each >= level))] if each[-1] >= level else np.inf for each in best]
    return float(first[1] / max(first[0], grid[1]))


def doubled_lines(doubled: dict[str, Any]) -> Iterator[str]:
    """Return Markdown: what doubling was said to cost, and what it did."""
    yield "| environment | doubled | said | predicted transitions | trained env steps |"
    yield "|---|---|---|---|---|"
    for env, both in doubled.items():
        for name, row in both.items():
            said = ", ".join(dict.fromkeys(row["verdicts"])) or "cannot tell"
            predicted = "-" if row["predicted"] is None else f"{row['predicted']:.2f}"
            low, high = row["interval"]
            trained = f"{row['trained']:.2f} [{low:.2f}, {high:.2f}]"
            yield f"| {env} | {name} | {said} | {predicted} | {trained} |"


def judged(
    points: dict[str, np.ndarray],
    areas: dict[str, np.ndarray],
    asked: dict[str, int],
    names: dict[str, list[str]],
) -> dict[str, Any]:
    """Return rank correlations with their intervals, and which pairs were ordered right.

    `points` holds log errors [points, shapes], `areas` areas under the curve [shapes, seeds].
    """
    draw = np.random.default_rng(0)
    table: dict[str, Any] = {}
    for env, errors in points.items():
        table[env] = {"told": len(errors), "asked": asked[env]}
        if len(errors):
            table[env] |= _one(errors, areas[env], names[env], draw)
    correlations = {env: row for env, row in table.items() if "correlation" in row}
    if correlations:
        table["mean"] = _over_tasks(
            {env: (points[env], areas[env]) for env in correlations}, draw
        ) | {
            key: sum(row[key] for row in correlations.values())
            for key in ("pairs", "pairs_right", "longer_right", "best_right")
        }
        table["mean"]["tasks"] = len(correlations)
    return table


def _one(
    errors: np.ndarray, areas: np.ndarray, names: list[str], draw: np.random.Generator
) -> dict[str, Any]:
    """Return one environment's rank correlation, its interval, and the pairs that differ."""
    predicted, learned = errors.mean(0), areas.mean(1)
    resampled = [_correlation(*_resample(errors, areas, draw)) for _ in range(RESAMPLES)]
    pairs = _distinct_pairs(areas, draw)
    right = sum((predicted[a] < predicted[b]) == (learned[a] > learned[b]) for a, b in pairs)
    longer = sum(learned[a] > learned[b] for a, b in pairs)  # The first of a pair has more steps.
    return {
        "errors": np.exp(predicted).tolist(),
        "predicted_best": names[int(predicted.argmin())],
        "learned_best": names[int(learned.argmax())],
        "best_right": int(predicted.argmin() == learned.argmax()),
        "correlation": _correlation(predicted, learned),
        "interval": _interval(resampled),
        "pairs": len(pairs),
        "pairs_right": int(right),
        "longer_right": int(longer),
    }


def _correlation(predicted: np.ndarray, learned: np.ndarray) -> float:
    """Spearman's, positive where a smaller error goes with a larger area."""
    ranks = rankdata(-predicted), rankdata(learned)
    return float(np.corrcoef(*ranks)[0, 1]) if all(r.std() for r in ranks) else 0.0


def _resample(
    errors: np.ndarray, areas: np.ndarray, draw: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    points = draw.integers(len(errors), size=len(errors))
    seeds = draw.integers(areas.shape[1], size=areas.shape)
    return errors[points].mean(0), np.take_along_axis(areas, seeds, 1).mean(1)


def _distinct_pairs(areas: np.ndarray, draw: np.random.Generator) -> list[tuple[int, int]]:
    """Return the pairs of shapes whose areas differ: 0 is outside the 95% interval."""
    seeds = draw.integers(areas.shape[1], size=(RESAMPLES, *areas.shape))
    means = np.take_along_axis(areas[None], seeds, 2).mean(2)
    found = []
    for a, b in combinations(range(len(areas)), 2):
        low, high = _interval(means[:, a] - means[:, b])
        if low > 0 or high < 0:
            found.append((a, b))
    return found


def _over_tasks(
    tasks: dict[str, tuple[np.ndarray, np.ndarray]], draw: np.random.Generator
) -> dict[str, Any]:
    """Return the mean correlation; tasks are resampled too."""
    both = list(tasks.values())
    value = np.mean([_correlation(errors.mean(0), areas.mean(1)) for errors, areas in both])
    resampled = [
        np.mean(
            [
                _correlation(*_resample(both[k][0], both[k][1], draw))
                for k in draw.integers(len(both), size=len(both))
            ]
        )
        for _ in range(RESAMPLES)
    ]
    return {"correlation": float(value), "interval": _interval(resampled)}


def _interval(values: Any) -> list[float]:
    return [float(each) for each in np.quantile(values, [0.025, 0.975])]


def lines(
    summary: dict[str, Any],
    areas: dict[str, np.ndarray],
    names: dict[str, list[str]],
    shapes: list[str],
) -> Iterator[str]:
    """Return Markdown: areas and headline by environment, then every kind of prediction."""
    yield "| environment | " + " | ".join(shapes) + " | rank correlation | points that tell |"
    yield "|---" * (len(shapes) + 3) + "|"
    for env, each in areas.items():
        row = summary[HEADLINE][env]
        errors = row.get("errors", [None] * len(names[env]))
        found = {
            name: f"{'-' if error is None else f'{error:.3g}'}; "
            f"{area.mean():.4g} +- {area.std(ddof=1):.2g}"
            for name, error, area in zip(names[env], errors, each, strict=True)
        }
        cells = [found.get(name, "not trained") for name in shapes]
        told = f"{row['told']} of {row['asked']}"
        yield f"| {env} | {' | '.join(cells)} | {_shown(row)} | {told} |"
    yield ""
    yield (
        "| error | mean rank correlation | best shape right | pairs that differ, ordered right | "
        "always the longer rollout |"
    )
    yield "|---|---|---|---|---|"
    for key, table in summary.items():
        if (row := table.get("mean")) is not None:
            best = f"{row['best_right']} of {row['tasks']}"
            pairs = f"{row['pairs_right']} of {row['pairs']} | {row['longer_right']}"
            yield f"| {key} | {_shown(row)} | {best} | {pairs} |"


def _shown(row: dict[str, Any]) -> str:
    if "correlation" not in row:
        return "no prediction"
    low, high = row["interval"]
    return f"{row['correlation']:+.2f} [{low:+.2f}, {high:+.2f}]"


def main() -> None:
    """Predict or check."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    first = commands.add_parser("predict")
    first.add_argument("study", type=Path)
    first.add_argument("out", type=Path)
    second = commands.add_parser("check")
    second.add_argument("prediction", type=Path)
    second.add_argument("study", type=Path)
    second.add_argument("--out", type=Path)
    args = parser.parse_args()
    if args.command == "predict":
        predict(args.study, args.out)
    else:
        check(args.prediction, args.study, args.out)


if __name__ == "__main__":
    main()
