"""A local worker's first steps: it ends with the process that started it, whenever that dies.

Imports next to nothing before it has seen to that: the rest takes seconds.
"""

from __future__ import annotations

import sys

from isobatch.parent import end_with


def main() -> int:
    """Be a local worker process: isobatch.study.child PARENT ROOT WORKERS."""
    end_with(int(sys.argv[1]))

    from isobatch.study import worker

    return worker.main(sys.argv[2], int(sys.argv[3]))


if __name__ == "__main__":
    sys.exit(main())
