"""From a minibatch's rows to a step of the optimiser: gradient, clip, step."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from isobatch.recipe import Optimizer
from isobatch.update.ahead import CompilationFailed
from isobatch.update.compiled import CompiledGradient
from isobatch.update.gradient import ROWS_PER_CHUNK, Evaluate, Gather, means, sums
from isobatch.update.optimize import FlatOptimizer, FlatParameters
from isobatch.update.replicas import Replicas


class Chunks(NamedTuple):
    """Statistics summed over the rows of each chunk."""

    names: list[str]
    sums: list[Tensor]


@dataclass(eq=False)
class Stepper:
    """Takes gradient steps on per-sample losses."""

    model: nn.Module
    parameters: FlatParameters
    optimizer: FlatOptimizer
    evaluate: Evaluate
    settings: Optimizer = field(default_factory=Optimizer)
    chunk_size: int = ROWS_PER_CHUNK
    compiled: CompiledGradient | None = None
    replicas: Replicas | None = None
    name: str | None = None
    """All that the losses depend on beside tensors and code; None where that is not known."""

    def gradient(self, rows: Tensor, gather: Gather) -> dict[str, Tensor]:
        """Leave the gradient of the mean loss over `rows` in place; return mean statistics.

        Rows go through the model a chunk at a time. Chunks' gradients add up to the minibatch's
        own, so its memory is bounded and its value is exact.
        """
        if self.compiled is not None and len(rows) <= self.compiled.capacity:
            try:
                return self.compiled(rows, gather)
            except CompilationFailed as error:
                warnings.warn(f"{error}; training continues uncompiled", stacklevel=2)
                self.compiled = None
        backward = partial(self._backward, gather=gather, count=len(rows))
        if self.replicas is not None and len(rows) >= len(self.replicas):
            parts = self.replicas.backward(rows, backward)
        else:
            self.parameters.gradient.zero_()
            parts = [backward(self.model, rows)]
        return means(parts[0].names, [each for part in parts for each in part.sums], len(rows))

    def backward(self, rows: Tensor, gather: Gather, count: int) -> Chunks:
        """Add to the gradient that of the loss summed over `rows`, divided by `count`."""
        return self._backward(self.model, rows, gather, count)

    def _backward(self, model: nn.Module, rows: Tensor, gather: Gather, count: int) -> Chunks:
        """Add the gradient of the summed loss / count to the model's."""
        names, found = [], []
        for chunk in rows.split(self.chunk_size):
            loss, names, statistics = sums(self.evaluate, model, gather(chunk))
            (loss / count).backward()
            found.append(statistics)
        return Chunks(names, found)

    @torch.no_grad()
    def step(self, learning_rate: float) -> float:
        """Clip the gradient left by `gradient` and step; return its norm before clipping."""
        norm = float(torch.linalg.vector_norm(self.parameters.gradient))
        bound = self.settings.max_grad_norm
        if bound is not None and norm > bound:
            self.parameters.gradient.mul_(bound / norm)
        self.optimizer.step(self.settings, learning_rate)
        return norm
