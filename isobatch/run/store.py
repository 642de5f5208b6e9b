"""The run directory: recipe, metrics, checkpoints and policy, whole after a kill at any moment.

    recipe.toml          what was asked for
    metrics.jsonl        one row per iteration, append-only
    evaluations.jsonl    one row per evaluation while training, where there are any
    checkpoints/*        the last two whole states, sealed
    policy.safetensors   what `eval` and `load` use, sealed
    policies/*           the same at parts of the budget, for probing
    profile.json         where the time went, where that was asked for
    imported.json        where the policy comes from, where another library trained it

A checkpoint knows the rows that were written before it, and the recipe: files of other runs, and
rows that changed, are found. See `sealed` for its form and `files` for how all are written.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal

from torch import Tensor

from isobatch.errors import DamagedFile, InUse, UserError, understanding
from isobatch.files import Folder, Mark
from isobatch.origin import IMPORTED
from isobatch.recipe import Recipe
from isobatch.rows import Rows, mark_of, parsed
from isobatch.run.reading import (
    EVALUATIONS,
    METRICS,
    PROFILE,
    iterations_saved,
    kept_policies,
    number,
    numbered,
    read_checkpoint,
    read_evaluations,
    read_metrics,
    read_policy,
    read_profile,
    refuse_foreign,
)
from isobatch.run.sealed import read_in, read_sealed, sealed, write_sealed

__all__ = [
    "CLOCK_COLUMNS", "EVALUATIONS", "METRICS", "PROFILE", "Checkpoint", "RunDirectory",
    "iterations_saved", "kept_policies", "read_checkpoint", "read_evaluations", "read_metrics",
    "read_policy", "read_profile", "read_sealed", "refuse_foreign", "refuse_taken", "safe_name",
    "write_sealed",
]  # fmt: skip

CLOCK_COLUMNS = (
    "seconds", "steps_per_second", "time", "probe_seconds", "env_seconds", "acting_seconds",
    "learning_seconds", "other_seconds",
)  # fmt: skip
"""Metrics that depend on the clock; all others are the same for the same recipe."""
KEPT_CHECKPOINTS = 2
DIVERGED = "diverged.safetensors"
"""The batch after which a run no longer computed with numbers."""
GROWN = re.compile(r"(actions(-s[0-9]+)?|phase(-shard-[0-9]+)?)-[0-9]+\.bin")
"""Files that exact resuming needs."""
OF_A_RUN = (
    METRICS, EVALUATIONS, PROFILE, IMPORTED, "policy.safetensors", "policies", "checkpoints",
    "tensorboard", "wandb",
)  # fmt: skip
"""What training or importing writes into a run directory, beside the recipe."""


@dataclass(frozen=True)
class Checkpoint:
    """A whole state to go on from."""

    tensors: dict[str, Tensor]
    numbers: dict[str, Any]
    metrics: Mark
    evaluations: Mark
    skipped: dict[str, str]
    """Newer ones that cannot be gone on from, and why."""


class RunDirectory:
    """A run on disk, held by one process at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._made: list[Path] = []
        self._lock: BinaryIO | None = None
        self.folder = self._folder = Folder(path)
        self._needed: dict[str, set[str]] = {}
        """Files that checkpoints of this sitting need, by theirs."""
        self._metrics = Rows(self._folder, METRICS)
        self._evaluations = Rows(self._folder, EVALUATIONS)

    @classmethod
    def create(cls, path: str | Path, recipe: Recipe) -> RunDirectory:
        """Make a new run directory; it appears with its recipe in it or not at all."""
        path = Path(path)
        refuse_taken(path)
        made = [parent for parent in path.parents if not parent.exists()]
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            _sweep_beside(path)
            beside = Path(tempfile.mkdtemp(prefix=f".{path.name}-", dir=path.parent))
        except OSError as error:
            raise UserError(f"cannot make the run directory {path}: {error.strerror}") from None
        try:
            beside.chmod(0o755)
            run = cls(beside)
            run.hold()  # From the start, so that what a killed process leaves is known by it.
            run._folder.folder("checkpoints", make=True)
            run.save_recipe(recipe)
            run._folder.write(METRICS, b"")
            os.rename(beside, path)
        except OSError as error:
            shutil.rmtree(beside, ignore_errors=True)
            refuse_taken(path)  # Another process was quicker.
            raise UserError(f"cannot make the run directory {path}: {error.strerror}") from None
        with Folder(path.parent) as parent:
            parent.sync()
        run.path = run._folder.path = path
        run._made = made
        return run

    @classmethod
    def open(cls, path: str | Path) -> RunDirectory:
        """Open an existing run directory to go on with it."""
        path = Path(path)
        if not (path / "recipe.toml").is_file():
            raise UserError(f"{path} holds no run (there is no recipe.toml in it)")
        run = cls(path)
        run.hold()
        run._folder.sweep()
        return run

    def hold(self) -> None:
        """Keep other processes from writing here until this one ends or calls `release`."""
        self._lock = self._folder.lock_file(".lock")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._lock.close()
            raise InUse(f"{self.path} is in use: another process is training there") from None

    def release(self) -> None:
        """Let go of the directory."""
        self._metrics.close()
        self._evaluations.close()
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def discard(self) -> None:
        """Remove a run that came to nothing, and the folders made for it."""
        self.release()
        shutil.rmtree(self.path)
        for folder in self._made:
            if not any(folder.iterdir()):
                folder.rmdir()

    @property
    def recipe(self) -> Recipe:
        """The recipe as saved."""
        return Recipe.load(self.path / "recipe.toml")

    def save_recipe(self, recipe: Recipe) -> None:
        """Replace the recipe (a longer budget, on resuming)."""
        self._folder.write("recipe.toml", recipe.to_toml().encode())

    def append(self, row: dict[str, Any]) -> None:
        """Add one row to the metrics; numbers that are not finite become null."""
        self._metrics.add(row)

    def metrics(self) -> list[dict[str, Any]]:
        """Return all whole rows of the metrics."""
        return read_metrics(self.path)

    def append_evaluation(self, row: dict[str, Any]) -> None:
        """Add one row to the evaluations, on disk when this returns."""
        self._evaluations.add(row)
        self._evaluations.sync()

    def evaluations(self) -> list[dict[str, Any]]:
        """Return all whole rows of the evaluations, none where there are none."""
        return read_evaluations(self.path)

    def save_checkpoint(
        self,
        tensors: dict[str, Tensor],
        data: dict[str, Any],
        iterations: int,
        needed: Iterable[str] = (),
    ) -> None:
        """Write a checkpoint after the rows it stands for are on disk; keep the last two.

        Of the files that only grow, those `needed` by these stay.
        """
        self._metrics.sync()
        data = data | {
            "recipe": self._recipe_text(),
            "metrics": self._metrics.mark(),
            "evaluations": self._evaluations.mark(),
        }
        with self._folder.folder("checkpoints", make=True) as folder:
            name = f"{iterations:09d}.safetensors"
            folder.write(name, sealed(tensors, data))
            self._needed[name] = set(needed)
            for old in numbered(folder)[:-KEPT_CHECKPOINTS]:
                folder.remove(old)
                self._needed.pop(old, None)
            kept = numbered(folder)
        if set(kept) <= set(self._needed):  # What an earlier sitting's needs is not known.
            needs = set().union(*self._needed.values())
            for name in self._folder.names():
                if GROWN.fullmatch(name) and name not in needs:
                    self._folder.remove(name)

    def save_diverged(self, tensors: dict[str, Tensor], data: dict[str, Any]) -> None:
        """Write the batch after which a run no longer computed with numbers."""
        write_sealed(self.path / DIVERGED, tensors, data)

    def last_checkpoint(self) -> Checkpoint | None:
        """Return the newest checkpoint that is whole and has its rows, None where there is none.

        A run that was stopped before its first checkpoint has none, and has lost nothing.
        """
        skipped: dict[str, str] = {}
        if not self._folder.has("checkpoints"):
            return self._refuse_to_start_over(skipped)
        with self._folder.folder("checkpoints") as folder:
            for name in reversed(numbered(folder)):
                try:
                    path = folder.path / name
                    tensors, numbers = read_in(folder, name)
                    with understanding(str(path)):
                        metrics, evaluations = self._rows_of(numbers, path)
                        if skipped and not numbers["counters"]["iterations"]:
                            break  # That of the start: it would start over.
                    return Checkpoint(tensors, numbers, metrics, evaluations, skipped)
                except DamagedFile as error:
                    skipped[name] = str(error)
        return self._refuse_to_start_over(skipped)

    def go_on_from(self, checkpoint: Checkpoint) -> None:
        """Drop what was written after a checkpoint: rows, kept policies; move damaged ones away."""
        with self._folder.folder("checkpoints") as folder:
            folder.sweep()
            for name in checkpoint.skipped:
                folder.rename(name, f"{name}.damaged")
        self._metrics.cut(checkpoint.metrics)
        self._evaluations.cut(checkpoint.evaluations)
        if self._folder.has("policies"):
            with self._folder.folder("policies") as folder:
                folder.sweep()
                for name in numbered(folder):
                    if number(name) > checkpoint.numbers["counters"]["env_steps"]:
                        folder.remove(name)

    def set_aside(self) -> str | None:
        """Move all that training wrote into a folder of its own; return its name."""
        present = [
            name for name in self._folder.names() if name in OF_A_RUN or GROWN.fullmatch(name)
        ]
        if not present:
            return None
        taken = [name for name in self._folder.names() if name.startswith("set-aside-")]
        aside = f"set-aside-{len(taken) + 1}"
        with self._folder.folder(aside, make=True) as folder:
            for name in present:
                self._folder.move(name, folder)
        self._folder.write(METRICS, b"")
        return aside

    def save_policy(
        self,
        tensors: dict[str, Tensor],
        data: dict[str, Any],
        keep: Literal["last", "part", "best"] = "last",
    ) -> None:
        """Write the policy file; of a part of the budget, also one that later ones leave alone.

        The best of the evaluations is a file of its own.
        """
        content = sealed(tensors, data | {"recipe": self._recipe_text()})
        if keep != "last":
            name = "best" if keep == "best" else f"{data['env_steps']:012d}"
            with self._folder.folder("policies", make=True) as folder:
                folder.write(f"{name}.safetensors", content)
        if keep != "best":
            self._folder.write("policy.safetensors", content)

    def _recipe_text(self) -> str:
        return self._folder.read("recipe.toml").decode()

    def _rows_of(self, numbers: dict[str, Any], path: Path) -> tuple[Mark, Mark]:
        """Return where a checkpoint's rows end; raise `DamagedFile` where they are not there."""
        refuse_foreign(numbers, self.recipe, path)
        if "metrics" not in numbers:
            return self._rows_without_marks(numbers)
        for rows in (self._metrics, self._evaluations):
            rows.refuse_other(numbers[rows.path.stem])
        return numbers["metrics"], numbers["evaluations"]

    def _rows_without_marks(self, numbers: dict[str, Any]) -> tuple[Mark, Mark]:
        """The same of a checkpoint of an earlier version, by the rows' own counts."""
        iterations, env_steps = (numbers["counters"][name] for name in ("iterations", "env_steps"))
        content, played = self._metrics.content(), self._evaluations.content()
        rows = parsed(content, self._metrics.path)[:iterations]
        if [row["iterations"] for row in rows] != list(range(1, iterations + 1)) or (
            rows and rows[-1]["env_steps"] != env_steps
        ):
            raise DamagedFile(f"{self._metrics.path} does not hold all rows saved")
        marks = [row["mark"] for row in parsed(played, self._evaluations.path)]
        done = sum(1 for mark in marks if 0 < env_steps >= mark)
        return mark_of(content, iterations), mark_of(played, done)

    def _refuse_to_start_over(self, skipped: dict[str, str]) -> None:
        if not skipped and not self._metrics.content():
            return
        why = next(iter(skipped.values()), "there is none")
        raise DamagedFile(
            f"{self.path} has no checkpoint to resume from: {why}; --from-scratch trains it again "
            "from the start and moves the old files to a folder set-aside"
        )


