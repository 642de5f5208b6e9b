"""A worker: takes cells from a study's queue, trains them and records what they came to."""

from __future__ import annotations

import errno
import signal
import sys
import threading
import time
import traceback
from collections.abc import Hashable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from isobatch.envs.faults import EnvironmentFailed
from isobatch.errors import DamagedFile, InUse, UserError, is_disk_full, one_line
from isobatch.registry import import_for_worker
from isobatch.run.divergence import Diverged
from isobatch.run.store import EVALUATIONS
from isobatch.study.design import Cell
from isobatch.study.queue import HEARTBEAT_SECONDS, Lease, LeaseLost, Queue
from isobatch.study.records import Result, sha256
from isobatch.study.together import COHORT, LEAST, Kinds, is_doubtful, job_of, train_together
from isobatch.text import say

WAIT_SECONDS = 1.0
"""How often to look again where all that is left is in other workers' hands."""
DISK_FULL = errno.ENOSPC
"""Exit code of a worker that could not write."""


class DiskFull(UserError):
    """There is no room for the study's files."""

    def __init__(self, root: str | Path) -> None:
        super().__init__(f"the disk is full: {root} cannot be written")


def work(root: str | Path, workers: int = 1) -> None:
    """Run cells until none is left to run, here or anywhere; raise `DiskFull` where it is.

    A cell whose worker vanished becomes free again, so a worker waits for the others to finish;
    there are `workers` of them in all.
    """
    import_for_worker()
    try:
        _work(Queue.open(root), workers)
    except OSError as error:
        if not is_disk_full(error):
            raise
        raise DiskFull(root) from error


def _work(queue: Queue, workers: int) -> None:
    kinds = Kinds(queue.study)

    def kind(cell: Cell) -> Hashable | None:
        return None if is_doubtful(queue, cell) else kinds(cell)

    while not queue.is_finished:
        claims = queue.claim_alike(kind, LEAST, COHORT, workers)
        if not claims:
            time.sleep(WAIT_SECONDS)
        elif not _run_all(claims):
            return


def _run_all(claims: Sequence[Lease]) -> bool:
    """Run claimed cells, several of them together first; return False where asked to stop."""
    with _heartbeat(claims), ExitStack() as held:
        for claim in claims:
            held.callback(_let_go, claim)  # Those that are still held then.
        ended = train_together(claims) if len(claims) > 1 else {}
        left = list(claims)
        for claim in claims:
            error = ended[claim.cell].error if claim.cell in ended else None
            if isinstance(error, Diverged):  # Not to be tried again.
                left.remove(claim)
                with suppress(LeaseLost):
                    claim.fail(one_line(error))
        if any(each.run.interrupted for each in ended.values()):
            return False
        return all(run(claim) != "stopped" for claim in left)


def _let_go(claim: Lease) -> None:
    with suppress(LeaseLost):
        claim.release()


def run(claim: Lease) -> str:
    """Train a claimed cell; return done, failed, error, lost or stopped (it was asked to).

    One that was trained already is only evaluated.
    """
    try:
        return _run(claim)
    except LeaseLost:
        return "lost"  # Another worker has it; what is on disk is that one's.


def _run(claim: Lease) -> str:
    try:
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
    recipe, path = job_of(claim.queue, cell)
    if (path / "recipe.toml").exists():
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
def _heartbeat(claims: Sequence[Lease]) -> Iterator[None]:
    """Touch the claims while the block runs; one that is lost shows when its result is recorded."""
    over, held = threading.Event(), list(claims)

    def beat() -> None:
        while not over.wait(HEARTBEAT_SECONDS):
            for claim in tuple(held):
                try:
                    claim.beat()
                except LeaseLost:
                    held.remove(claim)
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


def main(root: str, workers: int = 1) -> int:
    """Be a local worker process, one of so many."""
    # Between runs there is nothing to save; within one the training loop takes the signal over.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        work(root, workers)
    except DiskFull as error:
        with suppress(OSError):  # Its log is on that disk.
            say(str(error), error=True)
        return DISK_FULL
    return 0
