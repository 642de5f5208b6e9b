"""What the rules do not keep the same, each said in a line with its number."""

from __future__ import annotations

import math
from collections.abc import Callable

from isobatch.recipe import Recipe
from isobatch.scaling.factors import Factors, decay_of_mass, decay_of_span

Limit = Callable[[Recipe, Factors], str | None]
"""(tuned recipe, factors) -> what is not the same, None where it is."""
NEAR = 0.5
"""Minibatches of this part of the noise scale are no longer well below it."""


def limits(recipe: Recipe, factors: Factors, noise_scale: float | None = None) -> list[str]:
    """Say what of the recipe the rules do not keep the same."""
    if not factors.differ:
        return []
    said = [limit(recipe, factors) for limit in LIMITS]
    if noise_scale is not None:
        said.append(_beyond_noise(factors, noise_scale))
    return [line for line in said if line is not None]


def _several_epochs(recipe: Recipe, factors: Factors) -> str | None:
    new = factors.new
    if new.n_epochs == 1 or not recipe.algorithm.policy_gradient or not factors.sizes_differ:
        return None
    return (
        f"n_epochs {new.n_epochs}: the rules hold for one pass; later ones reuse data that "
        f"the policy has moved {new.n_minibatches} or more gradient steps from"
    )


def _other_epochs(recipe: Recipe, factors: Factors) -> str | None:
    if factors.epochs == 1:
        return None
    return (
        f"n_epochs {factors.old.n_epochs} -> {factors.new.n_epochs}: {factors.epochs:.3g} times "
        "the gradient steps on the same data; no rule makes up for that"
    )


def _step_limited_from_acting(recipe: Recipe, factors: Factors) -> str | None:
    old, new, algorithm = factors.old, factors.new, recipe.algorithm
    if factors.iter == 1 or algorithm.proximal != "behavior":
        return None
    age = old.n_minibatches * factors.opt * factors.epochs
    text = (
        f"{recipe.algo}'s steps are limited from the policy that acted, whose age in data "
        f"follows the rollout, {old.rollout_size:,} -> {new.rollout_size:,} rows"
    )
    if algorithm.averaged is None:
        return text
    return (
        f"{text}: {algorithm.averaged} with proximal_decay {decay_of_mass(age):.5g} does not "
        f"(centre of mass {age:.4g} gradient steps, the {old.n_minibatches} of an iteration as "
        "tuned)"
    )


def _normalized_over_rollouts(recipe: Recipe, factors: Factors) -> str | None:
    over_rollouts = recipe.objective.advantage_normalization == "batch"
    if factors.iter == 1 or not over_rollouts or not recipe.algorithm.policy_gradient:
        return None
    advice = (
        f"advantage_normalization ewma with advantage_decay {decay_of_span(factors.iter):.5g} "
        "takes in as many as before"
        if factors.iter > 1
        else "no normalisation takes in less than a rollout"
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
        f"instead of {factors.old.minibatch_size:,}: the update depends on that size; ewma does not"
    )


def _clipped_gradient(recipe: Recipe, factors: Factors) -> str | None:
    bound = recipe.optimizer.max_grad_norm
    if factors.opt == 1 or bound is None:
        return None
    return (
        f"max_grad_norm {bound:g} bounds a gradient whose noise moves with the minibatch: "
        f"where noise rules, {bound * math.sqrt(factors.opt):.4g} clips as often (x sqrt(c_opt))"
    )


def _stops_at_kl(recipe: Recipe, factors: Factors) -> str | None:
    target = recipe.objective.target_kl
    if target is None or not factors.sizes_differ:
        return None
    return (
        f"target_kl {target:g} stops an iteration, and an iteration is now "
        f"{factors.new.rollout_size:,} rows instead of {factors.old.rollout_size:,}"
    )


def _staleness(recipe: Recipe, factors: Factors) -> str | None:
    staleness = recipe.objective.staleness
    if not staleness or factors.iter == 1:
        return None
    return (
        f"staleness {staleness} is now {staleness * factors.new.rollout_size:,} environment steps "
        f"instead of {staleness * factors.old.rollout_size:,}"
    )


def _horizon(recipe: Recipe, factors: Factors) -> str | None:
    """Compare rollouts with how far GAE looks ahead, 1 / (1 - gamma lambda)."""
    old, new = factors.old.n_steps, factors.new.n_steps
    if old == new:
        return None
    discount = recipe.objective.gamma * recipe.objective.gae_lambda
    horizon = math.inf if discount == 1 else 1 / (1 - discount)
    fits = "reach" if new >= horizon else "do not reach"
    rest = (
        "more of them rest on the value function when rollouts are short"
        if new < old
        else "fewer of them rest on the value function than before"
    )
    return (
        f"n_steps {old} -> {new}: advantages look {horizon:.3g} steps ahead, which {new} steps "
        f"{fits}; {rest}"
    )


def _beyond_noise(factors: Factors, noise_scale: float) -> str | None:
    size = factors.new.minibatch_size
    if size < NEAR * noise_scale:
        return None
    where = "above" if size > noise_scale else "near"
    return (
        f"minibatches of {size:,} rows are {where} the measured noise scale of "
        f"{noise_scale:,.0f}: there the rules' perfect scaling ends"
    )


LIMITS: list[Limit] = [
    _several_epochs,
    _other_epochs,
    _step_limited_from_acting,
    _normalized_over_rollouts,
    _normalized_in_minibatches,
    _clipped_gradient,
    _stops_at_kl,
    _staleness,
    _horizon,
]
