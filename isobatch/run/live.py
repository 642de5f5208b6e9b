"""What a terminal shows of a run under way: progress, return, batch, time, and what is wrong.

In a terminal a few lines that change in place; elsewhere a line about every ten seconds. Either
says a finding once when it appears and once when it clears.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from isobatch.advice.live import Watch
from isobatch.recipe import Recipe
from isobatch.run.sinks import LINE_SECONDS, Sink, began_at, headline, readings, reshaping
from isobatch.text import counted, duration, plain, say

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

BARS = "▁▂▃▄▅▆▇█"
CHART_WIDTH = 24
MOST_POINTS = 480
"""Returns that are kept for the chart; then every second is forgotten."""
TIMES = {
    "env_seconds": "environments",
    "acting_seconds": "acting",
    "learning_seconds": "learning",
    "other_seconds": "other",
}


def terminal() -> Sink:
    """Return the sink that fits where the output goes."""
    return LiveView() if sys.stdout.isatty() else Lines()


class Lines(Sink):
    """Plain lines, about one every ten seconds."""

    def start(self, recipe: Recipe, path: str, env_steps: int) -> None:
        """Say what runs and where."""
        say(f"{headline(recipe)} -> {path}")
        self._total, self._last = recipe.total_timesteps, 0.0
        self._watch = Watch(recipe, path)

    def row(self, row: dict[str, Any]) -> None:
        """Print a line if the last one is old enough, and at once what is wrong."""
        if self._due() or row.get("reshaped"):
            done = f"{row['env_steps']:>10,} / {self._total:,} env steps"
            say("  ".join(filter(None, (done, readings(row), reshaping(row)))))
        for text in self._watch.see(row):
            say(text)

    def note(self, text: str) -> None:
        """Print a line if the last one is old enough."""
        if self._due():
            say(f"{'':>10}   {text}")

    def announce(self, text: str) -> None:
        """Print a line."""
        say(text)

    def _due(self) -> bool:
        now = time.monotonic()
        if now - self._last < LINE_SECONDS:
            return False
        self._last = now
        return True


class LiveView(Sink):
    """A few lines that change in place, 80 columns wide."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console

    def start(self, recipe: Recipe, path: str, env_steps: int) -> None:
        """Put it up."""
        from rich.console import Console
        from rich.live import Live
        from rich.markup import escape
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        console = self._console or Console()
        shown = escape(plain(headline(recipe))), escape(plain(path))
        console.print("[bold]{}[/bold] -> {}".format(*shown), highlight=False)
        self._bar = Progress(
            BarColumn(bar_width=30),
            TextColumn("{task.completed:,.0f} of {task.total:,.0f} env steps"),
            TimeRemainingColumn(compact=True),
        )
        self._total, self._began = recipe.total_timesteps, time.monotonic()
        self._task = self._bar.add_task("train", total=recipe.total_timesteps, completed=env_steps)
        self._watch, self._returns, self._stride = Watch(recipe, path), list[float](), 1
        self._row: dict[str, Any] = {}
        self._note, self._rows = "starting", 0
        self._live = Live(get_renderable=self._drawn, console=console, refresh_per_second=4)
        self._live.start()

    def row(self, row: dict[str, Any]) -> None:
        """Move on; what appears or clears is printed above."""
        self._row, self._note = row, ""
        self._remember(row.get("episode_return"))
        moved = f"{began_at(row):,} env steps: {reshaping(row)}"
        for text in [*([moved] if row.get("reshaped") else []), *self._watch.see(row)]:
            self._live.console.print(plain(text), markup=False, highlight=False)
        self._bar.update(self._task, completed=row["env_steps"])

    def note(self, text: str) -> None:
        """Show it in place of the readings."""
        self._note = plain(text)

    def announce(self, text: str) -> None:
        """Print it above."""
        self._live.console.print(plain(text), markup=False, highlight=False)

    def stop(self) -> None:
        """Leave the last state on the screen, with the time it took instead of the time left."""
        from rich.progress import TextColumn

        left = self._total - self._row.get("env_steps", 0)
        # A budget is spent when what is left is less than a step of all environments.
        ended = "done in" if self._row and left < self._row["n_envs"] else "stopped after"
        took = TextColumn(f"{ended} {duration(time.monotonic() - self._began)}")
        self._bar.columns = (*self._bar.columns[:2], took)
        self._live.stop()

    def _remember(self, score: float | None) -> None:
        self._rows += 1
        if score is None or self._rows % self._stride:
            return
        self._returns.append(score)
        if len(self._returns) > MOST_POINTS:
            self._returns, self._stride = self._returns[::2], 2 * self._stride

    def _drawn(self) -> RenderableType:
        from rich.console import Group
        from rich.text import Text

        lines = [self._note] if self._note else picture(self._row, self._returns)
        finding = self._watch.current
        if finding is not None:
            lines.append(f"{finding.severity}: {finding.sentence}")
        texts = [Text(line, no_wrap=True, overflow="ellipsis") for line in lines]
        if finding is not None:
            texts[-1].stylize("bold yellow")
            texts[-1].no_wrap = False
        return Group(self._bar, *texts)


def picture(row: dict[str, Any], returns: Sequence[float]) -> list[str]:
    """Return what the view shows of a row: readings with the chart, the batch, the time."""
    lines = [readings(row)]
    if returns:
        lines.insert(0, f"return {returns[-1]:.4g}  {chart(returns)}  {_range(returns)}")
    lines.append(
        f"batch {row['n_envs']} x {row['n_steps']} = "
        f"{counted(row['rollout_size'], 'transition')}, "
        f"{counted(row['n_minibatches'], 'minibatch', 'minibatches')} of "
        f"{row['minibatch_size']:,}, {_passes(row['updates_per_sample'])}"
    )
    whole = sum(row[name] for name in TIMES)
    if whole > 0:
        shares = [f"{label} {row[name] / whole:.0%}" for name, label in TIMES.items()]
        lines.append(f"time  {'  '.join(shares)}")
    return lines


def chart(values: Sequence[float], width: int = CHART_WIDTH) -> str:
    """Draw values as bars, the mean of as many as fall to each of at most `width` columns."""
    width = min(width, len(values))
    edges = [len(values) * k // width for k in range(width + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in pairwise(edges)]
    low, high = min(means), max(means)
    if low == high:
        return BARS[0] * width
    return "".join(BARS[round((each - low) / (high - low) * (len(BARS) - 1))] for each in means)


def _passes(count: float) -> str:
    """Return 1 epoch, 10 epochs; fewer where an update stopped early."""
    return counted(int(count), "epoch") if count == int(count) else f"{count:.3g} epochs"


def _range(values: Sequence[float]) -> str:
    return f"{min(values):.4g} to {max(values):.4g}"
