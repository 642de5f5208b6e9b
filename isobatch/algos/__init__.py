"""Algorithms: each a composition of the rooms above, behind one small protocol."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib import import_module
from typing import Any

from isobatch import registry
from isobatch.algos.learner import Context, Learned, Learner
from isobatch.algos.stale import Stale
from isobatch.envs.spaces import ObservationLayout
from isobatch.errors import UserError
from isobatch.objectives import policy_loss, refuse_taken_names
from isobatch.recipe import Recipe
from isobatch.registry import Fields, Presets

__all__ = ["Context", "Learned", "Learner", "algorithm", "check", "make_learner"]


def make_learner(context: Context) -> Learner:
    """Return the learner of the algorithm of the recipe in force."""
    recipe = context.state.recipe
    check(recipe)
    learner = learner_class(recipe)(context)
    return Stale(learner, context) if recipe.objective.staleness else learner


def check(recipe: Recipe, observations: ObservationLayout | None = None) -> None:
    """Refuse a recipe that cannot be trained here, before anything is written.

    Its algorithm and objective must be registered in this process; a learner's own `check`, if its
    class has one, is asked about the observations.
    """
    if registry.find(recipe.algo).policy_gradient:
        policy_loss(recipe.objective.objective)
    own = getattr(learner_class(recipe), "check", None)
    if own is not None and observations is not None:
        own(recipe, observations)


def learner_class(recipe: Recipe) -> Callable[[Context], Learner]:
    """Return a recipe's learner class, imported now where the registry only names it."""
    kind = registry.find(recipe.algo).learner
    if not isinstance(kind, str):
        return kind
    module, _, name = kind.partition(":")
    return getattr(import_module(module), name)


def algorithm(
    name: str,
    *,
    like: str = "ppo",
    presets: Presets | Fields | None = None,
    coefficients: Mapping[str, float] | None = None,
    **features: Any,
) -> Callable[[type], type]:
    """Register a class as the learner of the algorithm `name`.

    Everything else is inherited from the algorithm `like`. `presets` are recipe fields, or a
    function from (family, PPO's fields) to them, which override those of `like`. `coefficients` are
    its own settings with their defaults, which become recipe fields. `features` are the other
    fields of `isobatch.registry.Algorithm`: model, fixes, stale, phasic ...
    """
    base, own = registry.find(like), dict(coefficients or {})
    refuse_taken_names(own)

    def register(learner: type) -> type:
        if name in registry.ALGORITHMS:
            raise UserError(f"there is an algorithm {name!r} already")
        registry.ALGORITHMS[name] = replace(
            base,
            name=name,
            learner=learner,
            presets=base.presets if presets is None else _over(base.presets, presets),
            coefficients={**base.coefficients, **own},
            **{"summary": (learner.__doc__ or "").strip().split("\n")[0], **features},
        )
        return learner

    return register


def _over(base: Presets, own: Presets | Fields) -> Presets:
    """Return presets over another algorithm's."""

    def presets(family: str, fields: Fields) -> Fields:
        return {**base(family, fields), **(own(family, fields) if callable(own) else own)}

    return presets
