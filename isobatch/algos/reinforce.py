"""REINFORCE: the policy gradient with whole returns (Williams 1992).

A row's return is known when its episode has ended. Until then the row waits for the next
rollouts, so that every row is learned from once and long episodes count as much as short ones.
"""

from __future__ import annotations

from dataclasses import replace

from isobatch.advantages import reward_to_go
from isobatch.algos import ppo
from isobatch.algos.estimates import training_rewards
from isobatch.algos.learner import Context, Learned
from isobatch.experience import Rollout, concatenate

MOST_ROLLOUTS = 8
"""Rollouts a row waits for its episode's end before it is dropped: bounds the memory."""


class Reinforce:
    """Learns from the rows whose episodes have ended; carries the others over."""

    columns: tuple[str, ...] = (*ppo.COLUMNS, "rows_learned", "rows_waiting", "rows_dropped")

    def __init__(self, context: Context) -> None:
        self.state = context.state
        # Without a baseline nothing reads the values.
        baseline = self.state.recipe.objective.baseline
        self.gradient = ppo.Ppo(context, trains_value=baseline)
        self.waiting: Rollout | None = None

    def learn(self, rollout: Rollout) -> Learned:
        """Learn from every episode that ended in this rollout."""
        settings = self.state.recipe.objective
        rollout = replace(rollout, rewards=training_rewards(self.state, rollout))
        known = rollout
        # Rows of environments that are gone wait for nothing.
        if self.waiting is not None and self.waiting.n_envs == rollout.n_envs:
            known = concatenate(self.waiting, rollout)
        returns, complete = reward_to_go(
            known.rewards, known.terminated | known.truncated, settings.gamma
        )
        ended = replace(known, valid=known.valid & complete)
        learned = Learned({})
        if ended.n_valid:
            advantages = returns - known.values[:-1] if settings.baseline else returns
            learned = self.gradient.improve(ended, advantages, returns)
        rows = {"rows_learned": float(ended.n_valid)}
        waiting = self._wait(replace(known, valid=known.valid & ~complete))
        return learned._replace(statistics=rows | learned.statistics | waiting)

    def close(self) -> None:
        """Forget what waits."""
        self.waiting = None

    def _wait(self, rollout: Rollout) -> dict[str, float]:
        """Keep the rows not learned from, as far back as `MOST_ROLLOUTS`."""
        steps = len(rollout.valid)
        oldest = max(0, steps - MOST_ROLLOUTS * self.state.recipe.batch.n_steps)
        dropped = int(rollout.valid[:oldest].sum())
        rows = rollout.valid[oldest:].any(1).nonzero()
        begin = oldest + int(rows[0]) if len(rows) else steps
        self.waiting = rollout.since(begin) if begin < steps else None
        waiting = self.waiting.n_valid if self.waiting else 0
        return {"rows_waiting": float(waiting), "rows_dropped": float(dropped)}
