"""Show what a command leaves on a terminal of 80 columns, as text.

python -m benchmarks.captures isobatch advise runs/cartpole
"""

import argparse
import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import unicodedata
from pathlib import Path

ROWS, COLUMNS = 60, 80
SEQUENCE = re.compile(r"\x1b\[([?\d;]*)([A-Za-z])|\x1b\][^\x07]*\x07|(.)", re.DOTALL)


def main() -> None:
    """Run the command in a terminal and print the lines that stand there at its end."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    words = parser.parse_args().command
    if words[:1] == ["isobatch"]:  # The one of this repository, installed or not.
        words = [sys.executable, "-m", *words]
    written, code = in_a_terminal(words)
    print("\n".join(screen(written)))
    raise SystemExit(code)


def in_a_terminal(words: list[str], folder: Path | None = None) -> tuple[str, int]:
    """Return all that a command writes to a terminal of 80 columns, and its exit code."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    environment |= {"TERM": "xterm-256color"}
    with subprocess.Popen(
        words, stdout=theirs, stderr=theirs, cwd=folder, env=environment
    ) as process:
        os.close(theirs)
        written = everything(ours)
    os.close(ours)
    return written, process.returncode


def everything(terminal: int) -> str:
    """Return all that is written to a terminal, up to when its other end is closed."""
    return b"".join(iter(lambda: _read(terminal), b"")).decode(errors="replace")


def screen(written: str) -> list[str]:
    """Return the lines that stand on a terminal after this was written to it.

    Of the control sequences it knows those that progress bars and live views are made of: the
    cursor up, to the beginning of the line, and lines erased. Lines are as long as they come.
    """
    lines, row, column = [[]], 0, 0
    for arguments, kind, character in SEQUENCE.findall(written):
        if kind == "A":
            row = max(row - int(arguments or 1), 0)
        elif kind == "K":
            lines[row] = [] if arguments == "2" else lines[row][:column]
        elif character == "\n":
            row += 1
            if row == len(lines):
                lines.append([])
        elif character == "\r":
            column = 0
        elif character and unicodedata.category(character) != "Cc":
            lines[row] += [" "] * (column - len(lines[row]))
            lines[row][column : column + 1] = [character]
            column += 1
    return "\n".join("".join(line).rstrip() for line in lines).rstrip().split("\n")


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # Its other end was closed.
        return b""


if __name__ == "__main__":
    main()
