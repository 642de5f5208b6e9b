"""The workers of one run, and the shards of its environments that they own.

A run's environments are dealt to a fixed number of shards, and shards to workers. A shard acts and
differentiates by itself; what shards computed is gathered and added up in an order that belongs to
the shards. So the number of workers changes who computes, never what is computed: 1, 2 or 8 workers
give the same bits at the same shards. (A float all_reduce would not: its order is the world's.)

Everything but observations is gathered: each worker holds every number of the whole rollout, and
decides on that. No worker can part from the others, and none has anything that a checkpoint needs.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from isobatch.errors import UserError


class Group(Protocol):
    """Processes that can tell each other bytes."""

    rank: int
    size: int

    def gather_bytes(self, own: Tensor) -> list[Tensor]:
        """Return what each rank gave, uint8 of one length."""
        ...

    def gather_objects(self, own: bytes) -> list[bytes]:
        """Return what each rank gave, of any length."""
        ...

    def broadcast(self, own: bytes | None) -> bytes:
        """Return what rank 0 gave."""
        ...


class World:
    """Who owns which shards, and how workers tell each other what they computed."""

    def __init__(self, shards: int = 1, group: Group | None = None) -> None:
        self.shards, self._group = shards, group
        self.rank, self.size = (0, 1) if group is None else (group.rank, group.size)
        self.owned = share(shards, self.rank, self.size)
        """The shards of this worker: consecutive ones, none where there are more workers."""

    @property
    def is_sharded(self) -> bool:
        """True where a run is computed shard by shard, however many workers there are."""
        return self.shards > 1

    @property
    def is_first(self) -> bool:
        """True of the worker that writes the run's files."""
        return self.rank == 0

    def told(self, own: Any) -> list[Any]:
        """Return what each worker says, plain data, by rank."""
        if self._group is None:
            return [own]
        return [json.loads(each) for each in self._group.gather_objects(json.dumps(own).encode())]

    def from_first(self, content: bytes | None) -> bytes:
        """Return what the first worker gave; the others give None."""
        if self._group is None:
            assert content is not None
            return content
        return self._group.broadcast(content)

    def agreed(self, attempt: Callable[[], Any]) -> Any:
        """Return what `attempt` does; where it is a user's error in one worker, raise it in all.

        A worker that ended alone would leave the others waiting for it.
        """
        found, error = None, None
        try:
            found = attempt()
        except UserError as raised:
            error = raised
        texts = self.told(None if error is None else str(error))
        if error is not None:
            raise error
        for text in texts:
            if text is not None:
                raise UserError(text)
        return found

    def gather(self, own: Sequence[Tensor]) -> list[Tensor]:
        """Return a tensor of every shard, given those of the shards owned; all of one shape."""
        return [each["rows"] for each in self.gather_named([{"rows": rows} for rows in own])]

    def gather_named(self, own: Sequence[Mapping[str, Tensor]]) -> list[dict[str, Tensor]]:
        """Return the tensors of every shard by name, given those of the shards owned.

        Names, types and shapes are the same in all shards. One exchange, whatever their number.
        """
        if self._group is None:
            return [dict(each) for each in own]
        # A worker without a shard does not know them; the first one always has a shard.
        columns = self.told([_column(*each) for each in own[0].items()] if own else None)[0]
        length = sum(_bytes(*each) for _, *each in columns)
        most = max(len(share(self.shards, rank, self.size)) for rank in range(self.size))
        found = self._gathered([_packed(each) for each in own], most, length)
        return [
            _unpacked(each, columns)
            for rank, rows in enumerate(found)
            for each in rows[: len(share(self.shards, rank, self.size))]
        ]

    def gather_unlike(self, own: Sequence[Mapping[str, Tensor]]) -> list[dict[str, Tensor]]:
        """As `gather_named`, where each shard has names, types and shapes of its own."""
        if self._group is None:
            return [dict(each) for each in own]
        columns = self.told([[_column(*each) for each in shard.items()] for shard in own])
        content = b"".join(_packed(shard).numpy().tobytes() for shard in own)
        found = []
        for shards, packed in zip(columns, self._group.gather_objects(content), strict=True):
            rest = packed
            for shard in shards:
                length = sum(_bytes(*each) for _, *each in shard)
                found.append(_unpacked(_rows(rest[:length]), shard))
                rest = rest[length:]
        return found

    def folded(self, own: Sequence[Tensor], like: Tensor) -> Tensor:
        """Return the sum over all shards of vectors like `like`, given those of the shards owned.

        Added along one binary tree over the shards, whoever owns them: a worker adds up the
        subtrees that are wholly its own, and tells the others those sums.
        """
        leaves = {(k, k + 1): each for k, each in zip(self.owned, own, strict=True)}
        if self._group is None:
            return _fold((0, self.shards), leaves)
        nodes = [self._nodes(rank) for rank in range(self.size)]
        sums = [_packed({"": _fold(node, leaves)}) for node in nodes[self.rank]]
        length = like.numel() * like.element_size()
        found = self._gathered(sums, max(map(len, nodes)), length)
        columns = [_column("", like)]
        known = {
            node: _unpacked(row, columns)[""]
            for own_nodes, rows in zip(nodes, found, strict=True)
            for node, row in zip(own_nodes, rows, strict=False)
        }
        return _fold((0, self.shards), known)

    def _nodes(self, rank: int) -> list[Span]:
        """Return the largest subtrees that are wholly a worker's."""
        owned = share(self.shards, rank, self.size)
        return cover((0, self.shards), (owned.start, owned.stop))

    def _gathered(self, own: Sequence[Tensor], most: int, length: int) -> list[list[Tensor]]:
        """Return every worker's rows of bytes [length], `most` of each, padded with zeros."""
        assert self._group is not None
        mine = torch.zeros(most, length, dtype=torch.uint8)
        for row, each in zip(mine, own, strict=False):
            row.copy_(each)
        return [list(each.view(most, length)) for each in self._group.gather_bytes(mine.flatten())]


