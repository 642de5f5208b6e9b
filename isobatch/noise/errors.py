"""How far a batch's gradient is off: the one measure by which shapes are compared.

With G the gradient wanted, H the expectation of what a shape gives, and v its variance, both are
rescaled until the part along G is right, by s = |G|^2 / <H, G>, as a step size could do:

bias^2 = |s H - G|^2 / |G|^2 = |H|^2 |G|^2 / <H, G>^2 - 1,   variance = s^2 v / |G|^2

Their sum is 1 / cos^2 - 1 for the cosine between a batch's gradient and G. Compared plainly, as
|H - G|^2 + v, a gradient of nearly nothing would look good wherever noise rules.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor


class GradientError(NamedTuple):
    """The squared error of a gradient over |G|^2: numbers, or tensors over resamples."""

    bias2: Any
    variance: Any

    @property
    def total(self) -> Any:
        """bias^2 + variance = 1 / cos^2 - 1."""
        return self.over(1)

    def over(self, batches: float) -> Any:
        """bias^2 + variance / batches: of the mean gradient of so many batches."""
        return self.bias2 + self.variance / batches

    def __str__(self) -> str:
        return f"{self.total:.3g} (bias^2 {self.bias2:.3g}, variance {self.variance:.3g})"


def gradient_error(
    own: Tensor, along: Tensor, reference: Tensor, variance: Tensor
) -> GradientError:
    """Return the error given |H|^2, <H, G>, |G|^2 and v, each free of its own noise.

    Infinite where |G|^2 or <H, G> is not positive: there is no gradient to be right along.
    """
    undefined = (reference <= 0) | (along <= 0)
    factor = reference / along.square()
    # Cauchy and Schwarz hold for the truth, not for every estimate of it.
    bias2 = (own * factor - 1).clamp(min=0)
    return GradientError(
        torch.where(undefined, math.inf, bias2),
        torch.where(undefined, math.inf, variance.clamp(min=0) * factor),
    )


def at_other_lengths(
    signal: float, bias: float, bias_along: float, variance: float, half_variance: float
) -> dict[float, GradientError]:
    """Return the errors of rollouts of as many rows, T times 1/2, 1 and 2, from those of T.

    With G(T) the expected gradient, d = G(T / 2) - G(T); given are |G(T)|^2, |d|^2, <d, G(T)> and
    the variances of T and T / 2 steps of as many environments. GAE's bias from ending a rollout
    falls as c / T once T exceeds its horizon, so d is the bias of T itself:

    G      = G(T) - d           what rollouts without end would give
    G(f T) = G(T) + (1 / f - 1) d

    (2 N, T / 2)   variance V_half / 2        twice as many of the environments measured
    (N, T)         variance V
    (N / 2, 2 T)   variance V + max(0, V - V_half / 2)

    The last is a guess: what correlation in time adds from T / 2 to T, it adds again.
    """
    bias = max(0.0, bias)  # Without its noise, the measured one may be below.
    most = math.sqrt(bias * max(0.0, signal))
    across = min(max(bias_along, -most), most)
    variances = {
        0.5: half_variance / 2,
        1.0: variance,
        2.0: variance + max(0.0, variance - half_variance / 2),
    }
    found = {}
    for factor, each in variances.items():
        more = 1 / factor - 1
        numbers = (
            signal + 2 * more * across + more**2 * bias,
            signal + (more - 1) * across - more * bias,
            signal - 2 * across + bias,
            each,
        )
        error = gradient_error(*(torch.tensor(number, dtype=torch.float64) for number in numbers))
        found[factor] = GradientError(float(error.bias2), float(error.variance))
    return found
