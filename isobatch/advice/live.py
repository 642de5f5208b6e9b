"""Advice while a run trains: fed each row, it says what is wrong now, and when that changes.

    watch = Watch(recipe, path)
    for text in watch.see(row):
        print(text)
    watch.current  # the most important finding, or None

Rules are asked every few rows, over a bounded part of the past: a row costs about 0.1 ms,
however long the run.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from isobatch.advice.finding import Finding
from isobatch.advice.history import LEAST, WINDOW, Actions, Columns, History, numbers
from isobatch.advice.reading import read_actions
from isobatch.advice.rules import RULES
from isobatch.files import Folder
from isobatch.recipe import Recipe

EVERY = 10
"""Rows between two looks."""
APPEARS, CLEARS = 2, 5
"""Looks in a row that must agree before a finding appears, or clears: none flickers."""
FIRST, PAST, LAST = 2 * LEAST, 64, 2 * WINDOW
"""Rows kept as they are from the start, at most about as many from the past between, and as they
are up to now."""


class Watch:
    """Looks at a run as its rows come."""

    def __init__(
        self, recipe: Recipe, path: str | Path | None = None, actions: Actions | None = None
    ) -> None:
        """`path` is the run's directory, whose policy tells the action space; or say `actions`."""
        self._recipe, self._path, self._actions = recipe, path, actions
        self._first: list[dict[str, float]] = []
        self._past: list[dict[str, float]] = []
        self._last: list[dict[str, float]] = []
        self._between: dict[str, float] = {}
        self._seen, self._stride = 0, 1
        self._standing: dict[str, Finding] = {}
        self._heard: dict[str, int] = {}
        """Looks in a row at which a rule disagreed with what stands, by its name."""
        self._since: dict[str, int] = {}

    @property
    def current(self) -> Finding | None:
        """The most important finding above a note, None where all is well."""
        return next((each for each in self.standing if each.is_grave), None)

    @property
    def standing(self) -> list[Finding]:
        """All findings that have appeared and not cleared, the most important first."""
        order = {rule.name: place for place, rule in enumerate(RULES)}
        return sorted(self._standing.values(), key=lambda each: (each.rank, order[each.rule]))

    def see(self, row: Mapping[str, Any]) -> list[str]:
        """Take in a row; return a line for each finding above a note that appears or clears."""
        begins = not self._seen
        self._keep(numbers(row))
        self._seen += 1
        if begins:
            return self._of_recipe()
        return [] if self._seen % EVERY else self._look()

    def _of_recipe(self) -> list[str]:
        """Say at once what the recipe alone tells."""
        history = History(self._recipe, ())
        found = [each for rule in RULES if (each := rule(history)) is not None]
        self._standing = {each.rule: each for each in found}
        return [_appeared(each, 0) for each in found if each.is_grave]

    def _keep(self, row: dict[str, float]) -> None:
        """Keep a row; those in between become one of 2, 4, 8 as they become too many.

        It holds the last number of each column, so that what is measured seldom is not lost.
        """
        if len(self._first) < FIRST:
            self._first.append(row)
            return
        self._last.append(row)
        if len(self._last) <= LAST:
            return
        self._between |= self._last.pop(0)
        if self._seen % self._stride == 0:
            self._past.append(self._between)
            self._between = {}
        if len(self._past) == PAST:
            self._past = [a | b for a, b in zip(self._past[::2], self._past[1::2], strict=True)]
            self._stride *= 2

    def _look(self) -> list[str]:
        if self._actions is None and self._path is not None:
            with suppress(OSError), Folder(self._path) as folder:
                self._actions = read_actions(folder)
            self._path = None
        rows = Columns([*self._first, *self._past, *self._last])
        history = History(self._recipe, rows, actions=self._actions)
        said = []
        for rule in RULES:
            said += self._weigh(rule.name, rule(history), history.env_steps)
        return said

    def _weigh(self, name: str, found: Finding | None, steps: int) -> list[str]:
        """Hold what a rule says now against what stands."""
        stood = self._standing.get(name)
        if (found is None) == (stood is None):
            self._heard[name] = 0
            if found is not None and stood is not None:
                self._standing[name] = replace(found, since=stood.since)
                if found.is_grave and not stood.is_grave:
                    return [_appeared(found, steps)]
            return []
        heard = self._heard[name] = self._heard.get(name, 0) + 1
        if found is not None:
            if heard == 1:
                self._since[name] = steps
            if heard < APPEARS:
                return []
            self._heard[name] = 0
            self._standing[name] = replace(found, since=self._since[name])
            return [_appeared(found, steps)] if found.is_grave else []
        if heard < CLEARS or stood is None:
            return []
        self._heard[name] = 0
        del self._standing[name]
        return [f"{steps:,} env steps: {name} cleared"] if stood.is_grave else []


def _appeared(found: Finding, steps: int) -> str:
    tried = f"; try {found.flag}" if found.flag else ""
    return f"{steps:,} env steps: {found.severity} {found.rule}: {found.sentence}{tried}"
