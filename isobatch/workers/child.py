"""A local worker's first steps: it is killed with the agent that started it, whenever that dies.

Imports next to nothing before it has seen to that: the rest takes seconds.
"""

from __future__ import annotations

import runpy
import signal
import sys

from isobatch.parent import end_with


def main() -> None:
    """Run a module as `python -m` does: isobatch.workers.child PARENT MODULE ARGUMENTS."""
    # Killed, not asked to stop: a worker that is stopped by a signal would never hear.
    end_with(int(sys.argv[1]), signal.SIGKILL)
    sys.argv[:] = sys.argv[2:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
