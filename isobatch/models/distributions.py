"""Policies over the four action spaces, as functions of a flat parameter tensor.

Parameters are plain tensors [B, P] so that they can be stored, averaged and compared; nothing is
wrapped in objects on the way, because at small batches the wrapping costs more than the maths.
"""

from __future__ import annotations

import math
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from isobatch.envs.spaces import ActionLayout


class Distribution(Protocol):
    """A family of policies; `params` [B, P], `actions` [B, K], results [B]."""

    n_params: int
    """P."""
    n_outputs: int
    """How many of the P parameters the network's head computes; the rest are free."""

    def sample(self, params: Tensor, generator: torch.Generator) -> Tensor:
        """Draw actions [B, K]."""
        ...

    def mode(self, params: Tensor) -> Tensor:
        """Return the most likely actions [B, K]."""
        ...

    def log_prob(self, params: Tensor, actions: Tensor) -> Tensor:
        """Return log pi(a) [B]."""
        ...

    def entropy(self, params: Tensor) -> Tensor:
        """Return the entropy [B] in nats."""
        ...

    def kl(self, params: Tensor, other: Tensor) -> Tensor:
        """Return KL(params, other) [B]."""
        ...


class Categorical:
    """Independent choices, `counts[k]` of them in column k; the parameters are logits."""

    def __init__(self, counts: tuple[int, ...]) -> None:
        self.counts = counts
        self.n_params = self.n_outputs = sum(counts)

    def sample(self, params: Tensor, generator: torch.Generator) -> Tensor:
        """Draw by the exponential race: argmax of p / E has probability p, E ~ Exp(1)."""
        race = torch.empty_like(params).exponential_(generator=generator)
        scores = params - race.log_()
        return self.mode(scores)

    def mode(self, params: Tensor) -> Tensor:
        """Return the choice with the largest logit in each column."""
        if len(self.counts) == 1:
            return params.argmax(1, keepdim=True)
        return torch.stack([part.argmax(1) for part in self._split(params)], 1)

    def log_prob(self, params: Tensor, actions: Tensor) -> Tensor:
        """Return the sum over columns of log softmax at the choice."""
        if len(self.counts) == 1:
            return torch.log_softmax(params, 1).gather(1, actions).squeeze(1)
        columns = [
            torch.log_softmax(part, 1).gather(1, actions[:, k : k + 1])
            for k, part in enumerate(self._split(params))
        ]
        return torch.cat(columns, 1).sum(1)

    def entropy(self, params: Tensor) -> Tensor:
        """Return -sum p log p, added over columns."""
        return torch.stack([self._entropy(part) for part in self._split(params)]).sum(0)

    def kl(self, params: Tensor, other: Tensor) -> Tensor:
        """Return sum p (log p - log q), added over columns."""
        total = params.new_zeros(len(params))
        for p, q in zip(self._split(params), self._split(other), strict=True):
            log_p, log_q = torch.log_softmax(p, 1), torch.log_softmax(q, 1)
            total = total + (log_p.exp() * (log_p - log_q)).sum(1)
        return total

    def _split(self, params: Tensor) -> tuple[Tensor, ...]:
        return params.split(self.counts, 1) if len(self.counts) > 1 else (params,)

    @staticmethod
    def _entropy(logits: Tensor) -> Tensor:
        log_p = torch.log_softmax(logits, 1)
        return -(log_p.exp() * log_p).sum(1)


class Bernoulli:
    """Independent yes-or-no choices; the parameters are logits of yes."""

    def __init__(self, size: int) -> None:
        self.n_params = self.n_outputs = size

    def sample(self, params: Tensor, generator: torch.Generator) -> Tensor:
        """Draw yes with probability sigmoid(logit)."""
        draw = torch.empty_like(params).uniform_(generator=generator)
        return (draw < params.sigmoid()).long()

    def mode(self, params: Tensor) -> Tensor:
        """Return yes where the logit is positive."""
        return (params > 0).long()

    def log_prob(self, params: Tensor, actions: Tensor) -> Tensor:
        """Return the sum over columns of a log p + (1 - a) log(1 - p)."""
        target = actions.to(params.dtype)
        return -functional.binary_cross_entropy_with_logits(params, target, reduction="none").sum(1)

    def entropy(self, params: Tensor) -> Tensor:
        """Return the sum of the columns' entropies: softplus(x) - x sigmoid(x)."""
        return (functional.softplus(params) - params * params.sigmoid()).sum(1)

    def kl(self, params: Tensor, other: Tensor) -> Tensor:
        """Return the sum of the columns' divergences."""
        gap = functional.softplus(other) - functional.softplus(params)
        return (gap + params.sigmoid() * (params - other)).sum(1)


class Gaussian:
    """Diagonal normal; the parameters are the means and then the log standard deviations."""

    def __init__(self, size: int) -> None:
        self.n_params, self.n_outputs = 2 * size, size

    def sample(self, params: Tensor, generator: torch.Generator) -> Tensor:
        """Draw mean + sigma * noise."""
        mean, log_std = params.chunk(2, 1)
        noise = torch.empty_like(mean).normal_(generator=generator)
        return mean + log_std.exp() * noise

    def mode(self, params: Tensor) -> Tensor:
        """Return the mean."""
        return params.chunk(2, 1)[0]

    def log_prob(self, params: Tensor, actions: Tensor) -> Tensor:
        """Return sum_k -((a - mu) / sigma)^2 / 2 - log sigma - log(2 pi) / 2."""
        mean, log_std = params.chunk(2, 1)
        scaled = (actions - mean) * (-log_std).exp()
        return -(0.5 * scaled * scaled + log_std + 0.5 * math.log(2 * math.pi)).sum(1)

    def entropy(self, params: Tensor) -> Tensor:
        """Return sum_k log sigma + log(2 pi e) / 2."""
        return (params.chunk(2, 1)[1] + 0.5 * math.log(2 * math.pi * math.e)).sum(1)

    def kl(self, params: Tensor, other: Tensor) -> Tensor:
        """Return sum_k log(s_q / s_p) + (s_p^2 + (m_p - m_q)^2) / (2 s_q^2) - 1/2."""
        (mean, log_std), (other_mean, other_log_std) = params.chunk(2, 1), other.chunk(2, 1)
        spread = (2 * (log_std - other_log_std)).exp()
        shift = (mean - other_mean) * (-other_log_std).exp()
        return (other_log_std - log_std + 0.5 * (spread + shift * shift - 1)).sum(1)


def distribution_of(actions: ActionLayout) -> Distribution:
    """Return the distribution for an action layout."""
    if actions.kind == "categorical":
        return Categorical(actions.counts)
    if actions.kind == "binary":
        return Bernoulli(len(actions.counts))
    return Gaussian(len(actions.counts))
