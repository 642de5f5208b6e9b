"""The gradients of several runs' minibatches at once, as one function of stacked parameters.

For the small networks that studies train, most of a gradient's time is spent on calling operations
and not in them. The k-th of S runs has parameters theta_k and minibatch x_k of b_k rows:

g_k = grad (1 / b_k) sum_i L(theta_k, x_ki, c_k),  k = 1 ... S

The same losses as of a run alone, mapped over the runs with `torch.func.vmap` and written out once
as a list of tensor operations, which is what is called from then on. Each run has its own
coefficients c_k. Minibatches are padded to one length with rows that do not count, the stack to
one width with copies whose result nobody takes: what a run computes does not depend on the others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_flatten, tree_unflatten

from isobatch.recipe import Objective
from isobatch.update.gradient import Evaluate, Gather, means, padded, sums
from isobatch.update.step import Stepper

COEFFICIENTS = ("ent_coef", "vf_coef", "kl_coef")
"""Coefficients of the losses that may differ between the runs of a stack."""

Traced = Callable[..., tuple[Tensor, ...]]


@dataclass(frozen=True)
class Wanted:
    """A gradient that a run asks for."""

    stepper: Stepper
    rows: Tensor
    gather: Gather


class Stack:
    """Computes up to `width` runs' gradients at once, of minibatches of up to `capacity` rows."""

    def __init__(self, width: int, capacity: int) -> None:
        self.width, self.capacity = width, capacity
        self._traced: dict[Any, tuple[Traced, list[str]]] = {}

    @torch.no_grad()
    def __call__(self, asked: Mapping[int, Wanted]) -> dict[int, dict[str, Tensor]]:
        """Leave gradients with their steppers; return the mean statistics, as `Stepper.gradient`.

        Of the runs that ask, by number, those on the same loss as the first are answered.
        """
        kind = _loss(next(iter(asked.values())).stepper)
        asked = {place: each for place, each in asked.items() if _loss(each.stepper) is kind}
        wanted = list(asked.values())
        if any(len(each.rows) > self.capacity for each in wanted):
            # By whole environments, or of a budget's last few rows: one after the other.
            return {
                place: each.stepper.gradient(each.rows, each.gather)
                for place, each in asked.items()
            }
        filled = [*wanted, *[wanted[0]] * (self.width - len(wanted))]
        rows, counted = zip(*(padded(each.rows, self.capacity) for each in filled), strict=True)
        gathered = [each.gather(own) for each, own in zip(filled, rows, strict=True)]
        leaves, shape = zip(*(tree_flatten(each) for each in gathered), strict=True)
        coefficients = [_coefficients(each.stepper) for each in filled]
        stacked = [
            torch.stack([each.stepper.parameters.vector.detach() for each in filled]),
            torch.stack(counted),
            torch.tensor(coefficients, device=counted[0].device),
            *(_stacked(column) for column in zip(*leaves, strict=True)),
        ]
        function, names = self._function(wanted[0].stepper, stacked, shape[0])
        gradients, *statistics = function(*stacked)
        found = {}
        for row, (place, each) in enumerate(asked.items()):
            each.stepper.parameters.gradient.copy_(gradients[row])
            found[place] = {name: own[row] for name, own in zip(names, statistics, strict=True)}
        return found

    def _function(
        self, stepper: Stepper, stacked: list[Tensor | None], shape: Any
    ) -> tuple[Traced, list[str]]:
        """Return the function for this loss and these shapes, written out when first needed."""
        key = (
            _loss(stepper),
            shape,
            *(None if each is None else (each.shape, each.dtype) for each in stacked),
        )
        if key not in self._traced:
            self._traced[key] = _trace(stepper, stacked, shape)
        return self._traced[key]


def _trace(stepper: Stepper, stacked: list[Tensor | None], shape: Any) -> tuple[Traced, list[str]]:
    names: list[str] = []

    def gradient(vector: Tensor, counted: Tensor, coefficients: Tensor, *leaves: Any) -> Any:
        samples, count = tree_unflatten(leaves, shape), counted.sum()
        evaluate = _with_coefficients(stepper, coefficients)

        def mean_loss(vector: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
            def call(observation: Any) -> Any:
                views = stepper.parameters.views(vector)
                return functional_call(stepper.model, views, (observation,))

            found = sums(evaluate, call, samples, counted)
            names[:] = found.names
            return found.loss / count, tuple(means(names, [found.statistics], count).values())

        own, statistics = grad(mean_loss, has_aux=True)(vector)
        return (own, *statistics)

    dims = tuple(None if each is None else 0 for each in stacked)
    graph = make_fx(vmap(gradient, in_dims=dims))(*stacked)
    return graph.forward, names


def _loss(stepper: Stepper) -> Evaluate:
    evaluate = stepper.evaluate
    return evaluate.func if isinstance(evaluate, partial) else evaluate


def _coefficients(stepper: Stepper) -> list[float]:
    settings = _settings(stepper)
    return (
        [0.0] * len(COEFFICIENTS)
        if settings is None
        else [getattr(settings, name) for name in COEFFICIENTS]
    )


def _with_coefficients(stepper: Stepper, coefficients: Tensor) -> Any:
    """Return the stepper's losses with these coefficients in place of its own."""
    evaluate, settings = stepper.evaluate, _settings(stepper)
    if settings is None or not isinstance(evaluate, partial):
        return evaluate
    own: Any = dict(zip(COEFFICIENTS, coefficients.unbind(), strict=True))
    return partial(evaluate.func, **{**evaluate.keywords, "settings": replace(settings, **own)})


def _settings(stepper: Stepper) -> Objective | None:
    evaluate = stepper.evaluate
    return evaluate.keywords.get("settings") if isinstance(evaluate, partial) else None


def _stacked(column: Sequence[Tensor | None]) -> Tensor | None:
    return None if column[0] is None else torch.stack([each for each in column if each is not None])
