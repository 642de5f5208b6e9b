"""Tables from TOML, a mistake reported with its line and field; and back."""

from __future__ import annotations

import dataclasses
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from isobatch.errors import UserError, nearest, one_line
from isobatch.recipe.checks import as_field, hints, problem


def parse(text: str, source: str) -> dict[str, Any]:
    """Return the tables of a TOML text."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{source}: not valid TOML: {one_line(error)}") from None


def read(path: str | Path, what: str) -> str:
    """Return the text of a file; `what` names it in the error."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read {what} {path}: {one_line(error)}") from None


def build(kind: Any, table: Mapping[str, Any], text: str, source: str, header: str = "") -> Any:
    """Build the dataclass `kind` from the table [header], naming line and field of a mistake."""
    known = hints(kind)
    values: dict[str, Any] = {}
    for name, value in table.items():
        place = f"{source}, line {line_of(text, header, name)}"
        if name == "batch_size":
            raise UserError(f"{place}: {refuse_batch_size()}")
        if name not in known:
            raise UserError(f"{place}: unknown field {name!r}.{nearest(name, list(known))}")
        if dataclasses.is_dataclass(known[name]):
            if not isinstance(value, dict):
                raise UserError(f"{place}: {name} must be a table [{name}], got {value!r}")
            values[name] = build(known[name], value, text, source, name)
        else:
            values[name] = _value(known[name], value, f"{place}: {name}")
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
        line = line_of(text, header or _table_of(kind, name), name)
        raise UserError(f"{source}, line {line}: {error}", field=error.field) from None


def _value(hint: Any, value: Any, place: str) -> Any:
    if isinstance(hint, type) and issubclass(hint, Mapping) and isinstance(value, dict):
        make: Any = hint
        value = make({str(name): as_field(each) for name, each in value.items()})
    else:
        value = as_field(value)
    found = problem(hint, value)
    if found:
        raise UserError(f"{place} {found}, got {value!r}")
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


def _table_of(kind: Any, name: str) -> str:
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
    for number, line in enumerate(text.splitlines(), start=1):
        if match := re.match(r"\s*\[+\s*([\w.-]+)\s*\]", line):
            table = match[1]
            if table == name and not header:
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
