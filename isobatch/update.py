"""From rows to a gradient step: partition, chunk, mean over valid rows, clip, step."""

from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad

from isobatch.batch import Batch
from isobatch.errors import UserError
from isobatch.optimize import FlatOptimizer, FlatParameters
from isobatch.replicas import Replicas

PIXELS_PER_CHUNK = 1 << 18
"""Image pixels per forward-backward pass: 64 Procgen frames, whose activations stay in cache."""
ROWS_PER_CHUNK = 8192
"""Vector rows per pass: large enough to amortise dispatch, small enough to bound memory."""

COMPILE_FROM_STEPS = 20_000
"""Gradient steps that repay ten seconds of compiling: it saves about a millisecond on each."""
COMPILE_UP_TO_ROWS = 1024
"""Beyond this the arithmetic outweighs the dispatch that compiling saves."""

Call = Callable[[Any], Any]
"""The model, as a function of observations."""
Gather = Callable[[Tensor], Any]
"""Flat rows [b] -> what the losses need of them, tensors [b, ...]."""
Evaluate = Callable[[Call, Any], tuple[Tensor, dict[str, Tensor]]]
"""(model, gathered rows) -> (losses [b], statistics by name, each [b]); pure."""


def minibatches(
    valid: Tensor,
    n_minibatches: int,
    generator: torch.Generator,
    by: Literal["samples", "envs"] = "samples",
) -> list[Tensor]:
    """Partition the valid rows of a rollout [T, N] at random: flat indices t * N + n.

    Every valid row is in exactly one part. By samples, the parts' sizes differ by at most one. By
    envs, a part holds whole environments' trajectories, whose number differs by at most one; only
    where there are more parts than environments are trajectories cut in time. Each call shuffles
    anew.
    """
    steps, n_envs = valid.shape
    rows = valid.flatten().nonzero().squeeze(1)
    if n_minibatches > len(rows):
        raise UserError(f"{n_minibatches} minibatches of {len(rows)} rows")
    if by == "samples":
        order = torch.randperm(len(rows), generator=generator).to(rows.device)
        return list(rows[order].tensor_split(n_minibatches))
    pieces = _segments(valid, steps, n_envs, n_minibatches)
    order = torch.randperm(len(pieces), generator=generator).tolist()
    groups = torch.arange(len(pieces)).tensor_split(n_minibatches)
    return [torch.cat([pieces[order[k]] for k in group.tolist()]) for group in groups]


def _segments(valid: Tensor, steps: int, n_envs: int, n_minibatches: int) -> list[Tensor]:
    """Return each environment's valid rows, cut in time so that there is a piece per minibatch."""
    index = torch.arange(steps * n_envs, device=valid.device).view(steps, n_envs)
    trajectories = [index[valid[:, n], n] for n in range(n_envs)]
    trajectories = [rows for rows in trajectories if len(rows)]
    cuts = [1] * len(trajectories)
    while sum(cuts) < n_minibatches:
        longest = max(range(len(cuts)), key=lambda k: len(trajectories[k]) / cuts[k])
        cuts[longest] += 1
    return [
        piece
        for rows, count in zip(trajectories, cuts, strict=True)
        for piece in rows.tensor_split(count)
    ]


