"""A recipe tuned at one batch, carried over to another: what moves, by which rule, and why.

Hilton et al. 2021, section 4. Two batches matter, and each has its factor:

c_opt  = old minibatch size / new,  the rows of one gradient step;
c_iter = old rollout size / new,    the rows of one iteration.

Rescaling there and back gives the recipe one began with, and by c1 and then c2 what c1 c2 does,
up to rounding, as long as nothing was clamped; what was is said.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

from isobatch.batch import Batch, Stage, parse_schedule
from isobatch.errors import UserError
from isobatch.recipe import Recipe

ADAPTIVE = ("adam", "radam", "rmsprop")
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


class Rescaled(NamedTuple):
    """A recipe at another batch, how it came about, and what to know about it."""

    recipe: Recipe
    changes: list[Change]
    warnings: list[str]


@dataclass(frozen=True)
class Factors:
    """How much smaller the new batch is, in both of its sizes."""

    old: Batch
    new: Batch

    @property
    def opt(self) -> float:
        """c_opt, by the minibatches as they are on average."""
        return self.iter * self.new.n_minibatches / self.old.n_minibatches

    @property
    def iter(self) -> float:
        """c_iter."""
        return self.old.rollout_size / self.new.rollout_size

    @property
    def epochs(self) -> float:
        """New epochs over old."""
        return self.new.n_epochs / self.old.n_epochs


def rescale(
    recipe: Recipe,
    *,
    n_envs: int | None = None,
    n_steps: int | None = None,
    n_minibatches: int | None = None,
    minibatch_size: int | None = None,
    n_epochs: int | None = None,
    betas: bool = False,
    grad_norm: bool = False,
    noise_scale: float | None = None,
) -> Rescaled:
    """Return the recipe at another batch, its hyperparameters moved by the rules.

    What of the batch is not given stays: with `n_envs` alone the number of minibatches, so that
    both batch sizes move together, as in the paper. `betas` moves Adam's decays (or SGD's
    momentum) too, `grad_norm` the gradient's bound; `noise_scale` is the run's measured one.
    """
    sizes = {
        "n_envs": n_envs,
        "n_steps": n_steps,
        "n_minibatches": n_minibatches,
        "minibatch_size": minibatch_size,
        "n_epochs": n_epochs,
    }
    given = {name: value for name, value in sizes.items() if value is not None}
    reshaped = recipe.replace(**given)
    if reshaped.batch.rollout_size % reshaped.batch.n_minibatches:
        raise UserError(
            f"{reshaped.batch.n_envs} x {reshaped.batch.n_steps} = "
            f"{reshaped.batch.rollout_size} rows do not divide into "
            f"{reshaped.batch.n_minibatches} minibatches"
        )
    factors = Factors(recipe.batch, reshaped.batch)
    changes = _batch_changes(recipe, reshaped)
    warnings: list[str] = []
    for rule in _rules(betas, grad_norm):
        changes += rule(recipe, factors, warnings)
    moved = {change.field: change.new for change in changes if change.rule != BATCH_RULE}
    for name, value in moved.items():
        _refuse_meaningless(name, value, factors)
    warnings += limits(recipe, factors, noise_scale)
    return Rescaled(reshaped.replace(**moved), changes, warnings)


def at(recipe: Recipe, env_steps: int) -> Recipe:
    """Return the recipe as its schedule has it at `env_steps`.

    Its hyperparameters belong to its own batch; every stage is rescaled from there.
    """
    begun = [stage for stage in _stages(recipe) if stage.env_steps <= env_steps]
    return _staged(recipe, begun[-1]) if begun else recipe


def at_batch(recipe: Recipe, batch: Batch) -> Recipe:
    """Return the recipe at another batch of a run that changes it, as a stage of its own."""
    if batch == recipe.batch:
        return recipe
    return _staged(recipe, Stage(0, batch.n_envs, batch.n_steps, batch.n_minibatches))


@cache
def _staged(recipe: Recipe, stage: Stage) -> Recipe:
    """Return the recipe at a stage; every iteration asks, and it takes milliseconds."""
    if recipe.reshape.rescale:
        return rescale(recipe, **stage.sizes).recipe
    return recipe.replace(**stage.sizes)


def _stages(recipe: Recipe) -> tuple[Stage, ...]:
    return parse_schedule(recipe.reshape.batch_schedule, recipe.total_timesteps)


def check_schedule(recipe: Recipe) -> None:
    """Refuse a schedule with a stage that cannot be."""
    for stage in _stages(recipe):
        at(recipe, stage.env_steps)


BATCH_RULE = "as asked"
Rule = Callable[[Recipe, Factors, list[str]], list[Change]]
"""(tuned recipe, factors, warnings to add to) -> what moves."""


def _rules(betas: bool, grad_norm: bool) -> list[Rule]:
    rules = [_step_size, _proximal, _advantages, _phase, _auxiliary]
    return rules + [_betas] * betas + [_grad_norm] * grad_norm


def _batch_changes(old: Recipe, new: Recipe) -> list[Change]:
    reasons = {
        "n_envs": "the batch asked for",
        "n_steps": "the batch asked for",
        "n_minibatches": f"minibatches of {new.batch.minibatch_size:,} rows",
        "n_epochs": "the batch asked for",
    }
    return [
        Change(name, getattr(old.batch, name), getattr(new.batch, name), BATCH_RULE, reason)
        for name, reason in reasons.items()
        if getattr(old.batch, name) != getattr(new.batch, name)
    ]


def _step_size(recipe: Recipe, factors: Factors, warnings: list[str]) -> list[Change]:
    """Adam by the square root of the minibatch, SGD in proportion to it."""
    settings, c = recipe.optimizer, factors.opt
    if c == 1:
        return []
    if settings.optimizer in ADAPTIVE:
        return [
            Change(
                "learning_rate",
                settings.learning_rate,
                settings.learning_rate / math.sqrt(c),
                "/ sqrt(c_opt)",
                f"the noise of {settings.optimizer}'s step falls with the root of the minibatch",
            )
        ]
    return [
        Change(
            "learning_rate",
            settings.learning_rate,
            settings.learning_rate / c,
            "/ c_opt",
            "so many samples move the weights as far, however they are cut",
        )
    ]


def _betas(recipe: Recipe, factors: Factors, warnings: list[str]) -> list[Change]:
    """Remember as many samples, not as many steps."""
    names = {"adam": ("adam_beta1", "adam_beta2"), "radam": ("adam_beta1", "adam_beta2")}
    names |= {"rmsprop": ("rms_decay",), "sgd": ("momentum",)}
    values = recipe.values
    return [
        Change(
            name,
            values[name],
            values[name] ** (1 / factors.opt),
            "^ (1 / c_opt)",
            "the average reaches back over as many samples as before",
        )
        for name in names[recipe.optimizer.optimizer]
        if factors.opt != 1 and values[name] > 0
    ]


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
            "a gradient that is mostly noise is that much longer",
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
            f"the average stays {age * factor:.4g} gradient steps, so as much data, behind",
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
            f"advantage_decay is 0: the moments should span {wanted:.3g} of a rollout, and one "
            "rollout is the least"
        )
    new = decay_of_span(max(1.0, wanted))
    if new == old:
        return []
    reason = f"the moments span {max(1.0, wanted):.4g} rollouts, so as much data"
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
            f"n_policy_iterations {new} is {wanted:.4g} rounded: a phase holds "
            f"{new / wanted:.3g} times the data it did"
        )
    if new == old:
        return []
    return [
        Change("n_policy_iterations", old, new, "x c_iter", "a phase holds as much data as before")
    ]


def _auxiliary(recipe: Recipe, factors: Factors, warnings: list[str]) -> list[Change]:
    """The auxiliary optimiser by its own minibatch, of whole segments."""
    if not recipe.is_phasic:
        return []
    c = _auxiliary_rows(recipe, factors.old) / _auxiliary_rows(recipe, factors.new)
    adaptive = recipe.optimizer.optimizer in ADAPTIVE
    root, rule = (math.sqrt(c), "/ sqrt(c_aux)") if adaptive else (c, "/ c_aux")
    chosen = recipe.phasic.aux_learning_rate
    old = chosen or recipe.optimizer.learning_rate
    followed = recipe.optimizer.learning_rate / (
        math.sqrt(factors.opt) if adaptive else factors.opt
    )
    new = old / root
    if math.isclose(new, followed):
        new = 0.0  # It takes learning_rate, which moves just as far.
    if new == chosen:
        return []
    reason = f"auxiliary minibatches are {1 / c:.4g} times as large"
    return [Change("aux_learning_rate", chosen, new, rule, reason)]


def _auxiliary_rows(recipe: Recipe, batch: Batch) -> int:
    return recipe.phasic.segments(batch.n_envs) * batch.n_steps


def limits(recipe: Recipe, factors: Factors, noise_scale: float | None = None) -> list[str]:
    """Say what of the recipe the rules do not keep the same, each with its number."""
    old, new, c_opt, c_iter = factors.old, factors.new, factors.opt, factors.iter
    settings, said = recipe.objective, []
    if c_opt == c_iter == 1 and old.n_steps == new.n_steps and factors.epochs == 1:
        return []
    if new.n_epochs > 1 and recipe.algo != "pqn" and (c_opt != 1 or c_iter != 1):
        said.append(
            f"n_epochs {new.n_epochs}: the rules hold for one pass; later ones reuse data that "
            f"the policy has moved {new.n_minibatches} or more gradient steps from"
        )
    if factors.epochs != 1:
        said.append(
            f"n_epochs {old.n_epochs} -> {new.n_epochs}: {factors.epochs:.3g} times the gradient "
            "steps on the same data; no rule makes up for that"
        )
    if c_iter != 1 and recipe.algo in ("ppo", "ppg"):
        age = old.n_minibatches * c_opt * factors.epochs
        said.append(
            f"{recipe.algo}'s steps are limited from the policy that acted, whose age in data "
            f"follows the rollout, {old.rollout_size:,} -> {new.rollout_size:,} rows: "
            f"{recipe.algo}-ewma with proximal_decay {decay_of_mass(age):.5g} does not (centre of "
            f"mass {age:.4g} gradient steps, the {old.n_minibatches} of an iteration as tuned)"
        )
    if c_iter != 1 and settings.advantage_normalization == "batch" and recipe.algo != "pqn":
        advice = (
            f"advantage_normalization ewma with advantage_decay {decay_of_span(c_iter):.5g} takes "
            "in as many as before"
            if c_iter > 1
            else "no normalisation takes in less than a rollout"
        )
        said.append(
            f"advantages are normalised over each rollout, now {new.rollout_size:,} rows instead "
            f"of {old.rollout_size:,}: {advice}"
        )
    if c_opt != 1 and settings.advantage_normalization == "minibatch" and recipe.algo != "pqn":
        said.append(
            f"advantages are normalised in each minibatch, now of {new.minibatch_size:,} rows "
            f"instead of {old.minibatch_size:,}: the update depends on that size; ewma does not"
        )
    if c_opt != 1 and recipe.optimizer.max_grad_norm is not None:
        bound = recipe.optimizer.max_grad_norm
        said.append(
            f"max_grad_norm {bound:g} bounds a gradient whose noise moves with the minibatch: "
            f"where noise rules, {bound * math.sqrt(c_opt):.4g} clips as often (x sqrt(c_opt))"
        )
    if settings.target_kl is not None and (c_iter != 1 or c_opt != 1):
        said.append(
            f"target_kl {settings.target_kl:g} stops an iteration, and an iteration is now "
            f"{new.rollout_size:,} rows instead of {old.rollout_size:,}"
        )
    if settings.staleness and c_iter != 1:
        said.append(
            f"staleness {settings.staleness} is now {settings.staleness * new.rollout_size:,} "
            f"environment steps instead of {settings.staleness * old.rollout_size:,}"
        )
    if old.n_steps != new.n_steps:
        said.append(_horizon(recipe, old.n_steps, new.n_steps))
    if noise_scale is not None and new.minibatch_size >= 0.5 * noise_scale:
        where = "above" if new.minibatch_size > noise_scale else "near"
        said.append(
            f"minibatches of {new.minibatch_size:,} rows are {where} the measured noise scale of "
            f"{noise_scale:,.0f}: there the rules' perfect scaling ends"
        )
    return said


def _horizon(recipe: Recipe, old: int, new: int) -> str:
    """Compare rollouts with how far GAE looks ahead, 1 / (1 - gamma lambda)."""
    discount = recipe.objective.gamma * recipe.objective.gae_lambda
    horizon = math.inf if discount == 1 else 1 / (1 - discount)
    fits = "reach" if new >= horizon else "do not reach"
    return (
        f"n_steps {old} -> {new}: advantages look {horizon:.3g} steps ahead, which {new} steps "
        f"{fits}; more of them rest on the value function when rollouts are short"
        if new < old
        else f"n_steps {old} -> {new}: advantages look {horizon:.3g} steps ahead, which {new} "
        f"steps {fits}; fewer of them rest on the value function than before"
    )


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


def center_of_mass(decay: float) -> float:
    """Mean age of an exponentially weighted average, 1 / (1 - b) - 1 updates."""
    return 1 / (1 - decay) - 1


def decay_of_mass(age: float) -> float:
    """The decay of a centre of mass, 1 - 1 / (1 + age)."""
    return 1 - 1 / (1 + age)


def span(decay: float) -> float:
    """Effective number of updates in an average, 2 / (1 - b) - 1."""
    return 2 / (1 - decay) - 1


def decay_of_span(count: float) -> float:
    """The decay of a span, 1 - 2 / (1 + count)."""
    return 1 - 2 / (1 + count)
