"""Atari's games by Gymnasium's ids and by EnvPool's, with what each id says about them.

    id there               sticky actions   frames it skips itself
    NameNoFrameskip-v4     none             none: the wrappers do
    NameNoFrameskip-v0     0.25             none
    ALE/Name-v5            0.25             4, and the wrappers skip on top of that

EnvPool's Name-v5 is none of these: there both are options, by default no sticky actions and 4.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from isobatch.presets import listed_family
from isobatch.recipe import Recipe

STICKY = 0.25
SKIP = 4
"""EnvPool's frame_skip where it is not given, and that of the usual wrappers."""
USUAL = (None, 1, SKIP)
"""What wrappers skip that need no option with EnvPool's own id."""


class Game(NamedTuple):
    """What an id says: the game, the chance that an action is repeated, frames of one step."""

    name: str
    sticky: float = 0.0
    skip: int = 1

    @property
    def id(self) -> str:
        """EnvPool's."""
        return f"{self.name}-v5"


def game(env: str) -> Game | None:
    """Return the game of Gymnasium's id or EnvPool's, None where it is none that runs here."""
    found = None
    if match := re.fullmatch(r"(\w+)NoFrameskip-v([04])", env):
        found = Game(match[1], 0.0 if match[2] == "4" else STICKY)
    elif match := re.fullmatch(r"ALE/(\w+)-v5", env):
        found = Game(match[1], STICKY, SKIP)
    elif match := re.fullmatch(r"(\w+)-v5", env):
        found = Game(match[1])
    return found if found and listed_family(found.id) == "atari" else None


def here(recipe: Recipe, wrappers: int | None) -> tuple[Recipe, list[str]]:
    """Return the recipe with EnvPool's id and options for Gymnasium's id, and a line on it.

    `wrappers` is how many frames the library's wrappers skip, None where that is not known.
    """
    found = game(recipe.env)
    if found is None:
        return recipe, []
    if recipe.env == found.id:  # Its own steps are of the wrapper's frames.
        return _with_options(recipe, {"frame_skip": wrappers} if wrappers not in USUAL else {}), []
    skip = found.skip * wrappers if wrappers else SKIP
    asked = {
        **({"repeat_action_probability": found.sticky} if found.sticky else {}),
        **({"frame_skip": skip} if skip != SKIP else {}),
    }
    sticky = f"sticky actions ({found.sticky})" if found.sticky else "no sticky actions"
    frames = f"frame skip {skip}"
    if wrappers and found.skip > 1:
        frames += f" (its own {found.skip} x the wrapper's {wrappers})"
    elif not wrappers:
        frames += " (assumed)"
    line = f"{recipe.env} runs as EnvPool's {found.id}: {sticky}, {frames}"
    return _with_options(recipe, asked).replace(env=found.id), [line]


def _with_options(recipe: Recipe, asked: dict[str, float]) -> Recipe:
    """Return the recipe with these options of the environment, but those that it gives itself."""
    known = recipe.environment.options
    added = tuple(f"{name}={value}" for name, value in asked.items() if name not in known)
    return recipe.replace(env_options=(*recipe.environment.env_options, *added))


def beside_id(recipe: Recipe) -> dict[str, Any]:
    """Return the options of the environment that Gymnasium's id, `there`, does not say."""
    options = dict(recipe.environment.options)
    said = game(there(recipe))
    if said is None:
        return options
    if options.get("repeat_action_probability") == said.sticky:
        del options["repeat_action_probability"]
    if options.get("frame_skip") == SKIP * said.skip:
        del options["frame_skip"]
    return options


def there(recipe: Recipe) -> str:
    """Return Gymnasium's id of a recipe's game, under the usual wrappers; other ids as they are."""
    found = game(recipe.env)
    if found is None or recipe.env != found.id:
        return recipe.env
    options = recipe.environment.options
    if options.get("repeat_action_probability", 0.0) != STICKY:
        return f"{found.name}NoFrameskip-v4"
    doubled = options.get("frame_skip", SKIP) == SKIP * SKIP
    return f"ALE/{found.id}" if doubled else f"{found.name}NoFrameskip-v0"
