"""The size of a network's weights, and how many of its units are asleep."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

DORMANT = 0.025
"""Sokar et al. 2023: units this far below their layer's mean are dormant; 0 counts dead ones."""


@torch.no_grad()
def weight_norm(module: nn.Module) -> float:
    """L2 norm of all parameters of a module as one vector, sqrt(sum w^2); 0 where it has none."""
    norms = [
        float(torch.linalg.vector_norm(each, dtype=torch.float64)) for each in module.parameters()
    ]
    return math.hypot(*norms)


@torch.no_grad()
def dormant_fraction(activations: Tensor | Sequence[Tensor], tau: float = DORMANT) -> float:
    """Share of dormant units among all units of the layers given (Sokar et al. 2023).

    s_i = mean |h_i| / (1 / H sum_k mean |h_k|),  dormant where s_i <= tau

    `activations`, after the nonlinearity, are [B, H] of a layer or a sequence of such; the mean is
    over the batch. Of convolutions, [B, C, ...], a unit is a channel and the mean is over its
    places too, as in the authors' code. All units of a layer that is zero throughout are dormant.
    """
    layers = [activations] if isinstance(activations, Tensor) else list(activations)
    means = [mean_magnitudes(layer) for layer in layers]
    units = sum(len(each) for each in means)
    if not units or not all(bool(each.isfinite().all()) for each in means):
        return math.nan
    dormant = sum(int((each <= tau * each.mean()).sum()) for each in means)
    return dormant / units


def mean_magnitudes(layer: Tensor) -> Tensor:
    """Return mean |h| over the batch of each unit of a layer [B, H] or [B, C, ...], [H]."""
    if layer.ndim < 2:
        raise ValueError(f"activations [B, H] or [B, C, ...], got {tuple(layer.shape)}")
    others = [k for k in range(layer.ndim) if k != 1]
    return layer.abs().mean(others).double()
