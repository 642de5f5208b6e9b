"""What studies of this project measured at other numbers of environments: a row for each task.

To add a study, add its rows to `RECORD`; the answers of `isobatch rescale` follow from them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean
from typing import NamedTuple

from isobatch.scaling.keep import Keep


class Row(NamedTuple):
    """One task: the rescaled recipe against the tuned one, at the same number of env steps."""

    env: str
    algo: str
    way: Keep
    factor: float
    """New n_envs over old."""
    coverage: float
    """New n_steps over GAE's horizon."""
    final: float
    """Difference in final normalised score, rescaled minus tuned."""
    area: float | None
    """Difference in normalised area under the evaluation curve; None where it was not measured."""
    seeds: int
    source: str

    @property
    def covered(self) -> bool:
        """True where n_steps covers GAE's horizon."""
        return self.coverage >= 1


UP = "docs/results/scale-up.md"
DOWN = "docs/results/rescale.md"
DOORKEY = "MiniGrid-DoorKey-5x5-v0"
# The differences of the means in the tables there, over reference - random of scores.csv.
RECORD = (
    Row("Acrobot-v1", "ppo", "rollout", 8, 1.89, -0.003, -0.01503, 10, UP),
    Row("LunarLander-v3", "ppo", "rollout", 8, 1.90, -0.240, -0.147, 10, UP),
    Row("Pendulum-v1", "ppo", "rollout", 8, 1.89, -0.021, -0.043, 10, UP),
    Row(DOORKEY, "ppo", "rollout", 8, 0.24, -0.497, -0.528, 10, UP),
    Row("CartpoleSwingup-v1", "ppo", "rollout", 8, 1.90, -0.156, -0.135, 10, UP),
    Row("FrozenLake8x8-v1", "ppo", "rollout", 8, 1.90, -0.171, -0.1752, 10, UP),
    Row("HalfCheetah-v4", "ppo", "rollout", 8, 1.90, -0.001, 0.013, 10, UP),
    Row("Reacher-v4", "ppo", "rollout", 8, 1.90, -0.002, 0.008, 10, UP),
    Row("Acrobot-v1", "ppo", "minibatch-size", 8, 15.1, -0.013, -0.258, 10, UP),
    Row("LunarLander-v3", "ppo", "minibatch-size", 8, 15.2, -0.470, -0.401, 10, UP),
    Row("Pendulum-v1", "ppo", "minibatch-size", 8, 15.1, 0.146, -0.006, 10, UP),
    Row(DOORKEY, "ppo", "minibatch-size", 8, 1.90, -0.549, -0.632, 10, UP),
    Row("Acrobot-v1", "ppo", "minibatches", 8, 15.1, -0.008, -0.198, 10, UP),
    Row("LunarLander-v3", "ppo", "minibatches", 8, 15.2, -0.491, -0.406, 10, UP),
    Row("Pendulum-v1", "ppo", "minibatches", 8, 15.1, -0.245, -0.090, 10, UP),
    Row(DOORKEY, "ppo", "minibatches", 8, 1.90, -0.591, -0.653, 10, UP),
    Row("CartpoleSwingup-v1", "ppo", "minibatches", 8, 15.2, -0.446, -0.246, 5, UP),
    Row("FrozenLake8x8-v1", "ppo", "minibatches", 8, 15.2, -0.624, -0.464, 5, UP),
    Row("HalfCheetah-v4", "ppo", "minibatches", 8, 15.2, -0.227, -0.117, 5, UP),
    Row("Reacher-v4", "ppo", "minibatches", 8, 15.2, -0.418, -0.714, 5, UP),
    Row("Acrobot-v1", "ppo-ewma", "minibatches", 8, 15.1, -0.013, -0.133, 10, UP),
    Row("LunarLander-v3", "ppo-ewma", "minibatches", 8, 15.2, -0.127, -0.248, 10, UP),
    Row("Pendulum-v1", "ppo-ewma", "minibatches", 8, 15.1, -0.301, -0.184, 10, UP),
    Row(DOORKEY, "ppo-ewma", "minibatches", 8, 1.90, -0.446, -0.622, 10, UP),
    Row("Acrobot-v1", "ppo", "minibatches", 1 / 4, 15.1, 0.003, -0.005, 5, UP),
    Row("LunarLander-v3", "ppo", "minibatches", 1 / 4, 15.2, -0.116, 0.041, 5, UP),
    Row("Pendulum-v1", "ppo", "minibatches", 1 / 4, 15.1, 0.083, 0.008, 5, UP),
    Row(DOORKEY, "ppo", "minibatches", 1 / 4, 1.90, 0.000, 0.031, 5, UP),
    Row("Acrobot-v1", "ppo", "rollout", 1 / 4, 60.4, -0.003, -0.013, 5, UP),
    Row("LunarLander-v3", "ppo", "rollout", 1 / 4, 60.9, -0.088, -0.065, 5, UP),
    Row("Pendulum-v1", "ppo", "rollout", 1 / 4, 60.4, 0.052, -0.024, 5, UP),
    Row(DOORKEY, "ppo", "rollout", 1 / 4, 7.62, 0.000, 0.000, 5, UP),
    # Areas of this study are withdrawn: they are of training returns, which n_envs censors.
    Row("CartPole-v1", "ppo-ewma", "minibatches", 1 / 4, 1.89, 0.000, None, 10, DOWN),
    Row("Acrobot-v1", "ppo-ewma", "minibatches", 1 / 4, 1.89, 0.0048, None, 10, DOWN),
    Row("CartPole-v1", "ppo-ewma", "minibatches", 1 / 16, 1.89, -0.022, None, 10, DOWN),
    Row("Acrobot-v1", "ppo-ewma", "minibatches", 1 / 16, 1.89, 0.0038, None, 10, DOWN),
    Row("CartPole-v1", "ppo-ewma", "minibatches", 1 / 64, 1.89, 0.000, None, 10, DOWN),
    Row("Acrobot-v1", "ppo-ewma", "minibatches", 1 / 64, 1.89, 0.0048, None, 10, DOWN),
)


def measured(way: Keep, factor: float, algo: str) -> list[Row]:
    """Return the rows of a way in the same direction, at the factor nearest to the one asked for.

    Those of the algorithm where there are any, else of PPO.
    """
    rows = [row for row in RECORD if row.way == way and (row.factor > 1) == (factor > 1)]
    rows = [row for row in rows if row.algo == algo] or [row for row in rows if row.algo == "ppo"]
    if not rows:
        return []
    nearest = min((row.factor for row in rows), key=lambda each: abs(math.log(each / factor)))
    return [row for row in rows if row.factor == nearest]


def mean_final(rows: Sequence[Row]) -> float:
    """Return the mean difference in final score over tasks."""
    return fmean(row.final for row in rows)


def mean_area(rows: Sequence[Row]) -> float | None:
    """Return the mean difference in area over tasks, None where one of them has none."""
    areas = [row.area for row in rows if row.area is not None]
    return fmean(areas) if len(areas) == len(rows) else None
