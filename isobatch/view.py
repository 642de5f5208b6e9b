"""What a run shows while it trains: a live bar in a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Any, Protocol

from isobatch.recipe import Recipe

LINE_SECONDS = 10.0
"""Plain output gets a line about this often."""


class View(Protocol):
    """Something that shows a run's rows."""

    def start(self, recipe: Recipe, path: str, env_steps: int) -> None:
        """Begin to show a run that stands at `env_steps`."""
        ...

    def row(self, row: dict[str, Any]) -> None:
        """Show one iteration."""
        ...

    def note(self, text: str) -> None:
        """Say what goes on within an iteration that takes long."""
        ...

    def stop(self) -> None:
        """End the display."""
        ...


class Silent:
    """Shows nothing."""

    def start(self, recipe: Recipe, path: str, env_steps: int) -> None:
        """Do nothing."""

    def row(self, row: dict[str, Any]) -> None:
        """Do nothing."""

    def note(self, text: str) -> None:
        """Do nothing."""

    def stop(self) -> None:
        """Do nothing."""


class Lines:
    """Plain lines, about one every ten seconds."""

    def start(self, recipe: Recipe, path: str, env_steps: int) -> None:
        """Say what runs and where."""
        print(f"{headline(recipe)} -> {path}", flush=True)
        self._total, self._last = recipe.total_timesteps, 0.0

    def row(self, row: dict[str, Any]) -> None:
        """Print a line if the last one is old enough."""
        if self._due() or row.get("reshaped"):
            print(f"{row['env_steps']:>10,} / {self._total:,} steps  {readings(row)}", flush=True)

    def note(self, text: str) -> None:
        """Print a line if the last one is old enough."""
        if self._due():
            print(f"{'':>10}   {text}", flush=True)

    def _due(self) -> bool:
        now = time.monotonic()
        if now - self._last < LINE_SECONDS:
            return False
        self._last = now
        return True

    def stop(self) -> None:
        """Do nothing."""


class Live:
    """A progress bar with the run's readings, for terminals."""

    def start(self, recipe: Recipe, path: str, env_steps: int) -> None:
        """Put up the bar."""
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        console = Console()
        console.print(f"[bold]{headline(recipe)}[/bold] -> {path}", highlight=False)
        self._progress = Progress(
            BarColumn(bar_width=20),
            TextColumn("{task.completed:,.0f}/{task.total:,.0f}"),
            TimeRemainingColumn(compact=True),
            TextColumn("{task.fields[readings]}"),
            console=console,
        )
        self._task = self._progress.add_task(
            "train", total=recipe.total_timesteps, completed=env_steps, readings="starting"
        )
        self._progress.start()

    def row(self, row: dict[str, Any]) -> None:
        """Move the bar and refresh the readings."""
        self._progress.update(self._task, completed=row["env_steps"], readings=readings(row))

    def note(self, text: str) -> None:
        """Show it in place of the readings."""
        self._progress.update(self._task, readings=text)

    def stop(self) -> None:
        """Leave the last state on the screen."""
        self._progress.stop()


def choose_view(quiet: bool) -> View:
    """Return the view that fits where the output goes."""
    if quiet:
        return Silent()
    return Live() if sys.stdout.isatty() else Lines()


def headline(recipe: Recipe) -> str:
    """Say in one line what a run trains and with what batch."""
    batch = recipe.batch
    return (
        f"{recipe.algo} on {recipe.env}, {batch.n_envs} envs x {batch.n_steps} steps = "
        f"{batch.rollout_size:,} rows, {_counted(batch.n_minibatches, 'minibatch', 'es')} of "
        f"{batch.minibatch_size:,}, {_counted(batch.n_epochs, 'epoch', 's')}, seed {recipe.seed}"
    )


def _counted(number: int, what: str, ending: str) -> str:
    return f"{number} {what}{'' if number == 1 else ending}"


def readings(row: dict[str, Any]) -> str:
    """Say in a few words how a run is doing."""
    parts = [f"{row['steps_per_second']:,.0f} steps/s"]
    if row.get("episode_return") is not None:
        parts.append(f"return {row['episode_return']:.4g}")
    if row.get("approx_kl") is not None:
        parts.append(f"KL {row['approx_kl']:.4f}")
    if row.get("clip_fraction") is not None:
        parts.append(f"clipped {row['clip_fraction']:.1%}")
    if row.get("age_iterations"):
        parts.append(f"{row['age_iterations']:.0f} iterations old")
    if row.get("epsilon") is not None:
        parts.append(f"random {row['epsilon']:.1%}")
    if row.get("phase_memory_bytes") is not None:
        parts.append(_phase(row))
    if row.get("noise_scale") is not None:
        parts.append(f"noise scale {row['noise_scale']:,.0f}")
    if row.get("reshaped"):
        why = f" ({row['decision']})" if row.get("decision") else ""
        parts.append(f"reshaped: {row['reshaped']}{why}")
    return "  ".join(parts)


def _phase(row: dict[str, Any]) -> str:
    """Say how far PPG's phase is and where its observations lie."""
    place = f"{size(row['phase_memory_bytes'])} in memory"
    if row["phase_disk_bytes"]:
        place += f", {size(row['phase_disk_bytes'])} on disk"
    return f"phase {row['phase_iteration']:.0f}: {place}"


def size(count: float) -> str:
    """Return a number of bytes as people read it: 1.2 GB, 340 MB, 12 kB."""
    for unit, one in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= one:
            return f"{count / one:.3g} {unit}"
    return f"{count:.0f} B"


def columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Lay rows of text out in columns, a line each."""
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
