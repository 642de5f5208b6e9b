"""Environments of every make behind one `Step`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from isobatch.envs.step import BatchedEnv, Observation, Step
from isobatch.errors import UserError
from isobatch.recipe import USERS_OWN, Recipe

__all__ = ["BatchedEnv", "MakeEnv", "Observation", "Step", "inspect", "make", "wrap"]

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


def inspect(make_env: MakeEnv) -> tuple[MakeEnv, int | None]:
    """Return `make_env` and how wide a vector it makes, None where it makes one environment.

    A vector is made once: what is returned gives that one.
    """
    env = make_env()
    if hasattr(env, "num_envs"):
        return (lambda: env), env.num_envs
    close = getattr(env, "close", None)
    if close is not None:
        close()
    return make_env, None


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
                f"make_env returned a vector of {env.num_envs} environments, but n_envs is "
                f"{len(seeds)}"
            )
        if hasattr(env, "device"):
            return TensorAdapter(env, name, seeds)
        if isinstance(env, VectorEnv):
            return GymEnv(env, name, seeds)
    if not isinstance(env, gymnasium.Env):
        raise UserError(f"make_env must return a Gymnasium environment, got {type(env).__name__}")
    env.close()
    return from_factory(make_env, name, seeds, vectorization, timeout)
