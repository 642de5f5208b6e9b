"""PPO and PPO-EWMA: one iteration's learning from one rollout."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from isobatch import losses
from isobatch.advantages import gae
from isobatch.models.distributions import Distribution
from isobatch.models.encoders import ObservationEncoder
from isobatch.optimize import scheduled
from isobatch.recipe import Objective, Recipe
from isobatch.replicas import Replicas
from isobatch.rollout import Rollout
from isobatch.state import TrainState
from isobatch.update import (
    Call,
    CompiledGradient,
    Stepper,
    minibatches,
    worth_compiling,
)

COLUMNS = (
    "advantage_std", "explained_variance", "learning_rate", "clip_range", "policy_loss",
    "value_loss", "entropy", "approx_kl", "clip_fraction", "grad_norm",
)  # fmt: skip
"""The statistics of an iteration; null where nothing was learned from it."""
TARGET_KL_SLACK = 1.5
"""Updates stop past this many times target_kl, as in Stable-Baselines3."""


class Samples(NamedTuple):
    """What the loss needs of b rows."""

    observation: dict[str, Tensor]
    actions: Tensor
    logp_behav: Tensor
    logp_prox: Tensor
    params_prox: Tensor | None
    """[b, P], for the exact KL penalty only."""
    advantages: Tensor
    targets: Tensor
    clip_range: Tensor
    """A number, as a tensor since it may follow a schedule."""


def make_stepper(state: TrainState, recipe: Recipe, chunk_size: int) -> Stepper:
    """Return what takes the run's gradient steps; compiled where the recipe says so or it pays."""
    evaluate = partial(terms, settings=recipe.objective, distribution=state.model.distribution)
    parameters, choice = state.parameters, recipe.machine.compile
    on_cpu = parameters.vector.device.type == "cpu"
    small = on_cpu and not state.has_images and not any(True for _ in state.model.buffers())
    compiled = None
    if choice == "on" or (
        choice == "auto" and small and worth_compiling(recipe.batch, recipe.total_timesteps)
    ):
        capacity = -(-recipe.batch.rollout_size // recipe.batch.n_minibatches)
        compiled = CompiledGradient(state.model, parameters, evaluate, capacity)
    return Stepper(
        state.model,
        parameters,
        state.optimizer,
        evaluate,
        recipe.optimizer.max_grad_norm,
        chunk_size,
        compiled,
        _replicas(state) if on_cpu and state.has_images and not compiled else None,
    )


def _replicas(state: TrainState) -> Replicas | None:
    """Return copies for as many threads as PyTorch may use; of a user's own module none.

    It may keep state or draw random numbers as it goes, which would depend on the threads.
    """
    count = torch.get_num_threads()
    if count == 1 or not isinstance(state.model.actor.encoder, ObservationEncoder):
        return None
    return Replicas(state.model, state.parameters, count)


def learn(
    state: TrainState, rollout: Rollout, recipe: Recipe, stepper: Stepper
) -> dict[str, float]:
    """Update the policy and value function on a rollout; return the iteration's statistics."""
    if not rollout.n_valid:
        return {}
    advantages, targets = estimate(state, rollout, recipe)
    raw = advantages[rollout.valid]
    statistics = {
        "advantage_std": float(raw.std(correction=0)),
        "explained_variance": explained_variance(rollout, targets),
    }
    n_minibatches = min(recipe.batch.minibatches_for(len(rollout.actions)), len(raw))
    if not n_minibatches:
        return statistics  # The budget's last few rows: too few for a gradient worth taking.
    clip_range, learning_rate = _schedules(recipe, state.counters.env_steps)
    statistics |= {"learning_rate": learning_rate, "clip_range": clip_range}
    advantages = normalized(state, advantages, rollout, recipe)
    rows_of = Gathering(state, rollout, advantages, targets, recipe.objective, clip_range)
    by, shuffle = recipe.objective.minibatches_by, state.shuffle_generator
    taken: list[dict[str, Tensor]] = []
    for _ in range(recipe.batch.n_epochs):
        for rows in minibatches(rollout.valid, n_minibatches, shuffle, by):
            rows_of.begin_minibatch(rows)
            measured = stepper.gradient(rows, rows_of)
            if _went_too_far(measured["approx_kl"], recipe.objective.target_kl):
                stop = {"stopped_early": 1.0, "stopped_at_kl": float(measured["approx_kl"])}
                return statistics | _means(taken) | stop
            norm = stepper.step(learning_rate)
            if state.proximal is not None:
                state.proximal.update()
            state.counters.grad_steps += 1
            taken.append(measured | {"grad_norm": torch.tensor(norm)})
        state.counters.epochs += 1
    return statistics | _means(taken)


class Gathering:
    """Picks a rollout's rows for the loss, and looks at them through the proximal policy."""

    def __init__(
        self,
        state: TrainState,
        rollout: Rollout,
        advantages: Tensor,
        targets: Tensor,
        settings: Objective,
        clip_range: float,
    ) -> None:
        self.distribution, self.proximal = state.model.distribution, state.proximal
        self.prepare = state.observation_normalizer
        self.observations = {k: v.flatten(0, 1) for k, v in rollout.observations.items()}
        self.actions, self.params = rollout.actions.flatten(0, 1), rollout.params.flatten(0, 1)
        # Side by side, so that a minibatch's numbers are gathered at once.
        self.numbers = torch.stack([rollout.logp, advantages, targets], 2).flatten(0, 1)
        self.clip_range = torch.tensor(clip_range, device=self.numbers.device)
        self.exact_kl = settings.objective == "kl" and settings.kl_estimator == "exact"
        self.by_minibatch = settings.advantage_normalization == "minibatch"
        self._shift, self._scale = 0.0, 1.0

    def begin_minibatch(self, rows: Tensor) -> None:
        """Take the minibatch's own advantage moments, where the recipe normalises by them."""
        self._shift, self._scale = 0.0, 1.0
        if self.by_minibatch and len(rows) > 1:
            values = self.numbers[rows, 1]
            self._shift = float(values.mean())
            self._scale = 1 / (float(values.std()) + 1e-8)

    @torch.no_grad()
    def __call__(self, rows: Tensor) -> Samples:
        """Return the samples of flat rows [b]."""
        observation = {k: v.index_select(0, rows) for k, v in self.observations.items()}
        observation = self.prepare(observation)
        actions = self.actions.index_select(0, rows)
        behav, advantages, targets = self.numbers.index_select(0, rows).unbind(1)
        if self.by_minibatch:
            advantages = (advantages - self._shift) * self._scale
        params = prox = None
        if self.proximal is not None:
            params = self.proximal.module(observation)
            prox = self.distribution.log_prob(params, actions)
        elif self.exact_kl:
            params = self.params.index_select(0, rows)
        return Samples(
            observation=observation,
            actions=actions,
            logp_behav=behav,
            logp_prox=behav if prox is None else prox,
            params_prox=params if self.exact_kl else None,
            advantages=advantages,
            targets=targets,
            clip_range=self.clip_range,
        )


def terms(
    call: Call, samples: Samples, settings: Objective, distribution: Distribution
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return per-sample losses [b] and the statistics that go with them, each [b].

    L = L_policy + vf_coef (v - target)^2 / 2 - ent_coef H
    """
    params, values = call(samples.observation)
    logp, entropy = distribution.evaluate(params, samples.actions)
    behav, prox, clip_range = samples.logp_behav, samples.logp_prox, samples.clip_range
    if settings.objective == "clip":
        policy = losses.clip_loss(
            logp, behav, prox, samples.advantages, clip_range, settings.max_ratio
        )
    else:
        exact = samples.params_prox
        kl = None if exact is None else distribution.kl(exact, params)
        policy = losses.kl_loss(
            logp, behav, prox, samples.advantages, settings.kl_coef, settings.max_ratio, kl
        )
    value = losses.value_loss(values, samples.targets)
    loss = policy + settings.vf_coef * value
    if settings.ent_coef:
        loss = loss - settings.ent_coef * entropy
    with torch.no_grad():
        statistics = {
            "policy_loss": policy,
            "value_loss": value,
            "entropy": entropy,
            "approx_kl": losses.approximate_kl(logp, behav),
            "clip_fraction": losses.clipped_fraction(logp, prox, clip_range),
        }
    return loss, statistics


def estimate(state: TrainState, rollout: Rollout, recipe: Recipe) -> tuple[Tensor, Tensor]:
    """Normalise rewards where asked, and return (advantages, value targets) [T, N]."""
    rewards = rollout.rewards
    if recipe.normalize.normalize_rewards:
        rewards = state.reward_normalizer(rewards, rollout.first, rollout.valid)
    terminated = rollout.terminated
    gamma = recipe.objective.gamma
    if rollout.final_values is not None:
        # Reset in the same step: the next value row is another episode's, so the final value
        # enters with the reward and the row counts as an end.
        rewards = rewards + gamma * rollout.final_values
        terminated = terminated | rollout.truncated
    return gae(
        rewards, rollout.values, terminated, rollout.truncated, gamma, recipe.objective.gae_lambda
    )


def normalized(state: TrainState, advantages: Tensor, rollout: Rollout, recipe: Recipe) -> Tensor:
    """Normalise advantages over the rollout or several iterations, as the recipe says."""
    kind = recipe.objective.advantage_normalization
    if kind in ("none", "minibatch"):
        return advantages
    state.advantage_moments.update(advantages, rollout.valid)
    return state.advantage_moments.normalize(advantages)


def explained_variance(rollout: Rollout, targets: Tensor) -> float:
    """1 - Var(target - value) / Var(target) over valid rows; 0 where the targets are constant."""
    wanted = targets[rollout.valid]
    given = rollout.values[:-1][rollout.valid]
    spread = float(wanted.var(correction=0))
    return 1 - float((wanted - given).var(correction=0)) / spread if spread > 0 else 0.0


def _went_too_far(approx_kl: Tensor, target_kl: float | None) -> bool:
    return target_kl is not None and float(approx_kl) > TARGET_KL_SLACK * target_kl


def _schedules(recipe: Recipe, env_steps: int) -> tuple[float, float]:
    """Return (clip range, learning rate) at `env_steps`."""
    objective, optimizer, total = recipe.objective, recipe.optimizer, recipe.total_timesteps
    return (
        scheduled(objective.clip_range, objective.clip_range_schedule, env_steps, total),
        scheduled(optimizer.learning_rate, optimizer.learning_rate_schedule, env_steps, total),
    )


def _means(taken: list[dict[str, Tensor]]) -> dict[str, float]:
    """Average the minibatches' statistics."""
    if not taken:
        return {}
    means = torch.stack([torch.stack(list(each.values())) for each in taken]).mean(0)
    return dict(zip(taken[0], means.tolist(), strict=True))
