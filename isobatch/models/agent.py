"""What every algorithm's networks can do: act and value."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor, nn

from isobatch.models.distributions import Distribution


class Agent(nn.Module, ABC):
    """Networks that act on observations and value them.

    Calling one gives what its algorithm trains.
    """

    distribution: Distribution
    """How policy parameters become actions."""

    @abstractmethod
    def act(self, observation: dict[str, Tensor]) -> tuple[Tensor, Tensor | None]:
        """Return (policy parameters [B, P], values [B]), the values None where they cost extra."""

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
