"""The observations of many rollouts, compressed: what Phasic Policy Gradient trains on again.

A phase is too large to hold as it is (the paper's is 26 GB of frames), but the frames of one
environment in time order differ little: compressed together, Procgen's take an eighth or less.
"""

from __future__ import annotations

import mmap
import zlib
from collections import deque
from collections.abc import Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import zstandard
from torch import Tensor

from isobatch.envs import Observation
from isobatch.errors import DamagedFile, UserError, is_disk_full
from isobatch.files import Folder, Growing
from isobatch.update import balanced

LEVEL, WINDOW_LOG, HASH_LOG = 1, 22, 17
"""zstd's fastest level, but looking back over a whole segment of 64x64 frames: scenery that comes
back is found again, at no cost in speed."""
BLOCK_BYTES = 1 << 26


class PhaseBatch(NamedTuple):
    """Some segments of a phase, their rows end to end, on the CPU."""

    segments: list[int]
    """Which segments, in this order."""
    observations: Observation
    """[rows, ...] each."""
    numbers: dict[str, Tensor]
    """By name, [rows, ...] each, in the order of the observations."""


class Piece(NamedTuple):
    """Where one compressed part of a segment is kept."""

    block: mmap.mmap | None
    """The memory it lies in, None for the file."""
    start: int
    size: int
    checksum: int | None
    """Of what is in the file."""


class Segment(NamedTuple):
    """One environment's valid rows of one rollout, in time order."""

    pieces: dict[str, Piece]
    rollout: int
    start: int
    """Its first row in the rollout's numbers."""
    length: int


