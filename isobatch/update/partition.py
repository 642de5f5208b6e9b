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
    shards: int = 1,
) -> list[Tensor]:
    """Partition the valid rows of a rollout [T, N] at random: flat indices t * N + n.

    Every valid row is in exactly one part. By samples, the parts' sizes differ by at most one. By
    envs, a part holds whole environments' trajectories, whose number differs by at most one; only
    where there are more parts than environments are trajectories cut in time. Each call shuffles
    anew. A part has about as much of each of `shards` equal groups of environments, so that their
    workers have about as much to do.
    """
    steps, n_envs = valid.shape
    rows = valid.flatten().nonzero().squeeze(1)
    if n_minibatches > len(rows):
        raise UserError(f"{n_minibatches} minibatches of {len(rows)} rows")
    if by == "samples":
        order = torch.randperm(len(rows), generator=generator)
        if shards > 1:
            order = balanced(order, _owners(rows, n_envs, shards))
        return list(rows[order.to(rows.device)].tensor_split(n_minibatches))
    pieces = _segments(valid, steps, n_envs, n_minibatches)
    order = torch.randperm(len(pieces), generator=generator)
    if shards > 1:
        firsts = torch.stack([piece[0] for piece in pieces])
        order = balanced(order, _owners(firsts, n_envs, shards))
    groups = order.tensor_split(n_minibatches)
    return [torch.cat([pieces[k] for k in group.tolist()]) for group in groups]


def balanced(order: Tensor, owners: Tensor) -> Tensor:
    """Return an order [n] in which any stretch has its share of each owner's items, within one.

    `order` is a random one of the items 0 to n - 1, `owners` [n] says whose each item is, from 0.
    The items of one owner stay in the order that they had.
    """
    owned = owners[order]
    places = torch.empty(len(order), dtype=torch.float64)
    for owner, count in enumerate(torch.bincount(owners).tolist()):
        places[owned == owner] = (torch.arange(count, dtype=torch.float64) + 0.5) / count
    return order[places.argsort(stable=True)]


def _owners(rows: Tensor, n_envs: int, shards: int) -> Tensor:
    """Return the shards of flat rows t * N + n."""
    return (rows % n_envs * shards // n_envs).cpu()


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
