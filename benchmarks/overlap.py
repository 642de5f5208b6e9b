"""What --overlap gains: steps/s of a recipe alone, with staleness 1, and with overlap, by turns.

    python -m benchmarks.overlap --out docs/results/overlap.json

Each run is a process of its own, one at a time. A run's speed is the median of its iterations
without the first ones, which compile, measure and start the thread. The table has the medians over
repeats of the ratios within a repeat, so that what slows the machine for minutes is in both. The
gain that was predicted is the one the overlapped run printed.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from isobatch.run.overlap import IN_TURN

CASES: dict[str, tuple[str, list[str]]] = {
    "LunarLander-v3 16x256": ("LunarLander-v3", ["--n-envs", "16", "--n-steps", "256"]),
    "HalfCheetah-v4 16x128": ("HalfCheetah-v4", ["--n-envs", "16", "--n-steps", "128"]),
    "Breakout-v5 8x128": ("Breakout-v5", ["--n-envs", "8", "--n-steps", "128"]),
    "StarpilotHard-v0 16x64, 1 epoch": (
        "StarpilotHard-v0",
        ["--n-envs", "16", "--n-steps", "64", "--n-minibatches", "8", "--n-epochs", "1"],
    ),
}
WAYS = {"plain": [], "staleness 1": ["--staleness", "1"], "overlap": ["--overlap"]}
LEFT_OUT = IN_TURN + 1
PREDICTED = re.compile(r"^overlap: .*$", re.M)


def run(env: str, flags: list[str], more: list[str], iterations: int) -> dict[str, Any]:
    """Train for some iterations; return steps/s, the two times, and what overlap said."""
    sizes = dict(zip(flags[::2], flags[1::2], strict=True))
    steps = int(sizes["--n-envs"]) * int(sizes["--n-steps"]) * iterations
    with TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        words = ["train", env, *flags, *more, "--total-timesteps", str(steps), "--out", str(out)]
        command = [sys.executable, "-m", "isobatch", *words, "--compile", "off"]
        said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        lines = (out / "metrics.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines][LEFT_OUT:]
    predicted = PREDICTED.search(said)
    return {
        "steps_per_second": median(row["steps_per_second"] for row in rows),
        "collecting": median(row["env_seconds"] + row["acting_seconds"] for row in rows),
        "learning": median(row["learning_seconds"] for row in rows),
        "said": predicted[0] if predicted else "",
        "load": os.getloadavg()[0],
    }


def table(found: dict[str, list[dict[str, dict[str, Any]]]]) -> list[str]:
    """Return the table of the page."""
    lines = [
        "| case | collecting, learning (s) | at the same time (s) | predicted "
        "| against staleness 1 | against the preset | load |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, repeats in found.items():
        alone, both = ([each[way] for each in repeats] for way in ("staleness 1", "overlap"))
        against = [
            _spread([_speed(one["overlap"]) / _speed(one[way]) for one in repeats])
            for way in ("staleness 1", "plain")
        ]
        times = [
            f"{median(each['collecting'] for each in way):.2f}, "
            f"{median(each['learning'] for each in way):.2f}"
            for way in (alone, both)
        ]
        predicted = _spread([_predicted(one["overlap"]["said"]) for one in repeats])
        loads = [each["load"] for one in repeats for each in one.values()]
        load = f"{min(loads):.1f} to {max(loads):.1f}"
        lines.append(f"| {' | '.join([name, *times, predicted, *against, load])} |")
    return lines


def _speed(found: dict[str, Any]) -> float:
    return found["steps_per_second"]


def _predicted(said: str) -> float:
    """Return the gain that a run printed; 1 where one side takes all of the time."""
    found = re.search(r"(\d+\.\d+)x", said)
    return float(found[1]) if found else 1.0


def _spread(ratios: list[float]) -> str:
    return f"{median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


def main() -> None:
    """Measure by turns, write the numbers, print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--iterations", type=int, default=14)
    parser.add_argument("--threads", default="0", help="as isobatch train's")
    parser.add_argument("--cases", nargs="*", default=list(CASES))
    parsed = parser.parse_args()
    threads = ["--threads", parsed.threads]
    found: dict[str, list[dict[str, dict[str, Any]]]] = {name: [] for name in parsed.cases}
    for _ in range(parsed.repeats):
        for name in parsed.cases:
            env, flags = CASES[name]
            repeat = {
                way: run(env, flags, [*threads, *more], parsed.iterations)
                for way, more in WAYS.items()
            }
            found[name].append(repeat)
            parsed.out.write_text(json.dumps(found, indent=1) + "\n")
    print("\n".join(table(found)))


if __name__ == "__main__":
    main()
