"""Numbers and tables as people read them."""

from __future__ import annotations

import math
import sys
import textwrap
from collections.abc import Sequence

from isobatch.errors import printable
from isobatch.estimate import Estimate

WIDTH = 80
"""Columns of a terminal."""


def say(text: str = "", error: bool = False) -> None:
    """Print lines for a person; all that commands print goes through here.

    What comes from files may hold control characters, which a terminal would obey: they are spelled
    out.
    """
    print(plain(text), file=sys.stderr if error else sys.stdout, flush=True)


def plain(text: str) -> str:
    """Return lines with their control characters spelled out."""
    return "\n".join("\t".join(map(printable, line.split("\t"))) for line in text.split("\n"))


def wrapped(text: str) -> str:
    """Return lines of at most 80 columns, broken at words; what is one word stays whole.

    A line goes on with the indentation it began with, an item of a list with that of its text.
    """
    lines = []
    for line in text.split("\n"):
        body = line.lstrip(" ")
        item = 2 if body.startswith(("- ", "! ")) else 0
        indent = " " * (len(line) - len(body) + item)
        lines += textwrap.wrap(
            line,
            WIDTH,
            subsequent_indent=indent,
            break_long_words=False,
            break_on_hyphens=False,
        ) or [""]
    return "\n".join(lines)


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


def columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Lay rows of text out in columns, a line each."""
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
