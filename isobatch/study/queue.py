"""The study directory: which runs are done, running, failed or free. The disk is the truth.

    study.json                the design
    runs/<arm>/<env>/<seed>/  one run directory per cell
    queue/<cell>.claim        who is running it, touched while it lives
    queue/<cell>.done         its result, with a hash of the metrics it came from
    queue/<cell>.failed       why it was given up
    queue/<cell>.attempts     one line per attempt that came to nothing
    set-aside/                damaged or failed runs that were started again

Every change of hands happens under one file lock, so any number of workers, drivers and machines
on a shared disk may die at any moment: what they held is free again once its claim is stale.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
import uuid
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from isobatch.errors import DamagedFile, UserError, one_line
from isobatch.files import MOST_TEXT, Folder, refuse_links
from isobatch.rows import read_rows
from isobatch.run.store import EVALUATIONS, iterations_saved, safe_name
from isobatch.study.design import Cell, Study
from isobatch.study.records import Holder, Result, losses_in_vain, sha256
from isobatch.study.saved import holds_nothing, read_study
from isobatch.text import counted

LEASE_SECONDS = 60.0
"""A claim not touched for this long is stale, wherever its worker was."""
HEARTBEAT_SECONDS = 5.0
MAX_ERRORS = 3
"""Attempts that ended in an error before a cell is given up."""
MAX_LOSSES = 20
"""Attempts in a row whose worker vanished before the run came further: kills from outside cost
nothing, but a run that kills its workers must end."""

Status = Literal["done", "running", "failed", "free"]
Kind = Callable[[Cell], Hashable | None]
"""What cells that are trained together have in common; None of one that is trained by itself."""


class LeaseLost(Exception):
    """The claim went stale and another worker has the cell."""


class Queue:
    """The cells of a study directory."""

    def __init__(self, root: str | Path, study: Study) -> None:
        self.root, self.study = Path(root), study

    @classmethod
    def create(cls, root: str | Path, study: Study) -> Queue:
        """Begin a study, or go on with it; a directory that holds another one is refused.

        The same study with more seeds is the same study, grown.
        """
        queue, root = cls(root, study), Path(root)
        if (root / "study.json").exists():
            before = read_study(root)
            # What counts as 0 and 1 may be given later: it changes no run. Cohorts change rounding.
            own = {name: getattr(study, name) for name in ("seeds", "scores", "cohorts")}
            same = replace(before, **own) == study
            if not same or not set(before.seeds) <= set(study.seeds):
                raise UserError(f"{root} holds another study ({before.name}): choose another --out")
        elif root.exists() and not holds_nothing(root):
            raise UserError(f"{root} exists and holds no study: choose another --out")
        try:
            root.mkdir(parents=True, exist_ok=True)
            with Folder(root) as folder:
                folder.folder("queue", make=True).close()
            queue.save("study.json", study.to_json().encode())
        except OSError as error:
            raise UserError(f"cannot make the study directory {root}: {error.strerror}") from None
        return queue

    @classmethod
    def open(cls, root: str | Path) -> Queue:
        """Open the study in a directory."""
        return cls(root, read_study(root))

    def run_path(self, cell: Cell) -> Path:
        """Return where a cell's run is kept."""
        return self.root / "runs" / safe_name(cell.arm) / safe_name(cell.env) / str(cell.seed)

    def save(self, name: str, content: bytes) -> None:
        """Write a file beside the queue: there whole, or as it was."""
        with self._locked(), Folder(self.root) as folder:
            folder.sweep()
            folder.write(name, content)

    def states(self) -> dict[Cell, Status]:
        """Return what stands where, at a glance: claims and results are not examined."""
        present = self._present()

        def status(cell: Cell) -> Status:
            for kind in ("done", "failed", "claim"):
                if f"{cell.key}.{kind}" in present:
                    return "running" if kind == "claim" else kind
            return "free"

        return {cell: status(cell) for cell in self.study.cells}

    def claim(self) -> Lease | None:
        """Take the first cell that is free, or whose holder is gone; None where there is none."""
        return next(iter(self.claim_alike(lambda cell: None)), None)

    def claim_alike(
        self, kind: Kind, least: int = 1, most: int = 1, workers: int = 1
    ) -> list[Lease]:
        """Take the first such cell, and others of its kind, `most` in all; none where none is free.

        No more of them than are the share of one of so many `workers`, who are all to have some;
        and where these are fewer than the `least` that it pays to take, one.
        """
        with self._locked() as now:
            free, running = list[Cell](), 0
            for cell, status in self.states().items():
                if status == "running" and self._is_stale(cell, now):
                    self._lose(cell)
                    status = self.states()[cell]
                free += [cell] if status == "free" else []
                running += status == "running"
            own = kind(free[0]) if free and most > 1 else None
            alike = iter(free[:1]) if own is None else (each for each in free if kind(each) == own)
            share = -(-(len(free) + running) // workers)
            chosen = list(islice(alike, min(most, share)))
            return [self._take(cell) for cell in (chosen if len(chosen) >= least else chosen[:1])]

    def forget_dead(self) -> None:
        """Free the cells of this machine's dead processes: they were stopped, not lost."""
        with self._locked():
            present = self._present()
            for cell in self.study.cells:
                # Also of one that is done: its process may have died before it let go.
                holder = self._holder(cell) if _name(cell, "claim") in present else None
                if holder is not None and holder.is_dead:
                    self._remove(cell, "claim")

    @property
    def is_finished(self) -> bool:
        """True where every cell is done or failed."""
        return all(status in ("done", "failed") for status in self.states().values())

    def result(self, cell: Cell) -> Result:
        """Return a finished cell's result; raise `DamagedFile` where its files do not match it."""
        try:
            result = Result(**self._read(cell, "done"))
        except (OSError, ValueError, TypeError, RecursionError) as error:
            file = self._file(cell, "done")
            raise DamagedFile(f"{file} cannot be read: {one_line(error)}") from None
        for name, expected in (
            ("metrics.jsonl", result.metrics_sha256),
            ("recipe.toml", result.recipe_sha256),
            (EVALUATIONS, result.evaluations_sha256),
        ):
            if expected and sha256(self.run_path(cell) / name) != expected:
                raise DamagedFile(f"{self.run_path(cell) / name} was changed after the run ended")
        return result

    def failure(self, cell: Cell) -> str:
        """Return why a cell was given up."""
        try:
            return str(self._read(cell, "failed")["reason"])
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return "its failure record cannot be read"

    def attempts(self, cell: Cell) -> list[dict[str, Any]]:
        """Return the attempts that came to nothing."""
        name = _name(cell, "attempts")
        with self._files() as folder:
            return read_rows(folder, name) if folder.has(name) else []

    def set_aside_damaged(self) -> list[str]:
        """Move runs whose files no longer match their result out of the way, to be run again."""
        moved = []
        with self._locked():
            for cell, status in self.states().items():
                if status != "done":
                    continue
                try:
                    self.result(cell)
                except DamagedFile as error:
                    moved.append(f"{cell}: {error}")
                    self.set_aside(cell)
                    self._remove(cell, "done")
        return moved

    def retry_failed(self) -> int:
        """Free the cells that were given up, to be tried again; return how many."""
        with self._locked():
            failed = [cell for cell, status in self.states().items() if status == "failed"]
            for cell in failed:
                self.set_aside(cell)
                self._remove(cell, "attempts")
                self._remove(cell, "failed")
        return len(failed)

    def set_aside(self, cell: Cell) -> None:
        """Move a cell's run out of the way, so that it starts from scratch."""
        path = self.run_path(cell)
        if path.exists():
            target = self.root / "set-aside" / f"{cell.key}-{uuid.uuid4().hex[:8]}"
            refuse_links(self.root, path.parent)
            refuse_links(self.root, target.parent)
            target.parent.mkdir(exist_ok=True)
            path.rename(target)

    def _file(self, cell: Cell, kind: str) -> Path:
        return self.root / "queue" / _name(cell, kind)

    def _files(self) -> Folder:
        """Open the folder of claims and results."""
        with Folder(self.root) as folder:
            return folder.folder("queue")

    def _present(self) -> set[str]:
        with self._files() as folder:
            return set(folder.names())

    def _read(self, cell: Cell, kind: str) -> Any:
        with self._files() as folder:
            return json.loads(folder.read(_name(cell, kind), MOST_TEXT))

    def _write(self, cell: Cell, kind: str, data: dict[str, Any]) -> None:
        with self._files() as folder:
            folder.write(_name(cell, kind), json.dumps(data, allow_nan=False).encode())

    def _remove(self, cell: Cell, kind: str) -> None:
        with self._files() as folder:
            folder.remove(_name(cell, kind))

    def _holder(self, cell: Cell) -> Holder | None:
        try:
            return Holder(**self._read(cell, "claim"))
        except (OSError, ValueError, TypeError, RecursionError):
            return None

    def _is_stale(self, cell: Cell, now: float) -> bool:
        holder = self._holder(cell)
        if holder is None or holder.is_dead:
            return True
        with self._files() as folder:
            return now - folder.changed(_name(cell, "claim")) > LEASE_SECONDS

    def _take(self, cell: Cell) -> Lease:
        holder = Holder.here()
        self._write(cell, "claim", asdict(holder))
        return Lease(self, cell, holder)

    def _lose(self, cell: Cell) -> None:
        """Free a cell whose worker disappeared, or give it up where that keeps happening."""
        self._record(cell, "lost", "its worker disappeared")
        in_vain = losses_in_vain(self.attempts(cell))
        reason = f"its worker disappeared {in_vain} times without progress"
        self._free(cell, "lost", reason, in_vain >= MAX_LOSSES)

    def _record(self, cell: Cell, kind: str, reason: str) -> None:
        """Add an attempt that came to nothing, and how far the run has come."""
        attempt = {
            "kind": kind,
            "reason": reason,
            "iterations": iterations_saved(self.run_path(cell)),
            "time": time.time(),
        }
        lines = [json.dumps(each) + "\n" for each in (*self.attempts(cell), attempt)]
        with self._files() as folder:
            folder.write(_name(cell, "attempts"), "".join(lines).encode())

    def _free(self, cell: Cell, kind: str, reason: str, give_up: bool) -> None:
        """Take the claim away; give the cell up where another attempt would be in vain."""
        if give_up:
            self._write(cell, "failed", {"kind": kind, "reason": reason})
        self._remove(cell, "claim")

    @contextmanager
    def _locked(self) -> Iterator[float]:
        """Hold the queue; yield the disk's own time, which other machines' claims are dated by."""
        with self._files() as folder, folder.lock_file(".lock") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            os.utime(file.fileno())
            folder.sweep()  # Nobody writes without the lock.
            yield os.fstat(file.fileno()).st_mtime


class Lease:
    """A cell held by this process until it is finished, failed or released."""

    def __init__(self, queue: Queue, cell: Cell, holder: Holder) -> None:
        self.queue, self.cell, self.holder = queue, cell, holder

    def beat(self) -> None:
        """Show that the worker lives; raise `LeaseLost` where the cell is no longer its own."""
        with self._held(), self.queue._files() as folder:
            folder.touch(_name(self.cell, "claim"))

    def finish(self, result: Result) -> None:
        """Record the result."""
        with self._held():
            self.queue._write(self.cell, "done", asdict(result))
            self.queue._remove(self.cell, "claim")

    def fail(self, reason: str) -> None:
        """Give the cell up: trying again would end the same way."""
        with self._held():
            self.queue._record(self.cell, "failed", reason)
            self.queue._free(self.cell, "failed", reason, give_up=True)

    def error(self, reason: str) -> None:
        """Record an error that another attempt may not meet."""
        with self._held():
            self.queue._record(self.cell, "error", reason)
            attempts = self.queue.attempts(self.cell)
            errors = sum(1 for each in attempts if each.get("kind") == "error")
            why = f"{reason} ({counted(errors, 'attempt')})"
            self.queue._free(self.cell, "error", why, give_up=errors >= MAX_ERRORS)

    def release(self) -> None:
        """Let another worker go on with it."""
        with self._held():
            self.queue._remove(self.cell, "claim")

    @contextmanager
    def _held(self) -> Iterator[None]:
        with self.queue._locked():
            if self.queue._holder(self.cell) != self.holder:
                raise LeaseLost(str(self.cell))
            yield


def _name(cell: Cell, kind: str) -> str:
    return f"{cell.key}.{kind}"
