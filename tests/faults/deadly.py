"""A process that dies at its n-th change of the disk, a write half done."""

import gc
import io
import os
import pathlib
import sys
import tempfile

from isobatch import files
from isobatch.run import store

STRIDE = int(os.environ.get("ISOBATCH_KILL_STRIDE", "29"))
"""Every so many operations; 1 in `make test-faults`."""
KILLED, OVER = 9, 0
USERS = ((files, "os"), (store, "os"), (pathlib, "os"), (tempfile, "_os"))
"""Where changes of the disk are made, and what the os module is called there."""


class Deadly:
    """The os module for others, in which the `fatal`-th change of the disk is the last."""

    CHANGES = ("open", "replace", "rename", "unlink", "mkdir", "ftruncate", "fsync")

    def __init__(self, fatal):
        self.fatal, self.count = fatal, 0

    def __getattr__(self, name):
        found = getattr(os, name)
        if name not in self.CHANGES:
            return found

        def counted(*arguments, **named):
            self.tick()
            return found(*arguments, **named)

        return counted

    def tick(self):
        self.count += 1
        if self.count == self.fatal:
            os._exit(KILLED)

    def fdopen(self, descriptor, mode="rb", buffering=-1):
        if "r" in mode:
            return os.fdopen(descriptor, mode, buffering)
        return HalfWritten(descriptor, mode.replace("b", ""), self)


class HalfWritten(io.BufferedWriter):
    """A file whose last write stops half-way."""

    def __init__(self, descriptor, mode, deadly):
        super().__init__(io.FileIO(descriptor, mode))
        self._deadly = deadly

    def write(self, content):
        if self._deadly.count + 1 == self._deadly.fatal:
            super().write(content[: len(content) // 2])
            self.flush()
        self._deadly.tick()
        return super().write(content)


def in_child(act, fatal):
    """Run `act` in a process that dies at a file operation; return how it ended, and the count."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        gc.freeze()  # Vectors that are garbage have threads in the parent only.
        deadly, code = Deadly(fatal), 1
        for module, name in USERS:
            setattr(module, name, deadly)
        try:
            act()
            code = OVER
            os.write(writing, str(deadly.count).encode())
        except BaseException as error:
            print(repr(error), file=sys.stderr)
        finally:
            os._exit(code)
    os.close(writing)
    _, status = os.waitpid(child, 0)
    with os.fdopen(reading) as file:
        count = file.read()
    return os.waitstatus_to_exitcode(status), int(count or 0)
