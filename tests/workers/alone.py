"""Programs for workers that never meet, and so need not import torch: they start at once.

`python -m alone TASK FOLDER`. Each worker leaves its pid in the folder.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path


def deaf(rank: int) -> int:
    """Listen to no signal."""
    time.sleep(100)
    return 0


def mistake(rank: int) -> int:
    """Find the user's mistake, which worker 0 is too slow to say itself."""
    if rank == 0:
        time.sleep(100)
    print("isobatch: there is no such environment", file=sys.stderr)
    return 2


def crash(rank: int) -> int:
    """Fail in worker 1 for a reason that nobody foresaw."""
    if rank == 1:
        raise LookupError("nothing there")
    time.sleep(100)
    return 0


def main() -> int:
    task = {each.__name__: each for each in (deaf, mistake, crash)}[sys.argv[1]]
    if task is deaf:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    found = {"pid": os.getpid()}
    if task is crash:
        found["child"] = subprocess.Popen(["sleep", "100"]).pid  # As an environment may have one.
    rank, restarts = int(os.environ["RANK"]), os.environ["TORCHELASTIC_RESTART_COUNT"]
    path = Path(sys.argv[2], f"{restarts}-{rank}.json")
    path.with_suffix(".part").write_text(json.dumps(found))
    path.with_suffix(".part").rename(path)
    return task(rank)


if __name__ == "__main__":
    sys.exit(main())
