"""Files of rows: one JSON object a line, append-only."""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path
from typing import Any

from isobatch.errors import DamagedFile, one_line
from isobatch.files import Folder, Growing, Mark

METRICS, EVALUATIONS = "metrics.jsonl", "evaluations.jsonl"


class Rows(Growing):
    """One file of rows in a run directory."""

    def add(self, row: dict[str, Any]) -> None:
        """Add one row; numbers that are not finite become null."""
        self.append(line_of(row) + b"\n")

    def content(self) -> bytes:
        """Return the file's bytes, none where there is no file."""
        return self._folder.read(self.name) if self._folder.has(self.name) else b""


def read_rows(folder: Folder, name: str, most: int | None = None) -> list[dict[str, Any]]:
    """Return the rows of a file; a half-written last line is left out.

    With `most`, about that many rows evenly spread, the last among them: enough to draw a curve.
    """
    return parsed(folder.read(name), folder.path / name, most)


def parsed(content: bytes, path: Path, most: int | None = None) -> list[dict[str, Any]]:
    """Return the rows of a file's content, at most about `most` of them."""
    lines = content.split(b"\n")[:-1]
    stride = 1 if most is None else max(1, len(lines) // most)
    return [
        row_of(lines[number], f"{path}, line {number + 1}")
        for number in range((len(lines) - 1) % stride, len(lines), stride)
    ]


def mark_of(content: bytes, rows: int) -> Mark:
    """Return the mark after the first `rows` rows of a file's content."""
    kept = b"".join(line + b"\n" for line in content.split(b"\n")[:-1][:rows])
    return {"bytes": len(kept), "sha256": hashlib.sha256(kept).hexdigest()}


def line_of(row: dict[str, Any]) -> bytes:
    """Return the line that a row is written as; numbers that are not finite become null."""
    clean = {key: _finite(value) for key, value in row.items()}
    return json.dumps(clean, allow_nan=False).encode()


def row_of(line: bytes, place: str) -> dict[str, Any]:
    """Return the row that a line holds; `place` names it in an error."""
    try:
        row = DECODER.decode(line.decode())
    except (ValueError, RecursionError) as error:
        raise DamagedFile(f"{place} is not JSON: {one_line(error)}") from None
    if not isinstance(row, dict):
        raise DamagedFile(f"{place} is not a row: it is not a JSON object")
    return row


def _refuse(constant: str) -> None:
    """Refuse NaN and infinities, which no row is written with."""
    raise ValueError(f"{constant} is no number")


DECODER = json.JSONDecoder(parse_constant=_refuse)


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
