"""What diagnostics cost: training time with `cheap` and `full` over that with `off`.

    python -m benchmarks.diagnostics_cost [--repeats 3] [--images]

The same short run of CartPole-v1 8x128 (or, with --images, of Procgen's StarPilot 16x64 with the
IMPALA network) by turns with each of the three. Ratios are taken within a turn and their median and
range reported. The first iterations are left out; those that count are a multiple of 10, the
interval of `cheap` at these rollouts. Three turns of images take 6 to 10 minutes at 300 to 180
steps/s.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path
from typing import Any

import isobatch

LEVELS = ("off", "cheap", "full")
MLP: dict[str, Any] = {
    "env": "CartPole-v1", "n_envs": 8, "n_steps": 128, "n_epochs": 4, "total_timesteps": 122_880,
}  # fmt: skip
IMAGES: dict[str, Any] = {
    "env": "StarpilotHard-v0", "algo": "ppo", "encoder": "impala", "n_envs": 16, "n_steps": 64,
    "n_epochs": 1, "total_timesteps": 12_288,
}  # fmt: skip
WARM, WARM_IMAGES = 10, 2


def seconds(case: dict[str, Any], level: str, warm: int, folder: Path) -> float:
    """Train, and return the seconds of its iterations but the first ones."""
    run = isobatch.train(**case, diagnostics=level, compile="off", quiet=True, out=folder / level)
    return run.metrics[-1]["seconds"] - run.metrics[warm - 1]["seconds"]


def main() -> None:
    """Measure by turns, and print the ratios."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--images", action="store_true")
    args = parser.parse_args()
    case, warm = (IMAGES, WARM_IMAGES) if args.images else (MLP, WARM)
    ratios = {level: list[float]() for level in LEVELS[1:]}
    for turn in range(args.repeats):
        order = LEVELS if turn % 2 == 0 else LEVELS[::-1]
        with tempfile.TemporaryDirectory() as folder:
            taken = {level: seconds(case, level, warm, Path(folder)) for level in order}
        for level, found in ratios.items():
            found.append(taken[level] / taken["off"])
    for level, found in ratios.items():
        print(
            f"{case['env']} {level}: {statistics.median(found):.3f} "
            f"({min(found):.3f} to {max(found):.3f}) of the time with off, {len(found)} turns"
        )


if __name__ == "__main__":
    main()
