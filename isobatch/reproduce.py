"""The command that makes a run again: the environment's preset, and a flag for what differs."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Mapping
from typing import Any

from isobatch.errors import UserError
from isobatch.presets import preset
from isobatch.recipe import Recipe


def command(recipe: Recipe, named: Collection[str] = ()) -> str:
    """Return the command that trains this very recipe, '' where it takes the recipe's file.

    `named` are fields to give as flags, last, though they be the preset's. It takes seconds the
    first time: the preset comes with PyTorch and EnvPool.
    """
    from isobatch.envs.catalog import require_trusted

    try:
        require_trusted(recipe.env, None)
        base = preset(recipe.env, recipe.algo)
        differing = _differing(base, recipe)
        if base.replace(**differing) != recipe:
            return ""
    except UserError:
        return ""  # An environment, algorithm or objective that is not known here.
    words = ["isobatch", "train", recipe.env, *(["--algo", recipe.algo] * (recipe.algo != "ppo"))]
    for name in named:
        differing.pop(name, None)
        differing[name] = recipe.values[name]
    return " ".join([shlex.join(words), *([flags(differing)] * bool(differing))])


def flags(fields: Mapping[str, Any]) -> str:
    """Return recipe fields as flags: --n-envs 32 --learning-rate 0.0005."""
    return shlex.join([word for name, value in fields.items() for word in _flag(name, value)])


def from_file(recipe: Recipe, name: str = "recipe.toml") -> str:
    """Return the command that trains the recipe saved as a file."""
    from isobatch.envs.catalog import require_trusted

    words = ["isobatch", "train", "--recipe", name]
    try:
        require_trusted(recipe.env, None)
    except UserError:
        words += ["--env", recipe.env]
    return shlex.join(words)


def _differing(base: Recipe, recipe: Recipe) -> dict[str, Any]:
    """Return the fields in which a recipe differs from another."""
    known = base.values
    return {
        name: value
        for name, value in recipe.values.items()
        if name not in known or known[name] != value
    }


def _flag(name: str, value: Any) -> list[str]:
    flag = "--" + name.replace("_", "-")
    if isinstance(value, bool):
        return [flag if value else f"--no-{flag[2:]}"]
    if isinstance(value, tuple):
        return [flag, *map(str, value)]
    return [flag, "none" if value is None else str(value)]
