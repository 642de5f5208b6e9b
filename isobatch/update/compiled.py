"""Loss and gradient of a whole minibatch as one compiled function, for small networks."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad
from torch.utils._pytree import tree_flatten, tree_unflatten

from isobatch.batch import Batch
from isobatch.update.ahead import Ahead, CompilationFailed, has_compiler
from isobatch.update.gradient import Evaluate, Gather, padded, sums
from isobatch.update.optimize import FlatParameters

COMPILE_SECONDS = 20.0
"""What compiling takes, on two cores of 2020."""
SAVED_SECONDS = 1.4e-3
"""What a compiled gradient step saves: 1.9 ms become 0.5."""
SAVED_TOGETHER = 0.5e-3
"""The same for each of several runs whose steps are computed together, which saves most of it."""
COMPILE_UP_TO_ROWS = 1024
"""Beyond this the arithmetic outweighs the dispatch that compiling saves."""


class CompiledGradient:
    """The gradient of a minibatch's mean loss, compiled once for minibatches of up to `capacity`.

    Smaller ones are padded with rows that do not count. `name` is that of `Ahead`.
    """

    def __init__(
        self,
        model: nn.Module,
        parameters: FlatParameters,
        evaluate: Evaluate,
        capacity: int,
        name: str | None = None,
    ) -> None:
        self.capacity = capacity
        self._model, self._parameters, self._evaluate = model, parameters, evaluate
        self._ahead: Ahead | None = None
        self._name = name

    @torch.no_grad()
    def __call__(self, rows: Tensor, gather: Gather) -> dict[str, Tensor]:
        """As `Stepper.gradient`."""
        rows, counted = padded(rows, self.capacity)
        samples = gather(rows)
        leaves, form = tree_flatten(samples)
        if self._ahead is None:
            if any(True for _ in self._model.buffers()):
                raise CompilationFailed(
                    "the update could not be compiled (the networks have buffers, which would "
                    "stay as they are now)"
                )
            self._names = list(self._evaluate(self._model, samples)[1])
            there = [each is not None for each in leaves]
            self._ahead = Ahead(partial(self._gradient, form, there), self._name)
        given = [each for each in leaves if each is not None]
        gradient, statistics = self._ahead(self._parameters.vector.detach(), counted, *given)
        self._parameters.gradient.copy_(gradient)
        return dict(zip(self._names, statistics.unbind(), strict=True))

    def _gradient(
        self, form: Any, there: list[bool], vector: Tensor, counted: Tensor, *given: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the gradient [P] and the mean statistics [S], a pure function of tensors."""
        parts, count = iter(given), counted.sum()
        samples = tree_unflatten([next(parts) if each else None for each in there], form)

        def mean_loss(vector: Tensor) -> tuple[Tensor, Tensor]:
            def call(observation: Any) -> Any:
                views = self._parameters.views(vector)
                return functional_call(self._model, views, (observation,))

            found = sums(self._evaluate, call, samples, counted)
            return found.loss / count, found.statistics / count

        return grad(mean_loss, has_aux=True)(vector)


def worth_compiling(batch: Batch, total_timesteps: int, runs: int = 1) -> bool:
    """Say whether runs of small networks on the CPU are long enough to repay compiling.

    The first of its kind must: those after it find what was compiled.
    """
    steps = runs * total_timesteps / batch.rollout_size * batch.grad_steps_per_iteration
    saved = steps * (SAVED_SECONDS if runs == 1 else SAVED_TOGETHER)
    pays = saved >= COMPILE_SECONDS and batch.minibatch_size <= COMPILE_UP_TO_ROWS
    return pays and has_compiler()
