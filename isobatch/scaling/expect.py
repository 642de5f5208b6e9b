"""What to expect of a way to another number of environments, in sentences from the record."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from isobatch.recipe import Recipe
from isobatch.scaling.keep import Keep, gae_horizon
from isobatch.scaling.record import Row, mean_area, mean_final, measured
from isobatch.text import counted

NOTHING = 0.005
"""Differences below this are 0.00 in the two digits that are said."""


def expectation(tuned: Recipe, new: Recipe, way: Keep | None) -> list[str]:
    """Return what the record says of this change, and on which side of it the recipe is."""
    factor = new.batch.n_envs / tuned.batch.n_envs
    if way is None or factor == 1:
        return ["No study of this project measured this change."]
    rows = measured(way, factor, tuned.algo)
    if not rows:
        return ["No study of this project measured this way in this direction."]
    return [
        _average(rows),
        *_tasks(rows),
        *_side(new, way, rows),
        *_reservations(new, factor, rows),
    ]


def table(tuned: Recipe, new: Recipe, way: Keep | None) -> list[tuple[str, ...]]:
    """Return the rows behind the sentences, a heading first; none where there are none."""
    factor = new.batch.n_envs / tuned.batch.n_envs
    rows = measured(way, factor, tuned.algo) if way is not None and factor != 1 else []
    if not rows:
        return []
    heading = ("task", "n_envs", "n_steps / horizon", "final", "area", "seeds")
    return [heading] + [
        (
            row.env,
            f"x {Fraction(row.factor)}",
            f"{row.coverage:.3g}",
            _signed(row.final),
            "-" if row.area is None else _signed(row.area),
            str(row.seeds),
        )
        for row in rows
    ]


def _average(rows: Sequence[Row]) -> str:
    seeds = sorted({row.seeds for row in rows})
    each = counted(seeds[0], "seed") if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]} seeds"
    sources = ", ".join(dict.fromkeys(row.source for row in rows))
    return (
        f"With {_times(rows[0].factor)} and the same number of environment steps this way "
        f"{_means(rows)}, on average over {counted(len(rows), 'task')} ({rows[0].algo}, {each} "
        f"each; {sources})."
    )


def _means(rows: Sequence[Row]) -> str:
    """Say the mean differences: lost 0.18 of normalised area ... and 0.19 of final score."""
    area, final = mean_area(rows), mean_final(rows)
    if area is None:
        return f"{_lost(final)} of normalised final score"
    verb, amount = _lost(area).split()
    second = _lost(final).removeprefix(f"{verb} ")
    return (
        f"{verb} {amount} of normalised area under the learning curve and {second} of final score"
    )


def _tasks(rows: Sequence[Row]) -> list[str]:
    """Name the tasks: apart, where n_steps covers GAE's horizon in some of them only."""
    covered = [row for row in rows if row.covered]
    rest = [row for row in rows if not row.covered]
    what = "Final score" if mean_area(rows) is None else "Area"
    if not covered or not rest:
        return [f"{what} by task: {_listed(rows)}."]
    return [
        f"{what} by task where n_steps covers GAE's horizon: {_listed(covered)}; where it does "
        f"not: {_listed(rest)}."
    ]


def _listed(rows: Sequence[Row]) -> str:
    ordered = sorted(rows, key=_difference, reverse=True)
    return ", ".join(f"{row.env} {_signed(_difference(row))}" for row in ordered)


def _difference(row: Row) -> float:
    return row.final if row.area is None else row.area


def _side(new: Recipe, way: Keep, rows: Sequence[Row]) -> list[str]:
    """Say which of the measured tasks this recipe is like: those whose steps cover the horizon?"""
    if way != "rollout":
        return []
    reach, steps = gae_horizon(new), new.batch.n_steps
    side = [row for row in rows if row.covered == (steps >= reach)]
    covers = "covers" if steps >= reach else "does not cover"
    text = f"Here n_steps {steps} {covers} GAE's horizon ({steps / reach:.3g} times {reach:.3g})"
    if not side or len(side) == len(rows):
        return [f"{text}."]
    return [f"{text}: in these cases it {_means(side)}."]


def _reservations(new: Recipe, factor: float, rows: Sequence[Row]) -> list[str]:
    """Say where the measured tasks are not the one asked about, and where they are."""
    lines = [
        f"On {row.env} itself: final score {_signed(row.final)}"
        + (f", area {_signed(row.area)}" if row.area is not None else "")
        + f", with n_steps {row.coverage:.3g} times the horizon."
        for row in rows
        if row.env == new.env.removeprefix("gymnasium:")
    ]
    if rows[0].factor != factor:
        lines.append(f"{_times(factor)} was not measured.")
    if rows[0].algo != new.algo:
        lines.append(f"{new.algo} was not measured.")
    return lines


def _times(factor: float) -> str:
    """Return 8 times the environments, or 1/4 of the environments."""
    part = Fraction(factor).limit_denominator(10**6)
    what = f"{part} of" if part < 1 else f"{float(part):.4g} times"
    return f"{what} the environments"


def _lost(difference: float) -> str:
    if abs(difference) < NOTHING:
        return "lost 0.00"
    return f"{'lost' if difference < 0 else 'gained'} {abs(difference):.2f}"


def _signed(difference: float) -> str:
    return "0.00" if abs(difference) < NOTHING else f"{difference:+.2f}"
