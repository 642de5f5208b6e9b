"""Another library's settings as a recipe to train here, and what a user must know of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from isobatch import exchange, presets
from isobatch.errors import UserError, printable
from isobatch.exchange.differences import MACHINE
from isobatch.recipe import USERS_OWN, Recipe
from isobatch.text import columns, counted, number, wrapped

LONGEST = 26
"""Characters of a value in the table."""


class Settings(NamedTuple):
    """A recipe of another library's settings, and what to say of it."""

    library: str
    recipe: Recipe
    unknown: tuple[str, ...]
    """What of them has no counterpart here, and what that does to learning: a line each."""
    notes: tuple[str, ...]
    """How they were read."""
    budget: str
    """Where the budget is an assumption: whose."""
    asked: str | None = None
    """The environment that the user named."""
    words: tuple[str, ...] = ()
    """What says the same again, after `--from library`."""
    file: Path | None = None


def from_words(library: str, words: Sequence[str], env: str | None = None) -> Settings:
    """Read the settings that words of a command line are; one of them may be the environment."""
    found = exchange.parse_words(library, words)
    if env and found.env:
        raise UserError(f"{env} and {found.env}: give one environment")
    asked = env or found.env
    settings = read(library, exchange.settings(library, found), asked)
    return settings._replace(asked=asked, words=tuple(found.again), file=found.file)


def read(library: str, given: Mapping[str, Any], env: str | None = None) -> Settings:
    """Read another library's settings, and say what budget is assumed where they have none."""
    recipe, unknown, notes = exchange.read(library, given, env)
    budget = ""
    if key := exchange.missing_budget(library, given, env):
        steps, whose = _assumed(recipe.env)
        recipe, budget = recipe.replace(total_timesteps=steps), f"{whose}; {key}=N says another"
    return Settings(
        library,
        recipe,
        unknown=tuple(map(printable, unknown)),
        notes=tuple(map(printable, notes)),
        budget=budget,
    )


def headline(settings: Settings) -> str:
    """Return what was read, in a sentence."""
    recipe = settings.recipe
    batch = recipe.batch
    where = "" if recipe.env == USERS_OWN else f" on {recipe.env}"
    told = f" ({settings.budget})" if settings.budget else ""
    return (
        f"Read {settings.file or 'settings'} of {exchange.title(settings.library)}: "
        f"{recipe.algo}{where}, "
        f"{counted(batch.n_envs, 'environment')} x {counted(batch.n_steps, 'step')}, "
        f"{counted(batch.n_minibatches, 'minibatch', 'minibatches')} of {batch.minibatch_size:,}, "
        f"{counted(batch.n_epochs, 'epoch')}, learning rate "
        f"{number(recipe.optimizer.learning_rate)}, "
        f"{recipe.total_timesteps:,} environment steps{told}."
    )


def losses(settings: Settings) -> list[str]:
    """Return what is left out and how the rest was read, a line each."""
    title = "Nothing is left out."
    if settings.unknown:
        title = f"Left out or different here ({len(settings.unknown)}), and what that does:"
    return [title, *(f"! {each}" for each in settings.unknown), *_notes(settings)]


def answer(settings: Settings, versus_preset: bool = True) -> str:
    """Return what was read, what is left out, and where it differs from the preset, as text."""
    parts = [[headline(settings)], losses(settings)]
    if absent := not_here(settings.recipe.env):
        parts.append([f"! {absent}"])
    elif versus_preset:
        parts.append(_differences(settings.recipe))
    return "\n\n".join(
        "\n".join(each for line in lines for each in wrapped(line)) for lines in parts if lines
    )


def not_here(env: str) -> str:
    """Return what to do about an environment that cannot be trained in, '' where it can."""
    if env == USERS_OWN:
        return "no environment is named: give --env ID"
    if presets.listed_family(env) is not None:
        return ""
    try:
        presets.preset(env)
    except UserError:
        whose = ", PyBullet's," if "Bullet" in env else ""
        return (
            f"{env}{whose} does not run here: give --env ID, or install the package that has it "
            f"and give --env MODULE:{env}"
        )
    return ""


def _notes(settings: Settings) -> list[str]:
    return [f"- {each}" for each in settings.notes]


def _differences(recipe: Recipe) -> list[str]:
    """Return a table of the fields in which a recipe differs from the environment's preset."""
    base = presets.quick_preset(recipe.env, recipe.algo)
    known = base.values
    rows = [
        (f"  {name}", _cell(known.get(name)), _cell(value))
        for name, value in base.differing(recipe).items()
        if name not in MACHINE
    ]
    if not rows:
        return [f"It is the preset of {recipe.env}."]
    return columns([("Differs from the preset", "preset", "read"), *rows])


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return number(value)
    if isinstance(value, tuple):
        value = " ".join(map(str, value))
    text = str(value).lower() if value is None or isinstance(value, bool) else str(value)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."


def _assumed(env: str) -> tuple[int, str]:
    """Return the budget of an environment's preset, or else a usual one; and whose it is."""
    try:
        if env != USERS_OWN:
            return presets.quick_preset(env).total_timesteps, f"assumed, {env}'s preset"
    except UserError:
        pass  # An environment that is not known here.
    return presets.GENERIC["total_timesteps"], "assumed"
