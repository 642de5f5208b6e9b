"""A phase's segments over all shards: who has which, and minibatches of them.

The list of segments is everyone's; the segments are their owners'. A run that is not sharded is
the case of one shard.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from isobatch.algos.phase import PhaseBatch, PhaseBuffer, random_groups
from isobatch.experience import Rollout
from isobatch.files import Mark
from isobatch.state import under
from isobatch.world import World


class Minibatch(NamedTuple):
    """Some segments of a phase."""

    rows: int
    """In all shards."""
    parts: list[PhaseBatch]
    """Of the shards owned; one may have no rows."""


class Listed(NamedTuple):
    """A segment, whoever has it."""

    shard: int
    number: int
    """Among its shard's."""
    length: int


class Phase:
    """The rollouts of a phase: one environment's valid rows of one rollout are a segment."""

    def __init__(self, world: World, memory: int, folder: Path, keep_files: bool = False) -> None:
        """See `PhaseBuffer`; each shard has an equal part of the memory, and its own file."""
        self._world = world
        self.own = {
            place: PhaseBuffer(memory // world.shards, folder / _name(world, place), keep_files)
            for place in world.owned
        }
        """The buffers of the shards owned."""
        self._segments: list[Listed] = []

    @property
    def rows(self) -> int:
        """Valid rows in all."""
        return sum(each.length for each in self._segments)

    def bytes(self) -> tuple[int, int]:
        """Return the compressed observations of all shards in memory, and on disk."""
        own = [(each.memory_bytes, each.disk_bytes) for each in self.own.values()]
        told = self._world.told([sum(each) for each in zip(*own, strict=True)] or [0, 0])
        in_memory, on_disk = (sum(each) for each in zip(*told, strict=True))
        return in_memory, on_disk

    def add(self, rollout: Rollout, numbers: dict[str, Tensor]) -> None:
        """Add a rollout, and of `numbers` [T, N, ...] the valid rows."""
        n_envs = rollout.n_envs // self._world.shards
        counts = [0] * self._world.shards
        for each in self._segments:
            counts[each.shard] += 1
        for env, length in enumerate(rollout.valid.sum(0).tolist()):
            if length:
                shard = env // n_envs
                self._segments.append(Listed(shard, counts[shard], length))
                counts[shard] += 1
        for place, buffer in self.own.items():
            own, columns = rollout, slice(None)
            if rollout.shards is not None:
                own, columns = rollout.of_shard(place), rollout.shards.columns(place)
            rows = {name: each[:, columns] for name, each in numbers.items()}
            buffer.add(own.observations, own.valid, rows)

    def groups(self, size: int, generator: torch.Generator) -> list[list[int]]:
        """Return all segments in random order, in groups of `size`; the last may be smaller.

        A group has about as many of each shard's.
        """
        return random_groups([each.shard for each in self._segments], size, generator)

    def batches(self, groups: Sequence[list[int]]) -> Iterator[Minibatch]:
        """Give each group's minibatch; threads decompress the next one meanwhile."""
        listed = [[self._segments[place] for place in group] for group in groups]
        with ExitStack() as held:
            readers = [
                held.enter_context(closing(buffer.batches(_numbers(listed, place))))
                for place, buffer in self.own.items()
            ]
            for group in listed:
                rows = sum(each.length for each in group)
                yield Minibatch(rows, [next(reader) for reader in readers])

    def clear(self) -> None:
        """Forget the phase and delete its files."""
        self._segments = []
        for buffer in self.own.values():
            buffer.clear()

    def close(self) -> None:
        """Forget the phase and delete its files, at the end of a run."""
        self.clear()

    def held(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return what other processes need to go on with the phase: of all shards, if any."""
        own = [buffer.held() for buffer in self.own.values()]
        if not self._world.is_sharded:
            return own[0]
        gathered = self._world.gather_unlike([tensors for tensors, _ in own])
        tensors = {
            f"{place}.{name}": each
            for place, shard in enumerate(gathered)
            for name, each in shard.items()
        }
        tensors["listed"] = torch.tensor(self._segments, dtype=torch.long)  # [segments, 3]
        told = self._world.told([data for _, data in own])
        return tensors, {"shards": [data for worker in told for data in worker]}

    def hold(self, tensors: dict[str, Tensor], data: dict[str, Any]) -> None:
        """Go on with a phase."""
        if self._world.is_sharded:
            self._segments = [Listed(*each) for each in tensors["listed"].tolist()]
            for place, buffer in self.own.items():
                buffer.hold(under(tensors, str(place)), data["shards"][place])
            return
        (buffer,) = self.own.values()
        buffer.hold(tensors, data)
        self._segments = [Listed(0, k, length) for k, length in enumerate(buffer.lengths)]


def files_of(held: dict[str, Any]) -> Iterator[tuple[str, Mark]]:
    """Give the files of a phase whose plain data `held` returned, and how far they are needed."""
    for each in held.get("shards", [held]):
        if each["mark"] is not None:
            yield each["file"], each["mark"]


def _name(world: World, place: int) -> str:
    return f"phase-shard-{place}.bin" if world.is_sharded else "phase.bin"


def _numbers(listed: Sequence[Sequence[Listed]], place: int) -> list[list[int]]:
    """Return each group's segments of one shard, by their numbers there."""
    return [[each.number for each in group if each.shard == place] for group in listed]
