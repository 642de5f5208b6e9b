"""What every algorithm's networks can do: act and value."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, nn

from isobatch.models.distributions import Distribution


class Drawn(NamedTuple):
    """Actions drawn from a policy."""

    actions: Tensor
    """[B, K]."""
    params: Tensor
    """[B, P]: the policy's parameters."""
    values: Tensor | None
    """[B]; None where they cost extra."""


class Agent(nn.Module, ABC):
    """Networks that act on observations and value them.

    Calling one gives what its algorithm trains.
    """

    distribution: Distribution
    """How policy parameters become actions."""
    uses_sde: bool = False
    """Whether its noise depends on more of an observation than the policy's parameters."""

    @abstractmethod
    def act(self, observation: dict[str, Tensor]) -> tuple[Tensor, Tensor | None]:
        """Return (policy parameters [B, P], values [B]), the values None where they cost extra."""

    def noise(self, shape: tuple[int, ...], like: Tensor, generator: torch.Generator) -> Tensor:
        """Draw the randomness of as many actions as `shape` says, [*shape, ...], for `draw`."""
        return self.distribution.noise(shape, like, generator)

    def draw(self, observation: dict[str, Tensor], noise: Tensor) -> Drawn:
        """Return actions of the policy, given the randomness [B, ...] of each."""
        params, values = self.act(observation)
        return Drawn(self.distribution.sample(params, noise), params, values)

    @abstractmethod
    def values(self, observation: dict[str, Tensor]) -> Tensor:
        """Return values [B]."""


@contextmanager
def evaluation_mode(module: nn.Module) -> Iterator[None]:
    """Keep layers from drawing random numbers or averaging over what passes through them."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, training in modes:
            part.training = training
