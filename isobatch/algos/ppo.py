"""PPO and PPO-EWMA: one iteration's learning from one rollout."""

from __future__ import annotations

import torch
from torch import Tensor

from isobatch import losses
from isobatch.advantages import gae
from isobatch.models import ActorCritic
from isobatch.recipe import Objective, Recipe
from isobatch.rollout import Rollout
from isobatch.state import TrainState
from isobatch.update import Stepper, minibatches, scheduled, set_learning_rate

TARGET_KL_SLACK = 1.5
"""Updates stop past this many times target_kl, as in Stable-Baselines3."""


def learn(state: TrainState, rollout: Rollout, recipe: Recipe, chunk_size: int) -> dict[str, float]:
    """Update the policy and value function on a rollout; return the iteration's statistics."""
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
    set_learning_rate(state.optimizer, learning_rate)
    statistics |= {"learning_rate": learning_rate, "clip_range": clip_range}
    advantages = normalized(state, advantages, rollout, recipe)
    objective = PolicyObjective(state, rollout, advantages, targets, recipe.objective, clip_range)
    stepper = Stepper(
        state.parameters, state.optimizer, recipe.optimizer.max_grad_norm, chunk_size
    )
    by, shuffle = recipe.objective.minibatches_by, state.shuffle_generator
    taken: list[dict[str, Tensor]] = []
    for _ in range(recipe.batch.n_epochs):
        for rows in minibatches(rollout.valid, n_minibatches, shuffle, by):
            objective.begin_minibatch(rows)
            measured = stepper.gradient(rows, objective)
            if _went_too_far(measured["approx_kl"], recipe.objective.target_kl):
                return statistics | _means(taken) | {"stopped_early": 1.0}
            measured["grad_norm"] = stepper.step()
            if state.proximal is not None:
                state.proximal.update()
            state.counters.grad_steps += 1
            taken.append(measured)
        state.counters.epochs += 1
    return statistics | _means(taken)


class PolicyObjective:
    """Per-sample PPO loss of a rollout's rows, as `Stepper` wants it: rows -> (losses, statistics).

    Gathers the rows and the proximal policy's view of them; the maths is in `terms`.
    """

    def __init__(
        self,
        state: TrainState,
        rollout: Rollout,
        advantages: Tensor,
        targets: Tensor,
        settings: Objective,
        clip_range: float,
    ) -> None:
        self.model, self.proximal = state.model, state.proximal
        self.prepare = state.observation_normalizer
        self.settings, self.clip_range = settings, clip_range
        self.observations = {k: v.flatten(0, 1) for k, v in rollout.observations.items()}
        self.actions, self.params_behav = rollout.actions.flatten(0, 1), rollout.params.flatten(0, 1)
        # Side by side, so that a minibatch's numbers are gathered at once.
        self.numbers = torch.stack([rollout.logp, advantages, targets], 2).flatten(0, 1)
        self._shift, self._scale = 0.0, 1.0

    def begin_minibatch(self, rows: Tensor) -> None:
        """Take the minibatch's own advantage moments, where the recipe normalises by them."""
        if self.settings.advantage_normalization == "minibatch" and len(rows) > 1:
            values = self.numbers[rows, 1]
            self._shift = float(values.mean())
            self._scale = 1 / (float(values.std()) + 1e-8)

    def __call__(self, rows: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Return losses [b] and statistics [b] of flat rows."""
        observation = {k: v.index_select(0, rows) for k, v in self.observations.items()}
        observation = self.prepare(observation)
        actions = self.actions.index_select(0, rows)
        behav, advantages, targets = self.numbers.index_select(0, rows).unbind(1)
        if self._scale != 1.0:
            advantages = (advantages - self._shift) * self._scale
        prox, prox_params = self._proximal(observation, actions, rows, behav)
        return terms(
            self.model, self.settings, self.clip_range,
            observation, actions, behav, prox, prox_params, advantages, targets,
        )  # fmt: skip

    def _proximal(
        self, observation: dict[str, Tensor], actions: Tensor, rows: Tensor, behav: Tensor
    ) -> tuple[Tensor, Tensor | None]:
        """Return (log-probabilities [b], parameters [b, P]) of the policy that limits the step.

        The parameters are needed, and so given, only for the exact KL penalty.
        """
        exact = self.settings.objective == "kl" and self.settings.kl_estimator == "exact"
        if self.proximal is None:
            return behav, self.params_behav.index_select(0, rows) if exact else None
        with torch.no_grad():
            params = self.proximal.module(observation)
            return self.model.distribution.log_prob(params, actions), params if exact else None


def terms(
    model: ActorCritic,
    settings: Objective,
    clip_range: float,
    observation: dict[str, Tensor],
    actions: Tensor,
    behav: Tensor,
    prox: Tensor,
    prox_params: Tensor | None,
    advantages: Tensor,
    targets: Tensor,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return per-sample losses [b] and the statistics that go with them, each [b].

    L = L_policy + vf_coef (v - target)^2 / 2 - ent_coef H
    """
    params, values = model(observation)
    logp, entropy = model.distribution.evaluate(params, actions)
    if settings.objective == "clip":
        policy = losses.clip_loss(logp, behav, prox, advantages, clip_range, settings.max_ratio)
    else:
        kl = None if prox_params is None else model.distribution.kl(prox_params, params)
        policy = losses.kl_loss(
            logp, behav, prox, advantages, settings.kl_coef, settings.max_ratio, kl
        )
    value = losses.value_loss(values, targets)
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
