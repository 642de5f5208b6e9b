"""How much a policy's probabilities vary, and how much of a batch its ratios leave."""

from __future__ import annotations

import math

import torch
from torch import Tensor


@torch.no_grad()
def policy_variance(logp: Tensor) -> float:
    """Variance over the batch of pi(a | s) of the actions taken, from log-probabilities [B].

    mean_i (pi_i - mean pi)^2,  pi_i = exp(logp_i)

    2506.03404 shows a policy variance without a formula; this one is ours. Of continuous actions
    pi is a density, so that runs compare only where actions have the same unit.
    """
    if not logp.numel():
        return math.nan
    return float(logp.double().exp().var(correction=0))


@torch.no_grad()
def importance_ess(log_weights: Tensor) -> float:
    """Effective sample size of importance weights, as a fraction of their number: in [1 / n, 1].

    (sum w)^2 / (n sum w^2),  w = exp(log_weights) [B] (Kong 1992)

    In log space: no weight is too large, and their scale does not matter. 1: all weights are
    equal, as they are on-policy; 1 / n: one sample has all the weight.
    """
    count = log_weights.numel()
    if not count:
        return math.nan
    shares = log_weights.reshape(-1).double().softmax(0)
    return float((1 / (count * shares.square().sum())).clamp(1 / count, 1))
