"""REINFORCE: the policy gradient with whole returns (Williams 1992).

A row's return is known when its episode has ended. Until then the row waits for the next
rollouts, so that every row is learned from once and long episodes count as much as short ones.
"""

from __future__ import annotations

from dataclasses import replace

from isobatch.advantages import reward_to_go
from isobatch.algos import ppo
from isobatch.algos.estimates import training_rewards
from isobatch.recipe import Recipe
from isobatch.rollout import Rollout, concatenate
from isobatch.state import TrainState

PATIENCE = 8
"""Rollouts a row waits for its episode's end before it is dropped: bounds the memory."""


class Reinforce:
    """Learns from the rows whose episodes have ended; carries the others over."""

    columns: tuple[str, ...] = (*ppo.COLUMNS, "rows_learned", "rows_waiting", "rows_dropped")

    def __init__(self, state: TrainState, recipe: Recipe, chunk_size: int) -> None:
        self.state, self.chunk_size = state, chunk_size
        self.waiting: Rollout | None = None
        self.adopt(recipe)

    def adopt(self, recipe: Recipe) -> None:
        """Go on with another batch; rows of environments that are gone wait for nothing."""
        self.recipe = recipe
        if not recipe.objective.baseline:
            recipe = recipe.replace(vf_coef=0.0)  # Nothing reads the values.
        self.gradient = ppo.Ppo(self.state, recipe, self.chunk_size)
        if self.waiting is not None and self.waiting.valid.shape[1] != recipe.batch.n_envs:
            self.waiting = None

    def learn(self, rollout: Rollout) -> dict[str, float]:
        """Learn from every episode that ended in this rollout."""
        rollout = replace(rollout, rewards=training_rewards(self.state, rollout, self.recipe))
        known = rollout if self.waiting is None else concatenate(self.waiting, rollout)
        returns, complete = reward_to_go(
            known.rewards, known.terminated | known.truncated, self.recipe.objective.gamma
        )
        ended = replace(known, valid=known.valid & complete)
        statistics: dict[str, float] = {"rows_learned": float(ended.n_valid)}
        if ended.n_valid:
            values = known.values[:-1]
            advantages = returns - values if self.recipe.objective.baseline else returns
            statistics |= self.gradient.improve(ended, advantages, returns)
        return statistics | self._wait(replace(known, valid=known.valid & ~complete))

    def close(self) -> None:
        """Forget what waits."""
        self.waiting = None

    def _wait(self, rollout: Rollout) -> dict[str, float]:
        """Keep the rows not learned from, as far back as patience goes."""
        steps = len(rollout.valid)
        oldest = max(0, steps - PATIENCE * self.recipe.batch.n_steps)
        dropped = int(rollout.valid[:oldest].sum())
        rows = rollout.valid[oldest:].any(1).nonzero()
        begin = oldest + int(rows[0]) if len(rows) else steps
        self.waiting = rollout.since(begin) if begin < steps else None
        waiting = self.waiting.n_valid if self.waiting else 0
        return {"rows_waiting": float(waiting), "rows_dropped": float(dropped)}
