"""What a study shows while it runs: a live table in a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from isobatch.study.design import Cell
from isobatch.study.queue import Queue, Status
from isobatch.text import counted, duration, plain, say

LINE_SECONDS = 30.0
"""Plain output gets a line about this often, and one for every run that ends."""


@dataclass(frozen=True)
class Progress:
    """How far a study has come."""

    states: dict[Cell, Status]
    running: dict[Cell, dict[str, Any]]
    """Last row of metrics of each run under way."""
    scores: dict[Cell, float]
    share: float
    """Of all environment steps, how many are taken."""
    seconds: float
    """Since watching began."""
    seconds_left: float | None

    def count(self, status: Status) -> int:
        """Return how many cells have a status."""
        return sum(each == status for each in self.states.values())

    def partial(self, arm: str, env: str) -> str:
        """Return the mean score of the arm's finished runs in an environment, and their number."""
        scores = [
            score for cell, score in self.scores.items() if (cell.arm, cell.env) == (arm, env)
        ]
        return f"{np.mean(scores):.4g} ({len(scores)})" if scores else "-"

    @property
    def headline(self) -> str:
        """The counts in one line."""
        done, failed = self.count("done"), self.count("failed")
        runs = counted(len(self.states), "run")
        if done + failed == len(self.states):
            return f"finished in {duration(self.seconds)}: {done} done, {failed} failed of {runs}"
        seconds = self.seconds_left or 0.0
        left = f", about {duration(seconds)} left" if seconds >= 1 else ""
        return (
            f"{done} done, {self.count('running')} running, {failed} failed of {runs}, "
            f"{min(self.share, 0.99):.0%}{left}"
        )


class View(Protocol):
    """Something that shows a study's progress."""

    def start(self, queue: Queue) -> None:
        """Begin to show a study."""
        ...

    def show(self, progress: Progress) -> None:
        """Show the present state."""
        ...

    def note(self, text: str) -> None:
        """Say something that happened."""
        ...

    def stop(self) -> None:
        """End the display."""
        ...


class Silent:
    """Shows nothing."""

    def start(self, queue: Queue) -> None:
        """Do nothing."""

    def show(self, progress: Progress) -> None:
        """Do nothing."""

    def note(self, text: str) -> None:
        """Do nothing."""

    def stop(self) -> None:
        """Do nothing."""


class Lines:
    """A line for every run that ends, and the counts now and then."""

    def start(self, queue: Queue) -> None:
        """Take what is done already as known."""
        self._known = {
            cell for cell, status in queue.states().items() if status in ("done", "failed")
        }
        self._last = time.monotonic()

    def show(self, progress: Progress) -> None:
        """Print what is new."""
        for cell, status in progress.states.items():
            if status in ("done", "failed") and cell not in self._known:
                self._known.add(cell)
                score = f": {progress.scores[cell]:.4g}" if cell in progress.scores else ""
                say(f"{status:6} {cell}{score}")
        if time.monotonic() - self._last >= LINE_SECONDS:
            self._last = time.monotonic()
            say(progress.headline)

    def note(self, text: str) -> None:
        """Print it."""
        say(text)

    def stop(self) -> None:
        """Do nothing."""


class Table:
    """A table of arms by environments that fills with scores, and the runs under way."""

    def start(self, queue: Queue) -> None:
        """Put up the display."""
        from rich.live import Live

        self._study = queue.study
        self._live = Live(refresh_per_second=4, transient=False)
        self._live.start()

    def show(self, progress: Progress) -> None:
        """Refresh the table."""
        from rich.console import Group
        from rich.markup import escape
        from rich.table import Table as RichTable
        from rich.text import Text

        table = RichTable(title=escape(plain(self._study.name)), title_justify="left")
        table.add_column("arm")
        for env in self._study.envs:
            table.add_column(escape(plain(env)), justify="right")
        for arm in self._study.arms:
            cells = [progress.partial(arm, env) for env in self._study.envs]
            table.add_row(escape(plain(arm)), *cells)
        under_way = [
            f"  {cell}: {row.get('env_steps', 0) / self._study.budget:4.0%}"
            + (f", return {row['episode_return']:.4g}" if row.get("episode_return") else "")
            for cell, row in progress.running.items()
        ]
        self._live.update(
            Group(table, Text(progress.headline), *(Text(plain(line)) for line in under_way))
        )

    def note(self, text: str) -> None:
        """Print it above the table."""
        self._live.console.print(plain(text), markup=False, highlight=False)

    def stop(self) -> None:
        """Leave the last state on the screen."""
        self._live.stop()


def choose_view(quiet: bool) -> View:
    """Return the view that fits where the output goes."""
    if quiet:
        return Silent()
    return Table() if sys.stdout.isatty() else Lines()
