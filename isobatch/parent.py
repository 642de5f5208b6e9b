"""A process that ends with the one that started it, whenever that dies.

Imports nothing but the standard library: it is the first thing such a process does.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time

ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
"""Environment variables of processes that have a core each."""
STOP_SECONDS = 60.0
"""How long a worker asked to stop may take to finish its iteration and write its checkpoint."""
PR_SET_PDEATHSIG = 1
"""Of Linux's prctl: the signal to get when the thread that started this process ends."""


def end_with(parent: int, by: signal.Signals = signal.SIGTERM) -> None:
    """Stop, as if asked to, when the process `parent` dies; at once where it is dead already.

    `by` is the signal that comes then. SIGKILL ends even a process that another signal stopped.

    Linux tells at once and at any moment, even within an import; elsewhere a thread looks.
    """
    told = sys.platform == "linux" and not ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, by)
    if os.getppid() != parent:
        sys.exit(0)  # It died before the kernel knew whom to tell.

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        if not told:
            os.kill(os.getpid(), by)
        time.sleep(STOP_SECONDS)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()
