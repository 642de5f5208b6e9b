"""Losses: pure, per sample, unreduced. `update` takes the one mean over valid rows.

logp: the current policy; logp_behav: the one that acted; logp_prox: the one that limits the step;
all log-probabilities of the action taken, [B]. Equations: Hilton et al. 2021, section 2.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def clip_loss(
    logp: Tensor,
    logp_behav: Tensor,
    logp_prox: Tensor,
    advantages: Tensor,
    clip_range: float | Tensor,
    max_ratio: float = 100.0,
) -> Tensor:
    """Decoupled clipped objective, negated: [B].

    -(pi_prox / pi_behav) min(r A, clip(r, 1 - eps, 1 + eps) A),  r = pi / pi_prox

    In log space, since ratios can be large; with prox = behav it is PPO's, with eps infinite the
    importance-sampled policy gradient.
    """
    _same_shape(logp, logp_behav, logp_prox, advantages)
    behav = floored(logp, logp_behav, max_ratio)
    eps = torch.as_tensor(clip_range, dtype=logp.dtype, device=logp.device)
    low, high = torch.log1p(-eps.clamp(max=1)), torch.log1p(eps)
    clipped = torch.clamp(logp - logp_prox, low, high)
    free = advantages * torch.exp(logp - behav)
    held = advantages * torch.exp(clipped + logp_prox - behav)
    return -torch.minimum(free, held)


def kl_loss(
    logp: Tensor,
    logp_behav: Tensor,
    logp_prox: Tensor,
    advantages: Tensor,
    kl_coef: float,
    max_ratio: float = 100.0,
    kl: Tensor | None = None,
) -> Tensor:
    """Decoupled KL-penalised objective, negated: [B].

    -(pi / pi_behav) A + beta KL(prox, pi)

    `kl` [B] is the distributions' own divergence; without it the reference's estimate
    (logp - logp_prox)^2 / 2 is used.
    """
    _same_shape(logp, logp_behav, logp_prox, advantages, *(() if kl is None else (kl,)))
    behav = floored(logp, logp_behav, max_ratio)
    penalty = 0.5 * (logp - logp_prox).square() if kl is None else kl
    return -advantages * torch.exp(logp - behav) + kl_coef * penalty


def policy_gradient_loss(logp: Tensor, advantages: Tensor) -> Tensor:
    """REINFORCE's objective (Williams 1992), negated: -A log pi, [B]."""
    _same_shape(logp, advantages)
    return -advantages * logp


def value_loss(values: Tensor, targets: Tensor) -> Tensor:
    """Half the squared error, (v - target)^2 / 2: [B]."""
    _same_shape(values, targets)
    return 0.5 * (values - targets).square()


def clipped_value_loss(
    values: Tensor, targets: Tensor, behav: Tensor, clip_range: float | Tensor, kind: str
) -> Tensor:
    """Half the squared error of values held near those at acting time, `behav`: [B].

    v_c = v_behav + clip(v - v_behav, -eps, eps)

    `clipped`: (v_c - target)^2 / 2, as in Stable-Baselines3. `max`: the larger of it and
    (v - target)^2 / 2, as in OpenAI's Baselines, CleanRL and rsl_rl.
    """
    _same_shape(values, targets, behav)
    eps = torch.as_tensor(clip_range, dtype=values.dtype, device=values.device)
    held = value_loss(behav + torch.clamp(values - behav, -eps, eps), targets)
    return held if kind == "clipped" else torch.maximum(value_loss(values, targets), held)


def _same_shape(*tensors: Tensor) -> None:
    """Refuse tensors of different shapes: [B] and [B, 1] would broadcast to [B, B] unnoticed."""
    first = tensors[0].shape
    if any(each.shape != first for each in tensors):
        shapes = ", ".join(str(tuple(each.shape)) for each in tensors)
        raise ValueError(f"losses are per sample, all [B]; got {shapes}")


def floored(logp: Tensor, logp_behav: Tensor, max_ratio: float) -> Tensor:
    """Raise logp_behav so that no ratio pi / pi_behav exceeds `max_ratio`; no gradient flows."""
    return torch.maximum(logp_behav, logp.detach() - math.log(max_ratio))


def importance_weights(logp: Tensor, logp_behav: Tensor, max_ratio: float = 100.0) -> Tensor:
    """min(pi / pi_behav, max_ratio), what a sample of an earlier policy counts now: [B].

    A number, not a function of the policy: no gradient flows.
    """
    _same_shape(logp, logp_behav)
    return torch.exp(logp - floored(logp, logp_behav, max_ratio)).detach()


def capped_fraction(logp: Tensor, logp_behav: Tensor, max_ratio: float) -> Tensor:
    """1 where `floored` held the ratio pi / pi_behav at `max_ratio`, else 0: [B]."""
    return (logp - logp_behav > math.log(max_ratio)).to(logp.dtype)


def clipped_fraction(logp: Tensor, logp_prox: Tensor, clip_range: float | Tensor) -> Tensor:
    """1 where r = pi / pi_prox lies outside [1 - eps, 1 + eps], else 0: [B]."""
    return ((torch.exp(logp - logp_prox) - 1).abs() > clip_range).to(logp.dtype)


def approximate_kl(logp: Tensor, logp_behav: Tensor) -> Tensor:
    """Schulman's low-variance estimate of KL(behav, pi), (r - 1) - log r: [B]."""
    log_ratio = logp - logp_behav
    return torch.expm1(log_ratio) - log_ratio
