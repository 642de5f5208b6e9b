"""Advantages, returns and their moments."""

from __future__ import annotations

import torch
from torch import Tensor


def gae(
    rewards: Tensor,
    values: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    gamma: float,
    gae_lambda: float,
) -> tuple[Tensor, Tensor]:
    """Generalised advantage estimation (Schulman et al. 2015b), time-major.

    delta_t = r_t + gamma V_{t+1} (1 - terminated_t) - V_t
    A_t     = delta_t + gamma lambda (1 - done_t) A_{t+1},  done = terminated | truncated

    rewards, terminated, truncated [T, N]; values [T+1, N], where values[t+1] belongs to the *true*
    next observation: after a truncation the final one, never the reset one. Returns advantages
    and their value targets A_t + V_t, both [T, N].
    """
    if values.shape[0] != rewards.shape[0] + 1 or values.shape[1:] != rewards.shape[1:]:
        raise ValueError(f"values {tuple(values.shape)} for rewards {tuple(rewards.shape)}")
    bootstrap = gamma * (~terminated).to(values.dtype)
    deltas = rewards + bootstrap * values[1:] - values[:-1]
    carry = gamma * gae_lambda * (~(terminated | truncated)).to(values.dtype)
    advantages = accumulated(deltas, carry)
    return advantages, advantages + values[:-1]


def accumulated(terms: Tensor, carry: Tensor) -> Tensor:
    """Return x_t = terms_t + carry_t x_{t+1}, both [T, ...], with nothing beyond the last row."""
    if terms.device.type == "cpu":
        # A step of T is little work: NumPy's operations cost a third of what PyTorch's do.
        found = terms.numpy(force=True).copy()
        keep = carry.numpy(force=True)
        for t in range(len(found) - 2, -1, -1):
            found[t] += keep[t] * found[t + 1]
        return torch.from_numpy(found)
    running, backwards = torch.zeros_like(terms[0]), []
    for term, keep in zip(reversed(terms.unbind()), reversed(carry.unbind()), strict=True):
        running = torch.addcmul(term, keep, running)
        backwards.append(running)
    return torch.stack(backwards[::-1])


def reward_to_go(rewards: Tensor, done: Tensor, gamma: float) -> tuple[Tensor, Tensor]:
    """Discounted rewards to the episode's end, time-major; nothing is bootstrapped.

    G_t = r_t + gamma (1 - done_t) G_{t+1}

    rewards, done [T, N]. Returns G and where it is complete, both [T, N]: rows whose episode goes
    on beyond the last row have only part of it.
    """
    return accumulated(rewards, gamma * (~done).to(rewards.dtype)), ends_later(done)


def ends_later(done: Tensor) -> Tensor:
    """Say where a row's episode ends in it or a later row: bool [T, N], of `done` [T, N]."""
    return done.flip(0).cumsum(0).flip(0) > 0


class AdvantageMoments:
    """Mean and variance of the advantages over the last iterations, weighted by sample count.

    Each `update` first decays what is known: with decay 0 only the last rollout counts; the span
    is 2 / (1 - decay) - 1 iterations (Hilton et al. 2021, section 4).
    """

    def __init__(self, decay: float) -> None:
        self.decay = decay
        self.weight = 0.0
        self.total = 0.0
        self.total_squares = 0.0

    def update(self, advantages: Tensor, valid: Tensor | None = None) -> None:
        """Take in one rollout's advantages; rows that are not `valid` do not count."""
        rows = (advantages if valid is None else advantages[valid]).double()
        self.weight = self.decay * self.weight + rows.numel()
        self.total = self.decay * self.total + rows.sum().item()
        self.total_squares = self.decay * self.total_squares + rows.square().sum().item()

    @property
    def mean(self) -> float:
        """The weighted mean."""
        return self.total / self.weight if self.weight else 0.0

    @property
    def var(self) -> float:
        """The weighted (population) variance."""
        if not self.weight:
            return 1.0
        return max(self.total_squares / self.weight - self.mean**2, 0.0)

    @property
    def unit(self) -> float:
        """std + 1e-8, which a normalised advantage is measured in."""
        return self.var**0.5 + 1e-8

    def normalize(self, advantages: Tensor) -> Tensor:
        """Return (A - mean) / (std + 1e-8)."""
        return (advantages - self.mean) / self.unit

    def state_dict(self) -> dict[str, float]:
        """Return what a checkpoint keeps."""
        return {
            "weight": self.weight,
            "total": self.total,
            "total_squares": self.total_squares,
        }

    def load_state_dict(self, state: dict[str, float]) -> None:
        """Restore from `state_dict`."""
        self.weight, self.total = state["weight"], state["total"]
        self.total_squares = state["total_squares"]
