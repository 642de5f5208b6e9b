"""Files of rows, one JSON object a line, append-only; a checkpoint knows how far they went.

mark    {"rows": 12, "bytes": 4812, "sha256": "..."}   of everything up to there
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from pathlib import Path
from typing import Any, BinaryIO

from isobatch.errors import DamagedFile, one_line
from isobatch.files import Folder

Mark = dict[str, Any]


class Rows:
    """One file of rows in a run directory, written at its end."""

    def __init__(self, folder: Folder, name: str) -> None:
        self.path = folder.path / name
        self._folder, self._name = folder, name
        self._file: BinaryIO | None = None
        self._digest, self._bytes, self._rows = hashlib.sha256(), 0, 0

    def append(self, row: dict[str, Any], sync: bool = False) -> None:
        """Add one row; numbers that are not finite become null. With `sync` it is on disk."""
        if self._file is None:
            self._file = self._folder.append_to(self._name)
        clean = {key: _finite(value) for key, value in row.items()}
        line = json.dumps(clean, allow_nan=False).encode() + b"\n"
        self._file.write(line)
        self._file.flush()
        self._take_in(line, 1)
        if sync:
            self.sync()

    def sync(self) -> None:
        """Have what was written on disk."""
        if self._file is not None:
            os.fsync(self._file.fileno())

    def mark(self) -> Mark:
        """Return how far the rows have come, and a hash of all of them."""
        return {"rows": self._rows, "bytes": self._bytes, "sha256": self._digest.hexdigest()}

    def content(self) -> bytes:
        """Return the file's bytes, none where there is no file."""
        return self._folder.read(self._name) if self._folder.has(self._name) else b""

    def refuse_other(self, mark: Mark) -> None:
        """Raise `DamagedFile` unless the file begins with what it held at `mark`."""
        content = self.content()
        size = mark["bytes"]
        if len(content) < size:
            whole = content.count(b"\n")
            raise DamagedFile(f"{self.path} has {whole} rows of the {mark['rows']} that were saved")
        if hashlib.sha256(content[:size]).hexdigest() != mark["sha256"]:
            raise DamagedFile(f"{self.path} was changed: its first {mark['rows']} rows differ")

    def cut(self, mark: Mark) -> None:
        """Go on from `mark`: drop what was written after it."""
        self.close()
        content = self.content()
        kept = content[: mark["bytes"]]
        if len(kept) < len(content):
            self._folder.write(self._name, kept)
        self._digest, self._bytes, self._rows = hashlib.sha256(), 0, 0
        self._take_in(kept, mark["rows"])

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _take_in(self, content: bytes, rows: int) -> None:
        self._digest.update(content)
        self._bytes += len(content)
        self._rows += rows


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
        _row(lines[number], f"{path}, line {number + 1}")
        for number in range((len(lines) - 1) % stride, len(lines), stride)
    ]


def mark_of(content: bytes, rows: int) -> Mark:
    """Return the mark after the first `rows` rows of a file's content."""
    kept = b"".join(line + b"\n" for line in content.split(b"\n")[:-1][:rows])
    return {"rows": rows, "bytes": len(kept), "sha256": hashlib.sha256(kept).hexdigest()}


def _row(line: bytes, place: str) -> dict[str, Any]:
    try:
        row = json.loads(line, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise DamagedFile(f"{place} is not JSON: {one_line(error)}") from None
    if not isinstance(row, dict):
        raise DamagedFile(f"{place} is no row: it holds no named values")
    return row


def _refuse(constant: str) -> None:
    """Refuse NaN and infinities, which no row is written with."""
    raise ValueError(f"{constant} is no number")


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
