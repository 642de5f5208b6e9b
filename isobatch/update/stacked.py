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
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils._pytree import tree_map

from isobatch.recipe import Objective
from isobatch.update.ahead import Ahead, CompilationFailed
from isobatch.update.gradient import Call, Evaluate, Joinable
from isobatch.update.optimize import FlatParameters
from isobatch.update.step import Stepper
from isobatch.update.table import Table

COEFFICIENTS = ("ent_coef", "vf_coef", "kl_coef")
"""Coefficients of the losses that may differ between the runs of a stack."""
ALIGNED = 16
"""Numbers, 64 bytes: every run's weights begin at such an address. Some CPUs' products of a matrix
and a vector round by the address, and a run's bits must not depend on its place in the stack."""
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
    copied; the first `len(runs)` of `width` rows are theirs, in order. `compiled`: by a function
    compiled ahead of time.
    """

    def __init__(
        self,
        runs: Sequence[tuple[nn.Module, FlatParameters]],
        width: int,
        capacity: int,
        compiled: bool = False,
    ) -> None:
        self.width, self.capacity = width, capacity
        model, self._layout = runs[0]
        size, device = len(self._layout.vector), self._layout.vector.device
        room = torch.zeros(2, width, -(-size // ALIGNED) * ALIGNED, device=device)
        self._weights, self._gradient = room[:, :, :size]
        self._model = copy.deepcopy(model)
        for place, (own, each) in enumerate(runs):
            each.move(own, self._weights[place], self._gradient[place])
        self._layout.lay(self._model, self._weights, self._gradient)
        self._parts = [each for each in self._model.parameters() if each.requires_grad]
        self._gradients = [each.grad for each in self._parts if each.grad is not None]
        self._room: Tensor | None = None
        self._shares: dict[tuple[int, ...], Tensor] = {}
        self._compiled = compiled
        self._ahead: dict[Any, tuple[Ahead, list[str]]] = {}

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
        losses = self._losses(wanted)
        names, means = self._taken(losses, matrix.flatten(0, 1), self._share(tuple(lengths)))
        columns = means.unbind(1)
        return {place: dict(zip(names, columns[place].unbind(), strict=True)) for place in wanted}

    def _taken(self, losses: Losses, matrix: Tensor, share: Tensor) -> tuple[list[str], Tensor]:
        """Leave the gradients in place; return the statistics' names and their means [K, width]."""
        if self._compiled:
            try:
                return self._by_compiled(losses, matrix, share)
            except CompilationFailed as error:
                warnings.warn(f"{error}; training continues uncompiled", stacklevel=2)
                self._compiled = False
        total, statistics, means = _summed(*losses(self._call, matrix), share)
        found = torch.autograd.grad(total, self._parts, materialize_grads=True)
        for gradient, own in zip(self._gradients, found, strict=True):
            gradient.copy_(own)
        return statistics, means

    @torch.no_grad()
    def _by_compiled(
        self, losses: Losses, matrix: Tensor, share: Tensor
    ) -> tuple[list[str], Tensor]:
        key = losses.key
        if key not in self._ahead:
            ahead = Ahead(partial(self._flat, losses), losses.kept_as)
            self._ahead[key] = ahead, list(losses(self._call, matrix)[1])
        ahead, names = self._ahead[key]
        gradient, means = ahead(self._weights, matrix, share, *losses.tensors)
        self._gradient.copy_(gradient)
        return names, means

    def _flat(
        self, losses: Losses, weights: Tensor, matrix: Tensor, share: Tensor, *tensors: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the gradients [width, P] and mean statistics [K, width]: a pure function."""
        with torch.enable_grad():
            leaf = weights.detach().requires_grad_()

            def model(observation: Any) -> Any:
                return functional_call(self._model, self._layout.views(leaf), (observation,))

            call = partial(self._call, model=model)
            total, _, means = _summed(*losses.at(tensors)(call, matrix), share)
            (gradient,) = torch.autograd.grad(total, leaf, materialize_grads=True)
        return gradient, means

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

    def _call(self, observation: Any, model: Call | None = None) -> Any:
        """Return the model's outputs for the rows of all runs, end to end."""
        stacked = tree_map(lambda rows: rows.unflatten(0, (self.width, -1)), observation)
        return tree_map(lambda found: found.flatten(0, 1), (model or self._model)(stacked))

    def _losses(self, wanted: Mapping[int, Wanted]) -> Losses:
        """Return the losses of all rows, with each run's own numbers."""
        some = next(iter(wanted.values()))
        scalars = {
            name: self._by_run(value, {k: each.gather.scalars[name] for k, each in wanted.items()})
            for name, value in some.gather.scalars.items()
        }
        settings = _settings(some.stepper)
        if settings is None:
            return Losses(some, scalars, {})
        own = {place: _settings(each.stepper) for place, each in wanted.items()}
        coefficients = {
            name: self._by_run(
                getattr(settings, name), {k: getattr(each, name) for k, each in own.items()}
            )
            for name in COEFFICIENTS
        }
        return Losses(some, scalars, {k: v for k, v in coefficients.items() if _varies(v)})

    def _by_run(self, some: Any, values: Mapping[int, Any]) -> Any:
        """Return a number for each row, its run's own; `some` where all have the same."""
        own = [float(values.get(place, some)) for place in range(self.width)]
        if len(set(own)) == 1:
            return some
        return torch.tensor(own, device=self._parts[0].device).repeat_interleave(self.capacity)


@dataclass(frozen=True)
class Losses:
    """The losses of a stack's rows: those of one of its runs, with numbers of each run's own."""

    some: Wanted
    scalars: Mapping[str, Tensor]
    """What the samples have beside rows, a number or [rows]."""
    coefficients: Mapping[str, Tensor]
    """Of the settings those that differ between runs, [rows]."""

    def __call__(self, call: Call, matrix: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Return losses [rows] and statistics, each [rows], of rows taken [rows, C]."""
        samples = self.some.gather.samples(matrix, self.scalars)
        evaluate, settings = self.some.stepper.evaluate, _settings(self.some.stepper)
        if settings is None or not isinstance(evaluate, partial):
            return evaluate(call, samples)
        settings = replace(settings, **self.coefficients)
        return evaluate.func(call, samples, **{**evaluate.keywords, "settings": settings})

    @property
    def name(self) -> str | None:
        """All that they depend on but for tensors and code; None where that is not known."""
        return self.some.stepper.name

    @property
    def kept_as(self) -> str | None:
        """The name, and which numbers are tensors; None where the name is not known."""
        if self.name is None:
            return None
        return "\n".join([self.name, *self.scalars, *self.coefficients])

    @property
    def key(self) -> tuple[Any, ...]:
        """What tells them from other losses of the same runs."""
        return _loss(self.some.stepper), tuple(self.scalars), tuple(self.coefficients)

    @property
    def tensors(self) -> list[Tensor]:
        """The numbers that are tensors."""
        return [*self.scalars.values(), *self.coefficients.values()]

    def at(self, tensors: Sequence[Tensor]) -> Losses:
        """Return the same losses with other numbers."""
        values = iter(tensors)
        scalars = {name: next(values) for name in self.scalars}
        return replace(
            self, scalars=scalars, coefficients={name: next(values) for name in self.coefficients}
        )


def _summed(
    losses: Tensor, statistics: Mapping[str, Tensor], share: Tensor
) -> tuple[Tensor, list[str], Tensor]:
    """Return the sum of the runs' mean losses; the statistics' names and means [K, width]."""
    values = torch.stack([each.detach() for each in statistics.values()])
    means = (values.view(-1, *share.shape) * share).sum(2)
    return (losses.view_as(share) * share).sum(), list(statistics), means


def _varies(number: Any) -> bool:
    return isinstance(number, Tensor)


def _loss(stepper: Stepper) -> Evaluate:
    evaluate = stepper.evaluate
    return evaluate.func if isinstance(evaluate, partial) else evaluate


def _settings(stepper: Stepper) -> Objective | None:
    evaluate = stepper.evaluate
    return evaluate.keywords.get("settings") if isinstance(evaluate, partial) else None
