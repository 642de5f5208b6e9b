"""A local worker's first steps: it ends with the process that started it, whenever that dies.

Imports nothing but the standard library before it has seen to that: the rest takes seconds.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time

STOP_SECONDS = 60.0
"""How long a worker asked to stop may take to finish its iteration and write its checkpoint."""
PR_SET_PDEATHSIG = 1
"""Of Linux's prctl: the signal to get when the thread that started this process ends."""


def end_with(parent: int) -> None:
    """Stop, as if asked to, when the process `parent` dies; at once where it is dead already.

    Linux tells at once and at any moment, even within an import; elsewhere a thread looks.
    """
    told = sys.platform == "linux" and not ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        sys.exit(0)  # It died before the kernel knew whom to tell.

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        if not told:
            os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(STOP_SECONDS)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()


def main() -> int:
    """Be a local worker process: isobatch.study.child PARENT ROOT."""
    end_with(int(sys.argv[1]))

    from isobatch.study import worker

    return worker.main(sys.argv[2])


if __name__ == "__main__":
    sys.exit(main())
