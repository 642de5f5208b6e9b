"""Per-sample gradients, and a sketch of those too large to keep.

Of one sample, the policy objective at ratio 1 has the gradient A grad log pi(a|s), up to its sign,
and the value loss (v - target)^2 / 2 has A grad v(s) with A = target - v. So a sample has one
direction, which depends on nothing but the networks, and each estimate of A scales it.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from isobatch.machine import gradient_threads
from isobatch.models import ActorCritic, Agent
from isobatch.models.q_network import QNetwork

Loss = Literal["policy", "value"]
"""Whose gradient."""
Observation = dict[str, Tensor]
CHUNK_BYTES = 1 << 24
"""Gradients of one pass."""
MOST_ROWS = 256
KEPT_BYTES, KEPT_BESIDE_IMAGES = 5 << 27, 1 << 28
"""Directions that are kept, as they are or sketched."""
LEAST_WIDTH = 512


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
    parameters = trained_by(output, _rows(observation, slice(0, 2)), actions[:2])
    size = sum(each.numel() for each in parameters.values())
    rows = max(1, min(MOST_ROWS, CHUNK_BYTES // (4 * size)))

    def single(parameters: dict[str, Tensor], observation: Observation, actions: Tensor) -> Tensor:
        one = {part: value[None] for part, value in observation.items()}
        return functional_call(output, parameters, (one, actions[None]))[0]

    slopes = vmap(grad(single), in_dims=(None, 0, 0))
    for begin in range(0, len(actions), rows):
        part = slice(begin, begin + rows)
        found = slopes(parameters, _rows(observation, part), actions[part])
        yield torch.cat([each.flatten(1) for each in found.values()], 1)
        del found  # Before the next chunk's come.


def _rows(observation: Observation, part: slice) -> Observation:
    return {name: value[part] for name, value in observation.items()}


class Sketch:
    """A random projection that keeps inner products: R^P -> R^d (Charikar et al. 2002).

    Each coordinate goes to one of d places with a random sign. <Sx, Sy> is <x, y> on average, with
    a standard deviation of at most sqrt((|x|^2 |y|^2 + <x, y>^2) / d).
    """

    def __init__(self, size: int, width: int) -> None:
        generator = torch.Generator().manual_seed(0)
        self.width = width
        self.place = torch.randint(width, (size,), generator=generator)
        self.sign = torch.randint(2, (size,), generator=generator) * 2.0 - 1

    def __call__(self, vectors: Tensor) -> Tensor:
        """Project vectors [B, P] to [B, d]."""
        projected = vectors.new_zeros(len(vectors), self.width)
        return projected.index_add_(1, self.place, vectors * self.sign)

    @property
    def error(self) -> float:
        """The largest standard deviation of a squared norm, relative to it."""
        return math.sqrt(2 / self.width)


@dataclass(frozen=True)
class Directions:
    """Each row's gradient but for its scale: grad log pi, or grad v."""

    vectors: Tensor
    """[L, M, d]: as they are, or sketched."""
    squares: Tensor
    """[L, M]: squared norms, exact either way."""
    n_parameters: int
    sketch: Sketch | None
    """None where the vectors are exact."""


def directions(
    output: nn.Module,
    observation: Observation,
    actions: Tensor,
    progress: Callable[[int], None] = lambda rows: None,
) -> Directions:
    """Return the directions of rows [L, M, ...]; `progress` is told of rows as they are done.

    By as many threads as a gradient has, each with rows and a copy of the networks of its own:
    what one sample takes is too little to divide, and a network being differentiated holds its
    weights for one thread only.
    """
    shape, choices = actions.shape[:2], actions.flatten(0, 1)
    flat = {part: value.flatten(0, 1) for part, value in observation.items()}
    count = len(choices)
    trained = trained_by(output, _rows(flat, slice(0, 2)), choices[:2])
    size = sum(each.numel() for each in trained.values())
    kept = KEPT_BESIDE_IMAGES if "image" in observation else KEPT_BYTES
    width = max(LEAST_WIDTH, kept // (4 * count))
    sketch = Sketch(size, width) if width < size else None
    vectors = torch.empty(count, width if sketch else size)
    squares = torch.empty(count, dtype=torch.float64)

    def fill(output: nn.Module, rows: Tensor) -> None:
        begin, end = int(rows[0]), int(rows[-1]) + 1
        for chunk in per_sample(output, _rows(flat, slice(begin, end)), choices[begin:end]):
            part = slice(begin, begin + len(chunk))
            vectors[part] = sketch(chunk) if sketch else chunk
            squares[part] = chunk.square().sum(1, dtype=torch.float64)
            begin += len(chunk)
            progress(len(chunk))

    threads = min(gradient_threads(), count)
    with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        copies = [copy.deepcopy(output) for _ in range(threads)]
        list(pool.map(fill, copies, torch.arange(count).tensor_split(threads)))
    return Directions(vectors.view(*shape, -1), squares.view(shape), size, sketch)