Span = tuple[int, int]
"""Shards from the first to below the second: a node of the tree."""
Column = tuple[str, str, list[int]]
"""Name, type and shape of a tensor."""


def share(shards: int, rank: int, size: int) -> range:
    """Return the shards of a worker, dealt as evenly as can be; the first always has one."""
    return range(-(-rank * shards // size), -(-(rank + 1) * shards // size))


def _halves(node: Span) -> tuple[Span, Span]:
    """Cut a node of the tree in two, the first of a power of two shards."""
    first, last = node
    half = 1 << ((last - first - 1).bit_length() - 1)
    return (first, first + half), (first + half, last)


def cover(node: Span, owned: Span) -> list[Span]:
    """Return the largest nodes below `node` that are wholly among the shards owned."""
    if node[1] <= owned[0] or owned[1] <= node[0]:
        return []
    if owned[0] <= node[0] and node[1] <= owned[1]:
        return [node]
    return [each for half in _halves(node) for each in cover(half, owned)]


def _fold(node: Span, known: Mapping[Span, Tensor]) -> Tensor:
    """Return the sum of a node, from those below it that are known."""
    if node in known:
        return known[node]
    one, other = (_fold(half, known) for half in _halves(node))
    return one + other


def _column(name: str, tensor: Tensor) -> Column:
    return name, str(tensor.dtype).removeprefix("torch."), list(tensor.shape)


def _bytes(dtype: str, shape: Sequence[int]) -> int:
    return math.prod(shape) * getattr(torch, dtype).itemsize


def _packed(tensors: Mapping[str, Tensor]) -> Tensor:
    """Return tensors as bytes, end to end."""
    rows = [each.detach().cpu().contiguous().flatten() for each in tensors.values()]
    return torch.cat([each.view(torch.uint8) for each in rows]) if rows else _rows(b"")


def _rows(content: bytes) -> Tensor:
    """Return bytes as a tensor."""
    found = torch.empty(len(content), dtype=torch.uint8)
    found.numpy()[:] = np.frombuffer(content, np.uint8)
    return found


def _unpacked(content: Tensor, columns: Sequence[Column]) -> dict[str, Tensor]:
    """Return what `_packed` was given, in memory of its own."""
    found, start = {}, 0
    for name, dtype, shape in columns:
        end = start + _bytes(dtype, shape)
        # A copy begins at an aligned address, on which the last bits of a product may depend.
        found[name] = content[start:end].clone().view(getattr(torch, dtype)).view(shape)
        start = end
    return found


ALONE = World()
"""One process and one shard: nothing is gathered."""
