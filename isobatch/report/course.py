"""What a run directory holds, as a page needs it: columns of numbers, and what it came to."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from isobatch import advice, files
from isobatch.errors import UserError, one_line, understanding
from isobatch.recipe import Recipe
from isobatch.report.video import Video, newest
from isobatch.run.profile import mean_iteration, once
from isobatch.run.reading import read_evaluations, read_metrics, read_profile

Floats = NDArray[np.float64]
Rows = list[dict[str, Any]]

MOST_READ = 50_000
"""Rows that are held at once, or up to twice as many: those of 50 million steps of 8 x 128."""
MOST_DRAWN = 500
"""Points of a curve, or up to twice as many: a screen has no more."""
AXES = {
    "env_steps": "environment steps",
    "grad_steps": "gradient steps",
    "seconds": "wall-clock time (seconds)",
}
"""Columns that only grow, which curves can be drawn over."""
TIMES = {
    "env_seconds": "environments",
    "acting_seconds": "acting",
    "learning_seconds": "learning",
    "other_seconds": "other",
}
"""Columns that an iteration's time is made of."""


class Series(NamedTuple):
    """A column where it is drawn: the rows, and whether there are values in between by design."""

    rows: NDArray[np.intp]
    values: Floats
    is_sparse: bool
    """Measured every few iterations only: the values stand for those between them too."""


class Score(NamedTuple):
    """What a run came to, and by which measure."""

    value: float
    env_steps: float
    measure: str
    """evaluation or training."""
    episodes: int
    best: float | None
    """Of all evaluations."""


@dataclass(frozen=True)
class Course:
    """A run as it went."""

    name: str
    recipe: Recipe
    text: str
    """The recipe's file."""
    rows: Rows
    evaluations: Rows = field(default_factory=list)
    findings: Sequence[advice.Finding] = ()
    """What there is to say about it, the most important first."""
    verdict: tuple[str, ...] = ()
    """How it went, where it broke and where its policy comes from, in a sentence each."""
    profile: tuple[str, list[tuple[str, float, float]], list[str]] | None = None
    """Which iterations, their parts, and what came once."""
    video: Video | None = None
    faults: tuple[str, ...] = ()
    """What of the directory could not be read, a line each."""
    _read: dict[str, Floats] = field(default_factory=dict, init=False, repr=False, compare=False)

    def column(self, name: str) -> Floats:
        """Return a column, NaN where a row has no number."""
        if name not in self._read:
            self._read[name] = numbers(self.rows, name)
        return self._read[name]

    @cached_property
    def columns(self) -> list[str]:
        """The columns that hold a number in some row, in their order."""
        names = dict.fromkeys(name for row in self.rows for name in row)
        return [name for name in names if any(_is_number(row.get(name)) for row in self.rows)]

    @cached_property
    def every(self) -> int:
        """How many iterations lie between two points of a curve."""
        return self._spacing(thinned(np.arange(len(self.rows))))

    @cached_property
    def reads_every(self) -> int:
        """How many iterations lie between two rows that were read."""
        return self._spacing(np.arange(len(self.rows)))

    def _spacing(self, rows: NDArray[np.intp]) -> int:
        steps = np.diff(self.column("iterations")[rows])
        steps = steps[np.isfinite(steps)]
        return max(1, int(np.median(steps))) if len(steps) else 1

    @property
    def env_steps(self) -> int:
        """Environment steps so far."""
        return int(self.last("env_steps"))

    def last(self, name: str) -> float:
        """Return a counter's last value, 0 where there is none."""
        values = self.column(name)
        values = values[np.isfinite(values)]
        return float(values[-1]) if len(values) else 0.0

    @property
    def is_finished(self) -> bool:
        """Whether the budget is spent: what is left is less than one step of all environments."""
        n_envs = self.last("n_envs") or self.recipe.batch.n_envs
        return bool(self.rows) and self.recipe.total_timesteps - self.env_steps < n_envs

    def series(self, name: str) -> Series | None:
        """Return a column as it is drawn, None where it has no number."""
        values = self.column(name)
        known = np.flatnonzero(np.isfinite(values))
        if not len(known):
            return None
        is_sparse = 2 * len(known) < len(values)
        rows = thinned(known if is_sparse else np.arange(len(values)))
        return Series(rows, values[rows], is_sparse)

    def places(self, rows: NDArray[np.intp]) -> dict[str, Floats]:
        """Return where rows lie on each axis."""
        return {axis: self.column(axis)[rows] for axis in AXES}

    @cached_property
    def evaluation_places(self) -> dict[str, Floats]:
        """Where the evaluations lie on each axis: where training was when they were played."""
        # A counter is 0 before the first row.
        counted = np.r_[0.0, self.column("iterations")]
        at = np.searchsorted(counted, numbers(self.evaluations, "iterations"), "right") - 1
        before = {axis: np.r_[0.0, self.column(axis)][at] for axis in AXES}
        return before | {"env_steps": numbers(self.evaluations, "env_steps")}

    def place(self, env_steps: float) -> dict[str, float]:
        """Return where the first row of that many environment steps or more lies on each axis."""
        at = int(np.searchsorted(self.column("env_steps"), env_steps))
        row = min(at, len(self.rows) - 1)
        found = {axis: float(self.column(axis)[row]) for axis in AXES}
        return found | {"env_steps": float(env_steps)}

    @cached_property
    def score(self) -> Score | None:
        """The last evaluation, else the last training return; None where no episode has ended."""
        returns = numbers(self.evaluations, "episode_return")
        known = np.flatnonzero(np.isfinite(returns))
        if len(known):
            row = self.evaluations[known[-1]]
            steps, episodes = _number(row.get("env_steps")), _number(row.get("episodes"))
            best = float(returns[known].max())
            count = 0 if math.isnan(episodes) else int(episodes)
            return Score(float(returns[known[-1]]), steps, "evaluation", count, best)
        returns = self.column("episode_return")
        known = np.flatnonzero(np.isfinite(returns))
        if not len(known):
            return None
        row = self.rows[known[-1]]
        steps, episodes = _number(row.get("env_steps")), _number(row.get("episodes"))
        count = 0 if math.isnan(episodes) else min(100, int(episodes))
        return Score(float(returns[known[-1]]), steps, "training", count, None)

    @cached_property
    def times(self) -> Floats | None:
        """Seconds by part and row, rows without all of them NaN; None where no row has them."""
        parts = np.array([self.column(name) for name in TIMES])
        parts = np.where(np.isfinite(parts).all(axis=0), parts, math.nan)
        return None if not parts.size or np.isnan(parts).all() else parts

    @cached_property
    def stages(self) -> list[dict[str, float]]:
        """The batches of the run, each with the environment steps after which it came."""
        found: list[dict[str, float]] = []
        before = 0.0
        for row in self.rows:
            batch = {
                name: _number(row.get(name))
                for name in ("n_envs", "n_steps", "n_minibatches", "n_epochs")
            }
            known = not any(map(math.isnan, batch.values()))
            if known and (not found or {**found[-1], **batch} != found[-1]):
                found.append({"after": before, **batch})
            before = _number(row.get("env_steps"))
        return found


