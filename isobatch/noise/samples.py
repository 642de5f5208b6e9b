"""Gradients of single samples, which a batch's gradient is the mean of.

Of one sample, the policy objective at ratio 1 has the gradient A grad log pi(a|s), up to its sign,
and the value loss (v - target)^2 / 2 has A grad v(s) with A = target - v. So a sample has one
direction, which depends on nothing but the networks, and each estimate of A scales it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from isobatch.models import ActorCritic, Agent
from isobatch.models.q_network import QNetwork

Loss = Literal["policy", "value"]
"""Whose gradient."""
Observation = dict[str, Tensor]
CHUNK_BYTES = 1 << 24
"""Gradients of one pass."""
MOST_ROWS = 256


class LogProbability(nn.Module):
    """log pi(a|s) of an agent: [B]."""

    def __init__(self, model: ActorCritic) -> None:
        super().__init__()
        self.actor, self.distribution = model.actor, model.distribution

    def forward(self, observation: Observation, actions: Tensor) -> Tensor:
        """Return log-probabilities."""
        return self.distribution.log_prob(self.actor(observation), actions)


class Value(nn.Module):
    """v(s) of an actor and critic, as its loss trains it: [B]."""

    def __init__(self, model: ActorCritic) -> None:
        super().__init__()
        self.model = model

    def forward(self, observation: Observation, actions: Tensor) -> Tensor:
        """Return values."""
        return self.model(observation)[1]


class ActionValue(nn.Module):
    """q(s, a) of a Q-network: [B]."""

    def __init__(self, model: QNetwork) -> None:
        super().__init__()
        self.model = model

    def forward(self, observation: Observation, actions: Tensor) -> Tensor:
        """Return the values of the actions taken."""
        return self.model(observation).gather(1, actions).squeeze(1)


def output_of(model: Agent, loss: Loss) -> nn.Module:
    """Return what is differentiated: (observation, actions) -> [B]."""
    if isinstance(model, QNetwork):
        return ActionValue(model)
    assert isinstance(model, ActorCritic)
    return LogProbability(model) if loss == "policy" else Value(model)


def trained_by(output: nn.Module, observation: Observation, actions: Tensor) -> dict[str, Tensor]:
    """Return the parameters an output depends on, by name."""
    named = dict(output.named_parameters())
    total = output(observation, actions).sum()
    slopes = torch.autograd.grad(total, list(named.values()), allow_unused=True)
    return {
        name: value.detach()
        for (name, value), slope in zip(named.items(), slopes, strict=True)
        if slope is not None
    }


def per_sample(output: nn.Module, observation: Observation, actions: Tensor) -> Iterator[Tensor]:
    """Differentiate an output at each of B rows, a chunk at a time: tensors [b, P] in order."""
    parameters = trained_by(output, rows_of(observation, slice(0, 2)), actions[:2])
    size = sum(each.numel() for each in parameters.values())
    rows = max(1, min(MOST_ROWS, CHUNK_BYTES // (4 * size)))

    def single(parameters: dict[str, Tensor], observation: Observation, actions: Tensor) -> Tensor:
        one = {part: value[None] for part, value in observation.items()}
        return functional_call(output, parameters, (one, actions[None]))[0]

    slopes = vmap(grad(single), in_dims=(None, 0, 0))
    for begin in range(0, len(actions), rows):
        part = slice(begin, begin + rows)
        found = slopes(parameters, rows_of(observation, part), actions[part])
        yield torch.cat([each.flatten(1) for each in found.values()], 1)
        del found  # Before the next chunk's come.


def norms(output: nn.Module, observation: Observation, actions: Tensor) -> Tensor:
    """Return the Euclidean norms of an output's gradients at each of B rows, [B]."""
    try:
        return torch.cat([each.norm(dim=1) for each in per_sample(output, observation, actions)])
    except RuntimeError:  # An encoder of the user's own that `vmap` cannot take, a branch on data.
        return _norms_in_turn(output, observation, actions)


def _norms_in_turn(output: nn.Module, observation: Observation, actions: Tensor) -> Tensor:
    """Return the same by a backward pass for each row."""
    parameters = [each for each in output.parameters() if each.requires_grad]
    found = []
    for k in range(len(actions)):
        row = slice(k, k + 1)
        total = output(rows_of(observation, row), actions[row]).sum()
        slopes = torch.autograd.grad(total, parameters, allow_unused=True)
        found.append(torch.cat([each.flatten() for each in slopes if each is not None]).norm())
    return torch.stack(found)


def rows_of(observation: Observation, part: slice) -> Observation:
    """Return some rows of each part of an observation [B, ...]."""
    return {name: value[part] for name, value in observation.items()}
