"""What a format is: its keys, each with the library's default and the recipe's field it means."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from isobatch.errors import UserError, nearest, shown
from isobatch.exchange import source
from isobatch.exchange.values import Reader
from isobatch.recipe import Recipe

OURS = Recipe(env="").values
"""The recipe's own defaults, for what a library leaves to the user."""
REQUIRED = object()
"""The default of a key that must be given."""


class Conversion(NamedTuple):
    """From the library's number to the recipe's, and back."""

    here: Callable[[Any], Any]
    there: Callable[[Any], Any]


def _unchanged(value: Any) -> Any:
    return value


SAME = Conversion(_unchanged, _unchanged)
HALVED = Conversion(lambda weight: 2 * weight, lambda weight: weight / 2)
"""Weight of a squared error that there lacks the half it has here."""
UNBOUNDED = Conversion(
    lambda bound: None if bound is None or math.isinf(bound) else bound,
    lambda bound: math.inf if bound is None else bound,
)
"""A bound that is None here and infinite there where there is none."""


def left_to_us(field: str) -> Conversion:
    """None there, where the library has no value of its own, is the recipe's default here."""
    return Conversion(lambda value: OURS[field] if value is None else value, _unchanged)


class Key(NamedTuple):
    """One key of a format.

    With `field` it is that field of the recipe; with `lacks` it has no counterpart and that is
    what it does; with neither the format reads it itself, or it touches nothing that is learned.
    """

    read: Reader
    default: Any = None
    field: str = ""
    convert: Conversion = SAME
    lacks: str = ""
    off: Any = REQUIRED
    """The value at which a key without counterpart does nothing; else the default is."""

    @property
    def idle(self) -> Any:
        """The value at which the key does nothing."""
        return self.default if self.off is REQUIRED else self.off


Table = Mapping[str, Key]


class Format(ABC):
    """A library's configuration. Formats are flat tables of keys, whatever their files look like.

    A subclass gives the table and what is not one key to one field, in both directions.
    """

    name: str
    summary: str
    """What the dictionary holds, in a few words."""
    budget: str
    """The key that is, or makes, the budget."""
    always: tuple[str, ...] = ()
    """Keys written even where they have the library's default."""
    derived: tuple[str, ...] = ()
    """Keys the library fills in itself: checked when read, never written."""
    synonyms: Mapping[str, str] = MappingProxyType({})
    """Keys that mean a field of the recipe, or its minibatch_size, without being it one to one."""
    hints: Mapping[str, str] = MappingProxyType({})
    """What to say about a key that must be given and is not."""
    has_env: bool = True
    """True where the configuration names its environment."""
    also: tuple[str, ...] = ()
    """Algorithms that it has, of those that other formats have not."""
    script: str = ""
    """The key that the name of a Python file is, where that is a program and no configuration."""

    def flatten(self, given: Mapping[str, Any], env: str | None = None) -> dict[str, Any]:
        """Return the given dictionary as flat keys; `env` chooses where there are several."""
        return dict(given)

    def restore(
        self, flat: dict[str, Any], given: Mapping[str, Any] | None, env: str
    ) -> dict[str, Any]:
        """Return flat keys in the format's own layout, that of `given` where there is one."""
        return flat

    def load(self, path: Path, said: dict[str, Any]) -> dict[str, Any]:
        """Return the dictionary of a file.

        `said` holds keys given beside it; those that choose a part of the file are taken from it.
        """
        if path.suffix == ".py":
            raise UserError(f"{path}: {self.name} has no settings in Python files")
        return source.load(path)

    @abstractmethod
    def table(self, flat: Mapping[str, Any]) -> Table:
        """Return the keys, which may depend on what is given."""

    @abstractmethod
    def fields(self, values: dict[str, Any], lost: list[str]) -> dict[str, Any]:
        """Return the recipe's fields that are not one key each, `env` if it is known among them.

        What has no counterpart is added to `lost`, a line each.
        """

    def frame_skip(self, flat: Mapping[str, Any]) -> int | None:
        """Return how many frames of an Atari game the wrappers skip, None where it is not known."""
        return None

    def notes(self, given: Mapping[str, Any], recipe: Recipe) -> list[str]:
        """Return lines on how `given` was read as the recipe, beside what has no counterpart."""
        return []

    @abstractmethod
    def values(self, recipe: Recipe, like: Mapping[str, Any]) -> dict[str, Any]:
        """Return the keys that `fields` reads; `like` holds the flat keys the recipe came from."""

    def patch(self, name: str, given: Any, old: Any, new: Any) -> Any:
        """Return a key's new value, where it was given as `given` and written as `old`."""
        return new

    @abstractmethod
    def text(self, flat: dict[str, Any], given: dict[str, Any], env: str) -> str:
        """Return the configuration as a user would paste it."""

    def word(self, name: str, known: Table) -> tuple[str, Any] | None:
        """Return (key, value) that a flag without a value stands for, or None."""
        if name in known:
            return name, True
        if name.startswith("no_") and name[3:] in known:
            return name[3:], False
        return None


def parse(format: Format, flat: Mapping[str, Any]) -> dict[str, Any]:
    """Return every key of the format with its value as given, or else the library's default."""
    table = format.table(flat)
    for name in flat:
        if name not in table:
            known = [*table, *(each.rpartition(".")[2] for each in table)]
            raise UserError(f"{format.name} has no {name}.{nearest(name, known)}")
    missing = [name for name, key in table.items() if key.default is REQUIRED and name not in flat]
    if missing:
        hints = "".join(f" ({format.hints[name]})" for name in missing if name in format.hints)
        raise UserError(f"{format.name}: {' and '.join(missing)} must be given{hints}")
    values = {}
    for name, key in table.items():
        try:
            values[name] = key.read(flat[name]) if name in flat else key.default
        except ValueError as error:
            said = f"{format.name}: {name} {error}, got {shown(flat[name])}"
            raise UserError(said) from None
    return values


def build(format: Format, flat: Mapping[str, Any], env: str) -> tuple[Recipe, list[str]]:
    """Return the recipe of flat keys, and a line for each that has no counterpart."""
    table, values = format.table(flat), parse(format, flat)
    lost: list[str] = []
    fields = {key.field: key.convert.here(values[name]) for name, key in table.items() if key.field}
    try:
        fields |= format.fields(values, lost)
        fields.setdefault("env", env)
        recipe = Recipe(env=fields["env"]).replace(**fields)
    except UserError as error:
        raise UserError(_in_their_words(format.name, table, str(error))) from None
    lost += [
        f"{name} {values[name]}: {key.lacks}"
        for name, key in table.items()
        if key.lacks and values[name] != key.idle
    ]
    return recipe, lost


def export(format: Format, recipe: Recipe, like: Mapping[str, Any]) -> dict[str, Any]:
    """Return every flat key that the recipe decides, and those without counterpart at rest."""
    special = format.values(recipe, like)
    table = format.table({**like, **special})
    values, here = {}, recipe.values
    for name, key in table.items():
        if name in special:
            values[name] = special[name]
        elif key.field:
            values[name] = key.convert.there(here[key.field])
        elif key.lacks:
            values[name] = key.idle
    return values


def _in_their_words(name: str, table: Table, message: str) -> str:
    """Name the format, and its own key for the recipe's field that the message is about."""
    field, _, rest = message.partition(" ")
    key = next((key for key, each in table.items() if each.field == field), field)
    return f"{name}: {key} {rest}"