def read(path: str | Path, name: str | None = None) -> Course:
    """Read a run directory. What beside its rows cannot be read is said, not refused."""
    path = Path(path)
    if not (path / "recipe.toml").is_file():
        raise UserError(f"{path} holds no run (there is no recipe.toml in it)")
    recipe = Recipe.load(path / "recipe.toml")
    rows: Rows = []
    with suppress(FileNotFoundError):
        rows = read_metrics(path, MOST_READ)
    faults: list[str] = []

    def attempt(read_part: Any, otherwise: Any) -> Any:
        try:
            with understanding(path.name):
                return read_part()
        except (UserError, OSError) as error:
            # A page is passed on: where the run lay on this machine is nobody's business.
            faults.append(one_line(error).replace(f"{path}/", ""))
            return otherwise

    evaluations = attempt(lambda: read_evaluations(path), [])
    findings, verdict = attempt(lambda: _advised(path), ([], ()))
    return Course(
        name=name or path.resolve().name,
        recipe=recipe,
        text=files.read_text(path / "recipe.toml"),
        rows=rows,
        evaluations=evaluations,
        findings=findings,
        verdict=verdict,
        profile=attempt(lambda: _profile(path), None),
        video=attempt(lambda: newest(path), None),
        faults=tuple(faults),
    )


def numbers(rows: Rows, name: str) -> Floats:
    """Return a column of rows, NaN where there is no number."""
    return np.array([_number(row.get(name)) for row in rows], dtype=float)


def thinned(rows: NDArray[np.intp]) -> NDArray[np.intp]:
    """Return every so many rows, the last among them, so that a curve has about MOST_DRAWN."""
    stride = max(1, len(rows) // MOST_DRAWN)
    return rows[(len(rows) - 1) % stride :: stride] if len(rows) else rows


def _number(value: Any) -> float:
    if not _is_number(value):
        return math.nan
    try:
        found = float(value)
    except OverflowError:  # A whole number of hundreds of digits.
        return math.nan
    return found if math.isfinite(found) else math.nan


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _advised(path: Path) -> tuple[list[advice.Finding], tuple[str, ...]]:
    advised = advice.advise(path)
    said = (advised.verdict.sentence, advised.verdict.collapse, advised.began)
    return list(advised), tuple(filter(None, said))


def _profile(path: Path) -> tuple[str, list[tuple[str, float, float]], list[str]] | None:
    summary = read_profile(path)
    return None if summary is None else (*mean_iteration(summary), once(summary))
