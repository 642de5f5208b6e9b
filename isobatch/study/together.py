"""Which cells of a study are trained together, and training them as a cohort.

That is a matter of speed: runs differ from those trained alone by rounding. Whatever goes wrong
with a cohort, its cells are trained by themselves.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import cached_property
from pathlib import Path

from isobatch.errors import DamagedFile, UserError, is_disk_full, one_line
from isobatch.files import refuse_links
from isobatch.recipe import Recipe
from isobatch.run.cohort import alike, why_alone
from isobatch.run.seeds import Outcome, train_seeds
from isobatch.study.design import Cell, Study
from isobatch.study.queue import Lease, Queue
from isobatch.study.records import losses_in_vain
from isobatch.text import say

COHORT = 5
"""Cells at a time, and the width of their stack, however many there are: a result does not depend
on how many were trained together."""
LEAST = 3
"""Cells that it pays to train together: runs that fill up the stack cost as much as any."""


class Kinds:
    """What cells of a study that are trained together have in common."""

    def __init__(self, study: Study) -> None:
        self._study = study

    def __call__(self, cell: Cell) -> Hashable | None:
        """Return a cell's kind, None where it is trained alone."""
        return self._kinds.get((cell.arm, cell.env))

    def why_alone(self, arm: str, env: str) -> str | None:
        """Say why an arm's runs are trained one at a time; None where they are trained together."""
        if not self._study.cohorts:
            return "cohorts are off"
        return why_alone(self._study.recipe(Cell(arm, env, self._study.seeds[0])))

    def at_a_time(self, arm: str, env: str, workers: int) -> int:
        """Return how many runs of an arm's kind one of so many workers trains at a time."""
        kind = self._kinds[arm, env]
        same = sum(each == kind for each in self._kinds.values()) * len(self._study.seeds)
        count = min(COHORT, same, -(-len(self._study.cells) // workers))
        return count if kind is not None and count >= LEAST else 1

    @cached_property
    def _kinds(self) -> dict[tuple[str, str], Hashable | None]:
        return {
            (arm, env): self._kind(arm, env) for arm in self._study.arms for env in self._study.envs
        }

    def _kind(self, arm: str, env: str) -> Hashable | None:
        try:
            alone = self.why_alone(arm, env)
            recipe = self._study.recipe(Cell(arm, env, self._study.seeds[0]))
        except UserError:
            return None  # It fails where it is trained.
        return alike(recipe) if alone is None else None


def is_doubtful(queue: Queue, cell: Cell) -> bool:
    """Say whether a cell met an error, or lost its worker in vain twice: perhaps its own doing.

    Such a one is trained alone, lest it be the others' misfortune.
    """
    try:
        attempts = queue.attempts(cell)
        return any(each["kind"] == "error" for each in attempts) or losses_in_vain(attempts) > 1
    except (DamagedFile, LookupError):
        return True


def job_of(queue: Queue, cell: Cell) -> tuple[Recipe, Path]:
    """Return a cell's recipe and where its run is kept; refuse a place that is not its own."""
    path, recipe = queue.run_path(cell), queue.study.recipe(cell)
    try:
        refuse_links(queue.root, path)
    except DamagedFile as error:
        raise UserError(str(error)) from None  # Not to be set aside: it lies elsewhere.
    if (path / "recipe.toml").exists() and Recipe.load(path / "recipe.toml") != recipe:
        raise DamagedFile(f"{path} holds another run")
    return recipe, path


def train_together(claims: Sequence[Lease]) -> dict[Cell, Outcome]:
    """Train claimed cells of one kind as a cohort; return how their runs ended.

    One that is missing, or ended in an error other than its own divergence, is yet to be trained.
    """
    jobs = {}
    for claim in claims:
        try:
            jobs[claim.cell] = job_of(claim.queue, claim.cell)
        except (OSError, UserError):
            continue  # Said where it is trained alone.
    if not jobs:
        return {}
    try:
        outcomes = train_seeds(list(jobs.values()), width=COHORT, quiet=True)
    except Exception as error:
        if isinstance(error, OSError) and is_disk_full(error):
            raise
        reason = f"{type(error).__name__}: {one_line(error)}"
        say(f"runs are trained one at a time, since training them together failed: {reason}")
        return {}
    return dict(zip(jobs, outcomes, strict=False))  # Fewer where they were stopped.
