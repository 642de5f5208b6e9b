"""REINFORCE: the policy gradient with whole returns (Williams 1992).

A row's return is known when its episode has ended. Until then the row waits, for as many rollouts
as it takes, so that every row is learned from once and long episodes count as much as short ones.
The policy may have moved meanwhile: a row that waited is weighted by

w = min(pi(a|s) / pi_behav(a|s), max_ratio)

which, as in PPO, is right for its action and leaves the states and the rewards after it as the
acting policies gave them. Rows of the present policy have weight 1.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from isobatch.advantages import ends_later, reward_to_go
from isobatch.algos import ppo
from isobatch.algos.estimates import training_rewards
from isobatch.algos.learner import Context, Learned
from isobatch.experience import Rollout, chunked, concatenate, from_tensors, to_tensors
from isobatch.losses import importance_weights
from isobatch.state import under
from isobatch.world import World


class Reinforce:
    """Learns from the rows whose episodes have ended; the others wait."""

    columns: tuple[str, ...] = (*ppo.COLUMNS, "rows_learned", "rows_waiting", "rows_dropped")

    def __init__(self, context: Context) -> None:
        self.state, self.chunk_size = context.state, context.chunk_size
        self.world = context.world
        # Without a baseline nothing reads the values.
        baseline = self.state.recipe.objective.baseline
        self.gradient = ppo.Ppo(context, trains_value=baseline)
        self.waiting = Waiting()

    def learn(self, rollout: Rollout) -> Learned:
        """Learn from every episode that has ended, once that is enough for a gradient step."""
        dropped = 0
        if self.waiting.n_envs not in (None, rollout.n_envs):
            # Their environments are gone: the ends will never come.
            dropped, self.waiting = self.waiting.rows, Waiting()
        self.waiting.add(replace(rollout, rewards=training_rewards(self.state, rollout)))
        learned, ended = Learned({}), 0
        # Fewer than half a minibatch make too noisy a step: as with a budget's last rollout.
        if 2 * self.waiting.ended > self.state.recipe.batch.minibatch_size:
            ended = self.waiting.ended
            learned = self._improve(*self.waiting.take())
        if learned.grad_steps or self.state.observation_normalizer.moments is not None:
            self.waiting.policy_moves()
        used = ended if learned.grad_steps else 0
        rows = {
            "rows_learned": float(used),
            "rows_waiting": float(self.waiting.rows),
            "rows_dropped": float(dropped + ended - used),
        }
        return learned._replace(statistics=rows | learned.statistics)

    def held(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return the rows that wait."""
        return self.waiting.held()

    def hold(self, tensors: dict[str, Tensor], data: dict[str, Any]) -> None:
        """Let them wait again."""
        self.waiting.hold(tensors, data, self.world)

    def close(self) -> None:
        """Forget what waits."""
        self.waiting = Waiting()

    def _improve(self, known: Rollout, n_old: int) -> Learned:
        """Step along the gradient of the rows that ended; the first `n_old` steps are old."""
        settings = self.state.recipe.objective
        rewards = bootstrapped(known, settings.gamma) if settings.baseline else known.rewards
        returns, complete = reward_to_go(
            rewards, known.terminated | known.truncated, settings.gamma
        )
        ended = replace(known, valid=known.valid & complete)
        advantages = returns - known.values[:-1] if settings.baseline else returns
        return self.gradient.improve(ended, advantages, returns, self._weights(ended, n_old))

    @torch.no_grad()
    def _weights(self, rollout: Rollout, n_old: int) -> Tensor | None:
        """Return the rows' importance weights [T, N]; None where the present policy acted in all.

        Only old rows are computed: rounding would leave the others near 1, not at it.
        """
        old = rollout.valid.clone()
        old[n_old:] = False
        if not bool(old.any()):
            return None
        model, cap = self.state.model, self.state.recipe.objective.max_ratio

        def weights(own: Rollout, columns: slice) -> Tensor:
            which, found = old[:, columns], torch.ones_like(own.logp)
            if bool(which.any()):
                rows = own.acted_on(self.state.observation_normalizer, which.flatten())
                params = chunked(lambda part: model.act(part)[0], rows, self.chunk_size)
                logp = model.distribution.log_prob(params, own.actions[which])
                found[which] = importance_weights(logp, own.logp[which], cap)
            return found

        return rollout.by_shard(weights)


