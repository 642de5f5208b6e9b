"""What advice says as a whole: findings as a sequence that prints and renders in a notebook."""

from __future__ import annotations

import html
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import overload

from isobatch.advice.finding import SEVERITIES, Finding
from isobatch.advice.history import History
from isobatch.advice.rules import RULES
from isobatch.text import counted, number, plain, wrapped


@dataclass(frozen=True, repr=False)
class Advice(Sequence[Finding]):
    """What there is to say about a run: its findings, the most important first.

    `str` is what `isobatch advise RUN` prints, `text(verbose=True)` what `--verbose` does.
    """

    name: str
    """The run, as it was named."""
    history: History
    findings: Sequence[Finding]

    @overload
    def __getitem__(self, place: int) -> Finding: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[Finding]: ...
    def __getitem__(self, place: int | slice) -> Finding | Sequence[Finding]:
        """Return one finding, or some."""
        return self.findings[place]

    def __len__(self) -> int:
        """How many findings there are, notes among them."""
        return len(self.findings)

    @property
    def counts(self) -> str:
        """How many findings of each severity: 1 problem, 2 notes; healthy where all are notes."""
        counts = Counter(each.severity for each in self.findings)
        said = [counted(counts[each], each) for each in SEVERITIES if counts[each]]
        if any(each.is_grave for each in self.findings):
            return ", ".join(said)
        quiet = "healthy: nothing above a note" if self.history.rows else "nothing above a note"
        return ", ".join([quiet, *said])

    def text(self, verbose: bool = False) -> str:
        """Return the answer in lines of 80 columns; `verbose` adds thresholds and sources."""
        lines = wrapped(self._headline())
        for each in self.findings:
            lines += ["", f"{each.severity.upper()} {each.rule}"]
            for line in _lines(each, verbose):
                lines += wrapped(line, "  ")
        return plain("\n".join(lines))

    def __str__(self) -> str:
        """Return what `isobatch advise RUN` prints."""
        return self.text()

    def __repr__(self) -> str:
        """Return it in a line: <Advice on runs/acrobot: 1 problem>."""
        return f"<Advice on {self.name}: {self.counts}>"

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"

    def _headline(self) -> str:
        """Say how it is in a line: how many findings, in how much of a run."""
        history, seen = self.history, "no rows yet, so only the recipe was looked at"
        if history.rows:
            iterations = int(history.last("iterations") or history.rows)
            seen = (
                f"{counted(iterations, 'iteration')}, {history.env_steps:,} of "
                f"{history.recipe.total_timesteps:,} env steps, {len(RULES)} rules"
            )
        return f"{self.name}: {self.counts} ({seen})"


def _lines(found: Finding, verbose: bool) -> list[str]:
    """Return a finding: what, what to try, and the flag on a line of its own, to copy."""
    lines = [f"{found.sentence}.", f"Try: {found.suggestion}."]
    if found.flag:
        lines.append(f"     {found.flag}")
    if verbose:
        held = f"{number(found.number)} against {number(found.threshold)}"
        lines.append(f"Since {found.since:,} env steps; {held}; source: {found.source}.")
    return lines
