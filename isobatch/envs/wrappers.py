"""Wrappers that a recipe may name: Gymnasium's and MiniGrid's own classes, and no others."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from isobatch.envs.step import BatchedEnv
from isobatch.envs.views import FlatMission
from isobatch.errors import UserError, nearest


class Wrapper(NamedTuple):
    """A wrapper of one environment."""

    apply: Callable[..., Any]
    """(environment, *numbers) -> environment."""
    form: str = ""
    """What follows name=, as a pattern with a group for each number; '' where nothing does."""
    example: str = ""


def _frame_skip(env: Any, count: str) -> Any:
    from gymnasium.wrappers import RepeatAction

    return RepeatAction(env, int(count))


def _resize(env: Any, height: str, width: str) -> Any:
    from gymnasium.wrappers import ResizeObservation

    return ResizeObservation(env, (int(height), int(width)))


def _grayscale(env: Any) -> Any:
    from gymnasium.wrappers import GrayscaleObservation

    return GrayscaleObservation(env, keep_dim=True)


def _rescale_action(env: Any, low: str, high: str) -> Any:
    import numpy as np
    from gymnasium.wrappers import RescaleAction

    return RescaleAction(env, np.float32(low), np.float32(high))


def _time(env: Any) -> Any:
    from gymnasium.wrappers import TimeAwareObservation

    return TimeAwareObservation(env, normalize_time=True)


def _flat_obs(env: Any) -> Any:
    try:
        from minigrid.wrappers import FlatObsWrapper  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise UserError(
            "wrappers flat_obs needs the package minigrid: pip install minigrid"
        ) from None
    return FlatObsWrapper(env)


NUMBER = r"([-+]?\d{1,9}(?:\.\d{1,9})?)"
WRAPPERS = {
    "frame_skip": Wrapper(_frame_skip, r"([1-9]\d{0,3})", "frame_skip=2"),
    "resize": Wrapper(_resize, r"([1-9]\d{0,3})x([1-9]\d{0,3})", "resize=64x64"),
    "grayscale": Wrapper(_grayscale),
    "rescale_action": Wrapper(_rescale_action, f"{NUMBER}:{NUMBER}", "rescale_action=-1:1"),
    "time": Wrapper(_time),
    "flat_obs": Wrapper(_flat_obs),
}
OF_BATCHES = {"flat_obs"}
"""Those that EnvPool's environments can have too."""


def parse(spec: str) -> tuple[str, Sequence[str]]:
    """Return the name of a wrapper and its numbers, of `name` or `name=value`."""
    name, _, value = spec.partition("=")
    wrapper = WRAPPERS.get(name)
    if wrapper is None:
        hint = nearest(name, list(WRAPPERS))
        raise UserError(
            f"wrappers: there are {', '.join(WRAPPERS)}, got {spec!r}.{hint}", field="wrappers"
        )
    found = re.fullmatch(wrapper.form, value)
    if found is None:
        raise UserError(f"wrappers: {wrapper.example or name} was expected, got {spec!r}",
                        field="wrappers")  # fmt: skip
    return name, found.groups()


def only_gymnasium(specs: Sequence[str]) -> bool:
    """Say whether environments with these wrappers must be made by Gymnasium."""
    return any(parse(each)[0] not in OF_BATCHES for each in specs)


def wrapped(env: Any, specs: Sequence[str]) -> Any:
    """Return one Gymnasium environment in its wrappers, the first innermost."""
    for name, numbers in map(parse, specs):
        env = WRAPPERS[name].apply(env, *numbers)
    return env


def viewed(env: BatchedEnv, specs: Sequence[str]) -> BatchedEnv:
    """Return a batch of environments of another make in its wrappers."""
    for name, _ in map(parse, specs):
        if name not in OF_BATCHES:
            raise UserError(
                f"wrappers {name} is for Gymnasium's environments (gymnasium:Id), not {env.name}",
                field="wrappers",
            )
        env = FlatMission(env)
    return env
