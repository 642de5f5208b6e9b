"""From rows to a gradient step: partition, chunk, mean over valid rows, clip, step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from isobatch.errors import UserError
from isobatch.recipe import Optimizer, Schedule

PIXELS_PER_CHUNK = 1 << 18
"""Image pixels per forward-backward pass: 64 Procgen frames, whose activations stay in cache."""
ROWS_PER_CHUNK = 8192
"""Vector rows per pass: large enough to amortise dispatch, small enough to bound memory."""

Losses = Callable[[Tensor], tuple[Tensor, dict[str, Tensor]]]
"""Rows [b] -> (losses [b], statistics by name, each [b])."""


def minibatches(
    valid: Tensor,
    n_minibatches: int,
    generator: torch.Generator,
    by: Literal["samples", "envs"] = "samples",
) -> list[Tensor]:
    """Partition the valid rows of a rollout [T, N] at random: flat indices t * N + n.

    Every valid row is in exactly one part. By samples, the parts' sizes differ by at most one. By
    envs, a part holds whole environments' trajectories, whose number differs by at most one; only
    where there are more parts than environments are trajectories cut in time. Each call shuffles
    anew.
    """
    steps, n_envs = valid.shape
    rows = valid.flatten().nonzero().squeeze(1)
    if n_minibatches > len(rows):
        raise UserError(f"{n_minibatches} minibatches of {len(rows)} rows")
    if by == "samples":
        order = torch.randperm(len(rows), generator=generator).to(rows.device)
        return list(rows[order].tensor_split(n_minibatches))
    pieces = _segments(valid, steps, n_envs, n_minibatches)
    order = torch.randperm(len(pieces), generator=generator).tolist()
    groups = torch.arange(len(pieces)).tensor_split(n_minibatches)
    return [torch.cat([pieces[order[k]] for k in group.tolist()]) for group in groups]


def _segments(valid: Tensor, steps: int, n_envs: int, n_minibatches: int) -> list[Tensor]:
    """Return each environment's valid rows, cut in time until there is a piece per minibatch."""
    index = torch.arange(steps * n_envs, device=valid.device).view(steps, n_envs)
    trajectories = [index[valid[:, n], n] for n in range(n_envs)]
    trajectories = [rows for rows in trajectories if len(rows)]
    if n_minibatches <= len(trajectories):
        return trajectories
    pieces = trajectories
    while len(pieces) < n_minibatches:
        longest = max(range(len(pieces)), key=lambda k: len(pieces[k]))
        pieces[longest : longest + 1] = pieces[longest].tensor_split(2)
    return pieces


def chunk_rows(image: tuple[int, int, int] | None, chosen: int = 0) -> int:
    """Return the rows of one forward-backward pass: `chosen`, or a cache-sized number."""
    if chosen:
        return chosen
    if image is None:
        return ROWS_PER_CHUNK
    return max(16, PIXELS_PER_CHUNK // (image[1] * image[2]))


class FlatParameters:
    """A module's parameters and gradients laid end to end in two tensors.

    The module's own parameters become views, so nothing else changes; zeroing, clipping and
    stepping become one operation each, which for small networks halves their cost.
    """

    def __init__(self, module: nn.Module) -> None:
        parameters = [each for each in module.parameters() if each.requires_grad]
        self.vector = nn.Parameter(torch.cat([_entries(each.detach()) for each in parameters]))
        self.gradient = torch.zeros_like(self.vector)
        self.vector.grad = self.gradient
        start = 0
        for each in parameters:
            shape, strides = each.shape, each.stride()
            end = start + each.numel()
            each.data = self.vector.detach()[start:end].as_strided(shape, strides, start)
            each.grad = self.gradient[start:end].as_strided(shape, strides, start)
            start = end


def _entries(tensor: Tensor) -> Tensor:
    """Return a dense tensor's entries in the order they lie in memory."""
    return tensor.as_strided((tensor.numel(),), (1,))


@dataclass
class Stepper:
    """Takes gradient steps on per-sample losses, a chunk of rows at a time."""

    parameters: FlatParameters
    optimizer: torch.optim.Optimizer
    max_grad_norm: float | None
    chunk_size: int

    def gradient(self, rows: Tensor, losses: Losses) -> dict[str, Tensor]:
        """Leave the gradient of the mean loss over `rows` in place; return mean statistics.

        Chunks' gradients add up to the minibatch's own, so its memory is bounded and its value
        is exact.
        """
        self.parameters.gradient.zero_()
        totals: list[Tensor] = []
        names: list[str] = []
        for chunk in rows.split(self.chunk_size):
            loss, statistics = losses(chunk)
            (loss.sum() / len(rows)).backward()
            names = list(statistics)
            totals.append(torch.stack([value.detach() for value in statistics.values()]).sum(1))
        means = (totals[0] if len(totals) == 1 else torch.stack(totals).sum(0)) / len(rows)
        return dict(zip(names, means.unbind(), strict=True))

    @torch.no_grad()
    def step(self) -> Tensor:
        """Clip the gradient left by `gradient` and step; return its norm before clipping."""
        norm = torch.linalg.vector_norm(self.parameters.gradient)
        if self.max_grad_norm is not None:
            scale = (self.max_grad_norm / (norm + 1e-6)).clamp_(max=1.0)
            self.parameters.gradient.mul_(scale)
        self.optimizer.step()
        return norm


def make_optimizer(parameters: FlatParameters, settings: Optimizer) -> torch.optim.Optimizer:
    """Return Adam or SGD with the recipe's settings."""
    if settings.optimizer == "sgd":
        return torch.optim.SGD(
            [parameters.vector], lr=settings.learning_rate, momentum=settings.momentum
        )
    return torch.optim.Adam(
        [parameters.vector],
        lr=settings.learning_rate,
        betas=(settings.adam_beta1, settings.adam_beta2),
        eps=settings.adam_eps,
        fused=True,
    )


def scheduled(value: float, schedule: Schedule, env_steps: int, total_timesteps: int) -> float:
    """Return a hyperparameter at `env_steps`: constant, or linear to 0 at the budget's end."""
    if schedule == "constant":
        return value
    return value * max(0.0, 1.0 - env_steps / total_timesteps)


def set_learning_rate(optimizer: torch.optim.Optimizer, value: float) -> None:
    """Set the step size of every parameter group."""
    for group in optimizer.param_groups:
        group["lr"] = value