def chunk_rows(image: tuple[int, int, int] | None, chosen: int = 0) -> int:
    """Return the rows of one forward-backward pass: `chosen`, or a cache-sized number."""
    if chosen:
        return chosen
    if image is None:
        return ROWS_PER_CHUNK
    return max(16, PIXELS_PER_CHUNK // (image[1] * image[2]))


class CompilationFailed(RuntimeError):
    """The update could not be compiled on this machine."""


class CompiledGradient:
    """Loss and gradient of a whole minibatch as one compiled function, for small networks.

    Minibatches are padded to `capacity` rows of weight 0, so that one compilation serves all.
    """

    def __init__(
        self, model: nn.Module, parameters: FlatParameters, evaluate: Evaluate, capacity: int
    ) -> None:
        self.capacity = capacity
        self._parameters = parameters

        def weighted(vector: Tensor, samples: Any, weights: Tensor):
            def total(vector: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
                def call(observation: Any) -> Any:
                    return functional_call(model, parameters.views(vector), (observation,))

                losses, statistics = evaluate(call, samples)
                means = torch.stack(list(statistics.values())).detach() @ weights
                return (losses * weights).sum(), dict(zip(statistics, means.unbind(), strict=True))

            return grad(total, has_aux=True)(vector)

        from torch._inductor import config  # Seconds to import: only where it is used.

        # Compile in this process: a pool of compiler processes would outlive a short run.
        config.compile_threads = 1
        self._function = torch.compile(weighted, dynamic=False, fullgraph=True)
        self._proven = False

    @torch.no_grad()
    def __call__(self, rows: Tensor, gather: Gather) -> dict[str, Tensor]:
        """As `Stepper.gradient`."""
        missing = self.capacity - len(rows)
        weights = torch.zeros(self.capacity, device=rows.device)
        weights[: len(rows)] = 1 / len(rows)
        padded = torch.cat([rows, rows[:1].expand(missing)]) if missing else rows
        vector = self._parameters.vector.detach()
        samples = gather(padded)
        try:
            gradient, statistics = self._function(vector, samples, weights)
        except Exception as error:
            if self._proven:
                raise
            reason = str(error).strip().splitlines()[0] if str(error).strip() else repr(error)
            raise CompilationFailed(f"the update could not be compiled ({reason})") from error
        self._proven = True
        self._parameters.gradient.copy_(gradient)
        return statistics


def worth_compiling(batch: Batch, total_timesteps: int) -> bool:
    """Say whether a run of small networks on the CPU is long enough to compile its update."""
    iterations = total_timesteps / batch.rollout_size
    long = iterations * batch.grad_steps_per_iteration >= COMPILE_FROM_STEPS
    return long and batch.minibatch_size <= COMPILE_UP_TO_ROWS and _has_compiler()


def _has_compiler() -> bool:
    return any(shutil.which(name) for name in (os.environ.get("CXX"), "g++", "clang++") if name)


class Sums(NamedTuple):
    """Statistics summed over the rows of each chunk."""

    names: list[str]
    sums: list[Tensor]


@dataclass
class Stepper:
    """Takes gradient steps on per-sample losses."""

    model: nn.Module
    parameters: FlatParameters
    optimizer: FlatOptimizer
    evaluate: Evaluate
    max_grad_norm: float | None = None
    chunk_size: int = ROWS_PER_CHUNK
    compiled: CompiledGradient | None = None
    replicas: Replicas | None = None

    def gradient(self, rows: Tensor, gather: Gather) -> dict[str, Tensor]:
        """Leave the gradient of the mean loss over `rows` in place; return mean statistics.

        Rows go through the model a chunk at a time. Chunks' gradients add up to the minibatch's
        own, so its memory is bounded and its value is exact.
        """
        if self.compiled is not None and len(rows) <= self.compiled.capacity:
            try:
                return self.compiled(rows, gather)
            except CompilationFailed as error:
                warnings.warn(f"{error}; training goes on uncompiled", stacklevel=2)
                self.compiled = None
        backward = partial(self._backward, gather=gather, count=len(rows))
        if self.replicas is not None and len(rows) >= len(self.replicas):
            parts = self.replicas.backward(rows, backward)
        else:
            self.parameters.gradient.zero_()
            parts = [backward(self.model, rows)]
        means = torch.stack([sums for part in parts for sums in part.sums]).sum(0) / len(rows)
        return dict(zip(parts[0].names, means.unbind(), strict=True))

    def _backward(self, model: nn.Module, rows: Tensor, gather: Gather, count: int) -> Sums:
        """Add the gradient of the summed loss / count to the model's."""
        names, sums = [], []
        for chunk in rows.split(self.chunk_size):
            losses, statistics = self.evaluate(model, gather(chunk))
            (losses.sum() / count).backward()
            names = list(statistics)
            sums.append(torch.stack([value.detach() for value in statistics.values()]).sum(1))
        return Sums(names, sums)

    @torch.no_grad()
    def step(self, learning_rate: float) -> float:
        """Clip the gradient left by `gradient` and step; return its norm before clipping."""
        norm = float(torch.linalg.vector_norm(self.parameters.gradient))
        if self.max_grad_norm is not None and norm > self.max_grad_norm:
            self.parameters.gradient.mul_(self.max_grad_norm / norm)
        self.optimizer.step(learning_rate)
        return norm
