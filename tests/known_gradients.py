"""Gradients made up so that everything about them is known."""

import math

import torch
from torch import Tensor

SIGNAL = 0.3
"""The true gradient, in every coordinate."""


def correlated(
    generator: torch.Generator, shape: tuple[int, ...], phi: float = 0.0, effect: float = 0.0
) -> Tensor:
    """Draw gradients [..., T, P]: AR(1) in time with variance 1, plus an environment's own."""
    noise = torch.randn(shape, generator=generator, dtype=torch.float64)
    steps = [noise[..., 0, :]]
    for t in range(1, shape[-2]):
        steps.append(phi * steps[-1] + math.sqrt(1 - phi**2) * noise[..., t, :])
    own = torch.randn((*shape[:-2], 1, shape[-1]), generator=generator, dtype=torch.float64)
    return torch.stack(steps, -2) + effect * own + SIGNAL


def on_paper(n_envs: int, n_steps: int, size: int, phi: float, effect: float):
    """Return (total, individual, covariance) of the same.

    Var(mean of T) = (1 + 2 sum_k (1 - k/T) phi^k) / T + effect^2 in each of P coordinates.
    """
    lags = 2 * sum((1 - k / n_steps) * phi**k for k in range(1, n_steps))
    total = size * ((1 + lags) / n_steps + effect**2) / n_envs
    individual = size * (1 + effect**2) / (n_envs * n_steps)
    return total, individual, total - individual


CASES = {
    "independent": (8, 16, 3, 0.0, 0.0),
    "ar 0.5": (16, 16, 3, 0.5, 0.0),
    "ar 0.9": (16, 16, 20, 0.9, 0.0),
    "negative": (32, 8, 1, -0.5, 0.0),
    "environment's own": (16, 16, 5, 0.0, 0.5),
    "few, ar 0.9": (8, 32, 10, 0.9, 0.0),
}


def without_intervals(monkeypatch) -> None:
    """Leave the intervals out, which take nearly all of the time."""
    monkeypatch.setattr("isobatch.noise.clusters._deviations", lambda *_: (math.nan, math.nan))
