"""What a rule finds in a run: how bad, what, by which number, and what to try."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from isobatch.recipe import as_flags

Severity = Literal["problem", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = ("problem", "warning", "note")
"""Worst first. A problem keeps a run from learning; a warning may; a note is good to know."""


@dataclass(frozen=True)
class Finding:
    """One thing that a rule says about a run."""

    severity: Severity
    number: float
    """What was measured."""
    threshold: float
    """What it is held against."""
    sentence: str
    """What is wrong, with the number, and what that means."""
    suggestion: str
    """What to try, as a sentence without its full stop."""
    changes: Mapping[str, Any] = field(default_factory=dict)
    """The recipe's fields to change for it, and to what. Empty where none does it."""
    rule: str = ""
    """The rule's name."""
    source: str = ""
    """Whose rule it is."""
    since: int = 0
    """Environment steps since which it holds."""

    @property
    def flag(self) -> str:
        """What to add to `isobatch train` for it: --n-envs 32. Empty where no flag does it."""
        return shlex.join(as_flags(self.changes))

    @property
    def is_grave(self) -> bool:
        """Whether it is more than a note."""
        return self.severity != "note"

    @property
    def rank(self) -> int:
        """0 for a problem, 1 for a warning, 2 for a note."""
        return SEVERITIES.index(self.severity)
