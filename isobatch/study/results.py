"""A study's runs as arrays: scores and learning curves by arm, environment and seed."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np

from isobatch.errors import DamagedFile, UserError, one_line
from isobatch.recipe.checks import is_finite
from isobatch.run.store import EVALUATIONS, read_evaluations, read_metrics
from isobatch.scores import Scale, constants, given_scale, not_normalised
from isobatch.study.claims import Contrast
from isobatch.study.design import Cell, Study
from isobatch.study.queue import Queue, Status
from isobatch.study.records import Result
from isobatch.study.stats import Floats, area_under_curve, paired_differences

Outcome = Literal["done", "failed", "damaged", "missing"]
MOST_ROWS = 4000
"""Rows kept of a run's metrics: a long study's would not fit in memory."""
LARGEST_SCORE = 1e100
"""A larger return is no return, and its square is no number."""


@dataclass(frozen=True)
class Record:
    """One run of a study as found on disk."""

    cell: Cell
    outcome: Outcome
    path: Path
    result: Result | None = None
    problem: str = ""
    """Why there is no result to count."""
    evaluations: tuple[tuple[int, float], ...] = ()
    """Its marks, the env steps at which it was evaluated while training, and the mean returns."""


class Results:
    """The runs of a study that can be counted, and those that cannot."""

    def __init__(self, study: Study, records: list[Record]) -> None:
        self.study = study
        self.records = {record.cell: record for record in records}

    @classmethod
    def load(cls, root: str | Path) -> Results:
        """Read a study directory; files that do not match their result are never counted."""
        queue = Queue.open(root)
        records = [_record(queue, *state) for state in queue.states().items()]
        return cls(queue.study, _with_common_marks(records))

    def having(self, outcome: Outcome) -> list[Record]:
        """Return the runs with an outcome."""
        return [record for record in self.records.values() if record.outcome == outcome]

    def seeds(self, arms: list[str]) -> list[int]:
        """Return the seeds with which all these arms are done in every environment."""
        return [
            seed
            for seed in self.study.seeds
            if all(
                self.records[Cell(arm, env, seed)].outcome == "done"
                for arm in arms
                for env in self.study.envs
            )
        ]

    @cached_property
    def scales(self) -> dict[str, Scale]:
        """What 0 and 1 mean in each environment: as the study gives it, else as in the table.

        An environment that is in neither has none.
        """
        found = {
            env: given_scale(env, self.study.scores[env])
            if env in self.study.scores
            else constants(env)
            for env in self.study.envs
        }
        return {env: scale for env, scale in found.items() if scale is not None}

    @property
    def unscaled(self) -> list[str]:
        """The environments whose scores cannot be normalised."""
        return [env for env in self.study.envs if env not in self.scales]

    def raw(self, arm: str, env: str, measure: str = "score") -> dict[int, float]:
        """Return an arm's scores in an environment as they are, by seed.

        `measure` is a claim's, or a column of the metrics.
        """
        return {
            record.cell.seed: self._value(record, measure)
            for record in self.having("done")
            if (record.cell.arm, record.cell.env) == (arm, env)
        }

    def scores(
        self,
        contrast: Contrast,
        seeds: list[int],
        measure: str = "score",
        normalise: bool = True,
    ) -> Floats:
        """Return normalised scores [seeds, environments], or a gain by seed.

        Without `normalise` as they are, to be compared within an environment only.
        """
        if normalise and self.unscaled:
            raise UserError(not_normalised(self.unscaled))
        if not isinstance(contrast, str):
            arm, over = (self.scores(each, seeds, measure, normalise) for each in contrast)
            return paired_differences(arm, over)
        columns = []
        for env in self.study.envs:
            values = self.raw(contrast, env, measure)
            scaled = self.scales[env].normalized if normalise else float
            columns.append([scaled(values[seed]) for seed in seeds])
        return np.array(columns, float).T

    def metrics(self, cell: Cell) -> list[dict[str, Any]]:
        """Return the rows of a run, thinned out where there are very many."""
        if cell not in self._rows:
            self._rows[cell] = read_metrics(self.records[cell].path, MOST_ROWS)
        return self._rows[cell]

    def curve(self, cell: Cell, column: str, grid: Floats) -> Floats:
        """Return a run's metric at the env steps of `grid`, NaN before it has a value."""
        rows = [row for row in self.metrics(cell) if is_finite(row.get(column))]
        if not rows:
            return np.full(len(grid), np.nan)
        steps = [row["env_steps"] for row in rows]
        return np.interp(grid, steps, [float(row[column]) for row in rows], left=np.nan)

    def marks(self, cell: Cell) -> tuple[Floats, Floats]:
        """Return the env steps at which a run was evaluated while training, and the mean returns.

        They compare between arms, which training returns do not: an episode of length L ends, and
        so counts, only after N x L steps.
        """
        played = self.records[cell].evaluations
        if not played:
            raise UserError(
                f"{cell}: it was not evaluated while training, and training returns of different "
                "n_envs do not compare: run it again"
            )
        steps, returns = np.array(played, float).T
        return steps, returns

    def learning_curve(self, cell: Cell, grid: Floats) -> Floats:
        """Return a run's return at the env steps of `grid`, linear between marks."""
        return np.interp(grid, *self.marks(cell))

    @cached_property
    def columns(self) -> list[str]:
        """The numeric metrics that a finished run logged, in their order.

        A run may lack one of them, as the return where no episode ended.
        """
        names: dict[str, None] = {}
        for record in self.having("done"):
            rows = self.metrics(record.cell)
            # In any row: the budget's last, short iteration may have learned nothing.
            known = {name for row in rows for name, value in row.items() if _is_number(value)}
            names |= dict.fromkeys(name for row in rows for name in row if name in known)
        return list(names)

    @cached_property
    def _rows(self) -> dict[Cell, list[dict[str, Any]]]:
        return {}

    def _value(self, record: Record, measure: str) -> float:
        assert record.result is not None
        if measure == "score":
            return record.result.score
        if measure != "curve":
            return self._late_mean(record.cell, measure)
        steps, returns = self.marks(record.cell)
        return area_under_curve(steps.tolist(), returns.tolist(), self.study.budget)

    def _late_mean(self, cell: Cell, column: str) -> float:
        """Return a metric's mean over the rows of the budget's second half that have it."""
        late = [row for row in self.metrics(cell) if row["env_steps"] > self.study.budget / 2]
        values = [float(row[column]) for row in late if is_finite(row.get(column))]
        if not values:
            raise UserError(f"{cell}: no row of its second half has a number for {column}")
        return float(np.mean(values))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _record(queue: Queue, cell: Cell, status: Status) -> Record:
    path = queue.run_path(cell)
    if status == "failed":
        return Record(cell, "failed", path, problem=_failure(queue, cell))
    if status != "done":
        problem = "still running" if status == "running" else "not run yet"
        return Record(cell, "missing", path, problem=problem)
    try:
        result = _result(queue, cell)
        _check_metrics(path)
        played = _played(path, queue.study.budget)
        return Record(cell, "done", path, result, evaluations=played)
    except (OSError, ValueError, RecursionError) as error:
        # What no writer of ours leaves: whatever is wrong with it, the run is not counted.
        named = isinstance(error, UserError)
        problem = str(error) if named else f"{path} cannot be read: {one_line(error)}"
        return Record(cell, "damaged", path, problem=problem)


