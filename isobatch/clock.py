"""Where time goes: sections of a program that exclude each other and add up to the whole.

A clock is passed to what is to be timed, like a run's other belongings. Without one there is `OFF`,
which wraps nothing: what is not profiled runs as it was written.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import ParamSpec, TypeVar

Given = ParamSpec("Given")
Result = TypeVar("Result")
OTHER = "other"
"""The section of all that is in no other."""


class Clock:
    """Adds up the seconds of each section, less those of sections within it."""

    def __init__(self, before: dict[str, float] | None = None) -> None:
        """`before` are seconds by section that passed before there was a clock."""
        self._parts = dict(before or {})
        self._open = [OTHER]
        self._thread = threading.get_ident()
        self._synchronize: Callable[[], None] | None = None
        self._last = time.perf_counter()

    def wait_for(self, synchronize: Callable[[], None]) -> None:
        """Call this at the ends of sections: a GPU may still be at work on what was asked of it."""
        self._synchronize = synchronize

    def section(self, name: str) -> AbstractContextManager[None]:
        """Time the block as `name`."""
        return self._section(name)

    @contextmanager
    def _section(self, name: str) -> Iterator[None]:
        self._turn()
        self._open.append(name)
        try:
            yield
        finally:
            self._turn()
            self._open.pop()

    def timing(self, name: str, function: Callable[Given, Result]) -> Callable[Given, Result]:
        """Return the function, timed as `name`; calls from other threads are not looked at."""
        turn, inside, own = self._turn, self._open, self._thread

        def timed(*args: Given.args, **kwargs: Given.kwargs) -> Result:
            if threading.get_ident() != own:
                return function(*args, **kwargs)
            turn()
            inside.append(name)
            try:
                return function(*args, **kwargs)
            finally:
                turn()
                inside.pop()

        return timed

    def watch(self, thing: object, name: str, *methods: str) -> None:
        """Time some methods of one object as `name`, those it has."""
        for method in methods:
            if hasattr(thing, method):
                setattr(thing, method, self.timing(name, getattr(thing, method)))

    def lap(self) -> dict[str, float]:
        """Return the seconds by section since the last lap: together, all that passed."""
        self._turn()
        parts, found = self._parts, dict(self._parts)
        parts.clear()
        return found

    def _turn(self) -> None:
        """Give the time since the last turn to the section that is open."""
        if self._synchronize is not None:
            self._synchronize()
        now, name = time.perf_counter(), self._open[-1]
        self._parts[name] = self._parts.get(name, 0.0) + now - self._last
        self._last = now


class _Off(Clock):
    """Times nothing, and costs nothing where something would be timed."""

    def wait_for(self, synchronize: Callable[[], None]) -> None:
        """Wait for nothing."""

    def section(self, name: str) -> AbstractContextManager[None]:
        """Let the block be."""
        return _NOTHING

    def timing(self, name: str, function: Callable[Given, Result]) -> Callable[Given, Result]:
        """Return the very function."""
        return function

    def watch(self, thing: object, name: str, *methods: str) -> None:
        """Leave it as it is."""

    def lap(self) -> dict[str, float]:
        """Return nothing."""
        return {}


_NOTHING = nullcontext()
OFF = _Off()


def process_seconds() -> float:
    """Return how long ago this process began, 0 where the system does not tell."""
    try:
        # The name, in brackets, may hold anything; after it comes the state and, 20th, the start.
        fields = Path("/proc/self/stat").read_text(errors="replace").rpartition(")")[2].split()
        began = int(fields[19]) / os.sysconf("SC_CLK_TCK")
        return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - began)
    except (OSError, AttributeError, IndexError, ValueError):
        return 0.0
