"""A worker: takes cells from a study's queue, trains them and records what they came to."""

from __future__ import annotations

import errno
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from isobatch.envs.faults import EnvironmentFailed
from isobatch.errors import DamagedFile, InUse, UserError, is_disk_full, one_line
from isobatch.files import refuse_links
from isobatch.recipe import Recipe
from isobatch.registry import import_for_worker
from isobatch.run.store import EVALUATIONS
from isobatch.study.queue import HEARTBEAT_SECONDS, Lease, LeaseLost, Queue
from isobatch.study.records import Result, sha256
from isobatch.text import say

WAIT_SECONDS = 1.0
"""How often to look again where all that is left is in other workers' hands."""
DISK_FULL = errno.ENOSPC
"""Exit code of a worker that could not write."""


class DiskFull(UserError):
    """There is no room for the study's files."""

    def __init__(self, root: str | Path) -> None:
        super().__init__(f"the disk is full: {root} cannot be written")


def work(root: str | Path) -> None:
    """Run cells until none is left to run, here or anywhere; raise `DiskFull` where it is.

    A cell whose worker vanished becomes free again, so a worker waits for the others to finish.
    """
    import_for_worker()
    try:
        _work(Queue.open(root))
    except OSError as error:
        if not is_disk_full(error):
            raise
        raise DiskFull(root) from error


def _work(queue: Queue) -> None:
    while not queue.is_finished:
        claim = queue.claim()
        if claim is None:
            time.sleep(WAIT_SECONDS)
        elif run(claim) == "stopped":
            return


def run(claim: Lease) -> str:
    """Train a claimed cell; return done, failed, error, lost or stopped (it was asked to)."""
    try:
        return _run(claim)
    except LeaseLost:
        return "lost"  # Another worker has it; what is on disk is that one's.


def _run(claim: Lease) -> str:
    try:
        with _heartbeat(claim):
            result = _train(claim)
        if result is not None:
            claim.finish(result)
            return "done"
    except InUse:
        # Its former worker is only slow, not gone: let it finish.
        claim.release()
        time.sleep(WAIT_SECONDS)
        return "lost"
    except DamagedFile as error:
        claim.beat()  # Only what is still this worker's may be set aside.
        claim.queue.set_aside(claim.cell)
        claim.error(str(error))
        return "error"
    except EnvironmentFailed as error:
        claim.error(one_line(error))  # It may be passing.
        return "error"
    except UserError as error:
        claim.fail(one_line(error))
        return "failed"
    except Exception as error:
        if isinstance(error, OSError) and is_disk_full(error):
            claim.release()
            raise
        claim.error(_last_line())
        return "error"
    claim.release()
    return "stopped"


def _train(claim: Lease) -> Result | None:
    """Train or go on with the cell's run, and evaluate it; None where it was asked to stop."""
    from isobatch.run.policy import evaluate
    from isobatch.run.training import resume, train

    study, cell = claim.queue.study, claim.cell
    path, recipe = claim.queue.run_path(cell), study.recipe(cell)
    try:
        refuse_links(claim.queue.root, path)
    except DamagedFile as error:
        raise UserError(str(error)) from None  # Not to be set aside: it lies elsewhere.
    if (path / "recipe.toml").exists():
        if Recipe.load(path / "recipe.toml") != recipe:
            raise DamagedFile(f"{path} holds another run")
        run = resume(path, env=cell.env, quiet=True)
    else:
        run = train(recipe=recipe, out=path, quiet=True)
    if run.interrupted:
        return None
    last = run.metrics[-1]
    if study.evaluate:
        score = evaluate(path, study.evaluate, env=cell.env).mean
    else:
        score = run.evaluations[-1]["episode_return"]
    return Result(
        score=score,
        training_return=last["episode_return"],
        env_steps=last["env_steps"],
        seconds=last["seconds"],
        restarts=sum(1 for row in run.metrics if row.get("resumed")),
        metrics_sha256=sha256(path / "metrics.jsonl"),
        recipe_sha256=sha256(path / "recipe.toml"),
        evaluations_sha256=sha256(path / EVALUATIONS),
    )


@contextmanager
def _heartbeat(claim: Lease) -> Iterator[None]:
    """Touch the claim while the block runs; one that is lost shows when the result is recorded."""
    over = threading.Event()

    def beat() -> None:
        while not over.wait(HEARTBEAT_SECONDS):
            try:
                claim.beat()
            except LeaseLost:
                return
            except OSError:
                continue  # A full or absent disk shows itself in the run as well.

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _last_line() -> str:
    """Return the exception being handled, with where it came from, in one line."""
    kind, error, trace = sys.exc_info()
    place = traceback.extract_tb(trace)[-1]
    name = kind.__name__ if kind else ""
    return f"{name}: {' '.join(str(error).split())} ({Path(place.filename).name}:{place.lineno})"


def main(root: str) -> int:
    """Be a local worker process."""
    # Between runs there is nothing to save; within one the training loop takes the signal over.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        work(root)
    except DiskFull as error:
        with suppress(OSError):  # Its log is on that disk.
            say(str(error), error=True)
        return DISK_FULL
    return 0
