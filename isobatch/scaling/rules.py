"""A recipe tuned at one batch, carried over to another: what moves, by which rule, and why.

Hilton et al. 2021, section 4. Two batches matter, and each has its factor:

c_opt  = old minibatch size / new,  the rows of one gradient step;
c_iter = old rollout size / new,    the rows of one iteration.

Rescaling there and back gives the recipe one began with, and by c1 and then c2 what c1 c2 does,
up to rounding, as long as nothing was clamped; what was is said.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from isobatch.errors import UserError
from isobatch.recipe import ENVS_PER_SEGMENT, Recipe
from isobatch.scaling.factors import (
    Factors,
    center_of_mass,
    decay_of_mass,
    decay_of_span,
    span,
)
from isobatch.scaling.keep import Keep, kept_sizes
from isobatch.scaling.limits import Caution, by_importance, limits

ROOT_RULE = ("adam", "radam", "rmsprop")
"""Optimisers that divide by the gradient's own size, and so move by the square root."""
SIZES = ("n_envs", "n_steps", "n_minibatches", "minibatch_size", "n_epochs")
"""What of a batch may be asked for."""


class Change(NamedTuple):
    """One field that moves."""

    field: str
    old: Any
    new: Any
    rule: str
    reason: str


class Moved(NamedTuple):
    """A recipe at another batch, what moved by which rule, and what the rules do not keep."""

    recipe: Recipe
    changes: list[Change]
    cautions: list[Caution]


class Options(NamedTuple):
    """What else is to move, and what is known of the gradient's noise."""

    betas: bool = False
    """Adam's decays and epsilon, or SGD's momentum, too."""
    grad_norm: bool = False
    """The gradient's bound too."""
    noise_scale: float | None = None
    """The run's measured one, in rows."""


RULES_ALONE = Options()


def move(
    recipe: Recipe,
    sizes: Mapping[str, int],
    keep: Keep | None = None,
    options: Options = RULES_ALONE,
) -> Moved:
    """Return the recipe at the batch of `sizes`, its hyperparameters moved by the rules.

    What of the batch is not given stays, or what `keep` says: see `rescale`.
    """
    noise_scale = options.noise_scale
    if noise_scale is not None and not 0 < noise_scale < math.inf:
        raise UserError(f"noise_scale must be a positive number of rows, got {noise_scale}")
    reshaped = recipe.replace(**kept_sizes(recipe.batch, dict(sizes), keep))
    if reshaped.batch.rollout_size % reshaped.batch.n_minibatches:
        raise UserError(
            f"{reshaped.batch.n_envs} x {reshaped.batch.n_steps} = "
            f"{reshaped.batch.rollout_size} rows do not divide into "
            f"{reshaped.batch.n_minibatches} minibatches"
        )
    factors = Factors(recipe.batch, reshaped.batch)
    changes = _batch_changes(recipe, reshaped)
    warnings: list[str] = []
    for rule in _rules(options.betas, options.grad_norm):
        changes += rule(recipe, factors, warnings)
    moved = {change.field: change.new for change in changes if change.rule != BATCH_RULE}
    for name, value in moved.items():
        _refuse_meaningless(name, value, factors)
    cautions = limits(recipe, factors, noise_scale, moved)
    cautions += [Caution(warning) for warning in warnings]
    return Moved(reshaped.replace(**moved), changes, by_importance(cautions))


BATCH_RULE = "as requested"
Rule = Callable[[Recipe, Factors, list[str]], list[Change]]
"""(tuned recipe, factors, warnings to add to) -> what moves."""


def _rules(betas: bool, grad_norm: bool) -> list[Rule]:
    step_size = _step_size_and_momentum if betas else _step_size
    rules: list[Rule] = [step_size, _proximal, _advantages, _phase, _auxiliary]
    return rules + [_betas] * betas + [_grad_norm] * grad_norm


def _batch_changes(old: Recipe, new: Recipe) -> list[Change]:
    reasons = {
        "n_envs": "the new batch",
        "n_steps": "the new batch",
        "n_minibatches": f"minibatches of {new.batch.minibatch_size:,} rows",
        "n_epochs": "the new batch",
    }
    return [
        Change(name, getattr(old.batch, name), getattr(new.batch, name), BATCH_RULE, reason)
        for name, reason in reasons.items()
        if getattr(old.batch, name) != getattr(new.batch, name)
    ]


