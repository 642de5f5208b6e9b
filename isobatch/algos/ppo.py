"""PPO and PPO-EWMA: one iteration's learning from one rollout. A2C is it with one gradient step."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from isobatch import gradient_noise, losses
from isobatch.algos.estimates import change_at_half, estimate, explained_variance, normalized
from isobatch.algos.stepping import learning_rate, make_stepper, means
from isobatch.models.distributions import Distribution
from isobatch.objectives import Current, Samples, policy_loss
from isobatch.optimize import scheduled
from isobatch.recipe import Objective, Recipe
from isobatch.rollout import Rollout
from isobatch.state import TrainState
from isobatch.update import Call, Stepper, minibatches

COLUMNS = (
    "advantage_std", "explained_variance", "learning_rate", "clip_range", "policy_loss",
    "value_loss", "entropy", "approx_kl", "clip_fraction", "capped_fraction", "grad_norm",
)  # fmt: skip
"""The statistics of an iteration; null where nothing was learned from it."""
TARGET_KL_SLACK = 1.5
"""Updates stop past this many times target_kl, as in Stable-Baselines3."""


class Ppo:
    """Learns from each rollout as it comes, and forgets it."""

    columns: tuple[str, ...] = COLUMNS

    def __init__(self, state: TrainState, recipe: Recipe, chunk_size: int) -> None:
        self.state, self.chunk_size = state, chunk_size
        self.adopt(recipe)

    def adopt(self, recipe: Recipe) -> None:
        """Go on with another batch and hyperparameters."""
        self.recipe, state, chunk_size = recipe, self.state, self.chunk_size
        settings, distribution = recipe.objective, state.model.distribution
        self.value_stepper = None
        if state.value_optimizer is not None:
            evaluate = partial(value_terms, settings=settings)
            self.value_stepper = make_stepper(
                state, recipe, chunk_size, evaluate, state.value_optimizer
            )
        evaluate = partial(
            terms,
            settings=settings,
            distribution=distribution,
            vf_coef=settings.vf_coef if self.value_stepper is None else 0.0,
        )
        self.stepper = make_stepper(state, recipe, chunk_size, evaluate, state.optimizer)

    def learn(self, rollout: Rollout) -> dict[str, float]:
        """Update policy and value function; return the iteration's statistics."""
        if not rollout.n_valid:
            return {}
        return self.improve(rollout, *estimate(self.state, rollout, self.recipe))

    def improve(self, rollout: Rollout, advantages: Tensor, targets: Tensor) -> dict[str, float]:
        """The same, with advantages and value targets [T, N] of the caller's."""
        state, recipe = self.state, self.recipe
        raw = advantages[rollout.valid]
        statistics = {
            "advantage_std": float(raw.std(correction=0)),
            "explained_variance": explained_variance(rollout, targets),
        }
        n_minibatches = min(recipe.batch.minibatches_for(len(rollout.actions)), len(raw))
        if not n_minibatches:
            return statistics  # The budget's last few rows: too few for a gradient worth taking.
        clip_range, step_size = _schedules(recipe, state.counters.env_steps)
        statistics |= {"learning_rate": step_size, "clip_range": clip_range}
        scaled = normalized(state, advantages, rollout, recipe)
        if gradient_noise.is_due(recipe, state.counters.iterations, rollout):
            change = change_at_half(state, advantages, rollout, recipe)
            statistics |= gradient_noise.probe(
                state, recipe, rollout, scaled, change, self.chunk_size
            )
        rows_of = Gathering(state, rollout, scaled, targets, recipe.objective, clip_range)
        apart = {}
        if self.value_stepper is not None:
            apart = self._value_epochs(self.value_stepper, rows_of, n_minibatches, step_size)
        statistics |= self._policy_epochs(rows_of, n_minibatches, step_size)
        return statistics | apart

    def close(self) -> None:
        """Hold on to nothing."""

    def _policy_epochs(
        self, rows_of: Gathering, n_minibatches: int, step_size: float
    ) -> dict[str, float]:
        state, settings = self.state, self.recipe.objective
        taken: list[dict[str, Tensor]] = []
        for _ in range(self.recipe.batch.n_epochs):
            for rows in rows_of.minibatches(n_minibatches):
                measured = self.stepper.gradient(rows, rows_of)
                if _went_too_far(measured["approx_kl"], settings.target_kl):
                    stop = {"stopped_early": 1.0, "stopped_at_kl": float(measured["approx_kl"])}
                    return means(taken) | stop
                norm = self.stepper.step(step_size)
                if state.proximal is not None:
                    state.proximal.update()
                state.counters.grad_steps += 1
                taken.append(measured | {"grad_norm": torch.tensor(norm)})
            state.counters.epochs += 1
        return means(taken)

    def _value_epochs(
        self, stepper: Stepper, rows_of: Gathering, n_minibatches: int, step_size: float
    ) -> dict[str, float]:
        taken: list[dict[str, Tensor]] = []
        for _ in range(self.recipe.objective.n_value_epochs):
            for rows in rows_of.minibatches(n_minibatches):
                taken.append(stepper.gradient(rows, rows_of))
                stepper.step(step_size)
                self.state.counters.grad_steps += 1
            self.state.counters.epochs += 1
        return means(taken)


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
        self.valid, self.settings = rollout.valid, settings
        self.shuffle = state.shuffle_generator
        self.observations = {k: v.flatten(0, 1) for k, v in rollout.observations.items()}
        self.actions = rollout.actions.flatten(0, 1)
        params, logp_prox = rollout.params, rollout.logp
        if rollout.params_prox is not None:
            params = rollout.params_prox
            logp = self.distribution.log_prob(params.flatten(0, 1), self.actions)
            logp_prox = logp.view(rollout.logp.shape)
        self.params = params.flatten(0, 1)
        # Side by side, so that a minibatch's numbers are gathered at once.
        self.numbers = torch.stack([rollout.logp, logp_prox, advantages, targets], 2).flatten(0, 1)
        self.clip_range = torch.tensor(clip_range, device=self.numbers.device)
        self.exact_kl = settings.objective == "kl" and settings.kl_estimator == "exact"
        self.by_minibatch = settings.advantage_normalization == "minibatch"
        self._shift, self._scale = 0.0, 1.0

    def minibatches(self, count: int) -> Iterator[Tensor]:
        """Partition the rows anew and go through the parts."""
        for rows in minibatches(self.valid, count, self.shuffle, self.settings.minibatches_by):
            self.begin_minibatch(rows)
            yield rows

    def begin_minibatch(self, rows: Tensor) -> None:
        """Take the minibatch's own advantage moments, where the recipe normalises by them."""
        self._shift, self._scale = 0.0, 1.0
        if self.by_minibatch and len(rows) > 1:
            values = self.numbers[rows, 2]
            self._shift = float(values.mean())
            self._scale = 1 / (float(values.std()) + 1e-8)

    @torch.no_grad()
    def __call__(self, rows: Tensor) -> Samples:
        """Return the samples of flat rows [b]."""
        observation = {k: v.index_select(0, rows) for k, v in self.observations.items()}
        observation = self.prepare(observation)
        actions = self.actions.index_select(0, rows)
        behav, prox, advantages, targets = self.numbers.index_select(0, rows).unbind(1)
        if self.by_minibatch:
            advantages = (advantages - self._shift) * self._scale
        params = None
        if self.proximal is not None:
            params = self.proximal.module(observation)
            prox = self.distribution.log_prob(params, actions)
        elif self.exact_kl:
            params = self.params.index_select(0, rows)
        return Samples(
            observation=observation,
            actions=actions,
            logp_behav=behav,
            logp_prox=prox,
            params_prox=params if self.exact_kl else None,
            advantages=advantages,
            targets=targets,
            clip_range=self.clip_range,
        )


