"""The batch in the course of a run: the recipe at each stage of its schedule."""

from __future__ import annotations

from functools import cache

from isobatch.batch import Batch, Stage, parse_schedule
from isobatch.recipe import Recipe
from isobatch.scaling.rules import move


def at(recipe: Recipe, env_steps: int) -> Recipe:
    """Return the recipe as its schedule has it at `env_steps`.

    Its hyperparameters belong to its own batch; every stage is rescaled from there.
    """
    begun = [stage for stage in stages(recipe) if stage.env_steps <= env_steps]
    return _staged(recipe, begun[-1]) if begun else recipe


def at_batch(recipe: Recipe, batch: Batch) -> Recipe:
    """Return the recipe at another batch of a run that changes it, as a stage of its own."""
    if batch == recipe.batch:
        return recipe
    return _staged(recipe, Stage(0, batch.shape, batch.n_minibatches))


@cache
def _staged(recipe: Recipe, stage: Stage) -> Recipe:
    """Return the recipe at a stage; every iteration asks, and it takes milliseconds."""
    if recipe.reshape.rescale:
        return move(recipe, stage.sizes).recipe
    return recipe.replace(**stage.sizes)


def stages(recipe: Recipe) -> tuple[Stage, ...]:
    """Return the stages of a recipe's batch schedule."""
    return parse_schedule(recipe.reshape.batch_schedule, recipe.total_timesteps)


def check_schedule(recipe: Recipe) -> None:
    """Refuse a schedule with a stage that cannot be."""
    for stage in stages(recipe):
        at(recipe, stage.env_steps)
