"""Fields as the command line takes them: the flag of each, with its value."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def as_flags(fields: Mapping[str, Any]) -> list[str]:
    """Return the words of a command line that set these fields."""
    return [word for name, value in fields.items() for word in _flag(name, value)]


def _flag(name: str, value: Any) -> list[str]:
    flag = "--" + name.replace("_", "-")
    if isinstance(value, bool):
        return [flag if value else f"--no-{flag[2:]}"]
    if isinstance(value, tuple):
        return [flag, *map(str, value)]
    return [flag, "none" if value is None else str(value)]
