"""Advice on a run: what its numbers say is wrong, and what to try.

    print(isobatch.advise("runs/cartpole"))

Rules are in `rules`, one readable file; what they look at is a `History`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from isobatch.advice.answer import Advice
from isobatch.advice.finding import SEVERITIES, Finding, Severity
from isobatch.advice.history import Actions, History, Row
from isobatch.advice.live import Watch
from isobatch.advice.reading import read, read_origin
from isobatch.advice.rules import RULES, Rule
from isobatch.recipe import Recipe

__all__ = [
    "RULES",
    "SEVERITIES",
    "Actions",
    "Advice",
    "Finding",
    "History",
    "Rule",
    "Severity",
    "Watch",
    "advise",
    "findings",
    "look",
    "read",
]

MOMENTS = 50
"""Of a run's past at which a rule is asked again, to say since when it holds."""


class OnDisk(Protocol):
    """A run: what `isobatch.train` returns."""

    @property
    def path(self) -> Path:
        """Its directory."""
        ...


def advise(run: str | Path | OnDisk) -> Advice:
    """Return the advice for a run or a run directory; it prints like `isobatch advise`."""
    path = run if isinstance(run, str | Path) else run.path
    history = read(path)
    return Advice(str(path), history, look(history), read_origin(path))


def findings(recipe: Recipe, rows: Sequence[Row], evaluations: Iterable[Row] = ()) -> list[Finding]:
    """Return what there is to say about a recipe and the rows of its run."""
    return look(History(recipe, rows, evaluations))


def look(history: History) -> list[Finding]:
    """Return what the rules find in a history, the most important first, each with its `since`."""
    found = [replace(each, since=_since(rule, history)) for rule, each in _found(history)]
    return sorted(found, key=lambda each: each.rank)


def _found(history: History) -> Iterable[tuple[Rule, Finding]]:
    for rule in RULES:
        found = rule(history)
        if found is not None:
            yield rule, found


def _since(rule: Rule, history: History) -> int:
    """Return the environment steps since which a rule holds without a break."""
    since = history.env_steps
    for k in range(MOMENTS - 1, -1, -1):
        before = history.until(history.end * k // MOMENTS)
        if rule(before) is None:
            return since
        since = before.env_steps
    return since
