"""A command line's words as a format's dictionary: key=value, --key value, or one file."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from isobatch import files, plain
from isobatch.errors import UserError, shown
from isobatch.exchange.table import Format

FILES = (".json", ".yaml", ".yml")
PAIR = re.compile(r"[A-Za-z_][\w.]*=")


def parse_arguments(format: Format, words: Sequence[str]) -> dict[str, Any]:
    """Return the dictionary that words say; what stands beside a file replaces what it says."""
    given: dict[str, Any] = {}
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
        elif word.endswith(FILES):
            if given:
                raise UserError(f"{word}: only one file may be given")
            given = load(Path(word)) | format.named(Path(word).stem)
        elif word.endswith(".py"):
            said["script"] = Path(word).stem
        elif Path(word).name not in ("python", "python3"):
            raise UserError(
                f"cannot read {shown(word)}: give key=value, --key value or one file "
                f"({', '.join(FILES)})"
            )
    return given | said


def load(path: Path) -> dict[str, Any]:
    """Read a JSON or YAML file that holds a dictionary."""
    read = plain.from_json if path.suffix == ".json" else plain.from_yaml
    content = read(files.read_text(path), str(path))
    if not isinstance(content, dict):
        raise UserError(f"{path} does not contain a dictionary")
    return {str(name): value for name, value in content.items()}


def _begins(word: str) -> bool:
    """Say whether a word is one of its own, not the value of the flag before it."""
    return word.startswith("--") or bool(PAIR.match(word)) or word.endswith((*FILES, ".py"))


def _bare(format: Format, name: str) -> tuple[str, Any]:
    """Return what a flag without a value says; unknown ones are named when they are read."""
    return format.word(name, format.table({})) or (name, True)


def _say(said: dict[str, Any], name: str, value: Any) -> None:
    if name in said:
        raise UserError(f"{name} is given twice")
    said[name] = value
