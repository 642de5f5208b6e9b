"""Hyperparameters of other libraries as recipes, and recipes as theirs.

    imported = exchange.read("sb3", {"n_envs": 8, "n_steps": 128, "batch_size": 256})
    imported.recipe                       # the same training here
    exchange.write("sb3", recipe).text    # and back

A key that is not given has the library's own default, and every number its own meaning: SB3's
batch_size is the minibatch and CleanRL's the rollout, a value loss may lack the half it has here.
What has no counterpart is never dropped silently: reading lists it, and so does writing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from isobatch.errors import UserError, nearest
from isobatch.exchange import atari
from isobatch.exchange.arguments import Words, load_words, parse_arguments, split_words
from isobatch.exchange.cleanrl import CleanRl
from isobatch.exchange.differences import differences
from isobatch.exchange.ppo_ewma import PpoEwma
from isobatch.exchange.rl_games import RlGames
from isobatch.exchange.rsl_rl import RslRl
from isobatch.exchange.sb3 import Sb3
from isobatch.exchange.table import Format, Key, build, export
from isobatch.exchange.values import Scheduled
from isobatch.exchange.zoo import Zoo
from isobatch.recipe import USERS_OWN, Recipe

FORMATS: dict[str, Format] = {
    each.name: each for each in (Sb3(), Zoo(), CleanRl(), RslRl(), RlGames(), PpoEwma())
}


class Imported(NamedTuple):
    """A recipe read from another library's configuration."""

    recipe: Recipe
    unknown: list[str]
    """A line for each thing that has no counterpart here, with what leaving it out does."""
    notes: list[str]
    """Lines on how it was read, and on how the library's scores were measured."""


class Exported(NamedTuple):
    """A recipe in another library's words."""

    given: dict[str, Any]
    """The format's own dictionary, which `read` takes."""
    missing: list[str]
    """A line for each field in use that the format cannot say."""
    text: str
    """The same, as a user would paste it."""


def formats() -> dict[str, str]:
    """Return the formats by name, each with what its dictionary holds."""
    return {name: each.summary for name, each in FORMATS.items()}


def title(source: str) -> str:
    """Return the library's own name."""
    return _format(source).summary.partition(":")[0]


def arguments(source: str, words: Sequence[str]) -> dict[str, Any]:
    """Return a format's dictionary from words: key=value, --key value, one .json or .yaml file."""
    return parse_arguments(_format(source), words)


def parse_words(source: str, words: Sequence[str]) -> Words:
    """Return the file, keys and environment of words, of which one may be an environment."""
    return split_words(_format(source), words)


def settings(source: str, words: Words) -> dict[str, Any]:
    """Return a format's dictionary from words that were parsed: the file is read."""
    return load_words(_format(source), words)


def read(source: str, given: Mapping[str, Any], env: str | None = None) -> Imported:
    """Return the recipe of a format's dictionary.

    `env` names the environment where the dictionary does not, or chooses one of several.
    """
    format = _format(source)
    flat = format.flatten(given, env)
    recipe, unknown = build(format, flat, env or USERS_OWN)
    if env is not None:
        recipe = recipe.replace(env=env)
    recipe, notes = atari.here(recipe, format.frame_skip(flat))
    return Imported(recipe, unknown, [*notes, *format.notes(given, recipe)])


def write(target: str, recipe: Recipe, given: Mapping[str, Any] | None = None) -> Exported:
    """Return the recipe as a format's dictionary.

    With `given`, the dictionary an earlier recipe was read from, only what has changed since is
    changed in it; all else stays as it was, what has no counterpart here included.
    """
    format = _format(target)
    if not (recipe.algorithm.exchanged or recipe.algo in format.also):
        raise UserError(f"{target} has no {recipe.algo}")
    if given is None:
        flat = _without_defaults(format, export(format, recipe, {}))
    else:
        flat = _changed(format, recipe, given)
    env = atari.there(recipe)
    restored = format.restore(flat, given, env)
    back = read(target, restored, None if format.has_env else recipe.env).recipe
    if format.budget not in flat:
        back = back.replace(total_timesteps=recipe.total_timesteps)
    missing = differences(target, recipe, back)
    return Exported(restored, missing, format.text(flat, restored, env))


def names(source: str, given: Mapping[str, Any], env: str | None = None) -> dict[str, str]:
    """Return the format's name for each field of a recipe that it has, minibatch_size included."""
    format = _format(source)
    table = format.table(format.flatten(given, env))
    own = {key.field: name for name, key in table.items() if key.field}
    return own | {field: name for field, name in format.synonyms.items() if name in table}


def missing_budget(source: str, given: Mapping[str, Any], env: str | None = None) -> str:
    """Return the key of the budget where neither the dictionary nor a default has it, else ''."""
    format = _format(source)
    flat = format.flatten(given, env)
    known = format.budget in flat or format.table(flat)[format.budget].default is not None
    return "" if known else format.budget


def complete(source: str, given: Mapping[str, Any], recipe: Recipe) -> dict[str, Any]:
    """Return `given`, from which the recipe was read, with the keys a user should see at any rate.

    Those are the budget, and what has the library's default without being given.
    """
    format = _format(source)
    like = format.flatten(given, _named(recipe))
    table, values = format.table(like), export(format, recipe, like)
    seen = {
        name: values[name]
        for name in format.always
        if name in values
        and (name == format.budget or table[name].read(values[name]) == table[name].default)
    }
    return {name: value for name, value in seen.items() if name not in like} | dict(given)


def compare(
    source: str, given: Mapping[str, Any], old: Recipe, new: Recipe
) -> dict[str, tuple[Any, Any]]:
    """Return every key that the recipes decide, with its value for the old one and for the new."""
    format = _format(source)
    like = format.flatten(given, _named(old))
    before, after = (export(format, recipe, like) for recipe in (old, new))
    return {name: (before.get(name), value) for name, value in after.items()}


def _named(recipe: Recipe) -> str | None:
    """Return the recipe's environment, None where it has no id."""
    return None if recipe.env.startswith("python:") else recipe.env


def _changed(format: Format, recipe: Recipe, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the given flat keys with those the recipe has moved."""
    like = format.flatten(given, _named(recipe))
    before, _ = build(format, like, recipe.env)
    before, _ = atari.here(before, format.frame_skip(like))
    old, new = export(format, before, like), export(format, recipe, like)
    table = format.table(like)
    kept = {
        name: _as_number(table[name], value)
        for name, value in like.items()
        if name not in format.derived
    }
    moved = {name: value for name, value in new.items() if value != old.get(name)}
    return kept | {
        name: format.patch(name, kept.get(name), old.get(name), value)
        for name, value in moved.items()
    }


def _as_number(key: Key, value: Any) -> Any:
    """Return a number or a switch that came as text as what it is; all else as it came."""
    if not isinstance(value, str):
        return value
    read = key.read(value)
    if isinstance(read, Scheduled) and not read.linear:
        read = read.start
    return read if read is None or isinstance(read, int | float) else value


def _without_defaults(format: Format, values: dict[str, Any]) -> dict[str, Any]:
    table = format.table(values)
    return {
        name: value
        for name, value in values.items()
        if name in format.always or table[name].read(value) != table[name].default
    }


def _format(name: str) -> Format:
    if name not in FORMATS:
        hint = nearest(name, list(FORMATS))
        raise UserError(f"unknown format {name!r}; there are {', '.join(FORMATS)}.{hint}")
    return FORMATS[name]
