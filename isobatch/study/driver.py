"""Conducting a study: keep workers running until every cell is done or given up."""

from __future__ import annotations

import fcntl
import json
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from isobatch.errors import DamagedFile, UserError
from isobatch.files import Folder
from isobatch.study.design import Cell
from isobatch.study.executors import Executor, Worker
from isobatch.study.live import Progress, View
from isobatch.study.queue import Queue

POLL_SECONDS = 0.5
MAX_BROKEN = 5
"""Workers that end in an error of their own while no run is finished: none of them can work."""


@dataclass(frozen=True)
class StudyState:
    """The state of a study after conducting it."""

    done: int
    failed: dict[Cell, str]
    left: int
    """Cells not run, because it was interrupted."""


def conduct(queue: Queue, executor: Executor, workers: int, view: View) -> StudyState:
    """Run a study's cells; Ctrl-C (or SIGTERM) stops the workers after their iteration."""
    with _only_driver(queue), _terminate_as_interrupt():
        crew: list[Worker] = []
        view.start(queue)
        try:
            _run_all(queue, executor, workers, crew, view)
        except KeyboardInterrupt:
            view.note("stopping: the active runs write their checkpoints")
        finally:
            for worker in crew:
                worker.stop()
            queue.forget_dead()
            executor.close()
            view.stop()
    return state_of(queue)


def state_of(queue: Queue) -> StudyState:
    """Return the state of a study."""
    states = queue.states()
    failed = {cell: queue.failure(cell) for cell, status in states.items() if status == "failed"}
    done = sum(status == "done" for status in states.values())
    return StudyState(done, failed, len(states) - done - len(failed))


def _run_all(
    queue: Queue, executor: Executor, workers: int, crew: list[Worker], view: View
) -> None:
    watch, broken, settled = Watch(queue), 0, state_of(queue).left
    while not queue.is_finished:
        for worker in [each for each in crew if not each.is_running()]:
            crew.remove(worker)
            ending = worker.problem()
            if ending is None:
                continue
            view.note(f"a job ended unexpectedly: {ending.reason}")
            left = state_of(queue).left
            broken = broken + (not ending.killed) if left == settled else 0
            settled = left
            if broken >= MAX_BROKEN:
                raise UserError(f"{MAX_BROKEN} jobs failed while no run finished: {ending.reason}")
        unfinished = sum(status in ("free", "running") for status in queue.states().values())
        while len(crew) < min(workers, unfinished):
            crew.append(executor.start(queue.root, workers))
        view.show(watch.progress())
        time.sleep(POLL_SECONDS)
    view.show(watch.progress())


class Watch:
    """Reads from the disk how far a study has come."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._scores: dict[Cell, float] = {}
        self._began = time.monotonic()
        self._share_at_start: float | None = None

    def progress(self) -> Progress:
        """Return the present state, with the time left by the pace since watching began."""
        states = self._queue.states()
        rows = {
            cell: last_row(self._queue.run_path(cell))
            for cell, status in states.items()
            if status == "running"
        }
        for cell, status in states.items():
            if status == "done" and cell not in self._scores:
                try:
                    self._scores[cell] = self._queue.result(cell).score
                except DamagedFile:
                    self._scores[cell] = float("nan")
        budget = self._queue.study.budget
        steps = sum(row.get("env_steps", 0) / budget for row in rows.values())
        settled = sum(status in ("done", "failed") for status in states.values())
        share = (settled + steps) / len(states)
        if self._share_at_start is None:
            self._share_at_start = share
        elapsed, gained = time.monotonic() - self._began, share - self._share_at_start
        left = elapsed * (1 - share) / gained if gained > 0 and share < 1 else None
        return Progress(states, rows, dict(self._scores), share, elapsed, left)


def last_row(run: Path) -> dict[str, Any]:
    """Return the numbers in the last whole row of a run's metrics, not reading all; {} if none."""
    try:
        with Folder(run) as folder:
            lines = folder.tail("metrics.jsonl", 8192).split(b"\n")
        row = json.loads(lines[-2]) if len(lines) > 1 else {}
    except (OSError, ValueError, RecursionError):
        return {}
    values = row.items() if isinstance(row, dict) else ()
    return {name: value for name, value in values if isinstance(value, int | float)}


@contextmanager
def _terminate_as_interrupt() -> Iterator[None]:
    """Let SIGTERM do what Ctrl-C does."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _only_driver(queue: Queue) -> Iterator[None]:
    """Refuse a second driver of the same study on this machine, while there is anything to run."""
    with Folder(queue.root / "queue") as folder, folder.lock_file(".driver") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            if not queue.is_finished:
                raise UserError(f"{queue.root} is already being run by another process") from None
        yield
