"""Which rows go into which gradient step."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from isobatch.errors import UserError


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
    """Return each environment's valid rows, cut in time so that there is a piece per minibatch."""
    index = torch.arange(steps * n_envs, device=valid.device).view(steps, n_envs)
    trajectories = [index[valid[:, n], n] for n in range(n_envs)]
    trajectories = [rows for rows in trajectories if len(rows)]
    cuts = [1] * len(trajectories)
    while sum(cuts) < n_minibatches:
        longest = max(range(len(cuts)), key=lambda k: len(trajectories[k]) / cuts[k])
        cuts[longest] += 1
    return [
        piece
        for rows, count in zip(trajectories, cuts, strict=True)
        for piece in rows.tensor_split(count)
    ]
