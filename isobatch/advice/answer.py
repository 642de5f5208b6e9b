"""What advice says as a whole: findings as a sequence that prints and renders in a notebook."""

from __future__ import annotations

import html
import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import overload

from isobatch.advice.finding import SEVERITIES, Finding
from isobatch.advice.history import History
from isobatch.advice.verdict import Verdict, verdict
from isobatch.errors import UserError
from isobatch.origin import Origin
from isobatch.reproduce import command, from_file
from isobatch.text import counted, folded, number, plain, wrapped


@dataclass(frozen=True, repr=False)
class Advice(Sequence[Finding]):
    """What there is to say about a run: its findings, the most important first.

    `str` is what `isobatch advise RUN` prints, `text(verbose=True)` what `--verbose` does.
    """

    name: str
    """The run, as it was named."""
    history: History
    findings: Sequence[Finding]
    origin: Origin | None = None
    """Where its policy comes from, where it was not trained here from the start."""

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
        """How many findings of each severity: 1 problem, 2 notes."""
        return counts(self.findings)

    @cached_property
    def verdict(self) -> Verdict:
        """How the run goes: learning, not learning, or had learned and lost it."""
        return verdict(self.history)

    @property
    def began(self) -> str:
        """Say where the policy comes from, nothing of one that was trained here from the start."""
        return "" if self.origin is None else f"Its policy was imported from {self.origin}."

    @cached_property
    def next(self) -> str:
        """The command that trains the run's recipe with what the first finding says to change.

        Empty where there is nothing to change. It takes seconds: presets come with EnvPool.
        """
        first = next((each for each in self._told if each.changes), None)
        if first is None:
            return ""
        try:
            changed = self.history.recipe.replace(**first.changes)
        except UserError:  # A field that does not go with another.
            return ""
        file = str(Path(self.name) / "recipe.toml")
        from_recipe = f"{from_file(self.history.recipe, file)} {first.flag}"
        return command(changed, first.changes) or from_recipe

    def lines(self, verbose: bool = False) -> Iterator[str]:
        """Yield the answer line by line, at most 80 columns wide: the verdict first.

        `verbose` adds the notes' text, and since when, the threshold and source of each finding.
        """
        yield from map(plain, wrapped(f"{self.name}: {self.verdict.sentence}"))
        shown = self.findings if verbose else self._told
        for said in (self.verdict.collapse, self.began, self._budget(), self._counted(shown)):
            yield from wrapped(said)
        for each in shown:
            yield ""
            yield f"{each.severity.upper()} {each.rule}"
            for line in _lines(each, verbose):
                yield from map(plain, wrapped(line, "  "))
        if self.next:
            yield ""
            yield "Next, with the first of these:"
            yield from plain(folded(shlex.split(self.next))).splitlines()

    def text(self, verbose: bool = False) -> str:
        """Return the `lines` as one text."""
        return "\n".join(self.lines(verbose))

    def __str__(self) -> str:
        """Return what `isobatch advise RUN` prints."""
        return self.text()

    def __repr__(self) -> str:
        """Return it in a line: <Advice on runs/acrobot: not learning, 1 problem>."""
        return f"<Advice on {self.name}: {self.verdict.state}, {self.counts}>"

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"

    @property
    def _told(self) -> Sequence[Finding]:
        """What is shown: of a run that does not learn, for want of anything else, the notes."""
        grave = [each for each in self.findings if each.is_grave]
        return grave or (self.findings if self.verdict.state != "learning" else [])

    def _budget(self) -> str:
        """Say how many iterations and gradient steps there were: a policy changes no oftener."""
        run = self.history
        if not run.rows:
            return ""
        done = counted(int(run.last("iterations") or run.rows), "iteration")
        steps = run.last("grad_steps")
        took = "" if steps is None else f" and {counted(int(steps), 'gradient step')}"
        total = run.recipe.total_timesteps
        return f"It took {done}{took}, in {run.env_steps:,} of {total:,} env steps."

    def _counted(self, shown: Sequence[Finding]) -> str:
        """Say how many findings there are, and name those that are not shown."""
        hidden = [each.rule for each in self.findings if each not in shown]
        named = f": {', '.join(hidden)} (shown by --verbose)" if hidden else ""
        return f"Found: {self.counts}{named}."


def counts(findings: Sequence[Finding]) -> str:
    """Say how many findings of each severity there are: 1 problem, 2 notes."""
    of_each = Counter(each.severity for each in findings)
    said = [counted(of_each[each], each) for each in SEVERITIES if of_each[each]]
    grave = any(each.is_grave for each in findings)
    return ", ".join(said if grave else ["nothing above a note", *said])


def _lines(found: Finding, verbose: bool) -> list[str]:
    """Return a finding: what, what to try, and the flag on a line of its own, to copy."""
    lines = [f"{found.sentence}.", f"Try: {found.suggestion}."]
    if found.flag:
        lines.append(f"     {found.flag}")
    if verbose:
        held = f"{number(found.number)} against {number(found.threshold)}"
        lines.append(f"Since {found.since:,} env steps; {held}; source: {found.source}.")
    return lines
