"""SQL over the metrics of many runs at once, with DuckDB."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from isobatch.errors import UserError
from isobatch.recipe import Recipe
from isobatch.study.design import Cell, Study
from isobatch.study.queue import Queue
from isobatch.study.results import Results
from isobatch.text import counted

if TYPE_CHECKING:
    import duckdb

SQL_TYPES = {bool: "BOOLEAN", int: "BIGINT", float: "DOUBLE"}


def connect(root: str | Path) -> duckdb.DuckDBPyConnection:
    """Return a database of the runs in a directory: a study's, one run, or any folder of them.

    Two tables: `runs`, one row each with its recipe and, in a study, arm, outcome and score;
    `metrics`, one row per iteration, which `run` joins to the former.
    """
    import duckdb

    root = Path(root)
    runs = _study_runs(root) if (root / "study.json").exists() else _folder_runs(root)
    if not runs:
        raise UserError(f"there are no runs in {root}")
    database = duckdb.connect()
    _create_runs(database, runs)
    files = [str(Path(run["run"]) / "metrics.jsonl") for run in runs]
    files = [file for file in files if Path(file).is_file() and Path(file).stat().st_size]
    if files:
        # A run under way may end in half a line, which is left out.
        database.execute(
            "create table metrics as select replace(file, '/metrics.jsonl', '') as run, "
            "* exclude (file) from read_json(?, format = 'newline_delimited', "
            "union_by_name = true, filename = 'file', ignore_errors = true, sample_size = -1) "
            "where iterations is not null",
            [files],
        )
    return database


def run_query(root: str | Path, sql: str, out: Path | None = None) -> str:
    """Run one statement; return its answer as text, or write it to a .csv or .parquet file."""
    import duckdb

    if out is not None and out.suffix not in (".csv", ".parquet"):
        raise UserError(f"--out must end in .csv or .parquet, got {out}")
    database = connect(root)
    try:
        answer = database.sql(sql)
        if answer is None:
            raise UserError("the statement returns no rows: use SELECT")
        if out is None:
            return str(answer)
        count = len(answer)
        write = answer.write_csv if out.suffix == ".csv" else answer.write_parquet
        write(str(out))
        return f"{counted(count, 'row')} written to {out}"
    except duckdb.Error as error:
        raise UserError(f"the query failed: {' '.join(str(error).split())}") from None
    finally:
        database.close()


def _study_runs(root: Path) -> list[dict[str, Any]]:
    results = Results.load(root)
    queue = Queue(root, results.study)
    rows = []
    for cell, record in results.records.items():
        result = record.result
        rows.append(
            {
                "run": str(queue.run_path(cell)),
                "arm": cell.arm,
                "outcome": record.outcome,
                "score": result.score if result else None,
                "training_return": result.training_return if result else None,
                "env_steps": result.env_steps if result else None,
                "run_seconds": result.seconds if result else None,
                **_recipe_columns(_recipe(results.study, cell, queue.run_path(cell))),
            }
        )
    return rows


def _recipe(study: Study, cell: Cell, path: Path) -> Recipe:
    """Return a run's recipe as it was run, else as it would be."""
    file = path / "recipe.toml"
    return Recipe.load(file) if file.exists() else study.recipe(cell)


def _folder_runs(root: Path) -> list[dict[str, Any]]:
    if not root.is_dir():
        raise UserError(f"{root} is not a directory")
    files = [root / "recipe.toml"] if (root / "recipe.toml").exists() else root.rglob("recipe.toml")
    # A hidden folder is a run that was only being made.
    return [
        {"run": str(file.parent), **_recipe_columns(Recipe.load(file))}
        for file in sorted(files)
        if not file.parent.name.startswith(".")
    ]


def _recipe_columns(recipe: Recipe) -> dict[str, Any]:
    return {
        name: " ".join(map(str, value)) if isinstance(value, tuple) else value
        for name, value in recipe.values.items()
    }


def _create_runs(database: duckdb.DuckDBPyConnection, runs: list[dict[str, Any]]) -> None:
    # A run may have coefficients of its own objective that others lack.
    names = list(dict.fromkeys(name for run in runs for name in run))
    runs = [dict.fromkeys(names) | run for run in runs]
    kinds = {
        name: next((type(run[name]) for run in runs if run[name] is not None), str)
        for name in names
    }
    # Numbers may be whole in one recipe and not in another.
    kinds = {
        name: float if any(isinstance(run[name], float) for run in runs) else kind
        for name, kind in kinds.items()
    }
    columns = ", ".join(f'"{name}" {SQL_TYPES.get(kinds[name], "VARCHAR")}' for name in names)
    database.execute(f"create table runs ({columns})")
    places = ", ".join("?" * len(names))
    database.executemany(
        f"insert into runs values ({places})", [[run[name] for name in names] for run in runs]
    )
