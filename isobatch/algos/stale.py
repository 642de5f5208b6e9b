"""Artificial staleness: learning from each rollout some iterations after it was collected.

Hilton et al. 2021, section 5.1. A rollout waits as it was acted; rewards are normalised and
advantages estimated when its turn comes, from the values of acting time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from isobatch.algos.learner import Awaits, Context, Holds, Learned, Learner
from isobatch.experience import Rollout, chunked, from_tensors, to_tensors
from isobatch.state import under


class Stale:
    """Hands each rollout to a learner `staleness` iterations late; the first ones wait."""

    def __init__(self, learner: Learner, context: Context) -> None:
        self.learner, self.state, self.chunk_size = learner, context.state, context.chunk_size
        self.world = context.world
        self.columns = ("age_iterations", "age_env_steps", *learner.columns)
        if context.state.recipe.algorithm.policy_gradient:
            self.columns = (*self.columns, "behavior_kl")
        self.waiting: deque[Rollout] = deque()

    def learn(self, rollout: Rollout) -> Learned:
        """Learn from the rollout whose turn it is, if there is one yet."""
        late = self._whose_turn(rollout)
        return Learned({}) if late is None else self._aged(self.learner.learn(late))

    async def learning(self, rollout: Rollout) -> Learned:
        """The same in a cohort, where gradients are awaited."""
        assert isinstance(self.learner, Awaits)
        late = self._whose_turn(rollout)
        return Learned({}) if late is None else self._aged(await self.learner.learning(late))

    def learn_ahead(self, n_envs: int, arrive: Callable[[], Rollout]) -> Learned:
        """The same at staleness 1, while the next rollout, of `n_envs`, is collected elsewhere.

        `arrive` waits for it: nothing of it is needed to learn from the one before.
        """
        self._forget_others(n_envs)
        learned = None
        if self.waiting:
            learned = self.learner.learn(self._as_the_loss_sees_it(self.waiting.popleft()))
        self.waiting.append(arrive())
        return Learned({}) if learned is None else self._aged(learned)

    def _forget_others(self, n_envs: int) -> None:
        """Let no rollout wait whose environments are gone."""
        if self.waiting and self.waiting[0].n_envs != n_envs:
            self.waiting.clear()

    def _whose_turn(self, rollout: Rollout) -> Rollout | None:
        """Let a rollout wait; return the one whose turn it is, as the loss is to see it."""
        self._forget_others(rollout.n_envs)
        self.waiting.append(rollout)
        if len(self.waiting) <= self.state.recipe.objective.staleness:
            return None
        return self._as_the_loss_sees_it(self.waiting.popleft())

    def _aged(self, learned: Learned) -> Learned:
        """Say how old the rollout was that was learned from."""
        age = {
            "age_iterations": float(len(self.waiting)),
            "age_env_steps": float(sum(each.n_valid for each in self.waiting)),
        }
        return learned._replace(statistics=age | learned.statistics)

    def held(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return the rollouts that wait, and what the learner holds."""
        own = {f"stale.{name}": each for name, each in to_tensors(self.waiting).items()}
        if not isinstance(self.learner, Holds):
            return own, {}
        tensors, data = self.learner.held()
        return own | tensors, data

    def hold(self, tensors: dict[str, Tensor], data: dict[str, Any]) -> None:
        """Let them wait again."""
        self.waiting = deque(from_tensors(under(tensors, "stale"), self.world))
        if isinstance(self.learner, Holds):
            self.learner.hold(tensors, data)

    def close(self) -> None:
        """Forget what waits."""
        self.waiting.clear()
        self.learner.close()

    def _as_the_loss_sees_it(self, rollout: Rollout) -> Rollout:
        """Return the rollout with the policies the loss is to compare the current one with."""
        settings = self.state.recipe.objective
        # Action values are fitted to what was seen, whoever acted: there is nothing to weigh.
        if not settings.staleness or not self.state.recipe.algorithm.policy_gradient:
            return rollout
        params = self._params_now(rollout)
        actions, distribution = rollout.actions.flatten(0, 1), self.state.model.distribution
        logp = distribution.log_prob(params.flatten(0, 1), actions).view(rollout.logp.shape)
        if settings.staleness_loss == "proximal":
            return replace(rollout, params=params, logp=logp)
        prox = params if settings.staleness_loss == "decoupled" else None
        return replace(rollout, params_prox=prox, logp_before=logp)

    @torch.no_grad()
    def _params_now(self, rollout: Rollout) -> Tensor:
        """Return the present policy's parameters [T, N, P], a chunk at a time."""
        model, prepare = self.state.model, self.state.observation_normalizer

        def params(own: Rollout, columns: slice) -> Tensor:
            found = chunked(lambda part: model.act(part)[0], own.acted_on(prepare), self.chunk_size)
            return found.view(*own.logp.shape, -1)

        return rollout.by_shard(params)