class PhaseBuffer:
    """The rollouts of a phase, by segment: one environment's valid rows of one rollout.

    Observations are compressed without loss as they are added, and given back on the CPU. Up to
    `memory` bytes of them are held in memory; what comes after goes to the file `spill`, which
    belongs to the buffer and is made when first needed.
    """

    def __init__(self, memory: int, spill: Path, keep_files: bool = False) -> None:
        """With `keep_files` every phase has a file of its own, all is in it, and it stays.

        `held` and `hold` then carry a phase over to another process.
        """
        self.memory_bytes = 0
        """Compressed observations held in memory."""
        self.disk_bytes = 0
        """Compressed observations in the file."""
        self.rows = 0
        """Valid rows in all."""
        self._memory, self._spill, self._keep_files = 0 if keep_files else memory, spill, keep_files
        self._phases = 0
        """Phases before this one."""
        self._file: Growing | None = None
        """On disk, once something is there."""
        self._parts: Layout = {}
        self._segments: list[Segment] = []
        self._numbers: dict[str, list[Tensor]] = {}
        self._block: mmap.mmap | None = None
        self._compressor = zstandard.ZstdCompressor(
            compression_params=zstandard.ZstdCompressionParameters.from_level(
                LEVEL, window_log=WINDOW_LOG, hash_log=HASH_LOG
            )
        )

    def __len__(self) -> int:
        """Return the number of segments."""
        return len(self._segments)

    def add(self, observations: Observation, valid: Tensor, numbers: dict[str, Tensor]) -> None:
        """Add a rollout: one segment for each environment with a valid row.

        `observations` are [T+1, N, ...] as a `Rollout` holds them; the last row is acted on in
        the next rollout, and left out. `valid` is bool [T, N]. Of `numbers` [T, N, ...], such as
        value targets, the valid rows are kept as they are.
        """
        parts, names = _layout(observations), set(numbers)
        if self._segments and (parts != self._parts or names != set(self._numbers)):
            raise ValueError("all rollouts of a phase have the same observations and numbers")
        valid = valid.cpu()
        segments, start = [], 0
        for n, length in enumerate(valid.sum(0).tolist()):
            if length:
                # NumPy copies whole rows where PyTorch goes byte by byte.
                pieces = {
                    part: self._keep(tensor[: len(valid), n].cpu().numpy()[valid[:, n].numpy()])
                    for part, tensor in observations.items()
                }
                segments.append(Segment(pieces, self._n_rollouts, start, length))
                start += length
        if segments:
            self._parts = parts
            for name, tensor in numbers.items():
                rows = tensor.detach().cpu().transpose(0, 1)[valid.T]
                self._numbers.setdefault(name, []).append(rows)
            self._segments += segments
            self.rows += start

    @property
    def lengths(self) -> list[int]:
        """The rows of each segment."""
        return [segment.length for segment in self._segments]

    def attach(self, segments: list[int], name: str, rows: Tensor) -> None:
        """Keep one more floating-point number, `rows` [rows, ...] in the order of a `PhaseBatch`.

        It is among the numbers of every batch from then on: NaN until its segment had its turn.
        """
        rows = rows.detach().cpu()
        chosen = [self._segments[place] for place in segments]
        shares = rows.split([segment.length for segment in chosen])
        if name not in self._numbers:
            empty = rows.new_full((self.rows, *rows.shape[1:]), torch.nan)
            self._numbers[name] = list(empty.split(self._rollout_lengths()))
        for segment, share in zip(chosen, shares, strict=True):
            self._rows(segment, name).copy_(share)

    def segment_groups(self, size: int, generator: torch.Generator) -> list[list[int]]:
        """Return all segments in random order, in groups of `size`; the last may be smaller."""
        return random_groups([0] * len(self), size, generator)

    def batches(self, groups: list[list[int]]) -> Generator[PhaseBatch, None, None]:
        """Give each group's batch; a thread decompresses the next one meanwhile.

        The thread ends with the iterator: when it is exhausted, closed or let go. What the thread
        finds wrong is raised in the turn of the batch it concerns.
        """
        with ThreadPoolExecutor(1) as reader:
            ahead: deque[Future[Observation]] = deque()
            for turn, group in enumerate(groups):
                for coming in groups[turn + len(ahead) : turn + 2]:
                    ahead.append(reader.submit(self._observations, coming))
                observations = ahead.popleft().result()
                # Not by the thread: the caller may attach numbers while it reads.
                yield PhaseBatch(group, observations, self._numbers_of(group))

    def clear(self) -> None:
        """Forget the phase and delete the file."""
        # Blocks go with the last that refers to them: a thread may still be reading.
        self._segments, self._numbers, self._parts, self._block = [], {}, {}, None
        self.memory_bytes = self.disk_bytes = self.rows = 0
        if self._file is not None:
            if self._keep_files:
                self._file.close()
            else:
                self._file.remove()
            self._file = None
        self._phases += 1

    def close(self) -> None:
        """Forget the phase and delete the file, at the end of a run."""
        self.clear()

    def _keep(self, rows: np.ndarray) -> Piece:
        compressed = self._compressor.compress(np.ascontiguousarray(rows).data)
        size = len(compressed)
        if self.memory_bytes + size > self._memory:
            return self._append(compressed)
        if self._block is None or len(self._block) - self._block.tell() < size:
            # Mapped rather than allocated: pieces of all sizes that live this long would leave
            # holes in the heap, and its memory would not all return to the system.
            flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
            self._block = mmap.mmap(-1, max(size, BLOCK_BYTES), flags=flags)
        piece = Piece(self._block, self._block.tell(), size, None)
        self._block.write(compressed)
        self.memory_bytes += size
        return piece

    def _append(self, compressed: bytes) -> Piece:
        piece = Piece(None, self.disk_bytes, len(compressed), zlib.crc32(compressed))
        try:
            if self._file is None:
                self._file = self._growing()
                self._file.remove()  # Left by a run that was killed.
            self._file.append(compressed)
        except OSError as error:
            if not is_disk_full(error):
                raise
            raise UserError(
                f"the disk is full: no room for the phase's observations in {self._spill}"
            ) from None
        self.disk_bytes += piece.size
        return piece

    def _growing(self) -> Growing:
        number = f"-{self._phases:06d}" if self._keep_files else ""
        name = f"{self._spill.stem}{number}{self._spill.suffix}"
        return Growing(Folder(self._spill.parent), name)

    def held(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return where everything lies in the file, and the numbers."""
        tensors, parts = {}, list(self._parts)
        for name, rollouts in self._numbers.items():
            tensors |= {f"{name}.{place}": rows for place, rows in enumerate(rollouts)}
        places = [
            [each.rollout, each.start, each.length]
            + [value for part in parts for value in each.pieces[part][1:]]
            for each in self._segments
        ]
        tensors["segments"] = torch.tensor(places, dtype=torch.long)  # [segments, 3 + 3 parts]
        if self._file is not None:
            self._file.sync()
        layout = {
            part: [str(dtype).removeprefix("torch."), list(shape)]
            for part, (dtype, shape) in self._parts.items()
        }
        mark = None if self._file is None else self._file.mark()
        name = None if self._file is None else self._file.name
        return tensors, {"phases": self._phases, "file": name, "mark": mark, "parts": layout}

    def hold(self, tensors: dict[str, Tensor], data: dict[str, Any]) -> None:
        """Go on with a phase whose file is there; raise `DamagedFile` if it is not as it was."""
        self._phases = data["phases"]
        self._parts = {
            part: (getattr(torch, dtype), tuple(shape))
            for part, (dtype, shape) in data["parts"].items()
        }
        self._segments = []
        for rollout, start, length, *rest in tensors["segments"].tolist():
            pieces = {
                part: Piece(None, *rest[3 * k : 3 * k + 3]) for k, part in enumerate(self._parts)
            }
            self._segments.append(Segment(pieces, rollout, start, length))
        self._numbers = {}
        names = {name.rpartition(".")[0] for name in tensors if name != "segments"}
        for name in names:
            self._numbers[name] = [tensors[f"{name}.{k}"] for k in range(self._n_rollouts)]
        self.rows = sum(segment.length for segment in self._segments)
        if data["mark"] is not None:
            self._file = self._growing()
            self._file.refuse_other(data["mark"])
            self._file.cut(data["mark"])
            self.disk_bytes = self._file.bytes

    def _observations(self, group: list[int]) -> Observation:
        """Return the segments' observations, each part [rows, ...]."""
        segments = [self._segments[place] for place in group]
        count = sum(segment.length for segment in segments)
        decompressor = zstandard.ZstdDecompressor()
        observations = {}
        for part, (dtype, shape) in self._parts.items():
            observations[part] = torch.empty((count, *shape), dtype=dtype)
            start = 0
            for segment in segments:
                rows = observations[part][start : start + segment.length]
                with decompressor.stream_reader(self._compressed(segment.pieces[part])) as reader:
                    reader.readinto(rows.numpy().data)
                start += segment.length
        return observations

    def _compressed(self, piece: Piece) -> bytes | memoryview:
        if piece.block is not None:
            return memoryview(piece.block)[piece.start : piece.start + piece.size]
        assert self._file is not None
        compressed = self._file.read(piece.start, piece.size)
        if zlib.crc32(compressed) != piece.checksum:
            raise DamagedFile(f"{self._spill} is damaged: its checksum does not match")
        return compressed

    def _numbers_of(self, group: list[int]) -> dict[str, Tensor]:
        segments = [self._segments[place] for place in group]
        return {
            name: torch.cat([self._rows(segment, name) for segment in segments] or [rows[0][:0]])
            for name, rows in self._numbers.items()
        }

    def _rows(self, segment: Segment, name: str) -> Tensor:
        return self._numbers[name][segment.rollout].narrow(0, segment.start, segment.length)

    @property
    def _n_rollouts(self) -> int:
        return self._segments[-1].rollout + 1 if self._segments else 0

    def _rollout_lengths(self) -> list[int]:
        lengths = [0] * self._n_rollouts
        for segment in self._segments:
            lengths[segment.rollout] += segment.length
        return lengths


def random_groups(owners: Sequence[int], size: int, generator: torch.Generator) -> list[list[int]]:
    """Return 0, 1, ... in random order, in groups of `size` but for the last.

    `owners` says whose each is; a group has its share of each owner's, within one.
    """
    order = torch.randperm(len(owners), generator=generator, device=generator.device).cpu()
    numbers = balanced(order, torch.tensor(owners, dtype=torch.long)).tolist()
    return [numbers[start : start + size] for start in range(0, len(numbers), size)]


Layout = dict[str, tuple[torch.dtype, tuple[int, ...]]]
"""Type of each part and shape of one of its rows."""


def _layout(observations: Observation) -> Layout:
    return {part: (tensor.dtype, tuple(tensor.shape[2:])) for part, tensor in observations.items()}
