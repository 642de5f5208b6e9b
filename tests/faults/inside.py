"""Commands run in a process forked from this one, with all in it: no seconds of imports."""

import gc
import os
import sys
import time
import traceback
from typing import NamedTuple

from isobatch.cli import main
from isobatch.cli import study as study_command
from isobatch.study import driver
from isobatch.study.worker import work


class Ended(NamedTuple):
    """How a command ended."""

    code: int
    said: list[str]
    """Its lines on stderr."""
    seconds: float


class Here:
    """An executor whose workers work in this process, and are done when they are started."""

    def start(self, root, workers=1):
        work(root, workers)
        return self

    def is_running(self):
        return False

    def problem(self):
        return None

    def stop(self):
        pass

    def close(self):
        pass


def command(*words, before=lambda: None):
    """Run a command in a process of its own, `before` first; a study's workers are in it too."""
    reading, writing = os.pipe()
    began, child = time.monotonic(), os.fork()
    if not child:
        gc.freeze()  # Vectors that are garbage have threads in the parent only.
        code = 70
        try:
            sys.stderr = os.fdopen(writing, "w")
            sys.stdout = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
            before()
            code = here(*words)
        except BaseException:
            os.write(writing, traceback.format_exc().encode())
        finally:
            os._exit(code)
    os.close(writing)
    with os.fdopen(reading, errors="replace") as file:
        said = file.read().splitlines()
    _, status = os.waitpid(child, 0)
    return Ended(os.waitstatus_to_exitcode(status), said, time.monotonic() - began)


def here(*words):
    """Run a command in this process, a study's workers too."""
    before = study_command._executor, driver.POLL_SECONDS
    study_command._executor, driver.POLL_SECONDS = lambda *_: Here(), 0
    try:
        return main([str(word) for word in words])
    finally:
        study_command._executor, driver.POLL_SECONDS = before
