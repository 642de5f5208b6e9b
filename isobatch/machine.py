"""What a run asks of the computer it is on: threads, cores, memory. All of it is about speed."""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from contextvars import ContextVar
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np  # noqa: F401  (its BLAS is to be there when it is looked for)
import torch

from isobatch import __version__

if TYPE_CHECKING:
    from threadpoolctl import ThreadpoolController

TASKS = Path("/proc/self/task")
"""Where Linux lists a process's threads; on other systems nothing is held anywhere."""
MEMORY = Path("/proc/meminfo")
"""Where Linux says how much memory there is."""
CGROUP, CGROUPS = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")
"""Where Linux says which control groups a process is in, and what each of them may take."""
TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
"""glibc's numbers for two settings of its allocator (malloc.h)."""
KEPT_BYTES = 1 << 30
LARGEST_KEPT = 1 << 25
"""A layer's activations in a chunk are up to 17 MB."""
THREAD_WORK = 1 << 23
"""Rows x parameters of a gradient that a thread is worth starting for.

Of a PPO update on two free cores two threads took this part of one's time, by rows of a minibatch
and (parameters), medians of 7: 0.97 at 512 (9,155) and at 64 (134,915); 0.77 at 1,024 and 0.82 at
128; 0.72 at 2,048 and 0.66 at 256; 0.69 and 0.58 at 16,384. On cores that other work shares they
took two to seven times as long as one.
"""


def fingerprint() -> dict[str, Any]:
    """Return what a run's numbers depend on beside its recipe: versions, CPU, threads."""
    packages = ("torch", "numpy", "gymnasium", "envpool")
    return {
        "isobatch": __version__,
        "python": platform.python_version(),
        **{name: version(name) for name in packages},
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "threads": gradient_threads(),
    }


_sharing: ContextVar[int] = ContextVar("sharing", default=1)


def gradient_threads() -> int:
    """Return how many threads share a gradient's rows (`update.replicas`) at the moment."""
    return _sharing.get()


@contextmanager
def torch_threads(count: int, images: bool, work: int = 0) -> Iterator[None]:
    """Choose the threads that share a gradient's rows, for as long as this lasts.

    `count`, or for 0: all cores for images; otherwise one, or as many as a gradient's `work`, its
    rows x parameters, is worth, at most as many as PyTorch takes by itself. That is one in a
    process that was given one core (`parent.ONE_THREAD`).

    Single operations have as many threads for images, and one for vectors: threads that meet in
    every small operation wait for each other, and for whoever else has a core. NumPy's matrix
    products have one thread.
    """
    before = torch.get_num_threads()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else before
    chosen = count or (cores if images else max(1, min(before, cores, work // THREAD_WORK)))
    torch.set_num_threads(chosen if images else 1)
    sharing = _sharing.set(chosen)
    try:
        with _one_blas_thread():
            yield
    finally:
        _sharing.reset(sharing)
        torch.set_num_threads(before)


def _one_blas_thread() -> AbstractContextManager[Any]:
    """Keep NumPy's matrix products, which choose actions, to one thread.

    Two threads were quicker nowhere from 8 to 4,096 rows of 64 to 512 units, and where another
    process had a core 3 to 130 times as slow as one.
    """
    return _numpy_blas().limit(limits=1)


@cache
def _numpy_blas() -> ThreadpoolController:
    """Return NumPy's own BLAS; PyTorch may compute with another, whose threads are its own."""
    from threadpoolctl import ThreadpoolController

    every = ThreadpoolController()  # Looks through all loaded libraries: once is enough.
    paths = [each["filepath"] for each in every.info()]
    return every.select(filepath=[path for path in paths if "numpy.libs" in Path(path).parts])


def keep_freed_memory() -> None:
    """Let the process reuse freed memory rather than return it, where the C library is glibc.

    Every layer of a convolutional network takes and frees megabytes; fetching their pages from
    the system each time costs an eighth of the update.
    """
    mallopt = getattr(_libc(), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(TRIM_THRESHOLD, KEPT_BYTES)
        mallopt(MMAP_THRESHOLD, LARGEST_KEPT)


def give_back_memory() -> None:
    """Return what was freed to the system, where the C library is glibc, which keeps it."""
    trim = getattr(_libc(), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)


def available_memory() -> int | None:
    """Return the bytes that can be taken without swapping, None where the system does not tell.

    At most what a container may take in all.
    """
    bounds = cgroup_limits(CGROUP, CGROUPS)
    with suppress(OSError):
        for line in MEMORY.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                bounds.append(int(line.split()[1]) * 1024)
    return min(bounds, default=None)


def cgroup_limits(own: Path, groups: Path) -> list[int]:
    """Return the bounds on memory of a process's control groups and of all that they are in.

    `own` lists its groups, as /proc/self/cgroup does; `groups` is where they are mounted. Version 1
    has a tree for memory alone. A container may see its own group as the root of the tree, whatever
    its name: that is looked at too.
    """
    found: list[int] = []
    with suppress(OSError):
        for line in own.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if not controllers:
                root, name = groups, "memory.max"
            elif "memory" in controllers.split(","):
                root, name = groups / "memory", "memory.limit_in_bytes"
            else:
                continue
            group = root.joinpath(*(part for part in path.split("/") if part not in ("", "..")))
            for each in (group, *group.parents):
                with suppress(OSError, ValueError):  # No such file, or "max".
                    found.append(int((each / name).read_text()))
                if each == root:
                    break
    return found


def thread_ids() -> set[int]:
    """Return the ids of this process's threads, where the system tells."""
    return {int(task.name) for task in TASKS.iterdir()} if TASKS.exists() else set()


@contextmanager
def one_core(threads: set[int]) -> Iterator[None]:
    """Hold the calling thread and `threads` on the core it is on, for as long as the block lasts.

    For threads that only take turns: waking one on an idle core costs more than switching to it
    on this one, on virtual machines several times the physics of a small environment. The core is
    chosen anew each time, so a run moves on when the system has put it elsewhere.
    """
    # Some threads only start others and end; their ids may be another process's by now.
    alive = threads & thread_ids()
    if not alive:
        yield
        return
    before = os.sched_getaffinity(0)
    _hold({0, *alive}, {_libc().sched_getcpu()})
    try:
        yield
    finally:
        _hold({0, *alive}, before)


def _hold(threads: set[int], cores: set[int]) -> None:
    for thread in threads:
        with suppress(ProcessLookupError):
            os.sched_setaffinity(thread, cores)


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None)
