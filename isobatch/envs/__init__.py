"""Environments of every make behind one `Step`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from isobatch.envs.remade import EPISODES
from isobatch.envs.step import BatchedEnv, Observation, Step
from isobatch.errors import UserError
from isobatch.recipe import USERS_OWN, Recipe
from isobatch.text import counted

__all__ = [
    "BatchedEnv", "MakeEnv", "Observation", "Step", "inspect", "make", "refuse_remaking", "wrap",
]  # fmt: skip

MakeEnv = Callable[[], Any]
"""A user's function that returns one Gymnasium environment, a vector of them, or a `TensorEnv`."""


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
    settings = recipe.environment
    if make_env is not None:
        return wrap(make_env, recipe.env, seeds, settings.vectorization, settings.env_timeout)
    if recipe.env == USERS_OWN:
        raise UserError("this run's environment was made in Python: pass the same make_env")

    from isobatch.envs.catalog import resolve

    return resolve(recipe.env).make(seeds, settings, training)


class Inspected(NamedTuple):
    """What a user's function makes."""

    make_env: MakeEnv
    """The function; of a vector, which is made once, one that gives that one."""
    width: int | None
    """How wide a vector it makes, None where it makes one environment."""
    time_limit: int | None
    """Steps after which an episode of it is truncated, None where that is not known."""


def inspect(make_env: MakeEnv) -> Inspected:
    """Look at what `make_env` makes."""
    from isobatch.envs.gym import limit_of

    env = make_env()
    limit = limit_of(getattr(env, "spec", None), {})
    if hasattr(env, "num_envs"):
        return Inspected(lambda: env, env.num_envs, limit)
    close = getattr(env, "close", None)
    if close is not None:
        close()
    return Inspected(make_env, None, limit)


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
    elif recipe.env != USERS_OWN:
        from isobatch.envs.catalog import resolve

        source = resolve(recipe.env)
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


def wrap(
    make_env: MakeEnv,
    name: str,
    seeds: list[int],
    vectorization: str = "sync",
    timeout: float = 60.0,
) -> BatchedEnv:
    """Adapt what a user's `make_env` returns: one environment, a vector, or a `TensorEnv`.

    Of a single environment a copy is made per seed; a vector must have as many as there are seeds.
    """
    import gymnasium
    from gymnasium.vector import VectorEnv

    from isobatch.envs.gym import GymEnv, from_factory
    from isobatch.envs.tensor import TensorAdapter

    if vectorization == "supervised":  # Made in processes of their own, and only there.
        return from_factory(make_env, name, seeds, vectorization, timeout)
    env = make_env()
    if hasattr(env, "num_envs"):
        if env.num_envs != len(seeds):
            raise UserError(
                f"make_env returned a vector of {counted(env.num_envs, 'environment')}, but n_envs "
                f"is {len(seeds)}"
            )
        if hasattr(env, "device"):
            return TensorAdapter(env, name, seeds)
        if isinstance(env, VectorEnv):
            return GymEnv(env, name, seeds)
    if not isinstance(env, gymnasium.Env):
        raise UserError(f"make_env must return a Gymnasium environment, got {type(env).__name__}")
    env.close()
    return from_factory(make_env, name, seeds, vectorization, timeout)
