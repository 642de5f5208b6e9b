"""Learning by shards: each is differentiated by who owns it, and its sums are added to the others'.

A minibatch is a part of the whole rollout's rows, with about as many of each shard's. Each row is
differentiated by the worker that has its observation; a shard without rows sends zeros. Sums are
divided once, by the rows of the whole minibatch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from isobatch.experience import Rollout, Shards
from isobatch.update import Gather, Stepper, means
from isobatch.world import World

Own = TypeVar("Own", bound=Gather)


class Part(NamedTuple):
    """A shard's rows of a minibatch, and what the losses need of them."""

    rows: Tensor
    gather: Gather


class ByShard(Generic[Own]):
    """What the losses need of a rollout's rows, by shard."""

    def __init__(self, rollout: Rollout, make: Callable[[Rollout, slice], Own]) -> None:
        """`make` returns it for one shard's rollout, whose columns are given."""
        assert rollout.shards is not None
        self.shards: Shards = rollout.shards
        self.own = {
            place: make(rollout.of_shard(place), self.shards.columns(place))
            for place in self.shards.own
        }

    def parts(self, rows: Tensor) -> list[Part]:
        """Deal flat rows of the whole rollout to the shards owned."""
        return [Part(self.shards.local(rows, place), own) for place, own in self.own.items()]


class Gradients:
    """Gradients over all shards."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._names: WeakKeyDictionary[Stepper, list[str]] = WeakKeyDictionary()
        """The statistics of each stepper's losses, which a worker without rows does not see."""

    async def __call__(self, stepper: Stepper, rows: Tensor, gather: Any) -> dict[str, Tensor]:
        """As `Stepper.gradient`, of flat rows of a whole rollout and `ByShard`."""
        return self.of(stepper, gather.parts(rows), len(rows))

    def of(self, stepper: Stepper, parts: Sequence[Part], count: int) -> dict[str, Tensor]:
        """Leave the gradient of the mean loss over `count` rows in place; return mean statistics.

        `parts` are those of the shards owned.
        """
        gradient, found, names = stepper.parameters.gradient, list[Tensor](), list[str]()
        for part in parts:
            gradient.zero_()
            chunks = stepper.backward(part.rows, part.gather, count) if len(part.rows) else None
            total = gradient.new_zeros(0)
            if chunks is not None:
                names, total = chunks.names, torch.stack(chunks.sums).sum(0)
            found.append(torch.cat([gradient, total]))
        names = self._agreed(stepper, names)
        empty = gradient.new_zeros(len(gradient) + len(names))
        # A shard without rows knows nothing of statistics.
        own = [each if len(each) == len(empty) else empty for each in found]
        total = self.world.folded(own, empty)
        gradient.copy_(total[: len(gradient)])
        return means(names, [total[len(gradient) :]], count)

    def _agreed(self, stepper: Stepper, names: list[str]) -> list[str]:
        """Return the statistics' names, which some worker has seen."""
        if stepper not in self._names:
            self._names[stepper] = next(each for each in self.world.told(names) if each)
        return self._names[stepper]
