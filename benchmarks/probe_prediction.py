"""The shape the iso-batch curve prefers against the shape that learned best.

python benchmarks/probe_prediction.py studies/shapes --probe 16x64 --at 0.25 0.5 0.75

Reads a study whose arms are shapes NxT of one size. Runs of one arm are probed at parts of their
budget; a shape's predicted error, of one update and of the mean of ten, is the mean logarithm over
seeds and parts. The fact is the area under the learning curve, a mean over seeds.
"""

import argparse
import json
import math
from pathlib import Path

import numpy as np

import isobatch
from isobatch.probe import Question, ShapeOf, investigate
from isobatch.study.results import Results

UPDATES = (1, 10)


def predicted(run: Path, at: list[float], names: list[str]) -> dict[str, list[list[float]]]:
    """Return the errors the curve has for the shapes of the study, for each part of a run."""
    errors: dict[str, list[list[float]]] = {name: [] for name in names}
    for part in at:
        shapes = tuple(ShapeOf(*map(int, name.split("x"))) for name in names)
        question = Question(shapes=shapes[:1], batches=64 // shapes[0].n_envs, speed=False)
        findings = investigate(isobatch.load(run, at=part), question)
        for shape in findings.curve:
            if shape.name in errors:
                errors[shape.name].append([shape.error_over(updates) for updates in UPDATES])
    return errors


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
        logs: dict[str, list[list[float]]] = {name: [] for name in names}
        for record in results.having("done"):
            if record.cell.env == env and record.cell.arm == args.probe:
                for name, errors in predicted(record.path, args.at, names).items():
                    logs[name] += [
                        [math.log(each) for each in pair]
                        for pair in errors
                        if all(math.isfinite(each) for each in pair)
                    ]
        areas = {name: list(results.raw(name, env, "curve").values()) for name in names}
        table[env] = {
            name: {
                "errors": np.exp(np.mean(logs[name], 0)).tolist(),
                "points": len(logs[name]),
                "area": float(np.mean(areas[name])),
                "deviation": float(np.std(areas[name], ddof=1)),
            }
            for name in names
        }
        learned = max(names, key=lambda name, env=env: table[env][name]["area"])
        for k, updates in enumerate(UPDATES):
            best = min(names, key=lambda name, k=k, env=env: table[env][name]["errors"][k])
            print(f"{env}: predicted of {updates} updates {best}, learned best {learned}")
        for name, row in table[env].items():
            errors = " ".join(f"{each:8.3g}" for each in row["errors"])
            print(
                f"  {name:8} predicted errors {errors} ({row['points']} points)   "
                f"area {row['area']:8.1f} +- {row['deviation']:.1f}",
                flush=True,
            )
    if args.out is not None:
        args.out.write_text(json.dumps(table, indent=1) + "\n")


if __name__ == "__main__":
    main()