class Waiting:
    """Rollouts, in time, with rows that are still to be learned from.

    They reach back to the beginning of the longest episode under way, and are joined only when
    they are taken: episodes may be hundreds of rollouts long.
    """

    def __init__(self) -> None:
        self.ended = 0
        """Rows whose episodes have ended."""
        self._rollouts: list[Rollout] = []
        self._n_old = 0
        """Steps at their beginning in which an earlier policy acted."""
        self._under_way: Tensor | None = None
        """[N]: rows of each environment's episode so far."""

    @property
    def n_envs(self) -> int | None:
        """Environments, where anything waits."""
        return None if self._under_way is None else len(self._under_way)

    @property
    def rows(self) -> int:
        """Rows that wait, ended or not."""
        return self.ended + (0 if self._under_way is None else int(self._under_way.sum()))

    def add(self, rollout: Rollout) -> None:
        """Take in the next rollout of the same environments."""
        if rollout.dropped is not None:
            self._close(rollout.dropped[0])
        self._rollouts.append(rollout)
        complete = ends_later(rollout.terminated | rollout.truncated)
        before = torch.zeros_like(rollout.valid[0], dtype=torch.long)
        before = before if self._under_way is None else self._under_way
        ends = complete[0]
        self.ended += int((rollout.valid & complete).sum() + before[ends].sum())
        self._under_way = torch.where(ends, 0, before) + (rollout.valid & ~complete).sum(0)

    def _close(self, dropped: Tensor) -> None:
        """End the episodes [N] that the next rollout begins without: valued like truncations."""
        if not self._rollouts or self._under_way is None:
            return
        *_, last = self._rollouts
        lost = dropped & (self._under_way > 0)
        truncated = last.truncated.clone()
        truncated[-1] |= lost
        self._rollouts[-1] = replace(last, truncated=truncated)
        self.ended += int(self._under_way[lost].sum())
        self._under_way = torch.where(lost, 0, self._under_way)

    def take(self) -> tuple[Rollout, int]:
        """Return everything, joined, and how many of its first steps are old; keep what goes on."""
        known, n_old = concatenate(*self._rollouts), self._n_old
        going_on = known.valid & ~ends_later(known.terminated | known.truncated)
        steps = going_on.any(1).nonzero()
        begin = int(steps[0]) if len(steps) else len(going_on)
        rest = replace(known, valid=going_on).since(begin)
        self._rollouts = [rest] if len(steps) else []
        self._n_old = max(0, n_old - begin)
        self.ended = 0
        return known, n_old

    def held(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return everything that waits."""
        tensors = {f"waiting.{name}": each for name, each in to_tensors(self._rollouts).items()}
        if self._under_way is not None:
            tensors["waiting_under_way"] = self._under_way
        return tensors, {"waiting": {"ended": self.ended, "n_old": self._n_old}}

    def hold(self, tensors: dict[str, Tensor], data: dict[str, Any], world: World) -> None:
        """Restore what `held` returned."""
        self._rollouts = from_tensors(under(tensors, "waiting"), world)
        self._under_way = tensors.get("waiting_under_way")
        self.ended, self._n_old = data["waiting"]["ended"], data["waiting"]["n_old"]

    def policy_moves(self) -> None:
        """What waits now is old from here on."""
        self._n_old = sum(len(rollout.valid) for rollout in self._rollouts)


def bootstrapped(rollout: Rollout, gamma: float) -> Tensor:
    """Return the rewards [T, N], where an episode was truncated with the value that follows.

    That is the value of the true final observation, as of acting time.
    """
    follows = rollout.values[1:] if rollout.final_values is None else rollout.final_values
    return rollout.rewards + gamma * torch.where(rollout.truncated, follows, 0)
