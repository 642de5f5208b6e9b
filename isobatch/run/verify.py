"""Is a run what its recipe gives? It is trained again for a while, and its rows compared.

Evaluations are left out: they do not touch training (`evaluation`). Threads are as many as the run
had, and a run that was trained with others is trained in a stack as wide as theirs, since the last
bits depend on both.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from isobatch import algos, envs
from isobatch.envs.catalog import require_trusted
from isobatch.errors import UserError, understanding
from isobatch.machine import fingerprint
from isobatch.models import own
from isobatch.recipe import Recipe
from isobatch.rows import line_of, row_of
from isobatch.run.loop import OnIteration
from isobatch.run.reading import read_metrics, read_numbers
from isobatch.run.seeds import train_seeds
from isobatch.run.store import CLOCK_COLUMNS
from isobatch.run.training import train
from isobatch.text import counted, duration

SECONDS = 60.0
"""Training is repeated for about as long as this, where it is not said for how many iterations."""
RESUMED = "resumed"
"""The column of a run's first row after it was resumed."""
WIDEST = 1000
"""The widest stack: that of so many seeds at once."""


class Difference(NamedTuple):
    """The first value that is not the same."""

    iteration: int
    column: str
    was: Any
    now: Any


@dataclass
class Verdict:
    """What came of training a run again."""

    compared: int = 0
    """Rows that were trained again, the one that differs included."""
    rows: int = 0
    """Rows that the run has."""
    difference: Difference | None = None
    resumed_after: int | None = None
    """The iteration after which the run was resumed: later rows are not compared."""
    uncompared: set[str] = field(default_factory=set)
    """Columns that only the run or only this version has."""
    machine: dict[str, tuple[Any, Any]] | None = None
    """What was another then: what it was, what it is here. None where it was not recorded."""


def verify(
    path: str | Path,
    *,
    iterations: int | None = None,
    everything: bool = False,
    env: str | None = None,
    note: Callable[[str], None] = lambda text: None,
) -> Verdict:
    """Train a run's recipe again, elsewhere, and compare row by row until one differs.

    For `iterations`, or `everything`, otherwise for about a minute by the run's own clock. `env`
    repeats a `module:Id`, since no file may name a module to import.
    """
    path = Path(path)
    if not (path / "recipe.toml").is_file():
        raise UserError(f"{path} holds no run (there is no recipe.toml in it)")
    recipe, rows, numbers = (
        Recipe.load(path / "recipe.toml"),
        read_metrics(path),
        read_numbers(path),
    )
    _refuse(path, recipe, rows, env)
    with understanding(str(path)):
        budget = numbers.get("counters", {}).get("budget") or recipe.total_timesteps
        machine = numbers.get("machine")
        verdict = Verdict(rows=len(rows), machine=_other(machine))
        if not (recipe.machine.exact_resume and budget == recipe.total_timesteps):
            verdict.resumed_after = _resumed_after(rows)
        comparable = rows[: verdict.resumed_after]
        if not comparable:
            raise UserError(f"{path} was resumed before its first row: there is nothing to compare")
        count = len(comparable) if everything else iterations or _in_a_minute(comparable)
        wanted = comparable[:count]
        note(
            f"training {len(wanted):,} of {counted(len(rows), 'iteration')} again, which took "
            f"{duration(wanted[-1]['seconds'])}"
        )
        width = rows[0].get("cohort_width")
        if width is not None and not 1 <= width <= WIDEST:
            raise UserError(f"{path}: cohort_width {width:,} is not valid")
        again = _again(recipe, budget, machine)

    def compare(row: dict[str, Any]) -> bool:
        verdict.compared += 1
        was, now = wanted[verdict.compared - 1], row_of(line_of(row), "a row")
        verdict.difference = first_difference(was, now)
        verdict.uncompared |= was.keys() ^ now.keys()
        return verdict.difference is None and verdict.compared < len(wanted)

    stopped = _train(again, width, compare)
    if verdict.difference is None and verdict.compared < len(wanted):
        if stopped:
            raise KeyboardInterrupt
        row = wanted[verdict.compared]
        verdict.difference = Difference(row["iterations"], "iterations", row["iterations"], None)
    verdict.uncompared -= {RESUMED}
    return verdict


def _train(recipe: Recipe, width: int | None, on_iteration: OnIteration) -> bool:
    """Train a recipe for nobody, in a stack of `width` where that is given.

    Returns whether it was stopped before its budget was spent.
    """
    with tempfile.TemporaryDirectory(prefix="isobatch-verify-") as folder:
        out = Path(folder) / "run"
        if width is None:
            return train(recipe=recipe, out=out, quiet=True, on_iteration=on_iteration).interrupted
        (end,) = train_seeds([(recipe, out)], width=width, quiet=True, on_iteration=on_iteration)
        if end.error is not None:
            raise end.error
        return end.run.interrupted


def first_difference(was: dict[str, Any], now: dict[str, Any]) -> Difference | None:
    """Return the first column of two rows, in the order of the first, whose values differ."""
    for column, value in was.items():
        if column in now and column not in CLOCK_COLUMNS and repr(value) != repr(now[column]):
            return Difference(now["iterations"], column, value, now[column])
    return None


def _refuse(path: Path, recipe: Recipe, rows: list[dict[str, Any]], env: str | None) -> None:
    """Refuse what cannot be trained again, or compared."""
    require_trusted(recipe.env, env)
    algos.check(recipe)
    envs.maker_of(recipe)
    own.find(recipe.model.encoder)
    if not rows:
        raise UserError(f"{path} has no rows yet: there is nothing to compare")
    with understanding(f"{path}/metrics.jsonl"):
        for place, row in enumerate(rows):
            if row["iterations"] != place + 1:
                raise UserError(
                    f"{path}/metrics.jsonl: row {place + 1} is that of iteration "
                    f"{row['iterations']}; isobatch check says which files are intact"
                )


def _resumed_after(rows: list[dict[str, Any]]) -> int | None:
    """Return the number of rows before a run was first resumed, None where it never was."""
    return next((place for place, row in enumerate(rows) if row.get(RESUMED)), None)


def _in_a_minute(rows: list[dict[str, Any]]) -> int:
    """Return the iterations that took about a minute, one at least."""
    return max(1, sum(row["seconds"] <= SECONDS for row in rows))


def _again(recipe: Recipe, budget: int, machine: dict[str, Any] | None) -> Recipe:
    """Return the recipe as the run began, but for what changes nothing that is learned."""
    threads = machine["threads"] if machine else recipe.machine.threads
    return recipe.replace(
        total_timesteps=budget, threads=threads, eval_marks=0, eval_every=0, eval_episodes=0
    )


def _other(machine: dict[str, Any] | None) -> dict[str, tuple[Any, Any]] | None:
    """Return what is another here than where the run began."""
    if machine is None:
        return None
    here = fingerprint() | {"threads": machine.get("threads")}  # As many as it had are taken.
    return {
        name: (machine.get(name), now) for name, now in here.items() if machine.get(name) != now
    }
