"""A command line's words as a format's dictionary: key=value, --key value, or one file."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from isobatch.errors import UserError, shown
from isobatch.exchange.source import FILES
from isobatch.exchange.table import Format

PAIR = re.compile(r"[A-Za-z_][\w.]*=")
ENDINGS = (*FILES, ".py")


class Words(NamedTuple):
    """What words say."""

    file: Path | None
    said: dict[str, Any]
    """Keys, each with the value that stands beside it."""
    env: str | None
    """A word by itself: the environment."""

    @property
    def again(self) -> list[str]:
        """The same in one form, without the environment: the file, then pairs."""
        pairs = [f"{name}={value}" for name, value in self.said.items()]
        return [*([str(self.file)] if self.file else []), *pairs]


def split_words(format: Format, words: Sequence[str]) -> Words:
    """Return the file, the keys and the environment that words name."""
    file: Path | None = None
    env: str | None = None
    script: dict[str, Any] = {}
    said: dict[str, Any] = {}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        name, equals, value = word.partition("=")
        if word.startswith("--"):
            key = name[2:].replace("-", "_")
            if not equals and rest and not _begins(rest[0]):
                value, equals = rest.pop(0), "="
            if not equals:
                key, value = _bare(format, key)
            _say(said, key, value)
        elif PAIR.match(word):
            _say(said, name, value)
        elif word.endswith(".py") and format.script:
            script = {format.script: Path(word).stem}
        elif word.endswith(ENDINGS):
            if file is not None:
                raise UserError(f"{word}: only one file may be given")
            file = Path(word)
        elif Path(word).name not in ("python", "python3"):
            if env is not None:
                raise _unreadable(word)
            env = word
    return Words(file, script | said, env)


def parse_arguments(format: Format, words: Sequence[str]) -> dict[str, Any]:
    """Return the dictionary that words say; what stands beside a file replaces what it says."""
    found = split_words(format, words)
    if found.env is not None:
        raise _unreadable(found.env)
    return load_words(format, found)


def load_words(format: Format, words: Words) -> dict[str, Any]:
    """Return the dictionary of the words' file and keys."""
    said = dict(words.said)
    return (format.load(words.file, said) if words.file is not None else {}) | said


def _unreadable(word: str) -> UserError:
    return UserError(
        f"cannot read {shown(word)}: give key=value, --key value or one file ({', '.join(ENDINGS)})"
    )


def _begins(word: str) -> bool:
    """Say whether a word is one of its own, not the value of the flag before it."""
    return word.startswith("--") or bool(PAIR.match(word)) or word.endswith(ENDINGS)


def _bare(format: Format, name: str) -> tuple[str, Any]:
    """Return what a flag without a value says; unknown ones are named when they are read."""
    return format.word(name, format.table({})) or (name, True)


def _say(said: dict[str, Any], name: str, value: Any) -> None:
    if name in said:
        raise UserError(f"{name} is given twice")
    said[name] = value
