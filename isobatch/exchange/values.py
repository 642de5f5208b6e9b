"""Values as other libraries write them: numbers as text, schedules, `dict(...)` in quotes.

A reader takes a value and returns it as Python's own; what it cannot read is a `ValueError` that
says what it must be. Nothing is evaluated and no name is looked up.
"""

from __future__ import annotations

import ast
import math
import re
import warnings
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from isobatch.plain import LARGEST, MOST_LITERAL, literal

Reader = Callable[[Any], Any]

NONE = ("none", "null")
FLAGS = {"true": True, "false": False, "yes": True, "no": False, "1": True, "0": False}


class Scheduled(NamedTuple):
    """A number, constant or falling linearly to 0 over the budget."""

    start: float
    linear: bool = False

    @property
    def schedule(self) -> str:
        """The recipe's name for it."""
        return "linear" if self.linear else "constant"


class Name(str):
    """Source that is not data, such as nn.ReLU: kept as its text, never looked up."""


def number(value: Any) -> float:
    """Read a number; text such as 3e-4 is one."""
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            raise ValueError("must be a number") from None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError("must be a number")
    # A larger whole number may have no floating-point number at all.
    if not -LARGEST <= value < LARGEST if isinstance(value, int) else math.isnan(value):
        raise ValueError("must be a number")
    return value


def whole(value: Any) -> int:
    """Read a whole number; 1e6 and 1000000.0 are a million."""
    if isinstance(value, str) and re.fullmatch(r"\s*[-+]?\d(_?\d){0,18}\s*", value):
        value = int(value)
    try:
        read = number(value)
    except ValueError:
        raise ValueError("must be a whole number") from None
    if not -LARGEST <= read < LARGEST or read != int(read):
        raise ValueError("must be a whole number")
    return int(read)


def flag(value: Any) -> bool:
    """Read true or false."""
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in FLAGS:
        return FLAGS[value.lower()]
    raise ValueError("must be true or false")


def text(value: Any) -> str:
    """Read a text."""
    if not isinstance(value, str):
        raise ValueError("must be a string")
    return value


def choice(*names: str) -> Reader:
    """Read one of the names."""

    def read(value: Any) -> str:
        if value not in names:
            raise ValueError(f"must be {', '.join(names[:-1])} or {names[-1]}")
        return value

    return read


def optional(reader: Reader) -> Reader:
    """Read None as well."""

    def read(value: Any) -> Any:
        if value is None or (isinstance(value, str) and value.lower() in NONE):
            return None
        return reader(value)

    return read


def anything(value: Any) -> Any:
    """Take the value as it is; text that is a literal becomes it."""
    if not isinstance(value, str):
        return value
    if value.lower() in NONE:
        return None
    if value.lower() in ("true", "false"):
        return FLAGS[value.lower()]
    return literal(value)


def schedule(value: Any) -> Scheduled:
    """Read a number, or lin_X, the zoo's way to write X falling to 0."""
    if isinstance(value, Scheduled):
        return value
    linear = isinstance(value, str) and value.startswith("lin_")
    try:
        return Scheduled(number(value[4:] if linear else value), linear)
    except ValueError:
        raise ValueError("must be a number, or lin_X for X falling linearly to 0") from None


def widths(value: Any) -> tuple[int, ...]:
    """Read the widths of layers."""
    read = anything(value)
    if not isinstance(read, list | tuple):
        raise ValueError("must be a list of widths")
    return tuple(whole(each) for each in read)


def options(value: Any) -> dict[str, Any]:
    """Read a dictionary, or the text of one: `dict(net_arch=[64, 64], activation_fn=nn.ReLU)`.

    Names such as nn.ReLU, and classes, are returned as a `Name`.
    """
    if isinstance(value, str):
        try:
            value = _literal(_expression(value))
        except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
            raise ValueError("must be a dictionary, such as dict(net_arch=[64, 64])") from None
    if not isinstance(value, Mapping):
        raise ValueError("must be a dictionary, such as dict(net_arch=[64, 64])")
    return {str(name): _named(each) for name, each in value.items()}


def _named(value: Any) -> Any:
    return Name(f"nn.{value.__name__}") if isinstance(value, type) else value


def _expression(text: str) -> ast.expr:
    if len(text) > MOST_LITERAL:
        raise ValueError
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # On escapes such as \d, which are text.
        return ast.parse(text.strip(), mode="eval").body


def _literal(node: ast.expr) -> Any:
    """Return what an expression says, as far as it is data; anything else as its text."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "dict":
        if node.args or any(each.arg is None for each in node.keywords):
            raise ValueError
        return {str(each.arg): _literal(each.value) for each in node.keywords}
    if isinstance(node, ast.Dict):
        keys = [_literal(key) for key in node.keys if key is not None]
        return dict(zip(keys, map(_literal, node.values), strict=True))
    if isinstance(node, ast.List | ast.Tuple):
        items = [_literal(each) for each in node.elts]
        return items if isinstance(node, ast.List) else tuple(items)
    try:
        return ast.literal_eval(node)
    except ValueError:
        return Name(ast.unparse(node))
