"""The actions since the environments were made: taken again, they bring new ones to the same place.

A block for each rollout or step: its length, then, compressed, the numbers T, N, K and the kind of
the actions, which environments were restarted before, and the actions [T, N, K].
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import numpy as np
import torch
import zstandard
from torch import Tensor

from isobatch.errors import DamagedFile
from isobatch.files import Growing, Mark

HEAD = struct.Struct("<III2s?")
LENGTH = struct.Struct("<I")
MOST_BLOCK = 1 << 30


class Journal(Growing):
    """The file of one generation of environments."""

    def add(self, actions: Tensor, restarted: Tensor | None) -> None:
        """Write down steps with actions [T, N, K]; the only one where some were restarted [N]."""
        rows = np.ascontiguousarray(actions.cpu().numpy())
        head = HEAD.pack(*rows.shape, rows.dtype.str[1:].encode(), restarted is not None)
        flags = b"" if restarted is None else restarted.cpu().numpy().tobytes()
        block = zstandard.ZstdCompressor(level=1).compress(head + flags + rows.tobytes())
        self.append(LENGTH.pack(len(block)) + block)

    def blocks(self, mark: Mark) -> Iterator[tuple[Tensor, Tensor | None]]:
        """Give back what was written down up to `mark`, in order."""
        place = 0
        while place < mark["bytes"]:
            (length,) = LENGTH.unpack(self.read(place, LENGTH.size))
            place += LENGTH.size
            yield _unpacked(self.read(place, length))
            place += length


def _unpacked(block: bytes) -> tuple[Tensor, Tensor | None]:
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
