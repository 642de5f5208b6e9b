"""Environments of every make behind one `Step`."""

from __future__ import annotations

from isobatch.envs.own import MakeEnv, inspect, maker_of, wrap
from isobatch.envs.remade import EPISODES
from isobatch.envs.step import BatchedEnv, Observation, Step
from isobatch.errors import UserError
from isobatch.recipe import Recipe

__all__ = [
    "BatchedEnv", "MakeEnv", "Observation", "Step", "inspect", "make", "maker_of",
    "refuse_remaking", "wrap",
]  # fmt: skip


def make(
    recipe: Recipe,
    seeds: list[int],
    *,
    make_env: MakeEnv | None = None,
    training: bool = True,
) -> BatchedEnv:
    """Make the recipe's environments, or the user's own, one per seed.

    With `training` False, Atari plays whole games for their own score.
    """
    from isobatch.envs.views import FrameStack

    settings = recipe.environment
    if make_env is not None:
        if settings.wrappers:
            raise UserError(
                "wrappers are for environments that an id names: wrap your own in make_env",
                field="wrappers",
            )
        env = wrap(make_env, recipe.env, seeds, settings.vectorization, settings.env_timeout)
    else:
        from isobatch.envs.catalog import resolve

        env = resolve(recipe.env, settings.wrappers).make(seeds, settings, training)
    return FrameStack(env, settings.frame_stack) if settings.frame_stack > 1 else env


def refuse_remaking(recipe: Recipe, make_env: MakeEnv | None) -> None:
    """Refuse `remake_steps` where environments cannot be made a part at a time, or live too short.

    The time limit of their episodes may not be known yet, nor says it how long they are; the rest
    is for `RemadeEnv` to see.
    """
    settings, limit, why = recipe.environment, None, None
    if settings.vectorization == "supervised":
        why = "supervised environments are replaced one by one, when they fail"
    elif make_env is not None:
        _, width, limit = inspect(make_env)
        why = None if width is None else "make_env must return one environment, not a vector"
    else:
        from isobatch.envs.catalog import resolve

        source = resolve(recipe.env, settings.wrappers)
        why = "a tensor environment is one whole" if source.maker == "tensor" else None
        limit = source.time_limit(settings)
    if why is not None:
        raise UserError(f"remake_steps makes a quarter at a time: {why}", field="remake_steps")
    if limit is not None and settings.remake_steps < EPISODES * limit:
        raise UserError(
            f"remake_steps must be at least {EPISODES * limit}, {EPISODES} episodes of up to "
            f"{limit} steps, got {settings.remake_steps}",
            field="remake_steps",
        )
