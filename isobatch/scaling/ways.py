"""The ways to another number of environments, side by side: batch, step size, updates of each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from isobatch.errors import UserError
from isobatch.recipe import Recipe
from isobatch.scaling.keep import KEEPS, Keep, advised_keep
from isobatch.scaling.rules import Options, move


class Updates(NamedTuple):
    """What a budget holds: whole iterations, and their gradient steps."""

    iterations: int
    grad_steps: int

    @classmethod
    def of(cls, recipe: Recipe) -> Updates:
        """Count those of a recipe's own budget."""
        iterations = recipe.total_timesteps // recipe.batch.rollout_size
        return cls(iterations, iterations * recipe.batch.grad_steps_per_iteration)


class Way(NamedTuple):
    """One way to the batch asked for."""

    keep: Keep
    recipe: Recipe | None
    """None where it is not possible."""
    refusal: str = ""
    taken: bool = False
    recommended: bool = False

    @property
    def updates(self) -> Updates | None:
        """What its budget holds."""
        return None if self.recipe is None else Updates.of(self.recipe)


def is_one_size(sizes: Mapping[str, int]) -> bool:
    """Say whether another N or another T is asked for, and nothing else."""
    return sizes.keys() in ({"n_envs"}, {"n_steps"})


def way_taken(sizes: Mapping[str, int], keep: Keep | None) -> Keep | None:
    """Return which way a request takes, None where it asks for more than another N or T."""
    return (keep or "minibatches") if is_one_size(sizes) else None


def ways(
    recipe: Recipe, sizes: Mapping[str, int], keep: Keep | None, options: Options
) -> tuple[Way, ...]:
    """Return all ways to another N or T; none where more than that is asked for."""
    if not is_one_size(sizes):
        return ()
    taken, (advised, _) = way_taken(sizes, keep), advised_keep(recipe, sizes)
    return tuple(
        _way(recipe, sizes, each, options)._replace(
            taken=each == taken, recommended=each == advised
        )
        for each in KEEPS
    )


def _way(recipe: Recipe, sizes: Mapping[str, int], keep: Keep, options: Options) -> Way:
    try:
        return Way(keep, move(recipe, sizes, keep, options).recipe)
    except UserError as error:
        return Way(keep, None, str(error))
