"""Rows of plain values as a DuckDB table, whatever a stranger put in them."""

from __future__ import annotations

import json
import math
import re
import tempfile
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from isobatch.errors import DamagedFile
from isobatch.rows import row_of

if TYPE_CHECKING:
    import duckdb

Row = dict[str, Any]
MOST_COLUMNS = 1000
"""Every row has a place for each."""
UNUSUAL = re.compile(rb"\d{19}|[eE]\+?\d{3}|\\u[dD]")
"""In a line: a number that may be out of range, or half a character."""
LARGEST = 2**63 - 1
"""Whole number of a column."""


class TableRows:
    """Rows of JSON on their way into a table, each checked; some columns are ours."""

    def __init__(self, own: dict[str, str]) -> None:
        """Begin with no rows; `own` are the names and SQL types of the first columns."""
        self._own = own
        self._kinds: dict[str, set[type]] = {}
        self._seen: set[tuple[Any, ...]] = set()
        # DuckDB reads files only; nobody else can put anything into this one's directory.
        self._folder = tempfile.TemporaryDirectory(prefix="isobatch-")
        self._path = Path(self._folder.name) / "rows"
        self._file = self._path.open("wb")

    def __enter__(self) -> TableRows:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()
        self._folder.cleanup()

    def add(self, line: bytes, where: str, *own: Any) -> None:
        """Add a row, an object of names and plain values; `where` names it in an error."""
        row = row_of(line, where)
        # Nearly all rows are like one before them, and need no look at every value.
        signature = (*row, *map(type, row.values()))
        if signature not in self._seen or UNUSUAL.search(line):
            self._look(row, where)
            self._seen.add(signature)
        self._file.write(json.dumps(own).encode()[:-1] + b", " * bool(own) + line.strip() + b"]\n")

    def create(self, database: duckdb.DuckDBPyConnection, table: str) -> None:
        """Make the table."""
        self._file.close()
        fields = [(name, f"/{place}", kind) for place, (name, kind) in enumerate(self._own.items())]
        fields += [
            (name, f"/{len(self._own)}/{_pointer(name)}", _sql_type(kinds))
            for name, kinds in self._kinds.items()
        ]
        names = _distinct([name for name, _, _ in fields])
        chosen = ", ".join(
            f"try_cast(v[{number}] as {kind}) as {_quoted(name, chr(34))}"
            for number, (name, (_, _, kind)) in enumerate(zip(names, fields, strict=True), start=1)
        )
        places = ", ".join(_quoted(place) for _, place, _ in fields)
        database.execute(
            f"create table {table} as with t as materialized "
            f"(select json_extract_string(json, [{places}]) as v "
            "from read_json_objects(?, format = 'newline_delimited')) "
            f"select {chosen} from t",
            [str(self._path)],
        )

    def _look(self, row: Row, where: str) -> None:
        for name, value in row.items():
            problem = _problem(value)
            if problem:
                raise DamagedFile(f"{where}: {name} {problem}")
            (self._kinds.get(name) or self._new(name, where)).add(type(value))

    def _new(self, name: str, where: str) -> set[type]:
        if not (name and name.isprintable()):
            raise DamagedFile(f"{where}: {name!r} is not a valid column name")
        if len(self._kinds) >= MOST_COLUMNS:
            raise DamagedFile(f"{where}: there are more than {MOST_COLUMNS:,} columns")
        return self._kinds.setdefault(name, set())


def _problem(value: Any) -> str:
    """Say why a value cannot be in a table."""
    if isinstance(value, float):
        return "" if math.isfinite(value) else "is not finite"
    if isinstance(value, int):
        return "" if abs(value) <= LARGEST else "is a whole number of more than 64 bits"
    if isinstance(value, str):
        whole = value == value.encode(errors="replace").decode()
        return "" if whole else "is not a text of Unicode characters"
    return "" if value is None else "is neither a number nor a text"


def _sql_type(kinds: set[type]) -> str:
    """Return the type that holds all values of a column; of none it may be any number."""
    kinds = kinds - {type(None)}
    if kinds == {bool}:
        return "BOOLEAN"
    if kinds == {int}:
        return "BIGINT"
    return "DOUBLE" if kinds <= {int, float} else "VARCHAR"


def _distinct(names: list[str]) -> list[str]:
    """Number names that SQL takes for the same: it does not tell capitals apart."""
    taken: dict[str, str] = {}
    for name in names:
        chosen, number = name, 0
        while chosen.lower() in taken:
            number += 1
            chosen = f"{name}_{number}"
        taken[chosen.lower()] = chosen
    return list(taken.values())


def _pointer(name: str) -> str:
    """Spell a name as RFC 6901 (JSON Pointer) has it."""
    return name.replace("~", "~0").replace("/", "~1")


def _quoted(text: str, mark: str = "'") -> str:
    return mark + text.replace(mark, mark * 2) + mark
