"""Tables from TOML, a mistake reported with its line and field; and back."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from isobatch.errors import UserError, nearest, shown
from isobatch.recipe.checks import as_field, hints, problem


def build(kind: Any, table: Mapping[str, Any], text: str, source: str, header: str = "") -> Any:
    """Build the dataclass `kind` from the table [header], naming line and field of a mistake."""
    return make(kind, read_fields(kind, table, text, source, header), text, source, header)


def read_fields(
    kind: Any, table: Mapping[str, Any], text: str, source: str, header: str
) -> dict[str, Any]:
    """Return the values of a table that are fields of `kind`, each of which fits."""
    known = hints(kind)
    values: dict[str, Any] = {}
    for name, value in table.items():
        try:
            values[name] = _field(known, name, value)
        except UserError as error:
            raise located(error, text, source, header, name) from None
        if dataclasses.is_dataclass(known[name]):
            values[name] = build(known[name], value, text, source, name)
    return values


def make(kind: Any, values: Mapping[str, Any], text: str, source: str, header: str) -> Any:
    """Make the dataclass of values that were read, refusing what is missing or does not agree."""
    missing = [
        item.name
        for item in dataclasses.fields(kind)
        if item.name not in values
        and item.default is dataclasses.MISSING
        and item.default_factory is dataclasses.MISSING
    ]
    if missing:
        raise UserError(f"{source}, line 1: the field {missing[0]} is missing")
    try:
        return kind(**values)
    except UserError as error:
        name = error.field or ""
        raise located(error, text, source, header or table_of(kind, name), name) from None


def located(error: UserError, text: str, source: str, header: str, name: str) -> UserError:
    """Return an error with the line of TOML that it is about."""
    place = f"{source}, line {line_of(text, header, name)}" if name else source
    return UserError(f"{place}: {error}", field=error.field)


def _field(known: dict[str, Any], name: str, value: Any) -> Any:
    """Return a field's value, or a table's content, that fits."""
    if name == "batch_size":
        raise refuse_batch_size()
    if name not in known:
        raise UserError(f"unknown field {shown(name)}.{nearest(name, list(known))}")
    hint = known[name]
    if dataclasses.is_dataclass(hint):
        if not isinstance(value, dict):
            raise UserError(f"{name} must be a table [{name}], got {shown(value)}", field=name)
        return value
    if isinstance(hint, type) and issubclass(hint, Mapping) and isinstance(value, dict):
        make: Any = hint
        value = make({str(name): as_field(each) for name, each in value.items()})
    else:
        value = as_field(value)
    found = problem(hint, value)
    if found:
        raise UserError(f"{name} {found}, got {shown(value)}", field=name)
    return value


def dump(table: Any) -> str:
    """Return a dataclass as TOML; fields that are None, and empty mappings, are left out."""
    import tomli_w

    return tomli_w.dumps(_said(dataclasses.asdict(table)))


def _said(tables: dict[str, Any]) -> dict[str, Any]:
    return {
        key: _said(value) if isinstance(value, dict) else value
        for key, value in tables.items()
        if value is not None and value != {}
    }


def refuse_batch_size() -> UserError:
    """The error for a bare `batch_size`, which no one can read one way."""
    return UserError(
        "batch_size is ambiguous: Stable-Baselines3 means the rows of one gradient step "
        "(here minibatch_size), CleanRL the whole rollout (here n_envs x n_steps); use those",
        field="batch_size",
    )


def table_of(kind: Any, name: str) -> str:
    """Return the table a field belongs to, '' for those at the top."""
    for table, inner in hints(kind).items():
        if dataclasses.is_dataclass(inner) and name in hints(inner):
            return table
    return ""


def line_of(text: str, header: str, name: str) -> int:
    """Return the 1-based line that sets `name` in the table `header`, or that begins the table.

    TOML writes it as `name =` under [header], as `header.name =`, or inside `header = { ... }`.
    """
    key = rf"[\"']?{re.escape(name)}[\"']?"
    inside = rf"\s*{re.escape(header)}\s*(\.\s*{key}\s*=|=\s*\{{.*\b{key}\s*=)" if header else None
    table, fallback = "", 1
    for number, line in enumerate(text.split("\n"), start=1):
        if match := re.match(r"\s*\[+\s*([\w.-]+)\s*\]", line):
            table = match[1]
            if table.split(".")[0] == name and not header:
                return number
            if header and table.split(".")[0] == header:
                fallback = number
        elif (table == header and re.match(rf"\s*{key}\s*=", line)) or (
            inside and not table and re.match(inside, line)
        ):
            return number
        elif header and not table and re.match(rf"\s*{re.escape(header)}\b", line):
            fallback = number
    return fallback
