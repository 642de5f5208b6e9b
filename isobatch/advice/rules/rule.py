"""A rule of advice, what it answers with, and whose it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from isobatch.advice.finding import Finding
from isobatch.advice.history import History

PAPER = "arXiv 2110.00641, section 6.2"
MAYOR = "arXiv 2506.03404"
MAYOR_NUMBERS = f"{MAYOR}; the numbers are ours"
NOTES = "rule of thumb"
OURS = "ours"

LEARNING = " (a note if the return has risen by half or more)"
"""The end of `when`, of rules that say less of a run that learns."""

Changes = dict[str, Any]
NOTHING: Changes = {}
Look = Callable[[History], Finding | None]


@dataclass(frozen=True)
class Rule:
    """A rule: when it speaks, whose it is, and what looks."""

    name: str
    when: str
    source: str
    look: Look

    def __call__(self, run: History) -> Finding | None:
        """Return what it finds in a run."""
        found = self.look(run)
        return found and replace(found, rule=self.name, source=self.source)


def rule(when: str, source: str) -> Callable[[Look], Rule]:
    """Make a function a rule of its name."""

    def made(look: Look) -> Rule:
        return Rule(look.__name__.replace("_", "-"), when, source, look)

    return made


problem = partial(Finding, "problem")
warning = partial(Finding, "warning")
note = partial(Finding, "note")


def to(**fields: Any) -> Changes:
    """Return recipe fields and what to set them to: to(n_envs=32)."""
    return fields


def times(factor: float) -> str:
    """Return how many times: 3.2x, 40x, 1e+06x."""
    return f"{factor:.1f}x" if factor < 10 else f"{factor:.3g}x"
