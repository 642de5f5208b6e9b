"""isobatch query."""

from __future__ import annotations

from pathlib import Path

from isobatch.cli.flags import Parser
from isobatch.text import say


def query(arguments: list[str]) -> int:
    """Query the runs of a study, or of any folder, with SQL."""
    parser = Parser(
        prog="isobatch query",
        description="Query the tables runs (one row per run) and metrics (one row per iteration) "
        "of a study, a run or a folder of runs, and nothing else: "
        'isobatch query "select env, arm, avg(score) from runs group by all" --runs studies/mine',
    )
    parser.add_argument("sql", help="one SELECT statement (DuckDB's SQL)")
    parser.add_argument(
        "--runs",
        type=Path,
        default=Path(),
        metavar="DIR",
        help="study, run or folder of runs (default: the current folder)",
    )
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="write the rows to a .csv or .parquet file"
    )
    parser.add_argument(
        "--allow-files",
        action="store_true",
        help="let the query read files too, with read_csv() and the like; never the network: "
        "extensions are not installed",
    )
    parsed = parser.parse_args(arguments)

    from isobatch.study.query import run_query

    say(run_query(parsed.runs, parsed.sql, parsed.out, parsed.allow_files).rstrip())
    return 0
