"""Runs that tests of several processes look at, and the processes that train them."""

import os
import time
from contextlib import suppress
from pathlib import Path

from busy import soon

from isobatch.run.store import CLOCK_COLUMNS, read_metrics

TESTS = Path(__file__).parents[1]
PATHS = os.pathsep.join([str(TESTS), str(TESTS.parent)])
"""For PYTHONPATH."""


def rows_of(run):
    return read_metrics(run) if (run / "metrics.jsonl").exists() else []


def descendants(pid):
    found = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            for child in map(int, path.read_text().split()):
                found += [child, *descendants(child)]
    return found


def workers_of(pid):
    found = {}
    for each in descendants(pid):
        with suppress(OSError):
            words = Path(f"/proc/{each}/environ").read_bytes().split(b"\0")
            found |= {int(word[5:]): each for word in words if word.startswith(b"RANK=")}
    return found


def alive(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


def wait_until(reached, seconds=60.0):
    deadline = time.monotonic() + soon(seconds)
    while not reached():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.005)


def numbers(rows):
    """Return what rows hold but for the clock's."""
    return [{k: v for k, v in row.items() if k not in CLOCK_COLUMNS} for row in rows]
