"""A minibatch's gradient by several threads, each with a share of the rows.

A layer's work on a cache-sized chunk is too little to divide: a thread to a core, each on rows of
its own, is a tenth faster than all of them on every convolution. And threads that meet once a
gradient wait less for a core that other work has than threads that meet in every operation.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch
from torch import Tensor, nn

from isobatch.update.optimize import FlatParameters

Result = TypeVar("Result")


class Replicas:
    """Copies of a model on the same weights, with gradients and a thread of their own."""

    def __init__(self, model: nn.Module, parameters: FlatParameters, count: int) -> None:
        self._total = parameters.gradient
        self._models = [copy.deepcopy(model) for _ in range(count)]
        self._gradients = [parameters.share(each) for each in self._models]
        self._pool = ThreadPoolExecutor(count, initializer=torch.set_num_threads, initargs=(1,))

    def __len__(self) -> int:
        return len(self._models)

    def backward(
        self, rows: Tensor, backward: Callable[[nn.Module, Tensor], Result]
    ) -> list[Result]:
        """Call `backward(model, rows)` for each share; leave the sum of the gradients in place.

        Shares and the order of the sum are fixed, so the result has the same bits every time.
        """
        for gradient in self._gradients:
            gradient.zero_()
        shares = rows.tensor_split(len(self._models))
        results = list(self._pool.map(backward, self._models, shares))
        first, second, *others = self._gradients
        torch.add(first, second, out=self._total)
        for gradient in others:
            self._total.add_(gradient)
        return results
