"""Per-sample gradients of a whole collection, and a sketch of those too large to keep."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from isobatch.machine import gradient_threads
from isobatch.noise.samples import Observation, per_sample, rows_of, trained_by

KEPT_BYTES, KEPT_BESIDE_IMAGES = 5 << 27, 1 << 28
"""Directions that are kept, as they are or sketched."""
LEAST_WIDTH = 512


class Sketch:
    """A random projection that keeps inner products: R^P -> R^d (Charikar et al. 2002).

    Each coordinate goes to one of d places with a random sign. <Sx, Sy> is <x, y> on average, with
    a standard deviation of at most sqrt((|x|^2 |y|^2 + <x, y>^2) / d).
    """

    def __init__(self, size: int, width: int) -> None:
        generator = torch.Generator().manual_seed(0)
        self.width = width
        self.place = torch.randint(width, (size,), generator=generator)
        self.sign = torch.randint(2, (size,), generator=generator) * 2.0 - 1

    def __call__(self, vectors: Tensor) -> Tensor:
        """Project vectors [B, P] to [B, d]."""
        projected = vectors.new_zeros(len(vectors), self.width)
        return projected.index_add_(1, self.place, vectors * self.sign)

    @property
    def error(self) -> float:
        """The largest standard deviation of a squared norm, relative to it."""
        return math.sqrt(2 / self.width)


@dataclass(frozen=True)
class Directions:
    """Each row's gradient but for its scale: grad log pi, or grad v."""

    vectors: Tensor
    """[L, M, d]: as they are, or sketched."""
    squares: Tensor
    """[L, M]: squared norms, exact either way."""
    n_parameters: int
    sketch: Sketch | None
    """None where the vectors are exact."""


def directions(
    output: nn.Module,
    observation: Observation,
    actions: Tensor,
    progress: Callable[[int], None] = lambda rows: None,
) -> Directions:
    """Return the directions of rows [L, M, ...]; `progress` is told of rows as they are done.

    By as many threads as a gradient has, each with rows and a copy of the networks of its own:
    what one sample takes is too little to divide, and a network being differentiated holds its
    weights for one thread only.
    """
    shape, choices = actions.shape[:2], actions.flatten(0, 1)
    flat = {part: value.flatten(0, 1) for part, value in observation.items()}
    count = len(choices)
    trained = trained_by(output, rows_of(flat, slice(0, 2)), choices[:2])
    size = sum(each.numel() for each in trained.values())
    kept = KEPT_BESIDE_IMAGES if "image" in observation else KEPT_BYTES
    width = max(LEAST_WIDTH, kept // (4 * count))
    sketch = Sketch(size, width) if width < size else None
    vectors = torch.empty(count, width if sketch else size)
    squares = torch.empty(count, dtype=torch.float64)

    def fill(output: nn.Module, rows: Tensor) -> None:
        begin, end = int(rows[0]), int(rows[-1]) + 1
        for chunk in per_sample(output, rows_of(flat, slice(begin, end)), choices[begin:end]):
            part = slice(begin, begin + len(chunk))
            vectors[part] = sketch(chunk) if sketch else chunk
            squares[part] = chunk.square().sum(1, dtype=torch.float64)
            begin += len(chunk)
            progress(len(chunk))

    threads = min(gradient_threads(), count)
    with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        copies = [copy.deepcopy(output) for _ in range(threads)]
        list(pool.map(fill, copies, torch.arange(count).tensor_split(threads)))
    return Directions(vectors.view(*shape, -1), squares.view(shape), size, sketch)