def _step_size(recipe: Recipe, factors: Factors, warnings: list[str]) -> list[Change]:
    """Adam by the square root of the minibatch, SGD in proportion to it.

    One that follows the KL divergence finds its size by itself (`limits`).
    """
    settings, c = recipe.optimizer, factors.opt
    if c == 1 or recipe.adapts_rate:
        return []
    if settings.optimizer in ROOT_RULE:
        divisor, rule = math.sqrt(c), "/ sqrt(c_opt)"
        reason = (
            f"the noise of {settings.optimizer}'s step falls with the square root of the "
            "minibatch size"
        )
    else:
        divisor, rule = c, "/ c_opt"
        reason = "keeps the change of the weights per sample the same"
    rate = settings.learning_rate
    return [Change("learning_rate", rate, rate / divisor, rule, reason)]


def _step_size_and_momentum(recipe: Recipe, factors: Factors, warnings: list[str]) -> list[Change]:
    """SGD's momentum covers as many samples, and the step size makes up for its sum.

    u <- mu u + g adds up to g / (1 - mu), so lr (1 - mu') / (c_opt (1 - mu)) is lr / c_opt's step.
    """
    settings, c = recipe.optimizer, factors.opt
    old = settings.momentum
    if settings.optimizer != "sgd" or c == 1 or not old:
        return _step_size(recipe, factors, warnings)
    new, rate = old ** (1 / c), settings.learning_rate
    step_size = Change(
        "learning_rate",
        rate,
        rate * (1 - new) / (c * (1 - old)),
        "(1 - mu') / (c_opt (1 - mu))",
        "keeps the change of the weights per sample the same, momentum's sum included",
    )
    return [step_size] * (not recipe.adapts_rate) + [
        Change("momentum", old, new, "^ (1 / c_opt)", "momentum covers as many samples as before"),
    ]


def _betas(recipe: Recipe, factors: Factors, warnings: list[str]) -> list[Change]:
    """Remember as many samples, not as many steps; the epsilon beside sqrt(v) moves with it."""
    settings, c = recipe.optimizer, factors.opt
    names = {"adam": ("adam_beta1", "adam_beta2"), "radam": ("adam_beta1", "adam_beta2")}
    names |= {"rmsprop": ("rms_decay",)}
    values = recipe.values
    changes = [
        Change(
            name,
            values[name],
            values[name] ** (1 / c),
            "^ (1 / c_opt)",
            "the averaging window covers as many samples as before",
        )
        for name in names.get(settings.optimizer, ())
        if c != 1 and values[name] > 0
    ]
    if c == 1 or settings.optimizer not in ROOT_RULE:
        return changes
    epsilon = Change(
        "adam_eps",
        settings.adam_eps,
        settings.adam_eps * math.sqrt(c),
        "x sqrt(c_opt)",
        "when noise dominates, the gradient's root mean square grows by as much",
    )
    return [*changes, epsilon]


def _grad_norm(recipe: Recipe, factors: Factors, warnings: list[str]) -> list[Change]:
    bound = recipe.optimizer.max_grad_norm
    if bound is None or factors.opt == 1:
        return []
    return [
        Change(
            "max_grad_norm",
            bound,
            bound * math.sqrt(factors.opt),
            "x sqrt(c_opt)",
            "when noise dominates, the gradient norm grows by as much",
        )
    ]


def _proximal(recipe: Recipe, factors: Factors, warnings: list[str]) -> list[Change]:
    """The average of policies reaches back over as much data: centre of mass x c_opt."""
    factor = factors.opt * factors.epochs
    if not recipe.averages_policy or factor == 1:
        return []
    age = center_of_mass(recipe.objective.proximal_decay)
    return [
        Change(
            "proximal_decay",
            recipe.objective.proximal_decay,
            decay_of_mass(age * factor),
            "centre of mass x c_opt" + ("" if factors.epochs == 1 else " x new E / old E"),
            f"the proximal policy is {age * factor:.4g} gradient steps old, as many samples as "
            "before",
        )
    ]


