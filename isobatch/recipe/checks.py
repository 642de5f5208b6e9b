"""What a field may hold: its type, and the bound that stands beside it in its table.

One validator for every table that people write, recipes and studies alike: `problem(hint, value)`.
"""

from __future__ import annotations

import dataclasses
import math
import numbers
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from isobatch.errors import UserError, shown
from isobatch.plain import LARGEST


@dataclass(frozen=True)
class Bound:
    """What holds of a field's value beside its type."""

    holds: Callable[[Any], bool]
    demand: str
    """'must be ...'."""


Unit = Annotated[float, Bound(lambda x: 0 <= x <= 1, "must lie in [0, 1]")]
Decay = Annotated[float, Bound(lambda x: 0 <= x < 1, "must lie in [0, 1)")]
Positive = Annotated[float, Bound(lambda x: x > 0, "must be positive")]
PositiveBound = Annotated[
    float, Bound(lambda x: x > 0, "must be positive (leave it out for no bound)")
]
NotNegative = Annotated[float, Bound(lambda x: x >= 0, "must not be negative")]
Ratio = Annotated[float, Bound(lambda x: x >= 1, "must be at least 1")]
Whole = Annotated[int, Bound(lambda x: x >= 0, "must not be negative")]
Count = Annotated[int, Bound(lambda x: x >= 1, "must be at least 1")]
Seed = Annotated[int, Bound(lambda x: 0 <= x < 1 << 63, "must not be negative, and below 2^63")]
Widths = Annotated[
    tuple[int, ...], Bound(lambda x: all(each > 0 for each in x), "must be positive whole numbers")
]
HALF = re.compile(r"[\ud800-\udfff]")
"""Half a character: JSON and YAML can spell it, no file can hold it."""
Text = Annotated[str, Bound(lambda x: not HALF.search(x), "must be a text of whole characters")]
Pairs = Annotated[
    tuple[Text, ...],
    Bound(
        lambda x: all(name and value for name, _, value in (each.partition("=") for each in x)),
        "must be name=value",
    ),
]


Names = Annotated[
    tuple[str, ...], Bound(lambda x: bool(x) and all(x), "must be a list of names, at least one")
]


def memory_size(text: str) -> int:
    """Return the bytes of a size such as 512MB, 4GB or 1.5GiB."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise UserError(f"a size reads like 512MB or 4GB, got {shown(text)}")
    number, unit, binary = match.groups()
    power = " kMGT".index(unit.replace("K", "k") or " ")
    return int(float(number) * (1024 if binary else 1000) ** power)


_SIZE = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)\s*([kKMGT]?)(i?)B")
Size = Annotated[
    str,
    Bound(lambda x: bool(_SIZE.fullmatch(x.strip())), "must be a size such as 512MB or 4GB"),
]


def problem(hint: Any, value: Any) -> str | None:
    """Return what `value` should have been ('must be ...'), or None where it fits `hint`."""
    origin = get_origin(hint)
    if origin is Annotated:
        kind, bound = get_args(hint)
        return problem(kind, value) or (None if bound.holds(value) else bound.demand)
    if origin is Literal:
        choices = get_args(hint)
        return None if value in choices else f"must be one of {', '.join(map(str, choices))}"
    if origin is tuple:
        inner = get_args(hint)[0]
        fits = isinstance(value, tuple) and not any(problem(inner, each) for each in value)
        return None if fits else f"must be a list of {_type_name(inner)}"
    if origin is dict:
        return None if isinstance(value, dict) else "must be a table"
    if _is_numbers(hint):
        fits = isinstance(value, Mapping) and not any(problem(float, v) for v in value.values())
        return None if fits else "must be finite numbers by name"
    if hint is Any:
        return None
    if origin is Union or type(hint).__name__ == "UnionType":
        inner = next(each for each in get_args(hint) if each is not type(None))
        return None if value is None else problem(inner, value)
    if hint is float:
        return None if is_finite(value) else "must be a finite number"
    if hint is int:
        if isinstance(value, bool) or not isinstance(value, int):
            return "must be a whole number"
        return None if -LARGEST <= value < LARGEST else "must be a whole number of 64 bits"
    return None if isinstance(value, hint) else f"must be {_type_name(hint)}"


def is_finite(value: Any) -> bool:
    """Say whether a value is a finite number; true and false are none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    # A whole number may be too large to be made a float.
    return -LARGEST <= value < LARGEST if isinstance(value, int) else math.isfinite(value)


def refuse_misfits(table: Any) -> None:
    """Refuse the first field of a table, or of a table in it, whose value does not fit."""
    for name, hint, value in leaves(table):
        found = problem(hint, value)
        if found:
            raise UserError(f"{name} {found}, got {shown(value)}", field=name)


@cache
def hints(kind: Any) -> dict[str, Any]:
    """Return the types of a table's fields, bounds included; reading them takes a millisecond."""
    return get_type_hints(kind, include_extras=True)


def leaves(table: Any) -> list[tuple[str, Any, Any]]:
    """Return (name, type, value) of every field that is not itself a table.

    Entries of a mapping of numbers count as fields: their names are flat too.
    """
    found: list[tuple[str, Any, Any]] = []
    for item in dataclasses.fields(table):
        value = getattr(table, item.name)
        if dataclasses.is_dataclass(value):
            found.extend(leaves(value))
        elif _is_numbers(hint := hints(type(table))[item.name]):
            found.extend((name, float, each) for name, each in value.items())
        else:
            found.append((item.name, hint, value))
    return found


def _is_numbers(hint: Any) -> bool:
    """True of a mapping type whose entries are fields of their own."""
    return isinstance(hint, type) and issubclass(hint, Mapping)


def as_field(value: Any) -> Any:
    """Return lists as tuples and NumPy's numbers as Python's, which is what fields hold."""
    if isinstance(value, list | tuple):
        return tuple(as_field(each) for each in value)
    if isinstance(value, numbers.Integral) and not isinstance(value, bool):
        return int(value)
    return (
        float(value) if isinstance(value, numbers.Real) and not isinstance(value, bool) else value
    )


def _type_name(hint: Any) -> str:
    hint = get_args(hint)[0] if get_origin(hint) is Annotated else hint
    return {int: "whole numbers", str: "a text", bool: "true or false"}.get(hint, str(hint))
