"""SQL over the metrics of many runs at once, with DuckDB.

A query is not trusted: it sees two tables, in memory, and neither files, network nor settings. The
runs it reads are not trusted either: a row that no run writes is an error that names its file.
"""

from __future__ import annotations

import json
import os
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from isobatch.errors import UserError, one_line
from isobatch.files import Folder, save
from isobatch.recipe import Recipe
from isobatch.study.columns import Row, TableRows
from isobatch.study.design import Cell, Study
from isobatch.study.queue import Queue
from isobatch.study.results import Results
from isobatch.text import counted

if TYPE_CHECKING:
    import duckdb

BOUNDS = {"memory_limit": "2GB", "temp_directory": "", "max_temp_directory_size": "0B"}
"""A query that needs more ends; it writes nothing to the disk instead."""
AS_SUBQUERY = "from query(?)"
OFFLINE = {"autoinstall_known_extensions": "false", "autoload_known_extensions": "false"}
"""Nothing is downloaded, nor loaded from where an earlier download lies."""


def connect(root: str | Path, allow_files: bool = False) -> duckdb.DuckDBPyConnection:
    """Return a database of the runs in a directory: a study's, one run, or any folder of them.

    Two tables: `runs`, one row each with its recipe and, in a study, arm, outcome and score;
    `metrics`, one row per iteration, which `run` joins to the former. Statements see nothing else
    and cannot change that; with `allow_files` they may read files.
    """
    return _connect(Path(root), allow_files, writable=None)


def run_query(
    root: str | Path, sql: str, out: Path | None = None, allow_files: bool = False
) -> str:
    """Run one SELECT; return its answer as text, or write it to a .csv or .parquet file."""
    import duckdb

    if out is not None and out.suffix not in (".csv", ".parquet"):
        raise UserError(f"--out must end in .csv or .parquet, got {out}")
    # DuckDB follows links as it writes, so it writes where there are none.
    with tempfile.TemporaryDirectory(prefix="isobatch-") as own:
        answer_file = Path(own) / f"answer{out.suffix}" if out is not None else None
        database = _connect(Path(root), allow_files, answer_file)
        # Python hears Ctrl-C between its own steps; the query is one step of another thread's.
        with ThreadPoolExecutor(1) as other:
            try:
                return other.submit(_answer, database, sql, out, answer_file).result()
            except duckdb.Error as error:
                raise UserError(f"the query failed: {one_line(error)}") from None
            except KeyboardInterrupt:
                database.interrupt()
                raise


def _answer(
    database: duckdb.DuckDBPyConnection, sql: str, out: Path | None, answer_file: Path | None
) -> str:
    with database:
        _require_select(database, sql)
        answer = database.sql(sql)
        if out is None or answer_file is None:
            return str(answer)
        count = len(answer)
        write = answer.write_csv if out.suffix == ".csv" else answer.write_parquet
        write(str(answer_file))
        save(out, answer_file.read_bytes())
        return f"{counted(count, 'row')} saved to {out}"


def _connect(root: Path, allow_files: bool, writable: Path | None) -> duckdb.DuckDBPyConnection:
    import duckdb

    runs = _study_runs(root) if (root / "study.json").exists() else _folder_runs(root)
    if not runs:
        raise UserError(f"there are no runs in {root}")
    database = duckdb.connect(config={**BOUNDS, **OFFLINE})
    try:
        with TableRows({"run": "VARCHAR"}) as rows:
            for path, row in runs.items():
                rows.add(json.dumps(row).encode(), f"{path / 'recipe.toml'}", _text(path))
            rows.create(database, "runs")
        with TableRows({"run": "VARCHAR"}) as rows:
            for path in runs:
                name, file = _text(path), f"{path / 'metrics.jsonl'}"
                for number, line in enumerate(_metrics(path), start=1):
                    rows.add(line, f"{file}, line {number}", name)
            rows.create(database, "metrics")
        _lock(database, allow_files, writable)
    except duckdb.Error as error:
        database.close()
        raise UserError(f"the runs in {root} make no tables: {one_line(error)}") from None
    return database


def _lock(database: duckdb.DuckDBPyConnection, allow_files: bool, writable: Path | None) -> None:
    """Leave a query the tables, and files only where the user allows them; for good."""
    # Or else the variables of this program would be tables too.
    database.execute("set python_enable_replacements = false")
    if writable is not None:
        database.execute(f"set allowed_paths = [{_quoted(writable)}]")
    if not allow_files:
        database.execute("set enable_external_access = false")
    database.execute("set lock_configuration = true")


def _quoted(path: Path) -> str:
    return "'" + str(path).replace("'", "''") + "'"


def _require_select(database: duckdb.DuckDBPyConnection, sql: str) -> None:
    """Refuse all but one statement that only reads."""
    import duckdb

    if not sql.isascii() and sql != sql.encode(errors="replace").decode():
        raise UserError("the query is not UTF-8")
    statements = database.extract_statements(sql)
    if len(statements) != 1:
        raise UserError(f"a query is one SELECT statement, got {len(statements)} statements")
    kind = statements[0].type
    if kind != duckdb.StatementType.SELECT:
        raise UserError(f"a query is one SELECT statement, got {kind.name}")
    # A WITH clause may hold a COPY, which a subquery may not.
    try:
        database.execute(f"{AS_SUBQUERY} limit 0", [sql])
    except duckdb.Error as error:
        # Where in our own words the mistake is helps nobody.
        reason = one_line(error).partition(f" LINE 1: {AS_SUBQUERY}")[0]
        raise UserError(f"the query failed: {reason}") from None


def _study_runs(root: Path) -> dict[Path, Row]:
    results = Results.load(root)
    queue = Queue(root, results.study)
    runs: dict[Path, Row] = {}
    for cell, record in results.records.items():
        result, path = record.result, queue.run_path(cell)
        runs[path] = {
            "arm": cell.arm,
            "outcome": record.outcome,
            "score": result.score if result else None,
            "training_return": result.training_return if result else None,
            "env_steps": result.env_steps if result else None,
            "run_seconds": result.seconds if result else None,
        } | _recipe_columns(_recipe(results.study, cell, path))
    return runs


def _recipe(study: Study, cell: Cell, path: Path) -> Recipe:
    """Return a run's recipe as it was run, else as it would be."""
    file = path / "recipe.toml"
    return Recipe.load(file) if file.exists() else study.recipe(cell)


def _folder_runs(root: Path) -> dict[Path, Row]:
    if not root.is_dir():
        raise UserError(f"{root} is not a directory")
    files = [root / "recipe.toml"] if (root / "recipe.toml").exists() else root.rglob("recipe.toml")
    # A hidden folder is a run that was only being made.
    return {
        file.parent: _recipe_columns(Recipe.load(file))
        for file in sorted(files)
        if not file.parent.name.startswith(".")
    }


def _recipe_columns(recipe: Recipe) -> Row:
    return {
        name: " ".join(map(str, value)) if isinstance(value, tuple) else value
        for name, value in recipe.values.items()
    }


def _metrics(run: Path) -> list[bytes]:
    """Return the rows of a run's metrics; a half-written last one is left out."""
    try:
        with Folder(run) as folder:
            return folder.read("metrics.jsonl").split(b"\n")[:-1]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise UserError(f"cannot read {run / 'metrics.jsonl'}: {error.strerror}") from None


def _text(path: Path) -> str:
    """Return a path with bytes that are no text spelled out."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")
