"""PPO and PPO-EWMA: one iteration's learning from one rollout. A2C is it with one gradient step."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from isobatch import losses
from isobatch.algos.estimates import (
    advantages_and_targets,
    change_at_half,
    explained_variance,
    normalized,
)
from isobatch.algos.gathering import Gathering, ShardedGathering
from isobatch.algos.learner import Context, Latest, Learned
from isobatch.algos.stepping import learning_rate, make_stepper, mean_statistics
from isobatch.errors import UserError
from isobatch.experience import Rollout
from isobatch.models.distributions import Distribution
from isobatch.noise import online
from isobatch.objectives import Current, Samples, policy_loss
from isobatch.recipe import Objective, Recipe
from isobatch.state import TrainState
from isobatch.turns import at_once
from isobatch.update import Call, Stepper
from isobatch.update.optimize import scheduled

COLUMNS = (
    "advantage_std", "explained_variance", "learning_rate", "clip_range", "policy_loss",
    "value_loss", "entropy", "approx_kl", "clip_fraction", "capped_fraction", "grad_norm",
)  # fmt: skip
"""The statistics of an iteration; null where nothing was learned from it."""
RowsOf = Gathering | ShardedGathering
TARGET_KL_SLACK = 1.5
"""Updates stop past this many times target_kl, as in Stable-Baselines3."""


class Ppo:
    """Learns from each rollout as it comes, and forgets it."""

    columns: tuple[str, ...] = COLUMNS

    def __init__(self, context: Context, trains_value: bool = True) -> None:
        self.context, self.state = context, context.state
        self.trains_value = trains_value
        if self.state.recipe.adapts_rate:
            self.columns = (*self.columns, "kl")
        self._steppers = Latest(self._make_steppers)

    def _make_steppers(self, recipe: Recipe) -> tuple[Stepper, Stepper | None]:
        """Return what steps along the policy's loss, and along the value's where that is apart."""
        state, settings = self.state, recipe.objective
        value_stepper = None
        if state.value_optimizer is not None:
            evaluate = partial(value_terms, settings=settings)
            value_stepper = make_stepper(self.context, evaluate, state.value_optimizer)
        together = self.trains_value and value_stepper is None
        evaluate = partial(
            terms,
            settings=settings,
            distribution=state.model.distribution,
            trains_value=together,
        )
        return make_stepper(self.context, evaluate, state.optimizer), value_stepper

    def learn(self, rollout: Rollout) -> Learned:
        """Update policy and value function."""
        if not rollout.n_valid:
            return Learned({})
        return self.improve(rollout, *advantages_and_targets(self.state, rollout))

    async def learning(self, rollout: Rollout) -> Learned:
        """The same in a cohort, where gradients are awaited."""
        if not rollout.n_valid:
            return Learned({})
        return await self.improving(rollout, *advantages_and_targets(self.state, rollout))

    def improve(
        self,
        rollout: Rollout,
        advantages: Tensor,
        targets: Tensor,
        weights: Tensor | None = None,
    ) -> Learned:
        """Update from advantages and value targets [T, N] of the caller's.

        `weights` [T, N] multiply the advantages once they are normalised.
        """
        return at_once(self.improving(rollout, advantages, targets, weights))

    async def improving(
        self,
        rollout: Rollout,
        advantages: Tensor,
        targets: Tensor,
        weights: Tensor | None = None,
    ) -> Learned:
        """The same in a cohort, where gradients are awaited."""
        state, recipe = self.state, self.state.recipe
        raw = advantages[rollout.valid]
        statistics = {
            "advantage_std": float(raw.std(correction=0)),
            "explained_variance": explained_variance(rollout, targets),
        }
        n_minibatches = min(recipe.batch.minibatches_for(len(rollout.actions)), len(raw))
        if not n_minibatches:
            # The budget's last few rows: too few for a gradient worth taking.
            return Learned(statistics)
        ranges, step_size = _schedules(state)
        statistics["clip_range"] = ranges["clip_range"]
        scaled = normalized(state, advantages, rollout)
        if online.is_due(recipe, state.counters.iterations, rollout):
            statistics |= self._probe(rollout, advantages, scaled)
        gathering = Gathering if rollout.shards is None else ShardedGathering
        rows_of = gathering(state, rollout, scaled, targets, ranges, weights)
        stepper, value_stepper = self._steppers(recipe)
        apart = Learned({})
        if value_stepper is not None:
            apart = await self._value_epochs(value_stepper, rows_of, n_minibatches, step_size)
        policy = await self._policy_epochs(stepper, rows_of, n_minibatches, step_size)
        return Learned(
            statistics
            | {"learning_rate": learning_rate(state)}
            | policy.statistics
            | apart.statistics,
            epochs=policy.epochs + apart.epochs,
            grad_steps=policy.grad_steps + apart.grad_steps,
        )

    def close(self) -> None:
        """Hold on to nothing."""

    def _probe(self, rollout: Rollout, advantages: Tensor, scaled: Tensor) -> dict[str, float]:
        """Measure the gradient's noise before the policy moves."""
        state, recipe = self.state, self.state.recipe
        return self.context.clock.timing("probe", online.probe)(
            state.probe,
            state.model,
            state.observation_normalizer,
            rollout,
            scaled,
            change_at_half(state, advantages, rollout),
            n_minibatches=recipe.batch.n_minibatches,
            chunk_size=self.context.chunk_size,
            seed=(recipe.seed, state.counters.iterations),
        )

    async def _policy_epochs(
        self, stepper: Stepper, rows_of: RowsOf, n_minibatches: int, step_size: float
    ) -> Learned:
        state, recipe = self.state, self.state.recipe
        taken: list[dict[str, Tensor]] = []
        for epoch in range(recipe.batch.n_epochs):
            for rows in rows_of.minibatches(n_minibatches):
                measured = await self.context.gradient(stepper, rows, rows_of)
                if _went_too_far(measured["approx_kl"], recipe.objective.target_kl):
                    stop = {"stopped_early": 1.0, "stopped_at_kl": float(measured["approx_kl"])}
                    return Learned(mean_statistics(taken) | stop, epoch, len(taken))
                if state.adaptive_rate is not None and taken:  # Before a step the KL is rounding.
                    step_size = state.adaptive_rate.follow(measured["kl"], recipe.optimizer)
                norm = stepper.step(step_size)
                if state.proximal is not None:
                    state.proximal.update()
                taken.append(measured | {"grad_norm": torch.tensor(norm)})
        return Learned(mean_statistics(taken), recipe.batch.n_epochs, len(taken))

    async def _value_epochs(
        self, stepper: Stepper, rows_of: RowsOf, n_minibatches: int, step_size: float
    ) -> Learned:
        epochs = self.state.recipe.objective.n_value_epochs
        taken: list[dict[str, Tensor]] = []
        for _ in range(epochs):
            for rows in rows_of.minibatches(n_minibatches):
                taken.append(await self.context.gradient(stepper, rows, rows_of))
                stepper.step(step_size)
        return Learned(mean_statistics(taken), epochs, len(taken))


