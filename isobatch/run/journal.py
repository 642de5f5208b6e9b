"""The actions since the environments were made: taken again, they bring new ones to the same place.

A block for each rollout or step: its length, then, compressed, the numbers T, N, K and the kind of
the actions, which environments were restarted before, and the actions [T, N, K]. Where environments
are made anew a new file begins, so that those that only older ones needed can go.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
import zstandard
from torch import Tensor

from isobatch.errors import DamagedFile
from isobatch.files import Folder, Growing

HEAD = struct.Struct("<III2s?")
LENGTH = struct.Struct("<I")
MOST_BLOCK = 1 << 30

Block = tuple[Tensor, Tensor | None]
"""Actions [T, N, K], and which environments [N] were restarted before the only step of them."""


def file_name(number: int, shard: int | None = None) -> str:
    """Return the name of a journal, by how many environments had been made when it began."""
    return f"actions-{number:09d}.bin" if shard is None else f"actions-s{shard}-{number:09d}.bin"


class Journal(Growing):
    """One file of actions."""

    def __init__(self, folder: Folder, number: int, begins: int, shard: int | None) -> None:
        """The first of its actions is that after `begins` steps of the environments."""
        super().__init__(folder, file_name(number, shard))
        self.number, self.begins = number, begins

    def add(self, actions: Tensor, restarted: Tensor | None) -> None:
        """Write down steps with actions [T, N, K]; the only one where some were restarted [N]."""
        rows = np.ascontiguousarray(actions.cpu().numpy())
        head = HEAD.pack(*rows.shape, rows.dtype.str[1:].encode(), restarted is not None)
        flags = b"" if restarted is None else restarted.cpu().numpy().tobytes()
        block = zstandard.ZstdCompressor(level=1).compress(head + flags + rows.tobytes())
        self.append(LENGTH.pack(len(block)) + block)

    def blocks(self) -> Iterator[Block]:
        """Give back what was written down, in order."""
        place = 0
        while place < self.bytes:
            (length,) = LENGTH.unpack(self.read(place, LENGTH.size))
            place += LENGTH.size
            yield _unpacked(self.read(place, length))
            place += length


class Journals:
    """The files that the environments there are need."""

    def __init__(self, folder: Folder, shard: int | None = None) -> None:
        self._folder, self._shard = folder, shard
        self.files: list[Journal] = []
        """In order; the last one is written to."""

    def begin(self, number: int, step: int) -> None:
        """Go on in a new file, after `step` steps."""
        if self.files:
            self.files[-1].sync()
            self.files[-1].close()
        journal = Journal(self._folder, number, step, self._shard)
        journal.remove()  # What a run that was killed went on to do.
        self.files.append(journal)

    def forget(self, step: int) -> None:
        """Let go of the files with nothing after `step` steps."""
        while len(self.files) > 1 and self.files[1].begins <= step:
            self.files.pop(0)

    def saved(self) -> list[dict[str, Any]]:
        """Return what a checkpoint has of the files, all on disk."""
        self.files[-1].sync()
        return [
            {"number": file.number, "begins": file.begins, "mark": file.mark()}
            for file in self.files
        ]

    def load(self, saved: Iterable[Mapping[str, Any]]) -> None:
        """Go on with the files of a checkpoint, as they were then."""
        self.files = []
        for each in saved:
            journal = Journal(self._folder, each["number"], each["begins"], self._shard)
            journal.refuse_other(each["mark"])
            journal.cut(each["mark"])
            self.files.append(journal)

    def since(self, step: int) -> Iterator[Block]:
        """Give the actions after `step` steps."""
        at = self.files[0].begins
        for file in self.files:
            for actions, restarted in file.blocks():
                rest = actions[max(0, step - at) :]
                at += len(actions)
                if len(rest):
                    yield rest, restarted


def _unpacked(block: bytes) -> Block:
    try:
        content = zstandard.ZstdDecompressor().decompress(block, max_output_size=MOST_BLOCK)
    except zstandard.ZstdError as error:
        raise DamagedFile(f"a block of actions is damaged: {error}") from None
    *shape, kind, has_restarts = HEAD.unpack_from(content)
    start, restarted = HEAD.size, None
    if has_restarts:
        flags = np.frombuffer(content, np.bool_, shape[1], start)
        restarted, start = torch.from_numpy(flags.copy()), start + shape[1]
    actions = np.frombuffer(content, np.dtype(kind.decode()), offset=start).reshape(shape)
    return torch.from_numpy(actions.copy()), restarted
