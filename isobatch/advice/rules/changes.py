"""Changes of a recipe that several rules advise."""

from __future__ import annotations

import math
from functools import lru_cache

from isobatch.advice.history import History
from isobatch.advice.rules.rule import Changes, to
from isobatch.presets import family_preset, listed_family
from isobatch.recipe import Recipe
from isobatch.registry import ALGORITHMS

FAR = 8.0
"""Times the preset's, or one over it. The presets of all families lie within 12 of each other."""


@lru_cache(maxsize=64)  # Rules are asked about many moments of a run.
def far_setting(recipe: Recipe) -> tuple[str, float, float] | None:
    """Return the setting that is farthest from the environment's preset: (name, own, preset's).

    None where there is no preset, or no setting is `FAR` from it.
    """
    family = listed_family(recipe.env)
    if family is None or recipe.algo not in ALGORITHMS:
        return None
    usual = family_preset(family, recipe.env, recipe.algo)
    sizes = {"gamma": (1 / (1 - min(recipe.objective.gamma, 1 - 1e-9)),
                       1 / (1 - usual.objective.gamma)),
             "vf_coef": (recipe.objective.vf_coef, usual.objective.vf_coef)}  # fmt: skip
    if recipe.optimizer.optimizer == usual.optimizer.optimizer and not recipe.adapts_rate:
        sizes["learning_rate"] = recipe.optimizer.learning_rate, usual.optimizer.learning_rate
    factors = {name: abs(math.log(a / b)) for name, (a, b) in sizes.items() if a > 0 and b > 0}
    name = max(factors, key=lambda each: factors[each])
    if factors[name] < math.log(FAR):
        return None
    return name, recipe.values[name], usual.values[name]


def smaller_steps(run: History, factor: float) -> Changes:
    """Return a step size times `factor`, a tenth at least and a half at most."""
    return step_size(run, min(0.5, max(0.1, factor)))


def step_size(run: History, factor: float) -> Changes:
    """Return a step size times `factor`, in two digits; the preset's where that is far that way.

    The KL divergence that it follows, where it follows one, grows with its square.
    """
    optimizer = run.recipe.optimizer
    if run.recipe.adapts_rate:
        return to(desired_kl=float(f"{optimizer.desired_kl * factor**2:.2g}"))
    name, own, usual = far_setting(run.recipe) or ("", 1.0, 1.0)
    if name == "learning_rate" and (usual > own) == (factor > 1):
        return to(learning_rate=usual)
    return to(learning_rate=float(f"{optimizer.learning_rate * factor:.2g}"))


def more_entropy(run: History) -> Changes:
    """Return three times the entropy bonus, 0.01 at least."""
    return to(ent_coef=float(f"{max(0.01, 3 * run.recipe.objective.ent_coef):.2g}"))


def cuts(run: History) -> bool:
    """Whether the number of minibatches is the recipe's to choose."""
    return "n_minibatches" not in run.algorithm.fixes


def power_of_two(most: int) -> int:
    """Return the largest power of two that is no larger."""
    return 1 << (most.bit_length() - 1)
