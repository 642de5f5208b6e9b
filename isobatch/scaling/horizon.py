"""How far advantages look ahead, and the lambda that keeps it where rollouts change their length.

GAE of a rollout of T steps sums the TD errors up to its end: at j steps from there
1 + x + ... + x^(j-1) = (1 - x^j) / (1 - x) of them, x = gamma lambda. T so decides how much is
left to the value function, and lambda may have to make up for it (Hilton et al. 2021, footnote 4).
The paper gives no formula; the mean over the rollout's steps is this project's.
"""

from __future__ import annotations

import math


def horizon(gamma: float, gae_lambda: float) -> float:
    """Return 1 / (1 - gamma lambda), in steps: how far GAE looks in rollouts without end."""
    x = gamma * gae_lambda
    return math.inf if x == 1 else 1 / (1 - x)


def mean_lookahead(gamma: float, gae_lambda: float, n_steps: int) -> float:
    """Return H(T) = (1 / T) sum_{j=1..T} (1 - x^j) / (1 - x), in steps; (T + 1) / 2 where x = 1."""
    x = gamma * gae_lambda
    if x == 1:
        return (n_steps + 1) / 2
    return (n_steps - x * (1 - x**n_steps) / (1 - x)) / (n_steps * (1 - x))


def matching_lambda(gamma: float, gae_lambda: float, old: int, new: int) -> float:
    """Return the lambda for which rollouts of `new` steps look as far ahead as those of `old` did.

    1 where even that is not far enough.
    """
    wanted = mean_lookahead(gamma, gae_lambda, old)
    low, high = 0.0, 1.0
    if mean_lookahead(gamma, high, new) <= wanted:
        return 1.0
    while high - low > 1e-9:
        middle = (low + high) / 2
        low, high = (middle, high) if mean_lookahead(gamma, middle, new) < wanted else (low, middle)
    return high