def terms(
    call: Call, samples: Samples, settings: Objective, distribution: Distribution, vf_coef: float
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return per-sample losses [b] and the statistics that go with them, each [b].

    L = L_policy + vf_coef (v - target)^2 / 2 - ent_coef H
    """
    params, values = call(samples.observation)
    logp, entropy = distribution.evaluate(params, samples.actions)
    policy = policy_loss(settings.objective)(Current(logp, params, distribution), samples, settings)
    value = losses.value_loss(values, samples.targets)
    loss = policy + vf_coef * value
    if settings.ent_coef:
        loss = loss - settings.ent_coef * entropy
    behav, prox = samples.logp_behav, samples.logp_prox
    with torch.no_grad():
        statistics = {
            "policy_loss": policy,
            "value_loss": value,
            "entropy": entropy,
            "approx_kl": losses.approximate_kl(logp, behav),
            "clip_fraction": losses.clipped_fraction(logp, prox, samples.clip_range),
            "capped_fraction": losses.capped_fraction(logp, behav, settings.max_ratio),
        }
    return loss, statistics


def value_terms(
    call: Call, samples: Samples, settings: Objective
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the value function's losses [b] alone, vf_coef (v - target)^2 / 2."""
    value = losses.value_loss(call(samples.observation)[1], samples.targets)
    return settings.vf_coef * value, {"value_loss": value}


def _went_too_far(approx_kl: Tensor, target_kl: float | None) -> bool:
    return target_kl is not None and float(approx_kl) > TARGET_KL_SLACK * target_kl


def _schedules(recipe: Recipe, env_steps: int) -> tuple[float, float]:
    """Return (clip range, learning rate) at `env_steps`."""
    settings, total = recipe.objective, recipe.total_timesteps
    clip_range = scheduled(settings.clip_range, settings.clip_range_schedule, env_steps, total)
    return clip_range, learning_rate(recipe, env_steps)
