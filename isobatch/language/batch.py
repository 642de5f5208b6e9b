"""The batch of language-model RL: prompts, the responses sampled for each, and how they are cut."""

from __future__ import annotations

from dataclasses import dataclass

from isobatch.batch import Batch, positive
from isobatch.errors import UserError


@dataclass(frozen=True)
class SequenceBatch:
    """Prompts x samples, cut into gradient steps; a row is a sequence, one response to a prompt."""

    prompts: int
    """Prompts of one iteration: what is generated before the policy that generates changes."""
    samples: int
    """Responses sampled for each prompt."""
    minibatch: int
    """Sequences of one gradient step, over all devices and accumulated passes."""
    epochs: int = 1
    """Passes over the sequences of one iteration."""
    devices: int = 1
    """Devices that train."""
    ranks: int = 1
    """Shares the data is split into: devices, less those that split the model."""
    micro: int | None = None
    """Sequences of one pass on one rank; None where passes are filled by tokens."""
    staleness: int = 0
    """Iterations by which a sequence may be older than the policy it trains."""

    def __post_init__(self) -> None:
        for name in ("prompts", "samples", "minibatch", "epochs", "devices", "ranks"):
            positive(name, getattr(self, name))
        if self.sequences % self.minibatch:
            raise UserError(
                f"{self.prompts} prompts x {self.samples} samples = {self.sequences:,} sequences "
                f"do not divide into gradient steps of {self.minibatch:,}"
            )

    @property
    def sequences(self) -> int:
        """Sequences of one iteration, prompts x samples: the iteration batch."""
        return self.prompts * self.samples

    @property
    def steps_per_epoch(self) -> int:
        """Gradient steps of one pass over the sequences."""
        return self.sequences // self.minibatch

    @property
    def steps_per_iteration(self) -> int:
        """Gradient steps between two generations."""
        return self.steps_per_epoch * self.epochs

    @property
    def per_rank(self) -> float:
        """Sequences of one gradient step on one rank."""
        return self.minibatch / self.ranks

    @property
    def batch(self) -> Batch:
        """The same as environments x steps, one step each: what the rules of scaling take."""
        return Batch(self.sequences, 1, self.steps_per_epoch, self.epochs)
