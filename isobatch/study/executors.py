"""Where a study's workers run: processes of this machine, a Ray cluster, or Slurm.

All of them run the same `work` on the same study directory. An executor only starts workers and
says whether they still run; which cell is whose is settled on the disk.
"""

from __future__ import annotations

import logging
import os
import secrets
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from isobatch.errors import UserError
from isobatch.files import Folder
from isobatch.parent import ONE_THREAD, STOP_SECONDS
from isobatch.registry import IMPORTS
from isobatch.study.worker import DISK_FULL, DiskFull, work

OWN_RAY = {"RAY_AUTH_MODE": "token", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
"""Ask for a token, and listen on loopback only, which Ray ties to this setting on every system."""


class Ending(NamedTuple):
    """How a worker ended that did not end by itself."""

    reason: str
    killed: bool
    """From outside, by a signal or with its machine; else it could not work."""


class Worker(Protocol):
    """A started worker."""

    def is_running(self) -> bool:
        """Say whether it still works."""
        ...

    def problem(self) -> Ending | None:
        """Return what ended it, where it did not end by itself; None while it runs."""
        ...

    def stop(self) -> None:
        """Ask it to stop, and wait until it has."""
        ...


class Executor(Protocol):
    """Starts workers."""

    def start(self, root: Path, workers: int = 1) -> Worker:
        """Start one more worker on the study in `root`, of so many in all."""
        ...

    def close(self) -> None:
        """Free what the executor holds."""
        ...


class LocalExecutor:
    """Processes of this machine, one thread each."""

    def __init__(self) -> None:
        self._count = 0

    def start(self, root: Path, workers: int = 1) -> LocalWorker:
        """Start a process; what it prints goes to logs/."""
        self._count += 1
        log = root / "logs" / f"worker-{os.getpid()}-{self._count}.log"
        log.parent.mkdir(exist_ok=True)
        return LocalWorker(root, log, workers)

    def close(self) -> None:
        """Nothing is held."""


class LocalWorker:
    """A process; it stops by itself if the one that started it dies.

    To be started from a thread that outlives it: Linux takes that thread's end for its parent's.
    """

    def __init__(self, root: Path, log: Path, workers: int) -> None:
        self._root, self._log = root, log
        arguments = [str(os.getpid()), str(root), str(workers)]
        with Folder(log.parent) as folder, folder.append_to(log.name) as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "isobatch.study.child", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=os.environ | ONE_THREAD,
                start_new_session=True,  # Ctrl-C is the driver's to pass on.
            )

    def is_running(self) -> bool:
        """Say whether the process lives."""
        return self.process.poll() is None

    def problem(self) -> Ending | None:
        """Return its last line of output or its signal, where it did not end well."""
        code = self.process.poll()
        if not code:
            return None
        if code == DISK_FULL:
            raise DiskFull(self._root)  # There may have been no room for its own line.
        if code < 0:
            return Ending(f"killed by signal {-code}", killed=True)
        return Ending(self._last_line(), killed=False)

    def stop(self) -> None:
        """Terminate it, harder if it does not listen."""
        self.process.terminate()
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def _last_line(self) -> str:
        lines = self._log.read_text(encoding="utf-8", errors="replace").split("\n")
        return next((line for line in reversed(lines) if line.strip()), "no output")


class RayExecutor:
    """Tasks of a Ray cluster: the one RAY_ADDRESS names, or a new one on this machine's loopback.

    A cluster of its own has no dashboard and asks every connection for a secret token.
    """

    def __init__(self, workers: int) -> None:
        settings: dict[str, Any] = {}
        if "RAY_ADDRESS" not in os.environ:
            # Read by Ray as it is imported, and by every process it starts.
            os.environ |= OWN_RAY | {"RAY_AUTH_TOKEN": secrets.token_hex(32)}
            settings = {
                "num_cpus": workers,
                "include_dashboard": False,
                "_node_ip_address": "127.0.0.1",
            }
        try:
            import ray
        except ImportError:
            raise UserError("Ray is not installed: pip install 'isobatch[ray]'") from None
        self._ray = ray
        ray.init(
            log_to_driver=False,
            logging_level=logging.ERROR,
            runtime_env={"env_vars": ONE_THREAD | _imports()},
            **settings,
        )
        self._task = ray.remote(num_cpus=1, max_retries=0)(_ray_work)

    def start(self, root: Path, workers: int = 1) -> Worker:
        """Submit a task that needs one CPU."""
        return RayWorker(self._ray, self._task.remote(str(root.resolve()), workers))

    def close(self) -> None:
        """Leave the cluster, ending one that was started here."""
        self._ray.shutdown()


def _imports() -> dict[str, str]:
    """Return what tells workers on other machines which modules to import."""
    return {IMPORTS: os.environ[IMPORTS]} if IMPORTS in os.environ else {}


def _ray_work(root: str, workers: int) -> None:
    work(root, workers)


class RayWorker:
    """A task of a Ray cluster."""

    def __init__(self, ray: Any, reference: Any) -> None:
        self._ray, self._reference = ray, reference

    def is_running(self) -> bool:
        """Say whether the task is not yet ready."""
        return not self._ray.wait([self._reference], timeout=0)[0]

    def problem(self) -> Ending | None:
        """Return the error the task ended with."""
        if self.is_running():
            return None
        try:
            self._ray.get(self._reference)
        except self._ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, UserError):
                raise UserError(str(error.cause)) from None
            return Ending(f"{type(error.cause).__name__}: {error.cause}", killed=False)
        except self._ray.exceptions.RayError as error:
            return Ending(type(error).__name__, killed=True)
        return None

    def stop(self) -> None:
        """Cancel the task; its run goes on from its last checkpoint another time."""
        self._ray.cancel(self._reference, force=True)


class SlurmExecutor:
    """Slurm jobs through submitit, on a disk that all nodes share.

    `options` are submitit's own parameters (slurm_partition=..., timeout_min=...).
    """

    def __init__(self, root: Path, options: dict[str, Any], cluster: str = "slurm") -> None:
        try:
            import submitit
        except ImportError:
            raise UserError("submitit is not installed: pip install 'isobatch[slurm]'") from None
        settings = {"name": "isobatch", "cpus_per_task": 1, "timeout_min": 24 * 60} | options
        try:
            self._executor = submitit.AutoExecutor(folder=root / "slurm", cluster=cluster)
            self._executor.update_parameters(**settings)
        except (NameError, TypeError, ValueError, RuntimeError) as error:
            raise UserError(f"submitit: {' '.join(str(error).split())}") from None

    def start(self, root: Path, workers: int = 1) -> Worker:
        """Submit a job."""
        return SlurmWorker(self._executor.submit(work, str(root.resolve()), workers))

    def close(self) -> None:
        """Jobs live on without their driver: nothing is held."""


class SlurmWorker:
    """A Slurm job."""

    def __init__(self, job: Any) -> None:
        self.job = job

    def is_running(self) -> bool:
        """Say whether the job has not ended."""
        return not self.job.done()

    def problem(self) -> Ending | None:
        """Return the last line of the error the job ended with."""
        if self.is_running():
            return None
        error = self.job.exception()
        if error is None:
            return None
        return Ending(str(error).strip().splitlines()[-1], killed=False)

    def stop(self) -> None:
        """Cancel the job."""
        self.job.cancel()
