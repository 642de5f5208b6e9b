"""One library's settings: as given, or else its own default, each read as what it must be."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from isobatch.errors import UserError, nearest, shown
from isobatch.exchange.values import anything, flag, number, text, whole

REFERENCE = re.compile(r"\$\{(?:oc\.select:)?(\.?[\w.]+)(?:\s*,\s*([^}]*))?\}")
DEEPEST = 8
"""References to references."""


@cache
def shipped() -> dict[str, Any]:
    """Return the libraries' keys and defaults, as benchmarks/language_defaults.py read them."""
    return json.loads(files("isobatch.language").joinpath("defaults.json").read_text("utf-8"))


class Settings:
    """The settings of one configuration. A key that is not given has the library's default."""

    def __init__(self, library: str, given: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
        self.library, self.given, self.defaults = library, dict(given), defaults

    def __contains__(self, key: str) -> bool:
        return self.value(key) is not None

    def has(self, section: str) -> bool:
        """Say whether anything of a section is given."""
        return any(name.startswith(f"{section}.") for name in self.given)

    def over(self, changes: Mapping[str, Any]) -> Settings:
        """Return the settings with changes."""
        return Settings(self.library, self.given | dict(changes), self.defaults)

    def value(self, key: str, deep: int = 0) -> Any:
        """Return a value, references such as ${gconfig.n_samples} followed; None if there is none.

        A reference to nothing that is known stays as it is.
        """
        found = self.given.get(key, self.defaults.get(key))
        if not isinstance(found, str):
            return found
        match = REFERENCE.fullmatch(found.strip())
        if match is None or deep == DEEPEST:
            return None if found.lower() in ("none", "null") else found
        name = f"{key.rpartition('.')[0]}{match[1]}" if match[1].startswith(".") else match[1]
        if name in self.given or name in self.defaults:
            return self.value(name, deep + 1)
        return found if match[2] is None else anything(match[2])

    def whole(self, key: str) -> int:
        """Read a whole number of at least 1."""
        found = self._read(key, whole)
        if found < 1:
            raise UserError(f"{self.library}: {key} must be at least 1, got {shown(found)}")
        return found

    def count(self, key: str) -> int:
        """Read a whole number of at least 0."""
        return max(0, self._read(key, whole))

    def number(self, key: str) -> float:
        """Read a number."""
        return self._read(key, number)

    def flag(self, key: str) -> bool:
        """Read true or false."""
        return self._read(key, flag)

    def text(self, key: str) -> str:
        """Read a text."""
        return self._read(key, text)

    def numbers(self, key: str) -> tuple[float, ...]:
        """Read several numbers: a list, or the text of one."""
        return self._read(key, lambda found: tuple(number(each) for each in _listed(found)))

    def unknown(self) -> list[str]:
        """Return the given keys that the library does not have, nor a section around them."""
        sections = {name for name, value in self.defaults.items() if value in (None, {}, [])}
        inner = {name.rpartition(".")[0] for name in self.defaults}
        return [
            name
            for name in self.given
            if name not in self.defaults
            and name not in inner
            and not any(name.startswith(f"{each}.") for each in sections)
        ]

    def _read(self, key: str, reader: Callable[[Any], Any]) -> Any:
        found = self.value(key)
        if found is None:
            raise UserError(f"{self.library}: {key} must be given")
        if isinstance(found, str) and "$" in found:
            raise UserError(
                f"{self.library}: {key} is {shown(found)}, which is not computed here; add "
                f"{key}=VALUE"
            )
        try:
            return reader(found)
        except ValueError as error:
            raise UserError(f"{self.library}: {key} {error}, got {shown(found)}") from None


def hint(name: str, keys: tuple[str, ...]) -> str:
    """Return what a key that is not known may have been meant to be, among those that matter."""
    return nearest(name, list(keys), count=1)


def _listed(value: Any) -> list[Any]:
    found = anything(value)
    if not isinstance(found, list | tuple):
        raise ValueError("must be a list of numbers")
    return list(found)