def _advantages(recipe: Recipe, factors: Factors, warnings: list[str]) -> list[Change]:
    """Advantage moments over as much data: span x c_iter, at least this rollout."""
    if recipe.objective.advantage_normalization != "ewma" or factors.iter == 1:
        return []
    old = recipe.objective.advantage_decay
    wanted = span(old) * factors.iter
    if math.isclose(wanted, 1):
        wanted = 1.0  # Where it was before: no trace of having been elsewhere.
    if wanted < 1:
        warnings.append(
            f"advantage_decay is 0: the advantages' mean and variance should cover {wanted:.3g} "
            "rollouts, and one is the minimum"
        )
    new = decay_of_span(max(1.0, wanted))
    if new == old:
        return []
    reason = (
        f"mean and variance of the advantages cover {max(1.0, wanted):.4g} rollouts, as many "
        "samples as before"
    )
    return [Change("advantage_decay", old, new, "span x c_iter", reason)]


def _phase(recipe: Recipe, factors: Factors, warnings: list[str]) -> list[Change]:
    """As much data to a phase: N_pi x c_iter."""
    if not recipe.is_phasic or factors.iter == 1:
        return []
    old = recipe.phasic.n_policy_iterations
    wanted = old * factors.iter
    new = max(1, round(wanted))
    if abs(new - wanted) > 1e-9 * wanted:
        warnings.append(
            f"n_policy_iterations {wanted:.4g} is rounded to {new}: a phase has "
            f"{new / wanted:.3g} times as many samples as before"
        )
    if new == old:
        return []
    return [
        Change("n_policy_iterations", old, new, "x c_iter", "a phase has as many samples as before")
    ]


def _auxiliary(recipe: Recipe, factors: Factors, warnings: list[str]) -> list[Change]:
    """The auxiliary optimiser by its own minibatch, of whole segments."""
    if not recipe.is_phasic or (recipe.adapts_rate and not recipe.phasic.aux_learning_rate):
        return []
    phasic, old, new = recipe.phasic, factors.old, factors.new
    c = phasic.minibatch_rows(old) / phasic.minibatch_rows(new)
    if not phasic.aux_segments and new.n_envs < min(old.n_envs, ENVS_PER_SEGMENT):
        warnings.append(
            f"auxiliary minibatches are one segment of {new.n_steps} rows at least, where "
            f"{new.n_envs / ENVS_PER_SEGMENT:.3g} of one would go with {new.n_envs} environments: "
            "aux_learning_rate is that of the larger minibatch"
        )
    adaptive = recipe.optimizer.optimizer in ROOT_RULE
    root, rule = (math.sqrt(c), "/ sqrt(c_aux)") if adaptive else (c, "/ c_aux")
    chosen = recipe.phasic.aux_learning_rate
    rate = chosen or recipe.optimizer.learning_rate
    followed = recipe.optimizer.learning_rate / (
        math.sqrt(factors.opt) if adaptive else factors.opt
    )
    moved = rate / root
    if math.isclose(moved, followed):
        moved = 0.0  # It takes learning_rate, which moves just as far.
    if moved == chosen:
        return []
    reason = (
        "auxiliary minibatches keep their size"
        if c == 1
        else f"auxiliary minibatches are {1 / c:.4g} times as large"
    )
    return [Change("aux_learning_rate", chosen, moved, rule, reason)]


def _refuse_meaningless(name: str, value: float, factors: Factors) -> None:
    """Refuse a value no optimiser or average can use."""
    decay = name in ("proximal_decay", "advantage_decay", "adam_beta1", "adam_beta2", "rms_decay")
    least = 0 if decay or name in ("momentum", "aux_learning_rate") else math.ulp(0)
    fits = least <= value < (1 if decay or name == "momentum" else math.inf)
    if not fits:
        raise UserError(
            f"{name} would be {value:g} at c_opt {factors.opt:g}, c_iter {factors.iter:g}: "
            "the batches are too far apart for the rules"
        )
