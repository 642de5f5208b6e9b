"""What rules look at: a recipe, and the rows of its run up to some moment.

Rows may come from other versions: columns that are missing, null or no numbers are not there.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from functools import cached_property
from statistics import median
from typing import Any, NamedTuple

from isobatch.batch import Batch
from isobatch.errors import UserError
from isobatch.recipe import Recipe
from isobatch.recipe.checks import is_finite
from isobatch.scores import Scale, constants
from isobatch.text import counted

WINDOW = 20
"""Rows that count as recent."""
LEAST = 5
"""Values without which there is no median worth saying."""
PROGRESS = 0.1
"""A return that rose by this part of what it was has risen."""
MUCH = 0.5
"""And one that rose by this part, much."""
LEAST_RISE, SOLVED = 0.05, 0.9
"""Of the way from random actions to the reference, where the environment has these scores."""
LATE = 0.45
"""The part of the budget after which a run should have learned something."""
SELDOM = 3
"""Values that will do of what is measured every few iterations."""
FEW_LUCKY = 10
LITTLE_LEFT = 0.05
"""Advantages this small against their first ones: there is little left to learn."""
BATCH = tuple(each.name for each in fields(Batch))

Row = Mapping[str, Any]


class Actions(NamedTuple):
    """What of an action space the rules ask."""

    size: int
    """Dimensions, or how many actions there are to choose from."""
    entropy: float | None
    """Of the uniform policy, where actions are discrete."""


class Column(NamedTuple):
    """The finite numbers of a column, and the rows they stand in."""

    places: list[int]
    values: list[float]


def numbers(row: Row) -> dict[str, float]:
    """Return what of a row is a finite number."""
    return {name: float(value) for name, value in row.items() if is_finite(value)}


class Columns:
    """The columns of rows of `numbers`, each taken out of them once."""

    def __init__(self, rows: Sequence[Mapping[str, float]]) -> None:
        self._rows, self.count = rows, len(rows)
        self._found: dict[str, Column] = {}

    def __getitem__(self, name: str) -> Column:
        found = self._found.get(name)
        if found is None:
            places = [k for k, row in enumerate(self._rows) if name in row]
            found = Column(places, [self._rows[k][name] for k in places])
            self._found[name] = found
        return found


class History:
    """A run as far as its first `end` rows tell, all of them where `end` is not given."""

    def __init__(
        self,
        recipe: Recipe,
        rows: Iterable[Row] | Columns,
        evaluations: Iterable[Row] = (),
        actions: Actions | None = None,
        end: int | None = None,
    ) -> None:
        self.recipe, self.actions = recipe, actions
        self.algorithm = recipe.algorithm
        self._columns = rows if isinstance(rows, Columns) else Columns([*map(numbers, rows)])
        self.end = self._columns.count if end is None else end
        self._evaluations = list(evaluations)

    def until(self, end: int) -> History:
        """Return the same run when it had `end` rows."""
        return History(self.recipe, self._columns, self._evaluations, self.actions, end)

    def until_part(self, part: float) -> History:
        """Return the same run when it had spent this part of its budget."""
        steps, budget = self._columns["env_steps"], part * self.recipe.total_timesteps
        count = bisect_left(steps.values, math.nextafter(budget, math.inf))
        return self.until(steps.places[count - 1] + 1 if count else 0)

    # What a column holds.

    def column(self, name: str) -> Column:
        """Return all numbers of a column, and the rows they stand in."""
        places, values = self._columns[name]
        stop = bisect_left(places, self.end)
        return Column(places[:stop], values[:stop])

    def values(self, name: str) -> list[float]:
        """Return all numbers of a column."""
        return self.column(name).values

    def at(self, name: str, place: int) -> float | None:
        """Return the number of a column in a row, None where it has none."""
        places, values = self._columns[name]
        k = bisect_left(places, place)
        return values[k] if k < len(places) and places[k] == place else None

    def iteration(self, place: int) -> int:
        """Return the iteration that a row is of."""
        return int(self.at("iterations", place) or place + 1)

    def recent(self, name: str, least: int = LEAST) -> list[float]:
        """Return the numbers of a column in the recent rows; the last few where it is sparse."""
        places, values = self._columns[name]
        stop = bisect_left(places, self.end)
        first = bisect_left(places, self.end - WINDOW)
        return values[max(0, min(first, stop - least)) : stop]

    def median(self, name: str, least: int = LEAST) -> float | None:
        """Return the recent median of a column, None where there are too few numbers."""
        found = self.recent(name, least)
        return median(found) if len(found) >= least else None

    def early(self, name: str) -> float | None:
        """Return the median of a column's first numbers, None where there are few later ones."""
        found = self.values(name)
        return median(found[: min(LEAST, len(found) // 4)]) if len(found) >= 4 else None

    def last(self, name: str) -> float | None:
        """Return the last number of a column."""
        found = self.recent(name, 1)
        return found[-1] if found else None

    def share(self, name: str, others: Sequence[str]) -> float | None:
        """Return which part a column has of the sum of several, recently."""
        sums = {each: sum(self.recent(each)) for each in others}
        total = sum(sums.values())
        return sums[name] / total if total > 0 else None

    # What the run is.

    @property
    def rows(self) -> int:
        """How many rows were looked at."""
        return self.end

    @property
    def env_steps(self) -> int:
        """Environment steps so far."""
        return int(self.last("env_steps") or 0)

    @property
    def part(self) -> float:
        """The part of the budget that is spent."""
        return self.env_steps / self.recipe.total_timesteps

    @cached_property
    def batch(self) -> Batch:
        """The batch in force: a schedule may have changed the recipe's."""
        found = {name: self.last(name) for name in BATCH}
        own = {name: int(value) for name, value in found.items() if value is not None}
        try:
            return Batch(**{name: getattr(self.recipe.batch, name) for name in BATCH} | own)
        except UserError:  # Rows that no run of ours wrote.
            return self.recipe.batch

    @cached_property
    def evaluations(self) -> list[Row]:
        """The evaluations so far."""
        steps = self.env_steps
        return [
            row
            for row in self._evaluations
            if is_finite(row.get("mark")) and (row["mark"] <= steps or not row["mark"])
        ]

    @property
    def lately(self) -> str:
        """The recent rows in words."""
        iterations = self.recent("iterations")[-WINDOW:]
        count = int(iterations[-1] - iterations[0]) + 1 if iterations else min(WINDOW, self.end)
        return f"over the last {counted(max(1, count), 'iteration')}"

    # How it goes.

    @cached_property
    def steps_annealed(self) -> bool:
        """Whether a schedule has brought the step size to under half of what it began with."""
        now, first = self.last("learning_rate"), (self.values("learning_rate") or [0.0])[0]
        return now is not None and now < 0.5 * first

    @cached_property
    def first_return(self) -> float | None:
        """The mean return when the run began."""
        return self.early("episode_return")

    @cached_property
    def gain(self) -> float | None:
        """How much the mean return rose, in parts of what it was; None where that is not known."""
        now, first = self.median("episode_return"), self.first_return
        if now is None or first is None:
            return None
        return (now - first) / abs(first) if first else math.copysign(math.inf, now) if now else 0.0

    @property
    def has_progressed(self) -> bool | None:
        """Whether the mean return is better than at the start; None where that is not known.

        Where the environment has a random and a reference score, a rise of a small part of the way
        between them does not count, and a return that is most of the way up does, wherever it was.
        """
        now, first, scale = self.median("episode_return"), self.first_return, self.scale
        if self.gain is None or now is None or first is None:
            return None
        if scale is None:
            return self.gain > PROGRESS
        part, rise = scale.normalized(now), scale.normalized(now) - scale.normalized(first)
        return part >= SOLVED or (self.gain > PROGRESS and rise >= LEAST_RISE)

    @cached_property
    def scale(self) -> Scale | None:
        """The environment's random and reference score, where they are known."""
        return constants(self.recipe.env)

    @property
    def learns(self) -> bool:
        """Whether the mean return is much better than at the start."""
        return bool(self.has_progressed) and self.gain is not None and self.gain > MUCH

    @cached_property
    def lost(self) -> float | None:
        """The part of its best gain that the mean return has lost; None where it gained little."""
        best, first = self.best_return, self.first_return
        if best is None or first is None or self.reward_rare or best - first <= MUCH * abs(first):
            return None
        return (best - self.values("episode_return")[-1]) / (best - first)

    @cached_property
    def best_return(self) -> float | None:
        """The best mean return after the first few, which the start is told by."""
        later = self.values("episode_return")[LEAST:]
        return max(later, default=None)

    @cached_property
    def reward_unseen(self) -> bool:
        """Whether every mean return so far was the same number: no action has mattered yet."""
        found = self.values("episode_return")
        return len(found) >= LEAST and max(found) - min(found) <= 1e-9 * max(1.0, abs(found[0]))

    @cached_property
    def reward_rare(self) -> bool:
        """Whether there was nothing at first, and lucky episodes since: a few of the last 100."""
        found = self.values("episode_return")
        least = min((abs(each) for each in found if each), default=math.inf)
        return self.first_return == 0 and max(map(abs, found)) < FEW_LUCKY * least

    @cached_property
    def is_settled(self) -> bool:
        """Whether it has learned, and advantages are a small part of what they began as."""
        now, first = self.median("advantage_std"), self.early("advantage_std")
        if now is None or first is None:
            return False
        return bool(self.has_progressed) and now < LITTLE_LEFT * first