def _failure(queue: Queue, cell: Cell) -> str:
    try:
        return one_line(queue.failure(cell))
    except RecursionError:
        return "its failure record cannot be read"


def _result(queue: Queue, cell: Cell) -> Result:
    """Return a run's result, its numbers checked."""
    file = f"{queue.root / 'queue' / cell.key}.done"
    try:
        result = queue.result(cell)
    except RecursionError:
        raise DamagedFile(f"{file} cannot be read: it is nested too deeply") from None
    for name in ("score", "training_return", "env_steps", "seconds", "restarts"):
        value = getattr(result, name)
        if name == "training_return" and value is None:
            continue
        if not is_finite(value) or abs(value) > LARGEST_SCORE:
            raise DamagedFile(f"{file}: {name} is not a number that a run can have")
    return result


def _check_metrics(path: Path) -> None:
    """Refuse metrics whose rows are none, or run backwards."""
    before = 0
    for row in read_metrics(path, MOST_ROWS):
        steps: Any = row.get("env_steps") if isinstance(row, dict) else None
        if not is_finite(steps) or steps < before:
            raise DamagedFile(f"{path / 'metrics.jsonl'} has rows that are not metrics")
        before = steps


def _played(path: Path, budget: int) -> tuple[tuple[int, float], ...]:
    """Return (mark, mean return) of a run's evaluations, each past the one before it."""
    found: list[tuple[int, float]] = []
    for row in read_evaluations(path):
        fields: dict[str, Any] = row if isinstance(row, dict) else {}
        mark: Any = fields.get("mark")
        mean: Any = fields.get("episode_return")
        past = found[-1][0] if found else -1
        if not is_finite(mark) or not past < mark <= budget:
            raise DamagedFile(f"{path / EVALUATIONS} holds marks that are not the study's")
        if not is_finite(mean) or abs(mean) > LARGEST_SCORE:
            raise DamagedFile(f"{path / EVALUATIONS} holds a return that is not a number")
        found.append((mark, mean))
    return tuple(found)


def _with_common_marks(records: list[Record]) -> list[Record]:
    """Take runs that were evaluated at other marks than most of the study for damaged."""
    played = [each for each in records if each.outcome == "done" and each.evaluations]
    marks = {each.cell: tuple(mark for mark, _ in each.evaluations) for each in played}
    if not marks:
        return records
    ((common, _),) = Counter(marks.values()).most_common(1)
    return [
        replace(
            each,
            outcome="damaged",
            result=None,
            problem=f"{each.path / EVALUATIONS} holds other marks than the study's other runs",
        )
        if marks.get(each.cell, common) != common
        else each
        for each in records
    ]