def terms(
    call: Call,
    samples: Samples,
    settings: Objective,
    distribution: Distribution,
    trains_value: bool = True,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return per-sample losses [b] and the statistics that go with them, each [b].

    L = L_policy + vf_coef L_value - ent_coef H
    """
    params, values = call(samples.observation)
    logp, entropy = distribution.evaluate(params, samples.actions)
    policy = policy_loss(settings.objective)(Current(logp, params, distribution), samples, settings)
    if policy.shape != logp.shape:
        raise UserError(
            f"the objective {settings.objective!r} must return a loss for each sample, shape "
            f"{tuple(logp.shape)}; it returned {tuple(policy.shape)}",
            field="objective",
        )
    value = _value_loss(values, samples, settings)
    loss = policy + settings.vf_coef * value if trains_value else policy
    if isinstance(settings.ent_coef, Tensor) or settings.ent_coef:
        loss = loss - settings.ent_coef * entropy
    behav, prox = samples.logp_behav, samples.logp_prox
    before = behav if samples.logp_before is None else samples.logp_before
    with torch.no_grad():
        statistics = {
            "policy_loss": policy,
            "value_loss": value,
            "entropy": entropy,
            "approx_kl": losses.approximate_kl(logp, before),
            "clip_fraction": losses.clipped_fraction(logp, prox, samples.clip_range),
            "capped_fraction": losses.capped_fraction(logp, behav, settings.max_ratio),
        }
        if samples.logp_before is not None:
            statistics["behavior_kl"] = losses.approximate_kl(logp, behav)
        if samples.params_before is not None:
            statistics["kl"] = distribution.kl(samples.params_before, params)
    return loss, statistics


def value_terms(
    call: Call, samples: Samples, settings: Objective
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the value function's losses [b] alone, vf_coef L_value."""
    value = _value_loss(call(samples.observation)[1], samples, settings)
    return settings.vf_coef * value, {"value_loss": value}


def _value_loss(values: Tensor, samples: Samples, settings: Objective) -> Tensor:
    """Return (v - target)^2 / 2 [b], clipped where the samples say how far."""
    if samples.values_behav is None or samples.clip_range_vf is None:
        return losses.value_loss(values, samples.targets)
    return losses.clipped_value_loss(
        values,
        samples.targets,
        samples.values_behav,
        samples.clip_range_vf,
        settings.clip_vf_loss,
    )


def _went_too_far(approx_kl: Tensor, target_kl: float | None) -> bool:
    return target_kl is not None and float(approx_kl) > TARGET_KL_SLACK * target_kl


def _schedules(state: TrainState) -> tuple[dict[str, float], float]:
    """Return (clip ranges by their names, learning rate) as they are now."""
    settings, total = state.recipe.objective, state.recipe.total_timesteps
    ranges = {"clip_range": settings.clip_range}
    if settings.clip_range_vf is not None:
        ranges["clip_range_vf"] = settings.clip_range_vf
    kind, env_steps = settings.clip_range_schedule, state.counters.env_steps
    now = {name: scheduled(each, kind, env_steps, total) for name, each in ranges.items()}
    return now, learning_rate(state)
