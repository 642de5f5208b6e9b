"""How far apart two batches are, and averages measured in data instead of updates."""

from __future__ import annotations

from dataclasses import dataclass

from isobatch.batch import Batch


@dataclass(frozen=True)
class Factors:
    """How much smaller the new batch is, in both of its sizes."""

    old: Batch
    new: Batch

    @property
    def opt(self) -> float:
        """c_opt, by the minibatches as they are on average."""
        return self.iter * self.new.n_minibatches / self.old.n_minibatches

    @property
    def iter(self) -> float:
        """c_iter."""
        return self.old.rollout_size / self.new.rollout_size

    @property
    def epochs(self) -> float:
        """New epochs over old."""
        return self.new.n_epochs / self.old.n_epochs

    @property
    def sizes_differ(self) -> bool:
        """True where an iteration or a gradient step has other rows."""
        return self.opt != 1 or self.iter != 1

    @property
    def differ(self) -> bool:
        """True where anything of the batch moves that training depends on."""
        return self.sizes_differ or self.epochs != 1 or self.old.n_steps != self.new.n_steps


def center_of_mass(decay: float) -> float:
    """Mean age of an exponentially weighted average, 1 / (1 - b) - 1 updates."""
    return 1 / (1 - decay) - 1


def decay_of_mass(age: float) -> float:
    """The decay of a centre of mass, 1 - 1 / (1 + age)."""
    return 1 - 1 / (1 + age)


def span(decay: float) -> float:
    """Effective number of updates in an average, 2 / (1 - b) - 1."""
    return 2 / (1 - decay) - 1


def decay_of_span(count: float) -> float:
    """The decay of a span, 1 - 2 / (1 + count)."""
    return 1 - 2 / (1 + count)
