"""Observations that stay with the workers that saw them.

They are the bulk of a rollout. What is computed of them is computed shard by shard, by whoever owns
the shard, and gathered.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from isobatch.envs import Observation
from isobatch.normalize import Moments, moments_of
from isobatch.world import World


@dataclass
class Shards:
    """A rollout's observations by shard."""

    world: World
    own: Mapping[int, Observation]
    """Of the shards that this worker owns, [T+1, N / S, ...] each."""
    n_envs: int
    """Environments of a shard, N / S."""
    row_bytes: int
    """Of one observation."""

    @classmethod
    def dealt(cls, world: World, whole: Observation) -> Shards:
        """Return the observations [T+1, N, ...] of all environments, dealt to shards."""
        rows = list(whole.values())
        row_bytes = sum(math.prod(each.shape[2:]) * each.element_size() for each in rows)
        shards = cls(world, {}, rows[0].shape[1] // world.shards, row_bytes)
        own = {
            place: {part: each[:, shards.columns(place)] for part, each in whole.items()}
            for place in world.owned
        }
        return replace(shards, own=own)

    def gathered(self) -> Observation:
        """Return the observations of all environments, from all workers: [T+1, N, ...] each."""
        found = self.world.gather_named([dict(each) for each in self.own.values()])
        return {part: torch.cat([each[part] for each in found], 1) for part in found[0]}

    def columns(self, place: int) -> slice:
        """Return where a shard's environments are among all N."""
        return slice(place * self.n_envs, (place + 1) * self.n_envs)

    def local(self, rows: Tensor, place: int) -> Tensor:
        """Return which of flat rows t N + n are a shard's, as its own flat rows."""
        steps, envs = rows // self._total, rows % self._total
        mine = envs // self.n_envs == place
        return steps[mine] * self.n_envs + envs[mine] - place * self.n_envs

    def picked(self, rows: Tensor) -> Observation:
        """Return the observations of flat rows [b], from all workers: [b, ...] each part."""
        owner = (rows % self._total // self.n_envs).cpu()
        most = int(torch.bincount(owner, minlength=1).max())
        found = self.world.gather_named([self._padded(k, rows, most) for k in self.own])
        parts = {
            name: each.new_empty((len(rows), *each.shape[1:])) for name, each in found[0].items()
        }
        for place, shard in enumerate(found):
            mine = owner == place
            for name, each in shard.items():
                parts[name][mine] = each[: int(mine.sum())]
        return parts

    def vector_moments(self, valid: Tensor) -> list[Moments]:
        """Return the moments of the vectors acted on in each shard's valid rows [T, N]."""
        own = []
        for place, observation in self.own.items():
            rows = observation["vector"][:-1][valid[:, self.columns(place)]]
            mean, var, count = moments_of(rows)
            own.append(torch.cat([mean, var, mean.new_tensor([count])]))
        gathered = self.world.gather(own)
        width = (len(gathered[0]) - 1) // 2
        return [Moments(each[:width], each[width:-1], int(each[-1])) for each in gathered]

    def mapped(self, rows: Callable[[Tensor], Tensor]) -> Shards:
        """Return the same with every part [T+1, N / S, ...] cut in time."""
        own = {k: {part: rows(each) for part, each in seen.items()} for k, seen in self.own.items()}
        return replace(self, own=own)

    @property
    def _total(self) -> int:
        return self.n_envs * self.world.shards

    def _padded(self, place: int, rows: Tensor, most: int) -> Observation:
        """Return a shard's part of flat rows, and zeros up to `most`."""
        mine = self.local(rows, place)
        found = {}
        for part, each in self.own[place].items():
            flat = each[:-1].flatten(0, 1)
            found[part] = each.new_zeros((most, *flat.shape[1:]))
            found[part][: len(mine)] = flat[mine]
        return found
