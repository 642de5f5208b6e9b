"""A run by several processes: joining them, watching them, and ending so that all can go on."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from isobatch.errors import UserError
from isobatch.parent import end_with
from isobatch.recipe import Recipe
from isobatch.run.loop import OnIteration
from isobatch.run.result import Run
from isobatch.text import say
from isobatch.workers.heartbeat import Heartbeat
from isobatch.workers.membership import BROKEN, Group, PeerLost, join, membership
from isobatch.world import World


def work(train: Callable[[Group, OnIteration], Run], report: Callable[[Run], int]) -> int:
    """Join the others, train with them, and let the first report; return the exit code.

    A worker that loses the others ends, so that whoever started them starts all anew.
    """
    member = membership()
    assert member is not None
    end_with(os.getppid(), signal.SIGKILL)  # torchrun too leaves workers behind when it is killed.
    try:
        group = join(member)
        with Heartbeat(group) as beat:
            run = train(group, Pace(beat))
        group.close()
    except PeerLost as error:
        say(f"isobatch: {error}", error=True)
        return BROKEN
    if group.rank == 0:
        return report(run)
    return 130 if run.interrupted else 0


class Pace:
    """Tells the heartbeat how long iterations take, so that it knows what is too long."""

    def __init__(self, beat: Heartbeat) -> None:
        self._beat, self._before, self._longest = beat, time.monotonic(), 0.0

    def __call__(self, row: dict[str, Any]) -> None:
        """Take note of an iteration, evaluations that held it up included."""
        now = time.monotonic()
        taken, self._before = now - self._before, now
        if taken > self._longest:
            self._longest = taken
            self._beat.expect(taken)


def is_there(group: Group, out: Path, recipe: Recipe) -> bool:
    """Say whether the run to train has begun already; refuse another one in its place.

    The first worker looks, and tells the others: not all may see the same files yet.
    """
    world = World(group=group)
    found = world.agreed(lambda: _begun(out, recipe) if world.is_first else None)
    return bool(world.told(found)[0])


def _begun(out: Path, recipe: Recipe) -> bool:
    if not (out / "recipe.toml").is_file():
        return False
    saved = Recipe.load(out / "recipe.toml")
    other = [name for name, value in saved.values.items() if recipe.values.get(name) != value]
    if other:
        raise UserError(
            f"{out} holds another run ({', '.join(other[:3])} differ): choose another --out"
        )
    return True
