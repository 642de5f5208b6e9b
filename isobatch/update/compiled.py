"""Loss and gradient of a whole minibatch as one compiled function, for small networks."""

from __future__ import annotations

import os
import shutil
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad

from isobatch.batch import Batch
from isobatch.update.gradient import Evaluate, Gather, means, padded, sums
from isobatch.update.optimize import FlatParameters

COMPILE_FROM_STEPS = 20_000
"""Gradient steps that repay ten seconds of compiling: it saves about a millisecond on each."""
COMPILE_UP_TO_ROWS = 1024
"""Beyond this the arithmetic outweighs the dispatch that compiling saves."""


class CompilationFailed(RuntimeError):
    """The update could not be compiled on this machine."""


class CompiledGradient:
    """The gradient of a minibatch's mean loss, compiled once for minibatches of up to `capacity`.

    Smaller ones are padded with rows that do not count.
    """

    def __init__(
        self, model: nn.Module, parameters: FlatParameters, evaluate: Evaluate, capacity: int
    ) -> None:
        self.capacity = capacity
        self._parameters = parameters

        def gradient(vector: Tensor, samples: Any, counted: Tensor):
            count = counted.sum()

            def mean_loss(vector: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
                def call(observation: Any) -> Any:
                    return functional_call(model, parameters.views(vector), (observation,))

                found = sums(evaluate, call, samples, counted)
                return found.loss / count, means(found.names, [found.statistics], count)

            return grad(mean_loss, has_aux=True)(vector)

        from torch._inductor import config  # Seconds to import: only where it is used.

        # Compile in this process: a pool of compiler processes would outlive a short run.
        config.compile_threads = 1
        self._function = torch.compile(gradient, dynamic=False, fullgraph=True)
        self._proven = False

    @torch.no_grad()
    def __call__(self, rows: Tensor, gather: Gather) -> dict[str, Tensor]:
        """As `Stepper.gradient`."""
        rows, counted = padded(rows, self.capacity)
        vector, samples = self._parameters.vector.detach(), gather(rows)
        try:
            gradient, statistics = self._function(vector, samples, counted)
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
