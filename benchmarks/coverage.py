"""Simulate what the study's intervals and tests promise, and write the page that says so.

python benchmarks/coverage.py --out docs/results/statistics.md, about two minutes
"""

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from isobatch.study.stats import (
    bootstrap_ci,
    bootstrap_difference,
    equivalence,
    iqm,
    van_elteren,
)

RUNS = (3, 5, 10, 20)
TASKS = (1, 5)
SPREAD = 0.2
SHIFTS = (0.0, 0.5, 1.0)
MARGIN = 1.0


def normal(random: np.random.Generator, *shape: int) -> np.ndarray:
    """Draw symmetric noise of deviation 1."""
    return random.normal(size=shape)


def skewed(random: np.random.Generator, *shape: int) -> np.ndarray:
    """Draw noise of mean 0 and deviation 1 with a long lower tail: some runs fail."""
    return 1 - random.exponential(size=shape)


NOISES = {"normal": normal, "skewed": skewed}


def scores(noise: Callable, random: np.random.Generator, *shape: int) -> np.ndarray:
    """Draw [..., runs, tasks]: tasks around different centres, with one spread."""
    centres = np.linspace(0.3, 0.7, shape[-1] + 2)[1:-1]
    return centres + SPREAD * noise(random, *shape)


def coverage(noise: Callable, runs: int, tasks: int, simulations: int) -> float:
    """Return how often the 95% interval of the IQM holds the population's."""
    random = np.random.default_rng([runs, tasks])
    truth = iqm(scores(noise, random, 1_000_000 // tasks, tasks))
    samples = scores(noise, random, simulations, runs, tasks)
    intervals = [bootstrap_ci(sample, seed=n) for n, sample in enumerate(samples)]
    return float(np.mean([low <= truth <= high for low, high in intervals]))


def coverage_of_difference(noise: Callable, runs: int, tasks: int, simulations: int) -> float:
    """Return how often the 95% interval of the difference of two equal arms holds 0."""
    random = np.random.default_rng([runs, tasks])
    pairs = scores(noise, random, simulations, 2, runs, tasks)
    intervals = [bootstrap_difference(x, y, seed=n) for n, (x, y) in enumerate(pairs)]
    return float(np.mean([low <= 0 <= high for low, high in intervals]))


def rejections(
    p_value: Callable, shift: float, noise: Callable, runs: int, tasks: int, simulations: int
) -> float:
    """Return how often a test gives p < 0.05 where x is better by `shift` deviations."""
    random = np.random.default_rng([runs, tasks])
    x, y = noise(random, 2, simulations, runs, tasks)
    return float(np.mean([p_value(a, b) < 0.05 for a, b in zip(x + shift, y, strict=True)]))


Shares = dict[tuple[int, int], list[float]]
"""(tasks, runs) -> a share per column and kind of noise."""


def simulate(columns: dict[str, Callable], simulations: int) -> Shares:
    """Return each column's share for every number of tasks and runs."""
    return {
        (tasks, runs): [
            column(noise, runs, tasks, simulations)
            for column in columns.values()
            for noise in NOISES.values()
        ]
        for tasks in TASKS
        for runs in RUNS
    }


def table(columns: dict[str, Callable], shares: Shares) -> str:
    """Return a Markdown table."""
    head = ["tasks", "runs", *(f"{name}, {noise}" for name in columns for noise in NOISES)]
    rows = [
        [str(tasks), str(runs), *(f"{100 * share:.1f}%" for share in row)]
        for (tasks, runs), row in shares.items()
    ]
    return "\n".join(f"| {' | '.join(line)} |" for line in [head, ["---"] * len(head), *rows])


def span(shares: list[float]) -> str:
    """Return '73.0% to 80.1%'."""
    return f"{100 * min(shares):.1f}% to {100 * max(shares):.1f}%"


def over_shifts(p_value: Callable) -> dict[str, Callable]:
    """Return a column of rejections per shift."""
    return {f"shift {shift:g}": partial(rejections, p_value, shift) for shift in SHIFTS}


PAGE = """# The study's statistics, simulated

`python benchmarks/coverage.py --out docs/results/statistics.md`: {simulations:,} simulated studies
for each number, so each is accurate to {error:.1f} percentage points or better. Scores are normal,
or skewed (an exponential tail of bad runs); tasks have different means.

## Coverage of 95% intervals

{intervals}

**With few runs the intervals are too narrow.** At 3 runs they contain the true value in {one_3} of
cases for one task and {five_3} for five; at 5 runs {one_5} and {five_5}, at 10 {one_10} and
{five_10}, at 20 {one_20} and {five_20}. There are three reasons: a bootstrap of n runs
underestimates their spread by the factor sqrt((n - 1) / n), it has the tails of a normal
distribution instead of Student's, and rare bad runs may be missing from the sample. Below 10 runs,
the true uncertainty is larger than the interval.

## How often van Elteren's test finds a difference (p < 0.05)

x is better by the shift, in standard deviations of a run's score. Shift 0 is the test's size,
nominally 5%; the rest is power.

{differs}

At 3 runs of one task the test has {false_3} false positives: if all of x is above or below all of
y, the normal approximation gives p = 0.0495, and this happens by chance once in ten. With more runs
or tasks its size is {false}.

## How often the equivalence test passes (p < 0.05, a margin of {margin:g} deviation)

At a shift of {margin:g} the arms are just not equivalent, so those columns are the test's size,
which should be at most 5%; the rest is power.

{equivalents}

Its size is {unequal}. With few runs its power is low: two equal arms pass in {equal_3} of cases
at 3 runs of one task, {equal_20} at 20.
"""


def main() -> None:
    """Simulate and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--simulations", type=int, default=2000)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    interval_columns = {"IQM": coverage, "difference": coverage_of_difference}
    difference_columns = over_shifts(lambda x, y: van_elteren(x, y)[1])
    equivalence_columns = over_shifts(partial(equivalence, margin=MARGIN))
    intervals = simulate(interval_columns, args.simulations)
    differs = simulate(difference_columns, args.simulations)
    equivalents = simulate(equivalence_columns, args.simulations)
    last = SHIFTS.index(MARGIN) * len(NOISES)
    page = PAGE.format(
        simulations=args.simulations,
        error=200 * (0.25 / args.simulations) ** 0.5,
        margin=MARGIN,
        intervals=table(interval_columns, intervals),
        **{f"one_{runs}": span(intervals[1, runs]) for runs in RUNS},
        **{f"five_{runs}": span(intervals[5, runs]) for runs in RUNS},
        differs=table(difference_columns, differs),
        false_3=span(differs[1, 3][:2]),
        false=span([share for key, row in differs.items() if key != (1, 3) for share in row[:2]]),
        equivalents=table(equivalence_columns, equivalents),
        unequal=span([share for row in equivalents.values() for share in row[last:]]),
        equal_3=span(equivalents[1, 3][:2]),
        equal_20=span(equivalents[1, 20][:2]),
    )
    args.out.write_text(page)


if __name__ == "__main__":
    main()
