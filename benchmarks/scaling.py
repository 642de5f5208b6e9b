"""Steps per second and peak memory of Isobatch against N, T, width and seeds.

    python -m benchmarks.scaling --out docs/results/scaling.json

CartPole-v1, each point in a fresh process, the median of a few. Minibatches have 256 rows wherever
a rollout has as many, so that a row costs the same in every update. Beside the JSON file goes a
figure of the same name.
"""

import argparse
import json
import platform
import statistics
import sys
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.peers.cases import CARTPOLE, Case
from benchmarks.peers.run import PEERS, cores, measure, words_of

N = (1, 4, 16, 64, 256, 1024, 4096)
MINIBATCH = 256
ITERATIONS = 6
LEAST_STEPS = 10_000
"""Small rollouts get more iterations, up to this many environment steps."""


@dataclass(frozen=True)
class Sweep:
    """One quantity varied, all others held."""

    label: str
    """The axis of its panel."""
    points: dict[int, Case]


def shaped(n_envs: int, n_steps: int, **changes: Any) -> Case:
    """Return CartPole at a shape, trained for a few iterations."""
    rollout = n_envs * n_steps
    return replace(
        CARTPOLE,
        n_envs=n_envs,
        n_steps=n_steps,
        n_minibatches=max(1, rollout // MINIBATCH),
        total_timesteps=rollout * max(ITERATIONS, -(-LEAST_STEPS // rollout)),
        **changes,
    )


SWEEPS = {
    "n": Sweep("environments N, T = 16", {n: shaped(n, 16) for n in N}),
    "shape": Sweep("environments N, N x T = 4,096", {n: shaped(n, 4096 // n) for n in N}),
    "t": Sweep("steps T, N = 16", {t: shaped(16, t) for t in (4, 16, 64, 256, 1024)}),
    "width": Sweep(
        "width of two hidden layers, 16 x 128",
        {w: shaped(16, 128, hidden_sizes=(w, w)) for w in (16, 64, 256, 1024)},
    ),
    "seeds": Sweep(
        "seeds in one command, 8 x 128",
        {s: shaped(8, 128, n_seeds=s) for s in (1, 2, 5, 10, 20)},
    ),
}


def measure_point(case: Case, repeats: int) -> dict[str, Any]:
    """Return the medians at one point, or why there are none."""
    found = [measure(sys.executable, PEERS["isobatch"], case) for _ in range(repeats)]
    print(f"{case.title}: {words_of(found[-1])}", file=sys.stderr, flush=True)
    for each in found:
        if "cannot" in each:
            return each
    return {
        "steps_per_second": statistics.median(each["warm_rate"] for each in found),
        "peak_mb": statistics.median(each["peak_mb"] for each in found),
        "all_steps_per_second": [each["warm_rate"] for each in found],
    }


def draw(sweeps: dict[str, dict[str, Any]], path: Path) -> None:
    """Draw a column for each sweep: steps per second above, memory below."""
    import matplotlib.pyplot as plt

    measured = {
        name: {int(x): point for x, point in sweep["points"].items() if "cannot" not in point}
        for name, sweep in sweeps.items()
    }
    shown = [name for name, points in measured.items() if points]
    plt.rcParams["svg.hashsalt"] = "isobatch"  # The same numbers give the same file.
    figure, axes = plt.subplots(
        2, len(shown), figsize=(3 * len(shown), 4.5), squeeze=False, sharex="col", sharey="row"
    )
    for column, name in enumerate(shown):
        points = measured[name]
        for axis, field in zip(axes[:, column], ("steps_per_second", "peak_mb"), strict=True):
            axis.plot(list(points), [point[field] for point in points.values()], marker="o")
            axis.set_xscale("log", base=2)
            axis.grid(alpha=0.3)
            axis.spines[["top", "right"]].set_visible(False)
        axes[1, column].set_xlabel(sweeps[name]["label"], fontsize=9)
    for row in axes:
        row[0].set_ylim(bottom=0)  # shared by the row, once all of it is drawn
    axes[0, 0].set_ylabel("environment steps/s")
    axes[1, 0].set_ylabel("peak memory, MB")
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    """Measure, and write down and draw what there is after every sweep."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sweeps", nargs="+", choices=SWEEPS, default=list(SWEEPS))
    parser.add_argument("--values", nargs="+", type=int, help="only these points")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    report: dict[str, Any] = {
        "measured": datetime.now(UTC).date().isoformat(),
        "machine": {"python": platform.python_version(), "cores": cores()},
        "sweeps": {},
    }
    for name in args.sweeps:
        sweep = SWEEPS[name]
        report["sweeps"][name] = {
            "label": sweep.label,
            "points": {
                x: measure_point(case, args.repeats)
                for x, case in sweep.points.items()
                if not args.values or x in args.values
            },
        }
        args.out.write_text(json.dumps(report, indent=1) + "\n")
        draw(report["sweeps"], args.out.with_suffix(".svg"))


if __name__ == "__main__":
    main()
