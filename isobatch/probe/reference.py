"""What gradients are held against: whole returns, which no error of the value function enters.

Monte Carlo: A = G - V(s), with G the discounted rewards to the episode's end. V at the acting state
is a baseline: whatever its errors, E[V(s) grad log pi(a|s)] = 0, so that it takes noise off and
adds no bias. Nothing is bootstrapped inside an episode.

Where the rewards are not seen to the end, the value function stands in for the rest, its error
discounted by as many steps as were seen:

- A truncated episode is bootstrapped at its final observation, as the recipe's objective has it:
  the return goes on beyond a time limit. Leaving such episodes out would keep those that failed.
- A trajectory ends after `MOST_AHEAD` steps at most: gamma^h is left to the value function.

`value_weight` says how much of the reference that is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from isobatch.experience import Rollout
from isobatch.probe.collection import Experience

Kind = Literal["monte-carlo", "gae"]
"""Whole returns; or GAE at the recipe's own lambda and value function, looking on."""
NAMES: dict[Kind, str] = {"monte-carlo": "Monte-Carlo returns", "gae": "GAE"}
BIASES: dict[Kind, str] = {"monte-carlo": "total bias", "gae": "bootstrapping bias"}
"""What the bias against each is called: bootstrapping bias is the cost of ending rollouts. Total
bias is that and the value function's errors; of rollouts without end, the value-function bias."""


@dataclass(frozen=True)
class Returns:
    """Whole returns of trajectories, and how whole they are."""

    advantages: Tensor
    """[rows, M]: G - V(s)."""
    complete: float
    """Share of the rows whose episode is seen to terminate."""
    value_weight: float
    """Mean weight of a bootstrapped value in a return: 0 where all episodes terminate."""
    horizon: int
    """Steps that are seen after a row at least, unless its episode ends."""


def monte_carlo(experience: Experience, rows: int, gamma: float) -> Returns:
    """Return whole returns of the first rows of trajectories, less the baseline."""
    valid = experience.rollout.valid[:rows]
    weights = bootstrap_weights(experience.rollout, gamma)[:rows][valid]
    return Returns(
        # GAE with lambda 1: every value between the acting state and the end cancels.
        experience.full_advantages(rows, gamma, 1.0),
        complete=float((weights == 0).double().mean()),
        value_weight=float(weights.mean()),
        horizon=len(experience.rollout.rewards) - rows,
    )


def bootstrap_weights(rollout: Rollout, gamma: float) -> Tensor:
    """Return gamma^k [L, M], k the steps to where a row's return is bootstrapped; 0: nowhere."""
    length, n_envs = rollout.rewards.shape
    weights = torch.empty(length, n_envs, dtype=torch.float64)
    after = torch.ones(n_envs, dtype=torch.float64)
    for t in reversed(range(length)):
        after = torch.where(rollout.truncated[t], 1.0, after)
        after = gamma * torch.where(rollout.terminated[t], 0.0, after)
        weights[t] = after
    return weights
