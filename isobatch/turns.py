"""Work that a run may have done by others: asked for with `await`, and done at once when alone.

A run that trains alone never waits: what it awaits is computed there and then. In a cohort it asks
instead, and whoever conducts the cohort answers several runs at a time.
"""

from __future__ import annotations

from collections.abc import Coroutine, Generator
from typing import Any, Generic, TypeVar

Answer = TypeVar("Answer")


class Asked(Generic[Answer]):
    """Something to be awaited that somebody else computes: hands `self` out, takes the answer."""

    def __await__(self) -> Generator[Asked[Answer], Answer, Answer]:
        return (yield self)


def at_once(work: Coroutine[Any, Any, Answer]) -> Answer:
    """Return what `work` comes to, which asks nobody for anything."""
    try:
        work.send(None)
    except StopIteration as end:
        return end.value
    work.close()
    raise RuntimeError("work that was to be done at once asked for something")
