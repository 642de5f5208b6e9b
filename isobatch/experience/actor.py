"""Who acts in N environments: one policy in all of them, or several, each in a share of its own."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from isobatch.envs import Observation
from isobatch.models import Agent
from isobatch.models.acting import Draw, drawing, drawing_together
from isobatch.models.distributions import Distribution
from isobatch.normalize import Following, ObservationNormalizer


class Actor(Protocol):
    """Chooses actions in N environments and values what it sees."""

    distribution: Distribution
    """Of its actions."""
    hold: int
    """Steps for which an environment's noise is held."""

    def drawing(self, n_envs: int) -> Draw:
        """Return how it acts now, as a function of observations and noise, [N, ...] each."""
        ...

    def noise(self, n_steps: int, n_envs: int, like: Tensor) -> Sequence[Tensor]:
        """Draw the randomness of its next T actions, [N, ...] each."""
        ...

    def values(self, observations: Observation, chunk_size: int) -> Tensor:
        """Return the values [R, N] of observations [R, N, ...], computed a chunk at a time."""
        ...

    def values_where(self, observation: Observation, wanted: Tensor) -> Tensor:
        """Return the values of the environments `wanted` [N] alone, of an observation [N, ...]."""
        ...

    def following(self) -> Following | None:
        """Return what takes in every step, where that is when its statistics are updated."""
        ...

    @property
    def plain(self) -> Actor:
        """The same on observations that are normalised already."""
        ...


class Single:
    """One policy, with its normalisation and its random numbers."""

    def __init__(
        self,
        model: Agent,
        prepare: ObservationNormalizer,
        generator: torch.Generator,
        hold: int = 1,
        trains: bool = False,
    ) -> None:
        """Who `trains` updates its statistics as it acts, where they are updated by step."""
        self.model, self.prepare, self.generator = model, prepare, generator
        self.distribution, self.hold, self.trains = model.distribution, hold, trains

    def drawing(self, n_envs: int) -> Draw:
        """Act by the fastest way there is."""
        return drawing(self.model, self.prepare, n_envs)

    def noise(self, n_steps: int, n_envs: int, like: Tensor) -> Sequence[Tensor]:
        """Draw from its generator, and hold what was drawn."""
        shape = (math.ceil(n_steps / self.hold), n_envs)
        drawn = self.model.noise(shape, like, self.generator).unbind()
        return drawn if self.hold == 1 else [drawn[t // self.hold] for t in range(n_steps)]

    def values(self, observations: Observation, chunk_size: int) -> Tensor:
        """Value all rows."""
        flat = {part: rows.flatten(0, 1) for part, rows in observations.items()}
        found = chunked(lambda rows: self.model.values(self.prepare(rows)), flat, chunk_size)
        return found.view(len(next(iter(observations.values()))), -1)

    def values_where(self, observation: Observation, wanted: Tensor) -> Tensor:
        """Value some rows."""
        return self.model.values(
            self.prepare({part: rows[wanted] for part, rows in observation.items()})
        )

    def following(self) -> Following | None:
        """Follow every step in training alone."""
        updated = self.trains and self.prepare.by_step and self.prepare.moments is not None
        return Following(self.prepare) if updated else None

    @property
    def plain(self) -> Single:
        """The same without normalisation."""
        return Single(self.model, ObservationNormalizer(None), self.generator, self.hold)


class Several:
    """Policies of one architecture, the k-th in the k-th of equal shares of the environments."""

    def __init__(self, actors: Sequence[Single]) -> None:
        self.actors = actors
        self.distribution, self.hold = actors[0].distribution, actors[0].hold

    def drawing(self, n_envs: int) -> Draw:
        """Act for all of them at once where that is quicker."""
        models, share = [each.model for each in self.actors], n_envs // len(self.actors)
        prepare = ObservationNormalizer.joined([each.prepare for each in self.actors], share)
        return drawing_together(models, prepare, share)

    def noise(self, n_steps: int, n_envs: int, like: Tensor) -> Sequence[Tensor]:
        """Draw each share from its policy's own generator."""
        share = n_envs // len(self.actors)
        shares = [each.noise(n_steps, share, like) for each in self.actors]
        return [torch.cat(step) for step in zip(*shares, strict=True)]

    def values(self, observations: Observation, chunk_size: int) -> Tensor:
        """Value each share by its own policy."""
        shares = self._shares(observations, 1)
        pairs = zip(self.actors, shares, strict=True)
        return torch.cat([actor.values(share, chunk_size) for actor, share in pairs], 1)

    def values_where(self, observation: Observation, wanted: Tensor) -> Tensor:
        """Value each share by its own policy."""
        shares = zip(
            self.actors, self._shares(observation, 0), wanted.chunk(len(self.actors)), strict=True
        )
        return torch.cat([actor.values_where(share, which) for actor, share, which in shares])

    def following(self) -> Following | None:
        """Follow nothing: where statistics are updated by step, runs are trained alone."""
        return None

    @property
    def plain(self) -> Several:
        """The same without normalisation."""
        return Several([each.plain for each in self.actors])

    def _shares(self, observation: Observation, dim: int) -> list[Observation]:
        parts = {part: rows.chunk(len(self.actors), dim) for part, rows in observation.items()}
        return [{part: rows[k] for part, rows in parts.items()} for k in range(len(self.actors))]


def chunked(compute: Callable[[Observation], Tensor], rows: Observation, chunk_size: int) -> Tensor:
    """Return `compute` of observation rows [B, ...], a chunk at a time, end to end."""
    count = len(next(iter(rows.values())))
    parts = [
        compute({part: tensor[start : start + chunk_size] for part, tensor in rows.items()})
        for start in range(0, count, chunk_size)
    ]
    return torch.cat(parts)
