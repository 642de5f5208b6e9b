"""Numbers and tables as people read them."""

from __future__ import annotations

import math
import shlex
import shutil
import sys
import textwrap
from collections.abc import Sequence

from isobatch.errors import printable
from isobatch.estimate import Estimate

WIDTH = 80
"""Columns that every answer fits."""
NARROWEST = 40
"""Lines are not wrapped to less, however narrow a terminal is."""


def say(text: str = "", error: bool = False) -> None:
    """Print lines for a person; all that commands print goes through here.

    On a terminal they are wrapped at words to its width. Elsewhere a message stays on one line, so
    that programs can read it. What comes from files may hold control characters, which a terminal
    would obey: they are spelled out.
    """
    stream = sys.stderr if error else sys.stdout
    shown = plain(text)
    if stream.isatty():
        width = max(NARROWEST, shutil.get_terminal_size().columns)
        shown = "\n".join(wrapped(shown, hanging="  ", width=width))
    print(shown, file=stream, flush=True)


def wrapped(text: str, indent: str = "", hanging: str = "", width: int = WIDTH) -> list[str]:
    """Return a text's lines, those that are too long broken between words.

    `indent` stands before every line. What follows a break has the indentation of its line, that of
    its text in an item of a list, and `hanging`.
    """
    lines: list[str] = []
    for line in text.split("\n") if text else []:
        body = line.lstrip()
        item = "  " if body.startswith(("- ", "! ")) else ""
        own = indent + line[: len(line) - len(body)]
        fits = len(indent + line) <= width
        lines += [indent + line] if fits else textwrap.wrap(
            body,
            width,
            initial_indent=own,
            subsequent_indent=own + item + hanging,
            break_long_words=False,  # A path is to be copied whole.
            break_on_hyphens=False,
        )  # fmt: skip
    return lines


def plain(text: str) -> str:
    """Return lines with their control characters spelled out."""
    return "\n".join("\t".join(map(printable, line.split("\t"))) for line in text.split("\n"))


def number(value: float) -> str:
    """Return a number in as many digits as it takes, five at most: 256, 0.000125, 0.88889."""
    if isinstance(value, int) or (value == int(value) and abs(value) < 1e6 and value != 0):
        return f"{int(value)}"
    return f"{value:.5g}" if math.isfinite(value) else str(value)


def significant(value: float) -> str:
    """Return a number with three significant digits: 0.0123, 4.56, 6,770."""
    return f"{float(f'{value:.3g}'):,.0f}" if 1000 <= abs(value) < 1e9 else f"{value:.3g}"


def interval(estimate: Estimate, digits: str | None = None) -> str:
    """Return 0.123 [0.1, 0.15], a dash for what is not known, no brackets without an interval.

    Without `digits`, three significant ones.
    """

    def shown(value: float) -> str:
        if math.isnan(value):
            return "-"
        if math.isinf(value):
            return "inf"
        return significant(value) if digits is None else f"{value:{digits}}"

    if math.isnan(estimate.low) and math.isnan(estimate.high):
        return shown(estimate.value)
    return f"{shown(estimate.value)} [{shown(estimate.low)}, {shown(estimate.high)}]"


def counted(count: int, what: str, plural: str | None = None) -> str:
    """Return 1 epoch, 4 epochs, 2 minibatches."""
    return f"{count:,} {what if count == 1 else plural or what + 's'}"


def size(count: float) -> str:
    """Return a number of bytes: 1.2 GB, 340 MB, 12 kB."""
    for unit, one in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= one:
            return f"{count / one:.3g} {unit}"
    return f"{count:.0f} B"


def duration(seconds: float) -> str:
    """Return a time: 40 s, 12 min, 3.5 h."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


def folded(words: Sequence[str]) -> str:
    """Return a shell command, broken before its flags into lines of at most `WIDTH`."""
    parts: list[str] = []
    for word in words:
        if parts and not word.startswith("--"):
            parts[-1] += f" {shlex.quote(word)}"
        else:
            parts.append(shlex.quote(word))
    lines = parts[:1]
    for part in parts[1:]:
        if len(f"{lines[-1]} {part} \\") <= WIDTH:
            lines[-1] += f" {part}"
        else:
            lines.append(f"    {part}")
    return " \\\n".join(lines)


def columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Lay rows of text out in columns, a line each."""
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
