"""Has the policy collapsed? One that always takes the same action has no gradient to measure."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from isobatch.envs.spaces import ActionLayout
from isobatch.experience import Rollout
from isobatch.models.distributions import Distribution

LEAST_SHARE = 0.01
"""Of the uniform policy's entropy; a discrete policy with less has collapsed."""
LEAST_DEVIATION = 1e-3
"""A continuous policy whose standard deviation is below this has collapsed."""
UNIT_ENTROPY = 0.5 * math.log(2 * math.pi * math.e)
"""Of a normal distribution with standard deviation 1."""


@dataclass(frozen=True)
class Exploration:
    """How much of chance is left in a policy's actions."""

    entropy: float
    """Mean over the states visited, in nats."""
    uniform: float | None
    """The uniform policy's; None of continuous actions."""
    dimensions: int

    @property
    def deviation(self) -> float:
        """Standard deviation of a normal distribution with this entropy per action dimension."""
        return math.exp(self.entropy / self.dimensions - UNIT_ENTROPY)

    @property
    def has_collapsed(self) -> bool:
        """True where next to no chance is left."""
        if self.uniform is None:
            return self.deviation < LEAST_DEVIATION
        return self.entropy < LEAST_SHARE * self.uniform

    def __str__(self) -> str:
        if self.uniform is None:
            return f"its standard deviation is {self.deviation:.2g}"
        share = self.entropy / self.uniform
        return f"its entropy is {self.entropy:.2g} nats, {share:.2g} of the uniform policy's"


def exploration(distribution: Distribution, layout: ActionLayout, rollout: Rollout) -> Exploration:
    """Measure a policy by the parameters [T, N, P] it acted with."""
    with torch.no_grad():
        entropy = float(distribution.entropy(rollout.params[rollout.valid]).double().mean())
    uniform = None if layout.kind == "gaussian" else sum(map(math.log, layout.counts))
    return Exploration(entropy, uniform, max(1, len(layout.counts)))
