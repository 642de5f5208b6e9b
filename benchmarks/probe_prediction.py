"""The shape the iso-batch curve prefers against the shape that learned best.

python benchmarks/probe_prediction.py studies/shapes --probe 16x64 --at 0.25 0.5 0.75

Reads a study whose arms are shapes NxT of one size. Runs of one arm are probed at parts of their
budget; a shape's predicted error, of one update and of the mean of ten, is the mean logarithm over
seeds and parts. The fact is the area under the learning curve, a mean over seeds.
"""

import argparse
import json
from pathlib import Path

import numpy as np

import isobatch
from isobatch.probe import Question, investigate
from isobatch.study.results import Results

UPDATES = (1, 10)
ENVS = 64
"""Environments of a probe."""


def predicted(run: Path, at: list[float], names: list[str]) -> list[list[list[float]]]:
    """Return log errors [points, shapes, updates] of the study's shapes at parts of a run.

    A point whose gradient is lost in its noise has an infinite error somewhere and is left out.
    """
    points = []
    for part in at:
        policy = isobatch.load(run, at=part)
        own = policy.recipe.batch.shape
        question = Question(shapes=(own,), batches=max(1, ENVS // own.n_envs), speed=False)
        shapes = {shape.name: shape for shape in investigate(policy, question).curve}
        errors = np.array([[shapes[name].error_over(k) for k in UPDATES] for name in names])
        if np.isfinite(errors).all():
            points.append(np.log(errors).tolist())
    return points


def main() -> None:
    """Print a table for each environment and write them all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("study", type=Path)
    parser.add_argument("--probe", required=True, help="the arm whose policies are probed")
    parser.add_argument("--at", type=float, nargs="+", default=[0.25, 0.5, 0.75])
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    results = Results.load(args.study)
    names = list(results.study.arms)
    table = {}
    for env in results.study.envs:
        points = [
            point
            for record in results.having("done")
            if record.cell.env == env and record.cell.arm == args.probe
            for point in predicted(record.path, args.at, names)
        ]
        errors = np.exp(np.mean(points, 0))
        areas = {name: list(results.raw(name, env, "curve").values()) for name in names}
        table[env] = {
            name: {
                "errors": errors[k].tolist(),
                "points": len(points),
                "area": float(np.mean(areas[name])),
                "deviation": float(np.std(areas[name], ddof=1)),
            }
            for k, name in enumerate(names)
        }
        learned = max(names, key=lambda name, env=env: table[env][name]["area"])
        for k, updates in enumerate(UPDATES):
            best = min(names, key=lambda name, k=k, env=env: table[env][name]["errors"][k])
            print(f"{env}: predicted of {updates} updates {best}, learned best {learned}")
        for name, row in table[env].items():
            shown = " ".join(f"{each:8.3g}" for each in row["errors"])
            print(
                f"  {name:8} predicted errors {shown} ({row['points']} points)   "
                f"area {row['area']:8.1f} +- {row['deviation']:.1f}",
                flush=True,
            )
    if args.out is not None:
        args.out.write_text(json.dumps(table, indent=1) + "\n")


if __name__ == "__main__":
    main()
