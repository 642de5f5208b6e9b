"""What every environment gives back, whatever it is made of."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol, runtime_checkable

from torch import Tensor

from isobatch.envs.spaces import ActionLayout, ObservationLayout

Observation = dict[str, Tensor]
"""Encoded observations: 'image' [N, C, H, W] and/or 'vector' [N, D]."""


def owned(observation: Observation) -> Observation:
    """Return a copy, for environments that may write their next observation over this one."""
    return {part: tensor.clone() for part, tensor in observation.items()}


class Step(NamedTuple):
    """One step of N environments.

    The first five fields are the contract. Vectors that reset on the *next* step give the true
    final observation as `observation` and then one row that is no transition (`valid` False).
    Vectors that reset on the *same* step give the reset observation, and `final` beside it.
    """

    observation: Observation
    """What to act on next, [N, ...]."""
    reward: Tensor
    """[N] float32, as trained on."""
    terminated: Tensor
    """[N] bool: the task ended; nothing follows."""
    truncated: Tensor
    """[N] bool: the clock ended it; the final observation's value follows."""
    valid: Tensor
    """[N] bool: False where the row is a reset and not a transition."""
    final: Observation | None = None
    """Same-step resets only: the last observation of episodes that ended, other rows arbitrary."""
    score: Tensor | None = None
    """[N] the environment's own reward where `reward` was changed for training."""
    over: Tensor | None = None
    """[N] bool: whole games that ended, where `terminated` also marks lost lives."""
    dropped: Tensor | None = None
    """[N] bool: the environment was replaced (it failed, or it was time), its episode is lost. Such
    a row is a reset without an end before it; None where that cannot be."""

    @property
    def scored(self) -> Tensor:
        """[N]: what counts for the episode's return, the environment's own reward."""
        return self.reward if self.score is None else self.score

    @property
    def ended(self) -> Tensor:
        """[N] bool: whole episodes (games) that ended."""
        return self.terminated | self.truncated if self.over is None else self.over


@runtime_checkable
class Divisible(Protocol):
    """Environments whose step is in two parts, so that several batches of them step at once."""

    def send(self, actions: Tensor) -> None:
        """Begin a step."""
        ...

    def receive(self) -> Step:
        """End the step under way."""
        ...


class BatchedEnv(Protocol):
    """N environments stepped together."""

    name: str
    n_envs: int
    observation_layout: ObservationLayout
    action_layout: ActionLayout

    def reset(self) -> Observation:
        """Start all environments; return the first observations [N, ...]."""
        ...

    def step(self, actions: Tensor) -> Step:
        """Take one action in each environment (policy form: see `ActionLayout`)."""
        ...

    def restart(self, which: Tensor, actions: Tensor) -> Step:
        """Begin a new episode in some environments, `which` [N] bool, then step all."""
        ...

    def stepping(self) -> AbstractContextManager[None]:
        """Hold, for the steps of one rollout, what makes them quick."""
        ...

    def close(self) -> None:
        """Free what the environments hold."""
        ...
