"""Files that only grow; a checkpoint knows how far they went, and by a hash that nothing changed.

mark    {"bytes": 4812, "sha256": "..."}    of everything up to there
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any, BinaryIO

from isobatch.errors import DamagedFile
from isobatch.files import Folder

Mark = dict[str, Any]
PIECE = 1 << 20


class Growing:
    """A file of a run directory, written at its end."""

    def __init__(self, folder: Folder, name: str) -> None:
        self.path = folder.path / name
        self.name = name
        self.bytes = 0
        self._folder = folder
        self._file: BinaryIO | None = None
        self._digest = hashlib.sha256()

    def append(self, content: bytes) -> None:
        """Add to the end; a process that dies after this has written it."""
        if self._file is None:
            self._file = self._folder.append_to(self.name)
        self._file.write(content)
        self._file.flush()
        self._digest.update(content)
        self.bytes += len(content)

    def sync(self) -> None:
        """Have what was written on disk."""
        if self._file is not None:
            self._folder.sync_file(self._file)

    def mark(self) -> Mark:
        """Return how far the file has come, and a hash of all of it."""
        return {"bytes": self.bytes, "sha256": self._digest.hexdigest()}

    def pieces(self, size: int) -> Iterator[bytes]:
        """Give the first `size` bytes of the file, a piece at a time; none where there is none."""
        if not self._folder.has(self.name):
            return
        with self._folder.reading(self.name) as file:
            while size and (piece := file.read(min(PIECE, size))):
                size -= len(piece)
                yield piece

    def refuse_other(self, mark: Mark) -> None:
        """Raise `DamagedFile` unless the file begins with what it held at `mark`."""
        digest, size = hashlib.sha256(), 0
        for piece in self.pieces(mark["bytes"]):
            digest.update(piece)
            size += len(piece)
        if size < mark["bytes"]:
            raise DamagedFile(f"{self.path} has {size:,} of the {mark['bytes']:,} bytes saved")
        if digest.hexdigest() != mark["sha256"]:
            raise DamagedFile(f"{self.path} was changed: it is not what was saved")

    def cut(self, mark: Mark) -> None:
        """Go on from `mark`: drop what was written after it."""
        self.close()
        if self._folder.has(self.name):
            self._folder.truncate(self.name, mark["bytes"])
        self._digest, self.bytes = hashlib.sha256(), 0
        for piece in self.pieces(mark["bytes"]):
            self._digest.update(piece)
            self.bytes += len(piece)

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None
