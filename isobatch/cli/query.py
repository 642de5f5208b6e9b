"""isobatch query."""

from __future__ import annotations

from pathlib import Path

from isobatch.cli.flags import Parser


def query(arguments: list[str]) -> int:
    """Ask the runs of a study, or of any folder, in SQL."""
    parser = Parser(
        prog="isobatch query",
        description="Ask the tables runs and metrics of a study, a run or a folder of runs: "
        'isobatch query "select arm, avg(score) from runs group by arm" --runs studies/mine',
    )
    parser.add_argument("sql", help="a SELECT statement (DuckDB's SQL)")
    parser.add_argument(
        "--runs", type=Path, default=Path(), metavar="DIR", help="default: this folder"
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="write a .csv or .parquet file")
    parsed = parser.parse_args(arguments)

    from isobatch.study.query import run_query

    print(run_query(parsed.runs, parsed.sql, parsed.out))
    return 0
