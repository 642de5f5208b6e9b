"""Environments that a user's function makes: looked at, wrapped, and registered under a name.

A run of them has `env = "python:NAME"`; NAME is make_env where the function was never given one.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from isobatch import registry
from isobatch.envs.step import BatchedEnv
from isobatch.errors import UserError, nearest
from isobatch.recipe import Environment, Recipe
from isobatch.text import counted

MakeEnv = Callable[[], Any]
"""A user's function that returns one Gymnasium environment, a vector of them, or a `TensorEnv`."""
PREFIX = "python:"


def environment(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function that returns an environment as the environment `python:name`.

    What it returns is as for `train(make_env=...)`; `env_options` are its keyword arguments.
    """

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        if name in registry.ENVIRONMENTS:
            raise UserError(f"there is an environment {name!r} already")
        registry.ENVIRONMENTS[name] = function
        return function

    return register


def id_of(make_env: MakeEnv) -> str | None:
    """Return the id that a function is registered under, None where it is not."""
    names = (name for name, each in registry.ENVIRONMENTS.items() if each is make_env)
    name = next(names, None)
    return None if name is None else PREFIX + name


def maker_of(recipe: Recipe, make_env: MakeEnv | None = None) -> MakeEnv | None:
    """Return who makes a recipe's environments: the caller's function, or the registered one.

    None where they are not a user's own.
    """
    by_name = make_env is None or id_of(make_env) == recipe.env
    if not by_name or not recipe.env.startswith(PREFIX):
        return make_env
    return _registered(recipe.env.removeprefix(PREFIX), recipe.environment)


def ids() -> dict[str, str]:
    """Return the registered names, all of one family."""
    return dict.fromkeys(registry.ENVIRONMENTS, "python")


def make(name: str, seeds: list[int], settings: Environment, training: bool) -> BatchedEnv:
    """Make a registered environment, which evaluates as it trains."""
    chosen = settings.vectorization, settings.env_timeout
    return wrap(_registered(name, settings), PREFIX + name, seeds, *chosen)


def _registered(name: str, settings: Environment) -> MakeEnv:
    if name not in registry.ENVIRONMENTS:
        raise unregistered(name)
    return partial(registry.ENVIRONMENTS[name], **settings.options)


def unregistered(name: str) -> UserError:
    """Return the error of a name that no function stands behind."""
    return UserError(
        f"environment {PREFIX + name!r} comes from your own function, which is not registered."
        f"{nearest(name, list(registry.ENVIRONMENTS))} In Python pass make_env; on the command "
        f'line --import MODULE, one that has @isobatch.environment("{name}") above the function',
        field="env",
    )


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
