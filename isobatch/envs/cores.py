"""Threads that only take turns are quicker on one core.

Waking a thread on an idle core costs more than switching to it on this one, on virtual machines
several times the physics of a small environment.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

TASKS = Path("/proc/self/task")
"""Where Linux lists a process's threads; on other systems nothing is held anywhere."""


def thread_ids() -> set[int]:
    """Return the ids of this process's threads, where the system tells."""
    return {int(task.name) for task in TASKS.iterdir()} if TASKS.exists() else set()


@contextmanager
def one_core(threads: set[int]) -> Iterator[None]:
    """Hold the calling thread and `threads` on the core it is on, for as long as the block lasts.

    The core is chosen anew each time, so a run moves on when the system has put it elsewhere.
    """
    if not threads:
        yield
        return
    before = {thread: os.sched_getaffinity(thread) for thread in (0, *threads)}
    core = {_libc().sched_getcpu()}
    try:
        for thread in before:
            os.sched_setaffinity(thread, core)
        yield
    finally:
        for thread, cores in before.items():
            os.sched_setaffinity(thread, cores)


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None)
