"""Simulate what the study's intervals and tests promise: docs/results/statistics.md.

python benchmarks/coverage.py --out docs/results/statistics.md
"""

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from isobatch.study.stats import bootstrap_ci, equivalence, iqm, van_elteren

RUNS = (3, 5, 10, 20)
TASKS = (1, 5)
SPREAD = 0.2
SHIFTS = (0.0, 0.5, 1.0, 1.5, 2.0)
MARGIN = 2.0


def normal(random: np.random.Generator, *shape: int) -> np.ndarray:
    """Draw noise of deviation 1, symmetric."""
    return random.normal(size=shape)


def skewed(random: np.random.Generator, *shape: int) -> np.ndarray:
    """Draw noise of mean 0 and deviation 1 with a long lower tail: some runs fail."""
    return 1 - random.exponential(size=shape)


KINDS = {"normal": normal, "skewed": skewed}


def scores(noise: Callable, random: np.random.Generator, *shape: int) -> np.ndarray:
    """Draw [..., runs, tasks]: tasks of one spread around 0.3 to 0.7."""
    return np.linspace(0.3, 0.7, shape[-1] + 2)[1:-1] + SPREAD * noise(random, *shape)


def coverage(noise: Callable, runs: int, tasks: int, simulations: int) -> float:
    """Return how often the 95% interval of the IQM holds the population's."""
    random = np.random.default_rng([runs, tasks])
    truth = iqm(scores(noise, random, 1_000_000 // tasks, tasks))
    samples = scores(noise, random, simulations, runs, tasks)
    intervals = [bootstrap_ci(sample, seed=n) for n, sample in enumerate(samples)]
    return float(np.mean([low <= truth <= high for low, high in intervals]))


def rejections(
    test: Callable, noise: Callable, shift: float, runs: int, tasks: int, simulations: int
) -> float:
    """Return how often `test` gives p < 0.05 where x is better by `shift` deviations."""
    random = np.random.default_rng([runs, tasks])
    x, y = noise(random, 2, simulations, runs, tasks)
    return float(np.mean([test(a, b) < 0.05 for a, b in zip(x + shift, y, strict=True)]))


def differs(x: np.ndarray, y: np.ndarray) -> float:
    """Return van Elteren's p."""
    return van_elteren(x, y)[1]


def table(head: list[str], rows: list[list[str]]) -> str:
    """Return a Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def coverage_table(simulations: int) -> str:
    """Return the table of coverages."""
    rows = []
    for tasks in TASKS:
        for runs in RUNS:
            found = [coverage(noise, runs, tasks, simulations) for noise in KINDS.values()]
            rows.append([f"{tasks}", f"{runs}", *(f"{100 * share:.1f}%" for share in found)])
            print(*rows[-1], flush=True)
    return table(["tasks", "runs", *KINDS], rows)


def test_table(test: Callable, simulations: int) -> str:
    """Return the table of rejections at 5% over shifts."""
    rows = []
    for tasks in TASKS:
        for runs in RUNS:
            for name, noise in KINDS.items():
                shares = [
                    rejections(test, noise, shift, runs, tasks, simulations) for shift in SHIFTS
                ]
                rows.append([f"{tasks}", f"{runs}", name, *(f"{100 * s:.1f}%" for s in shares)])
    return table(["tasks", "runs", "scores", *(f"{shift:g}" for shift in SHIFTS)], rows)


TEXT = """# Intervals and tests of a study, simulated

`python benchmarks/coverage.py --out {out}`: {simulations:,} simulated studies per number, so that
a share of 95% is known to {error:.1f} points either way (two standard errors).
"""


def main() -> None:
    """Simulate and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--simulations", type=int, default=2000)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    error = 200 * (0.95 * 0.05 / args.simulations) ** 0.5
    page = [
        TEXT.format(out=args.out, simulations=args.simulations, error=error),
        coverage_table(args.simulations),
        test_table(differs, args.simulations),
        test_table(partial(equivalence, margin=MARGIN), args.simulations),
    ]
    args.out.write_text("\n\n".join(page) + "\n")


if __name__ == "__main__":
    main()
