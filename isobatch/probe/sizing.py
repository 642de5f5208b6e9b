"""Is the batch too small? Its size against the noise scale, and what doubling it would buy.

The simple noise model (McCandlish et al. 2018, section 2): with batches of B samples the steps to a
target are in proportion to 1 + B_noise / B, and the samples, B times the steps, to 1 + B / B_noise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from isobatch.estimate import Estimate

Verdict = Literal[
    "too small",
    "about right or too small",
    "about right",
    "about right or too large",
    "too large",
    "cannot tell",
]
FAR = 2.0
"""A batch is too small, or too large, where the whole interval is beyond this many times it."""
WIDE = 4.0
"""It is about right where the interval stays within this many times it."""


@dataclass(frozen=True)
class Sizing:
    """A minibatch or a rollout against the noise scale that goes with it."""

    rows: int
    scale: Estimate
    """The noise scale, in transitions."""

    @property
    def verdict(self) -> Verdict:
        """Say what the whole interval of the noise scale agrees on.

        Without an upper bound |G|^2 is not significantly greater than zero: where no gradient is
        left every batch is below the noise scale, and a larger one buys nothing.
        """
        low, high = self.scale.low, self.scale.high
        if not (math.isfinite(low) and math.isfinite(high)):
            return "cannot tell"
        if low > FAR * self.rows:
            return "too small"
        if high < self.rows / FAR:
            return "too large"
        may_be_large, may_be_small = low < self.rows / WIDE, high > WIDE * self.rows
        if may_be_large and may_be_small:
            return "cannot tell"
        if may_be_small:
            return "about right or too small"
        return "about right or too large" if may_be_large else "about right"

    @property
    def steps(self) -> Estimate:
        """Steps to the same progress with twice the rows, over those with as many as now."""
        return Estimate(*(_steps(self.rows, each) for each in self._downwards))

    @property
    def samples(self) -> Estimate:
        """Transitions to the same progress with twice the rows, over those with as many as now."""
        return self.steps * 2

    @property
    def _downwards(self) -> Estimate:
        """The noise scale with its bounds the other way: the more noise, the fewer steps."""
        return Estimate(self.scale.value, self.scale.high, self.scale.low)


def _steps(rows: int, scale: float) -> float:
    """Return (1 + S / 2B) / (1 + S / B)."""
    if math.isinf(scale):
        return 0.5
    return (1 + scale / (2 * rows)) / (1 + scale / rows)
