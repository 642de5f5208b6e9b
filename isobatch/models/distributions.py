"""Policies over the four action spaces, as functions of a flat parameter tensor.

Parameters are plain tensors [B, P] so that they can be stored, averaged and compared; nothing is
wrapped in objects on the way, because at small batches the wrapping costs more than the maths.
"""

from __future__ import annotations

import itertools
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
    n_noise: int
    """Random numbers one draw takes."""

    def noise(self, shape: tuple[int, ...], like: Tensor, generator: torch.Generator) -> Tensor:
        """Draw the randomness of as many actions as `shape` says: [*shape, n_noise]."""
        ...

    def sample(self, params: Tensor, noise: Tensor) -> Tensor:
        """Turn noise [B, n_noise] into actions [B, K]."""
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

    def evaluate(self, params: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Return (log_prob, entropy), sharing what both need."""
        ...

    def kl(self, params: Tensor, other: Tensor) -> Tensor:
        """Return KL(params, other) [B]."""
        ...


class Categorical:
    """Independent choices, `counts[k]` of them in column k; the parameters are logits."""

    def __init__(self, counts: tuple[int, ...]) -> None:
        self.counts = counts
        self.n_params = self.n_outputs = self.n_noise = sum(counts)

    def noise(self, shape: tuple[int, ...], like: Tensor, generator: torch.Generator) -> Tensor:
        """Draw -log E with E ~ Exp(1), which is Gumbel's distribution."""
        draw = like.new_empty((*shape, self.n_noise)).exponential_(generator=generator)
        return draw.log_().neg_()

    def sample(self, params: Tensor, noise: Tensor) -> Tensor:
        """Return the argmax of logits + Gumbel noise, which has the softmax's distribution."""
        return self.mode(params + noise)

    def mode(self, params: Tensor) -> Tensor:
        """Return the choice with the largest logit in each column."""
        if len(self.counts) == 1:
            return params.argmax(1, keepdim=True)
        return torch.stack([part.argmax(1) for part in self._split(params)], 1)

    def log_prob(self, params: Tensor, actions: Tensor) -> Tensor:
        """Return the sum over columns of log softmax at the choice."""
        return self._chosen(self._log_p(params), actions)

    def entropy(self, params: Tensor) -> Tensor:
        """Return -sum p log p, added over columns."""
        return self._entropy(self._log_p(params))

    def evaluate(self, params: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Return (log_prob, entropy) from one softmax."""
        log_p = self._log_p(params)
        return self._chosen(log_p, actions), self._entropy(log_p)

    def kl(self, params: Tensor, other: Tensor) -> Tensor:
        """Return sum p (log p - log q), added over columns."""
        log_p, log_q = self._log_p(params), self._log_p(other)
        return (log_p.exp() * (log_p - log_q)).sum(1)

    def _split(self, params: Tensor) -> tuple[Tensor, ...]:
        return params.split(self.counts, 1) if len(self.counts) > 1 else (params,)

    def _log_p(self, params: Tensor) -> Tensor:
        """Return each column's log softmax, side by side: [B, P]."""
        if len(self.counts) == 1:
            return torch.log_softmax(params, 1)
        return torch.cat([torch.log_softmax(part, 1) for part in self._split(params)], 1)

    def _chosen(self, log_p: Tensor, actions: Tensor) -> Tensor:
        if len(self.counts) == 1:
            return log_p.gather(1, actions).squeeze(1)
        starts = list(itertools.accumulate(self.counts[:-1], initial=0))
        return log_p.gather(1, actions + actions.new_tensor(starts)).sum(1)

    @staticmethod
    def _entropy(log_p: Tensor) -> Tensor:
        return -(log_p.exp() * log_p).sum(1)


class EpsilonGreedy:
    """The choice of largest value, or with probability epsilon any of the A.

    The parameters are the values and epsilon: pi(a) = epsilon / A + (1 - epsilon) [a is largest].
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self.n_outputs, self.n_params, self.n_noise = count, count + 1, 2

    def noise(self, shape: tuple[int, ...], like: Tensor, generator: torch.Generator) -> Tensor:
        """Draw two numbers from [0, 1): whether to choose at random, and what."""
        return like.new_empty((*shape, self.n_noise)).uniform_(generator=generator)

    def sample(self, params: Tensor, noise: Tensor) -> Tensor:
        """Choose at random where the first number is below epsilon."""
        whether, what = noise.unbind(1)
        anything = (what * self.count).long().clamp_(max=self.count - 1)
        greedy = self.mode(params).squeeze(1)
        return torch.where(whether < params[:, -1], anything, greedy)[:, None]

    def mode(self, params: Tensor) -> Tensor:
        """Return the choice with the largest value."""
        return params[:, :-1].argmax(1, keepdim=True)

    def log_prob(self, params: Tensor, actions: Tensor) -> Tensor:
        """Return log pi(a)."""
        return self._probabilities(params).gather(1, actions).squeeze(1).log()

    def entropy(self, params: Tensor) -> Tensor:
        """Return -sum p log p."""
        return torch.special.entr(self._probabilities(params)).sum(1)

    def evaluate(self, params: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Return (log_prob, entropy)."""
        return self.log_prob(params, actions), self.entropy(params)

    def kl(self, params: Tensor, other: Tensor) -> Tensor:
        """Return sum p (log p - log q)."""
        p, q = self._probabilities(params), self._probabilities(other)
        return (torch.special.xlogy(p, p) - torch.special.xlogy(p, q)).sum(1)

    def _probabilities(self, params: Tensor) -> Tensor:
        epsilon = params[:, -1:]
        anything = (epsilon / self.count).expand(-1, self.count)
        return anything.scatter_add(1, self.mode(params), 1 - epsilon)


class Bernoulli:
    """Independent yes-or-no choices; the parameters are logits of yes."""

    def __init__(self, size: int) -> None:
        self.n_params = self.n_outputs = self.n_noise = size

    def noise(self, shape: tuple[int, ...], like: Tensor, generator: torch.Generator) -> Tensor:
        """Draw from [0, 1)."""
        return like.new_empty((*shape, self.n_noise)).uniform_(generator=generator)

    def sample(self, params: Tensor, noise: Tensor) -> Tensor:
        """Say yes with probability sigmoid(logit)."""
        return (noise < params.sigmoid()).long()

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

    def evaluate(self, params: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Return (log_prob, entropy)."""
        return self.log_prob(params, actions), self.entropy(params)

    def kl(self, params: Tensor, other: Tensor) -> Tensor:
        """Return the sum of the columns' divergences."""
        gap = functional.softplus(other) - functional.softplus(params)
        return (gap + params.sigmoid() * (params - other)).sum(1)


class Gaussian:
    """Diagonal normal; the parameters are the means and then the log standard deviations."""

    def __init__(self, size: int) -> None:
        self.n_params, self.n_outputs, self.n_noise = 2 * size, size, size

    def noise(self, shape: tuple[int, ...], like: Tensor, generator: torch.Generator) -> Tensor:
        """Draw from the standard normal."""
        return like.new_empty((*shape, self.n_noise)).normal_(generator=generator)

    def sample(self, params: Tensor, noise: Tensor) -> Tensor:
        """Return mean + sigma * noise."""
        mean, log_std = params.chunk(2, 1)
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

    def evaluate(self, params: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Return (log_prob, entropy)."""
        return self.log_prob(params, actions), self.entropy(params)

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
