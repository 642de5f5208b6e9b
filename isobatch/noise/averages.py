"""What probes in training measured, averaged; and whether that is a gradient or noise."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from isobatch.noise.errors import GradientError, at_other_lengths

DECAY = 0.9
"""Of the averages, per probe: they reach back over some ten probes."""
MISTAKEN = 0.001
"""How often a probe may take pure noise for a gradient; a run has hundreds of them."""


class Measured(NamedTuple):
    """What one rollout tells about the policy gradient; None where it is too small to tell."""

    rows: int
    """B, those of the rollout that are transitions."""
    signal: float
    """|G|^2 of the true gradient, its noise taken off; below zero where that hides it."""
    trace: float
    """S, the trace of one row's covariance."""
    variance: float | None
    """V, the variance of the whole rollout's gradient, by groups of environments."""
    half_variance: float | None
    """The same of half the steps of all environments: the mean over both halves."""
    bias: float | None
    """|d|^2 of how far rollouts half as long are off."""
    bias_along: float | None = None
    """<d, G>: how much of that is along the gradient, where a step size makes up for it."""


class Averages:
    """Exponentially weighted means of what probes measured; ratios are taken of the means.

    W <- b W + 1,  X <- b X + x,  mean = X / W. What depends on the rollout's shape begins anew when
    that moves; the noise of single rows does not, and goes on.
    """

    OF_SHAPE = ("rows", "variance", "half_variance", "bias", "bias_along")

    def __init__(self, decay: float = DECAY) -> None:
        self.decay = decay
        self.probes = 0
        """Taken since the batch last moved."""
        self.weights: dict[str, float] = {}
        self.totals: dict[str, float] = {}

    def update(self, measured: Measured) -> None:
        """Take in a probe."""
        self.probes += 1
        values = measured._asdict() | {"signal_square": measured.signal**2}
        for name, value in values.items():
            if value is not None:
                self.weights[name] = self.decay * self.weights.get(name, 0.0) + 1
                self.totals[name] = self.decay * self.totals.get(name, 0.0) + value

    def restart(self, reshaped: bool) -> None:
        """Begin to count anew: the batch moved, and with it, or not, the rollout's shape."""
        self.probes = 0
        for name in self.OF_SHAPE if reshaped else ():
            self.weights.pop(name, None)
            self.totals.pop(name, None)

    def mean(self, name: str) -> float | None:
        """Return the average of a field of `Measured`, None where it was never known."""
        return self.totals[name] / self.weights[name] if name in self.weights else None

    @property
    def noise_scale(self) -> float | None:
        """S / |G|^2 in rows (McCandlish et al. 2018); None while either is lost in the noise."""
        scale = self._ratio("trace", "signal")
        return scale if scale is not None and scale > 0 else None

    @property
    def signal_error(self) -> float:
        """Standard error of the averaged |G|^2, by its scatter over probes; infinite of one."""
        share = self._concentration
        if share >= 1:
            return math.inf
        spread = max(0.0, (self.mean("signal_square") or 0.0) - (self.mean("signal") or 0.0) ** 2)
        return math.sqrt(spread * share / (1 - share))

    @property
    def has_signal(self) -> bool:
        """True where the averaged |G|^2 is significantly above zero: Student's t over probes."""
        share = self._concentration
        if share >= 1:
            return False
        from scipy.special import stdtrit  # Slow to import, and most runs measure no noise.

        most = float(stdtrit(1 / share - 1, 1 - MISTAKEN))
        return (self.mean("signal") or 0.0) > most * self.signal_error

    @property
    def errors(self) -> dict[float, GradientError] | None:
        """The error of rollouts of as many rows, T times 1/2, 1 and 2; None while not known."""
        names = ("signal", "bias", "bias_along", "variance", "half_variance")
        values = [value for value in map(self.mean, names) if value is not None]
        return at_other_lengths(*values) if len(values) == len(names) else None

    @property
    def columns(self) -> dict[str, float]:
        """What a row of metrics says of the averages, as far as it is known."""
        effect, half = self._ratio("variance", "trace"), self._ratio("half_variance", "trace")
        rows = self.mean("rows") or 0.0
        values = {
            "noise_scale": self.noise_scale,
            "design_effect": None if effect is None else effect * rows,
            "design_effect_half": None if half is None else half * rows / 2,
            "bias_half": self._ratio("bias", "signal"),
        }
        return {name: value for name, value in values.items() if value is not None}

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint keeps."""
        return {"probes": self.probes, "weights": self.weights, "totals": self.totals}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore from `state_dict`."""
        self.probes = state["probes"]
        self.weights, self.totals = dict(state["weights"]), dict(state["totals"])

    @property
    def _concentration(self) -> float:
        """sum w^2 / (sum w)^2 of the probes' weights in |G|^2, one over how many count; 1 of none.

        Of n probes W = (1 - b^n) / (1 - b) and sum w^2 = (1 - b^2n) / (1 - b^2).
        """
        weight = self.weights.get("signal_square", 0.0)
        if not weight:
            return 1.0
        left = 1 - weight * (1 - self.decay)
        return (1 - left**2) / (1 - self.decay**2) / weight**2

    def _ratio(self, above: str, below: str) -> float | None:
        over, under = self.mean(above), self.mean(below)
        return over / under if over is not None and under is not None and under > 0 else None
