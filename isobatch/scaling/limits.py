"""What the rules do not keep the same: a warning each, with its number."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from isobatch import registry
from isobatch.recipe import Recipe
from isobatch.scaling.factors import Factors, decay_of_mass, decay_of_span
from isobatch.scaling.horizon import horizon, matching_lambda, mean_lookahead

Limit = Callable[[Recipe, Factors], str | None]
"""(tuned recipe, factors) -> what is not the same, None where it is."""
NEAR = 0.5
"""Minibatches of this part of the noise scale are no longer well below it."""


class Caution(NamedTuple):
    """Something that is not kept the same, in a sentence."""

    text: str
    matters: bool = True
    """False: a detail, for those who ask for all of it."""


def by_importance(cautions: Sequence[Caution]) -> list[Caution]:
    """Return what matters first, otherwise in the order given."""
    return sorted(cautions, key=lambda caution: not caution.matters)


def limits(
    recipe: Recipe,
    factors: Factors,
    noise_scale: float | None = None,
    moved: Collection[str] = (),
) -> list[Caution]:
    """Say what of the recipe the rules do not keep the same; `moved` are the fields they moved."""
    if not factors.differ:
        return []
    main = [] if noise_scale is None else [_beyond_noise(factors, noise_scale)]
    main += [limit(recipe, factors) for limit in LIMITS]
    details = [limit(recipe, factors) for limit in DETAILS]
    if "max_grad_norm" not in moved:
        details.append(_clipped_gradient(recipe, factors))
    return [Caution(text) for text in main if text is not None] + [
        Caution(text, matters=False) for text in details if text is not None
    ]


def _several_epochs(recipe: Recipe, factors: Factors) -> str | None:
    new = factors.new
    if new.n_epochs == 1 or not recipe.algorithm.policy_gradient or not factors.sizes_differ:
        return None
    return (
        f"n_epochs {new.n_epochs}: the rules hold for one epoch; in later ones the policy is "
        f"{new.n_minibatches} or more gradient steps away from the behaviour policy"
    )


def _other_epochs(recipe: Recipe, factors: Factors) -> str | None:
    if factors.epochs == 1:
        return None
    return (
        f"n_epochs {factors.old.n_epochs} -> {factors.new.n_epochs}: {factors.epochs:.3g} times "
        "the gradient steps on the same data; no rule compensates for this"
    )


def _step_limited_from_acting(recipe: Recipe, factors: Factors) -> str | None:
    old, new, algorithm = factors.old, factors.new, recipe.algorithm
    if factors.iter == 1 or algorithm.proximal != "behavior":
        return None
    age = old.n_minibatches * factors.opt * factors.epochs
    text = (
        f"{recipe.algo}'s proximal policy is the behaviour policy, whose age in samples changes "
        f"with the rollout size, {old.rollout_size:,} -> {new.rollout_size:,} rows"
    )
    if algorithm.averaged is None:
        return text
    return (
        f"{text}; that of {algorithm.averaged} with proximal_decay {decay_of_mass(age):.5g} keeps "
        f"its age (centre of mass {age:.4g} gradient steps, corresponding to the "
        f"{old.n_minibatches} of one epoch as tuned)"
    )


def _normalized_over_rollouts(recipe: Recipe, factors: Factors) -> str | None:
    over_rollouts = recipe.objective.advantage_normalization == "batch"
    if factors.iter == 1 or not over_rollouts or not recipe.algorithm.policy_gradient:
        return None
    advice = (
        f"advantage_normalization ewma with advantage_decay {decay_of_span(factors.iter):.5g} "
        "covers as many as before"
        if factors.iter > 1
        else "advantage_normalization ewma cannot cover less than one rollout"
    )
    return (
        f"advantages are normalised over each rollout, now {factors.new.rollout_size:,} rows "
        f"instead of {factors.old.rollout_size:,}: {advice}"
    )


def _normalized_in_minibatches(recipe: Recipe, factors: Factors) -> str | None:
    in_minibatches = recipe.objective.advantage_normalization == "minibatch"
    if factors.opt == 1 or not in_minibatches or not recipe.algorithm.policy_gradient:
        return None
    return (
        f"advantages are normalised in each minibatch, now of {factors.new.minibatch_size:,} rows "
        f"instead of {factors.old.minibatch_size:,}: the update depends on this size; with "
        "advantage_normalization ewma it does not"
    )


def _clipped_gradient(recipe: Recipe, factors: Factors) -> str | None:
    bound = recipe.optimizer.max_grad_norm
    if factors.opt == 1 or bound is None:
        return None
    return (
        f"max_grad_norm {bound:g} clips a gradient whose noise depends on the minibatch size: "
        f"when noise dominates, {bound * math.sqrt(factors.opt):.4g} (x sqrt(c_opt)) clips as "
        "often as before"
    )


def _follows_kl(recipe: Recipe, factors: Factors) -> str | None:
    if not recipe.adapts_rate or not factors.sizes_differ:
        return None
    return (
        f"the step size follows the KL (desired_kl {recipe.optimizer.desired_kl:g}), so the "
        "step-size rule does not apply: learning_rate is only the starting value and stays"
    )


def _stops_at_kl(recipe: Recipe, factors: Factors) -> str | None:
    target = recipe.objective.target_kl
    if target is None or not factors.sizes_differ:
        return None
    return (
        f"target_kl {target:g} stops an iteration early, and an iteration is now "
        f"{factors.new.rollout_size:,} rows instead of {factors.old.rollout_size:,}"
    )


def _clipped_values(recipe: Recipe, factors: Factors) -> str | None:
    bound = recipe.objective.clip_range_vf
    if bound is None or factors.iter == 1 or not recipe.algorithm.policy_gradient:
        return None
    return (
        f"clip_range_vf {bound:g} limits how far values move in an iteration, now "
        f"{factors.new.rollout_size:,} rows instead of {factors.old.rollout_size:,}: over the same "
        f"data they can move {factors.iter:.3g} times as far"
    )


def _staleness(recipe: Recipe, factors: Factors) -> str | None:
    staleness = recipe.objective.staleness
    if not staleness or factors.iter == 1:
        return None
    return (
        f"staleness {staleness} is now {staleness * factors.new.rollout_size:,} environment steps "
        f"instead of {staleness * factors.old.rollout_size:,}"
    )


def _lookahead(recipe: Recipe, factors: Factors) -> str | None:
    """Compare how far advantages look ahead, and suggest the lambda that keeps it."""
    old, new = factors.old.n_steps, factors.new.n_steps
    if old == new or recipe.algorithm.whole_returns:
        return None
    gamma, gae_lambda = recipe.objective.gamma, recipe.objective.gae_lambda
    before, after = (mean_lookahead(gamma, gae_lambda, steps) for steps in (old, new))
    suggested = matching_lambda(gamma, gae_lambda, old, new)
    reached = mean_lookahead(gamma, suggested, new)
    most = ", the most there is" if suggested == 1 else ""
    return (
        f"n_steps {old} -> {new}: advantages look {after:.3g} steps ahead on average before the "
        f"value function takes over, {before:.3g} before (GAE's horizon 1 / (1 - gamma lambda) is "
        f"{horizon(gamma, gae_lambda):.3g}); gae_lambda {suggested:.4g} would give {reached:.3g}"
        f"{most} (on four tasks it made no clear difference)"
    )


def _held_noise(recipe: Recipe, factors: Factors) -> str | None:
    old, new = recipe.noise_hold, recipe.replace(batch=factors.new).noise_hold
    if old == new:
        return None
    advice = (
        f"sde_sample_freq {old} holds it for as long as before"
        if old < factors.new.n_steps
        else "it cannot be held longer than a rollout"
    )
    return (
        f"use_sde: exploration noise is held for {new} steps, {old} before, since it is drawn "
        f"anew for every rollout: {advice}"
    )


def _beyond_noise(factors: Factors, noise_scale: float) -> str | None:
    size = factors.new.minibatch_size
    if size < NEAR * noise_scale:
        return None
    where = "above" if size > noise_scale else "near"
    return (
        f"minibatches of {size:,} rows are {where} the measured noise scale of "
        f"{noise_scale:,.0f}: the perfect scaling that the rules assume ends there"
    )


def _unregistered(recipe: Recipe, factors: Factors) -> str | None:
    if recipe.algo in registry.ALGORITHMS:
        return None
    return (
        f"the algorithm {recipe.algo!r} is not registered, so nothing is known of its proximal "
        f"policy, phases and fixed fields: to take them into account {registry.IMPORT_IT}"
    )


LIMITS: list[Limit] = [
    _unregistered,
    _several_epochs,
    _other_epochs,
    _follows_kl,
    _stops_at_kl,
    _staleness,
    _held_noise,
]
"""What may change learning, the most important first."""
DETAILS: list[Limit] = [
    _step_limited_from_acting,
    _clipped_values,
    _lookahead,
    _normalized_in_minibatches,
    _normalized_over_rollouts,
]
"""What made no clear difference where it was tried, or was not tried."""
