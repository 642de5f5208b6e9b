"""Patience on a machine that has other work."""

import os


def soon(seconds: float) -> float:
    """Return how long may take what takes at most so many seconds on a machine of its own.

    That many times for each process that waits for a core, and no longer where none does.
    """
    return seconds * (1 + max(0.0, os.getloadavg()[0] - len(os.sched_getaffinity(0))))
