"""The command that makes a run again: the environment's preset, and a flag for what differs."""

from __future__ import annotations

import shlex
from collections.abc import Collection

from isobatch.errors import UserError
from isobatch.presets import preset
from isobatch.recipe import Recipe, as_flags


def command(recipe: Recipe, named: Collection[str] = ()) -> str:
    """Return the command that trains this very recipe, '' where it takes the recipe's file.

    `named` are fields to give as flags, last, though they be the preset's. It takes seconds the
    first time: the preset comes with PyTorch and EnvPool.
    """
    from isobatch.envs.catalog import require_trusted

    try:
        require_trusted(recipe.env, None)
        base = preset(recipe.env, recipe.algo)
        differing = base.differing(recipe)
        if base.replace(**differing) != recipe:
            return ""
    except UserError:
        return ""  # An environment, algorithm or objective that is not known here.
    words = ["isobatch", "train", recipe.env, *(["--algo", recipe.algo] * (recipe.algo != "ppo"))]
    for name in named:
        differing.pop(name, None)
        differing[name] = recipe.values[name]
    return shlex.join([*words, *as_flags(differing)])


def from_file(recipe: Recipe, name: str = "recipe.toml") -> str:
    """Return the command that trains the recipe saved as a file."""
    from isobatch.envs.catalog import require_trusted

    words = ["isobatch", "train", "--recipe", name]
    try:
        require_trusted(recipe.env, None)
    except UserError:
        words += ["--env", recipe.env]
    return shlex.join(words)
