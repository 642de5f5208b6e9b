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
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from isobatch.recipe import Objective
from isobatch.update.gradient import Evaluate, Gather, padded
from isobatch.update.optimize import FlatParameters
from isobatch.update.step import Stepper

COEFFICIENTS = ("ent_coef", "vf_coef", "kl_coef")
"""Coefficients of the losses that may differ between the runs of a stack."""


@dataclass(frozen=True)
class Wanted:
    """A gradient that a run asks for."""

    stepper: Stepper
    rows: Tensor
    gather: Gather


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
        some = next(iter(wanted.values()))
        filled = [wanted.get(place, some) for place in range(self.width)]
        rows, counted = zip(*(padded(each.rows, self.capacity) for each in filled), strict=True)
        samples = _joined([each.gather(own) for each, own in zip(filled, rows, strict=True)])
        evaluate = self._evaluate([each.stepper for each in filled])
        counts = torch.stack(counted)
        losses, statistics = evaluate(self._call, samples)
        share = counts / counts.sum(1, keepdim=True)
        total = (losses.view_as(share) * share).sum()
        found = torch.autograd.grad(total, self._parts, materialize_grads=True)
        for gradient, own in zip(self._gradients, found, strict=True):
            gradient.copy_(own)
        values = torch.stack([each.detach() for each in statistics.values()])
        means = (values.view(-1, *share.shape) * share).sum(2)
        return {
            place: dict(zip(statistics, means[:, place].unbind(), strict=True)) for place in wanted
        }

    def _call(self, observation: Any) -> Any:
        """Return the model's outputs for the rows of all runs, end to end."""
        stacked = tree_map(lambda rows: rows.unflatten(0, (self.width, -1)), observation)
        return tree_map(lambda found: found.flatten(0, 1), self._model(stacked))

    def _evaluate(self, steppers: Sequence[Stepper]) -> Evaluate:
        """Return the losses of all rows, each with its own run's coefficients."""
        evaluate, settings = steppers[0].evaluate, [_settings(each) for each in steppers]
        if settings[0] is None or not isinstance(evaluate, partial):
            return evaluate
        own: dict[str, Any] = {}
        for name in COEFFICIENTS:
            values = [getattr(each, name) for each in settings]
            if len(set(values)) > 1:
                by_run = torch.tensor(values, device=self._parts[0].device)
                own[name] = by_run.repeat_interleave(self.capacity)
        return partial(
            evaluate.func, **{**evaluate.keywords, "settings": replace(settings[0], **own)}
        )


def _joined(samples: Sequence[Any]) -> Any:
    """Return the samples of several runs end to end; a number of each is as many as it has rows."""
    flat, shapes = zip(*(tree_flatten(each) for each in samples), strict=True)
    count = len(next(each for each in flat[0] if each is not None and each.ndim))

    def join(column: Sequence[Tensor | None]) -> Tensor | None:
        parts = [each for each in column if each is not None]
        if not parts:
            return None
        if parts[0].ndim:
            return torch.cat(parts)
        return torch.stack(parts).repeat_interleave(count)

    return tree_unflatten([join(column) for column in zip(*flat, strict=True)], shapes[0])


def _loss(stepper: Stepper) -> Evaluate:
    evaluate = stepper.evaluate
    return evaluate.func if isinstance(evaluate, partial) else evaluate


def _settings(stepper: Stepper) -> Objective | None:
    evaluate = stepper.evaluate
    return evaluate.keywords.get("settings") if isinstance(evaluate, partial) else None