class Elsewhere(RunDirectory):
    """The run directory as workers have it who write nothing: the first one does."""

    def append(self, row: dict[str, Any]) -> None:
        """Write nothing."""

    def append_evaluation(self, row: dict[str, Any]) -> None:
        """Write nothing."""

    def evaluations(self) -> list[dict[str, Any]]:
        """Return none: they are the first worker's."""
        return []

    def save_checkpoint(
        self,
        tensors: dict[str, Tensor],
        data: dict[str, Any],
        iterations: int,
        needed: Iterable[str] = (),
    ) -> None:
        """Write nothing."""

    def save_diverged(self, tensors: dict[str, Tensor], data: dict[str, Any]) -> None:
        """Write nothing."""

    def save_policy(
        self,
        tensors: dict[str, Tensor],
        data: dict[str, Any],
        keep: Literal["last", "part", "best"] = "last",
    ) -> None:
        """Write nothing."""


def refuse_taken(path: Path) -> None:
    """Refuse an output directory that holds anything."""
    try:
        if (path / "recipe.toml").exists():
            raise UserError(f"{path} holds another run: resume it, or choose another --out")
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise UserError(f"{path} exists and is not an empty directory: choose another --out")
    except OSError as error:
        raise UserError(f"cannot make the run directory {path}: {error.strerror}") from None


def safe_name(text: str) -> str:
    """Return `text` with everything but letters, digits, dot and dash made a dash."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip(".-") or "run"


def _sweep_beside(path: Path) -> None:
    """Remove what processes that were killed while they made this run have left beside it."""
    with Folder(path.parent) as parent:
        for name in parent.names():
            if not re.fullmatch(rf"\.{re.escape(path.name)}-\w{{8}}", name):
                continue
            with (
                suppress(OSError, DamagedFile),
                parent.folder(name) as folder,
                folder.lock_file(".lock") as lock,
            ):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # Held while its maker lives.
                shutil.rmtree(path.parent / name)
