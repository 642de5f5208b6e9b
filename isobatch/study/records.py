"""What a queue notes of a cell: what its run came to, and who holds it."""

from __future__ import annotations

import hashlib
import os
import socket
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from isobatch.errors import DamagedFile
from isobatch.files import Folder
from isobatch.recipe.checks import refuse_misfits


@dataclass(frozen=True)
class Result:
    """What a finished run came to."""

    score: float
    """The measure of the final policy: mean return over the study's evaluation episodes."""
    training_return: float | None
    """Mean return of the last 100 training episodes."""
    env_steps: int
    seconds: float
    restarts: int
    """How often the run was resumed."""
    metrics_sha256: str
    recipe_sha256: str
    evaluations_sha256: str = ""
    """Empty in studies of the first version, whose runs were not evaluated while training."""

    def __post_init__(self) -> None:
        refuse_misfits(self)


@dataclass(frozen=True)
class Holder:
    """Who holds a cell."""

    token: str
    host: str
    pid: int
    started: str
    """The process's start, so that a reused pid is not taken for it."""

    def __post_init__(self) -> None:
        refuse_misfits(self)

    @classmethod
    def here(cls) -> Holder:
        """Return this process, as the holder of one more cell."""
        pid = os.getpid()
        return cls(uuid.uuid4().hex, socket.gethostname(), pid, process_start(pid))

    @property
    def is_dead(self) -> bool:
        """True where it certainly no longer runs: only a process of this machine can be seen."""
        return self.host == socket.gethostname() and process_start(self.pid) != self.started


def losses_in_vain(attempts: Sequence[Mapping[str, Any]]) -> int:
    """Return how often a cell's worker disappeared where it did last, no iteration further."""
    reached = [each["iterations"] for each in attempts if each.get("kind") == "lost"]
    return sum(1 for each in reached if each == reached[-1])


def process_start(pid: int) -> str:
    """Return when a process of this machine began, '' where there is none."""
    try:
        # The name, in brackets, may hold anything; after it come the state and, 20th, the start.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return "" if fields[0] in "ZX" else fields[19]
    except (OSError, IndexError):
        return ""


def sha256(path: Path) -> str:
    """Return a file's hash, or nothing where there is no such regular file."""
    try:
        with Folder(path.parent) as folder:
            return hashlib.sha256(folder.read(path.name)).hexdigest()
    except (OSError, DamagedFile):
        return ""
