"""The gradients of several runs' minibatches at once, from one model with stacked weights.

For the small networks that studies train, most of a gradient's time is spent on calling operations
and not in them. The k-th of S runs has parameters theta_k and a minibatch x_k of b_k rows:

L = sum_k (1 / b_k) sum_i l(theta_k, x_ki, c_k),  dL / d theta_k = run k's own gradient

The losses l are those of a run alone, of all rows end to end; only the model's products are of
stacked matrices. Each run has its own coefficients c_k. Minibatches are padded to one length with
rows that do not count, the stack to one width with runs that do not exist: what a run computes
does not depend on the others.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from isobatch.recipe import Objective
from isobatch.update.gradient import Evaluate, Joinable
from isobatch.update.optimize import FlatParameters
from isobatch.update.step import Stepper
from isobatch.update.table import Table

COEFFICIENTS = ("ent_coef", "vf_coef", "kl_coef")
"""Coefficients of the losses that may differ between the runs of a stack."""
SHARES = 64
"""Sets of minibatch lengths that are remembered: there are few, but not always."""


@dataclass(frozen=True)
class Wanted:
    """A gradient that a run asks for."""

    stepper: Stepper
    rows: Tensor
    gather: Joinable


class Stack:
    """Computes runs' gradients at once, of minibatches of up to `capacity` rows.

    From here on the runs' own parameters and gradients are rows of the stack's, so nothing is
    copied; the first `len(runs)` of `width` rows are theirs, in order.
    """

    def __init__(
        self, runs: Sequence[tuple[nn.Module, FlatParameters]], width: int, capacity: int
    ) -> None:
        self.width, self.capacity = width, capacity
        model, parameters = runs[0]
        size = (width, len(parameters.vector))
        weights, gradients = torch.zeros(2, *size, device=parameters.vector.device)
        self._model = copy.deepcopy(model)
        for place, (own, each) in enumerate(runs):
            each.move(own, weights[place], gradients[place])
        parameters.lay(self._model, weights, gradients)
        self._parts = [each for each in self._model.parameters() if each.requires_grad]
        self._gradients = [each.grad for each in self._parts if each.grad is not None]
        self._room: Tensor | None = None
        self._shares: dict[tuple[int, ...], Tensor] = {}

    def __call__(self, asked: Mapping[int, Wanted]) -> dict[int, dict[str, Tensor]]:
        """Leave gradients with their steppers; return the mean statistics, as `Stepper.gradient`.

        Of the runs that ask, by their place in the stack, those on the same loss as the first are
        answered.
        """
        kind = _loss(next(iter(asked.values())).stepper)
        wanted = {place: each for place, each in asked.items() if _loss(each.stepper) is kind}
        # By whole environments, or of a budget's last few rows, a minibatch may be too large.
        if any(len(each.rows) > self.capacity for each in wanted.values()):
            place, each = max(wanted.items(), key=lambda item: len(item[1].rows))
            return {place: each.stepper.gradient(each.rows, each.gather)}
        return self._together(wanted)

    def _together(self, wanted: Mapping[int, Wanted]) -> dict[int, dict[str, Tensor]]:
        lengths = [0] * self.width
        matrix = self._matrix(next(iter(wanted.values())).gather.table)
        for place, each in wanted.items():
            lengths[place] = len(each.rows)
            each.gather.take(each.rows, matrix[place, : len(each.rows)])
            matrix[place, len(each.rows) :] = 0
        losses, statistics = self._evaluated(wanted, matrix.flatten(0, 1))
        share = self._share(tuple(lengths))
        total = (losses.view_as(share) * share).sum()
        found = torch.autograd.grad(total, self._parts, materialize_grads=True)
        for gradient, own in zip(self._gradients, found, strict=True):
            gradient.copy_(own)
        values = torch.stack([each.detach() for each in statistics.values()])
        means = (values.view(-1, *share.shape) * share).sum(2).unbind(1)
        return {
            place: dict(zip(statistics, means[place].unbind(), strict=True)) for place in wanted
        }

    def _matrix(self, table: Table) -> Tensor:
        """Return room for what the losses need of all rows, [width, capacity, C]."""
        shape = (self.width, self.capacity, table.width)
        if self._room is None or self._room.shape != shape:
            self._room = table.matrix.new_zeros(shape)
        return self._room

    def _share(self, lengths: tuple[int, ...]) -> Tensor:
        """Return each row's share in the mean over its run's minibatch: 0 for padding."""
        found = self._shares.get(lengths)
        if found is None:
            if len(self._shares) >= SHARES:
                self._shares.clear()
            found = self._shares[lengths] = torch.zeros(self.width, self.capacity)
            for place, length in enumerate(lengths):
                found[place, :length] = 1 / max(length, 1)
            found = self._shares[lengths] = found.to(self._parts[0].device)
        return found

    def _call(self, observation: Any) -> Any:
        """Return the model's outputs for the rows of all runs, end to end."""
        stacked = tree_map(lambda rows: rows.unflatten(0, (self.width, -1)), observation)
        return tree_map(lambda found: found.flatten(0, 1), self._model(stacked))

    def _evaluated(
        self, wanted: Mapping[int, Wanted], matrix: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the losses and statistics of all rows, each with its own run's numbers."""
        some = next(iter(wanted.values()))
        scalars = {
            name: self._by_run(value, {k: each.gather.scalars[name] for k, each in wanted.items()})
            for name, value in some.gather.scalars.items()
        }
        samples = some.gather.samples(matrix, scalars)
        evaluate, settings = some.stepper.evaluate, _settings(some.stepper)
        if settings is None or not isinstance(evaluate, partial):
            return evaluate(self._call, samples)
        own = {place: _settings(each.stepper) for place, each in wanted.items()}
        coefficients: dict[str, Any] = {
            name: self._by_run(
                getattr(settings, name), {k: getattr(each, name) for k, each in own.items()}
            )
            for name in COEFFICIENTS
        }
        settings = replace(settings, **coefficients)
        return evaluate.func(self._call, samples, **{**evaluate.keywords, "settings": settings})

    def _by_run(self, some: Any, values: Mapping[int, Any]) -> Any:
        """Return a number for each row, its run's own; `some` where all have the same."""
        own = [float(values.get(place, some)) for place in range(self.width)]
        if len(set(own)) == 1:
            return some
        return torch.tensor(own, device=self._parts[0].device).repeat_interleave(self.capacity)


def _loss(stepper: Stepper) -> Evaluate:
    evaluate = stepper.evaluate
    return evaluate.func if isinstance(evaluate, partial) else evaluate


def _settings(stepper: Stepper) -> Objective | None:
    evaluate = stepper.evaluate
    return evaluate.keywords.get("settings") if isinstance(evaluate, partial) else None
