"""Where a run's time went: start-up, the first iteration, the others part by part, the end.

The sections are those of a `Clock` that the run was given. They exclude each other, so the parts of
an iteration add up to the whole of it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from isobatch.clock import OFF, OTHER, Clock
from isobatch.errors import system_error
from isobatch.run.store import PROFILE, RunDirectory
from isobatch.text import counted, say

LABELS = {
    "imports": "Python and imports",
    "making": "making environments and networks",
    "warm_up": "spreading environments over episodes",
    "environments": "environments",
    "acting": "acting (policy and value forward)",
    "rollout": "sampling actions, storing the rollout",
    "waiting": "waiting for the rollout (overlap)",
    "advantages": "advantages, minibatches",
    "gather": "gathering rows",
    "proximal": "proximal policy",
    "gradient": "gradient (forward and backward)",
    "optimizer": "clipping, optimiser step",
    "auxiliary": "auxiliary phase",
    "probe": "gradient noise probe",
    "compiling": "compiling",
    "evaluation": "evaluation",
    "diagnostics": "diagnostics",
    "metrics": "metrics",
    "checkpoints": "checkpoints",
    OTHER: "everything else",
}
"""Sections as people read them, in the order of an iteration."""
ONCE = {"start_up": "start-up", "first_iteration": "first iteration", "end": "end"}
SMALLEST = 0.0005
"""Shares below this are not shown by themselves."""


class Profile:
    """Takes a run's laps from its clock: what comes before the first iteration, each, and after."""

    def __init__(self, clock: Clock) -> None:
        self.clock, self.iterations = clock, 0
        self.start_up: dict[str, float] = {}
        self.first: dict[str, float] = {}
        self.later: dict[str, float] = {}
        """Summed over all iterations but the first."""

    def begin(self) -> None:
        """The first iteration begins."""
        self.start_up = self.clock.lap()

    def iterated(self) -> None:
        """An iteration ended."""
        parts = self.clock.lap()
        self.iterations += 1
        if self.iterations == 1:
            self.first = parts
            return
        for name, seconds in parts.items():
            self.later[name] = self.later.get(name, 0.0) + seconds

    def summary(self) -> dict[str, Any]:
        """Return all laps, as plain data; now is the end."""
        parts = {
            "start_up": self.start_up,
            "first_iteration": self.first,
            "later_iterations": self.later,
            "end": self.clock.lap(),
        }
        laps = {
            name: {"seconds": sum(each.values()), "parts": each} for name, each in parts.items()
        }
        return {"iterations": self.iterations, **laps}


UNTIMED = Profile(OFF)
"""Of runs that are not profiled."""


@contextmanager
def kept(profile: Profile, directory: RunDirectory, quiet: bool) -> Iterator[None]:
    """Write a run's profile when it ends, however that is, and unless `quiet` print it."""
    try:
        yield
    finally:
        if profile.clock is not OFF:
            _keep(profile.summary(), directory, quiet)


def _keep(summary: dict[str, Any], directory: RunDirectory, quiet: bool) -> None:
    if not summary["iterations"]:
        say("--profile: no iteration was completed", error=True)
        return
    try:
        directory.folder.write(PROFILE, json.dumps(summary, indent=1).encode() + b"\n")
    except OSError as error:  # No reason for a run to fail.
        say(f"isobatch: the profile was not saved: {system_error(error)}", error=True)
    if not quiet:
        say("\n".join(table(summary)))


def table(summary: dict[str, Any]) -> list[str]:
    """Lay a profile out: the mean iteration part by part, then what comes once."""
    which, parts = mean_iteration(summary)
    rows = [(label, f"{1000 * seconds:.2f} ms", f"{share:.1%}") for label, seconds, share in parts]
    widths = [max(len(row[k]) for row in rows) for k in range(3)]
    lines = [
        f"  {label:<{widths[0]}}  {each:>{widths[1]}}  {share:>{widths[2]}}"
        for label, each, share in rows
    ]
    return [f"where an iteration's time went ({which}):", *lines, *once(summary)]


def mean_iteration(summary: dict[str, Any]) -> tuple[str, list[tuple[str, float, float]]]:
    """Return which iterations are meant, and each part's label, seconds and share of the whole."""
    count, lap = summary["iterations"] - 1, summary["later_iterations"]
    which = f"mean of {counted(count, 'iteration')}, without the first"
    if count < 1:
        count, lap, which = 1, summary["first_iteration"], "the only one, with what is done once"
    whole = lap["seconds"]
    parts = [*_shown(lap["parts"], whole), ("total", whole)]
    return which, [
        (label, seconds / count, seconds / whole if whole else 0.0) for label, seconds in parts
    ]


def once(summary: dict[str, Any]) -> list[str]:
    """Say what came once: start-up, the first iteration, the end."""
    return [f"{name}: {_once(summary[lap])}" for lap, name in ONCE.items()]


def _shown(parts: dict[str, float], whole: float) -> list[tuple[str, float]]:
    """Return parts by their labels, in order; the smallest are among everything else."""
    large = {name: seconds for name, seconds in parts.items() if seconds >= SMALLEST * whole}
    rest = sum(seconds for name, seconds in parts.items() if name == OTHER or name not in large)
    places = {name: place for place, name in enumerate(LABELS)}
    names = sorted(large.keys() - {OTHER}, key=lambda name: places.get(name, len(places)))
    return [*((LABELS.get(name, name), large[name]) for name in names), (LABELS[OTHER], rest)]


def _once(lap: dict[str, Any]) -> str:
    """Say in a line what a lap took, and where it took a tenth or more."""
    whole = lap["seconds"]
    largest = sorted(lap["parts"].items(), key=lambda part: -part[1])
    named = [
        f"{LABELS.get(name, name)} {_time(seconds)}"
        for name, seconds in largest
        if seconds >= whole / 10
    ]
    return f"{_time(whole)} ({', '.join(named)})"


def _time(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{1000 * seconds:.0f} ms"
