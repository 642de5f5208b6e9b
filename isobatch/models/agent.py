"""What every algorithm's networks can do: act and value."""

from __future__ import annotations

from abc import ABC, abstractmethod

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
