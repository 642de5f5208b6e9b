import csv
import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from busy import soon

import isobatch
from isobatch.cli import main
from isobatch.errors import UserError
from isobatch.study.query import connect, run_query

SMALL = {"n_envs": 2, "n_steps": 8, "n_minibatches": 2, "n_epochs": 1, "quiet": True}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    for seed in (1, 2):
        isobatch.train(
            "CartPole-v1", total_timesteps=64, seed=seed, out=folder / f"it's {seed}", **SMALL
        )
    return folder


def test_metrics_of_all_runs_are_one_table(runs):
    database = connect(runs)
    rows = database.execute(
        "select runs.seed, count(*), max(env_steps) from metrics join runs using (run) "
        "group by runs.seed order by runs.seed"
    ).fetchall()
    for (seed, count, steps), path in zip(rows, sorted(runs.iterdir()), strict=True):
        metrics = isobatch.Run(path).metrics
        assert (count, steps) == (len(metrics), metrics[-1]["env_steps"])
        assert str(seed) in path.name
    database.close()


def test_one_run_is_a_folder_too(runs):
    assert "8" in run_query(runs / "it's 1", "select n_steps from runs")


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_answers_are_written_to_files(runs, tmp_path, kind):
    import duckdb

    out = tmp_path / f"answer.{kind}"
    told = run_query(runs, "select seed, learning_rate from runs order by seed", out)
    assert "2 rows" in told
    rows = duckdb.connect().execute(f"select * from '{out}'").fetchall()
    assert [row[0] for row in rows] == [1, 2]
    if kind == "csv":
        assert next(csv.reader(out.open())) == ["seed", "learning_rate"]


def test_a_half_written_row_is_left_out(runs):
    file = runs / "it's 1" / "metrics.jsonl"
    whole = file.read_text()
    try:
        file.write_text(whole + '{"env_steps": 99')
        (row,) = connect(runs).execute("select count(*) from metrics").fetchall()
        assert row[0] == len(whole.splitlines()) + len(
            (runs / "it's 2" / "metrics.jsonl").read_text().splitlines()
        )
    finally:
        file.write_text(whole)


MISTAKES = {
    "unknown column": ("select nothing from runs", None, "nothing"),
    "not SQL": ("hello", None, "query failed"),
    "unknown file type": ("select 1", "x.xlsx", ".csv"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_one_clear_line(runs, tmp_path, mistake):
    sql, out, expected = MISTAKES[mistake]
    with pytest.raises(UserError, match=expected):
        run_query(runs, sql, tmp_path / out if out else None)


def test_a_mistake_is_told_in_the_querys_own_words(runs):
    with pytest.raises(UserError) as refused:
        run_query(runs, "select nothing from runs")
    assert "query(" not in str(refused.value)


def test_no_runs_is_one_clear_line(tmp_path, capsys):
    assert main(["query", "select 1", "--runs", str(tmp_path)]) == 2
    assert "no runs" in capsys.readouterr().err


READS = {
    "csv": "select * from read_csv('/etc/passwd')",
    "name": "select * from '/etc/passwd'",
    "text": "select * from read_text('/etc/passwd')",
    "blob": "select * from read_blob('/etc/passwd')",
    "json": "select * from read_json('/etc/passwd')",
    "parquet": "select * from parquet_metadata('/etc/passwd')",
    "glob": "select * from glob('/etc/*')",
    "sniff": "select * from sniff_csv('/etc/passwd')",
    "own metrics": "select * from read_json('{runs}/*/metrics.jsonl')",
    "Python variable": "select * from python_variable",
    "Python frame": "select * from answer_file",
}
WRITES = {
    "copy": "copy (select 1) to '{out}'",
    "copy in a clause": "with a as (copy (select 1) to '{out}') select 1",
    "copy in query()": "from query('copy (select 1) to ''{out}''')",
    "attach": "attach '{out}'",
    "export": "export database '{out}'",
    "log": "select * from enable_logging(storage = 'file', storage_path = '{out}')",
}
REFUSED = {
    "install": "install httpfs",
    "load": "load httpfs",
    "set": "set enable_external_access = true",
    "set memory": "set memory_limit = '1TB'",
    "reset": "reset lock_configuration",
    "pragma": "pragma enable_profiling",
    "call": "call enable_profiling()",
    "two": "select 1; select 2",
    "create and drop": "create table mine as select 1; drop table runs",
    "drop": "drop table runs",
    "delete": "delete from runs",
    "delete in a clause": "with a as (delete from runs returning *) select * from a",
    "prepare": "prepare p as select 1",
    "explain": "explain analyze copy (select 1) to '{out}'",
    "nothing": "-- nothing",
}


def _refusal(capsys, sql, runs, *flags):
    """Run a query that must not run; return the one line that says why."""
    assert main(["query", sql, "--runs", str(runs), *flags]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    (line,) = said.err.splitlines()
    assert line.startswith("isobatch: ")
    return line


@pytest.mark.parametrize("attack", READS | WRITES | REFUSED)
def test_a_query_sees_two_tables_and_nothing_else(runs, tmp_path, capsys, attack):
    python_variable = {"x": np.array([1.0])}
    out = tmp_path / "written"
    sql = (READS | WRITES | REFUSED)[attack].format(out=out, runs=runs)
    _refusal(capsys, sql, runs)
    _refusal(capsys, sql, runs, "--out", str(tmp_path / "answer.csv"))
    assert list(tmp_path.iterdir()) == []
    assert python_variable


@pytest.mark.parametrize("attack", WRITES | REFUSED)
def test_files_that_are_allowed_are_only_read(runs, tmp_path, capsys, attack):
    out = tmp_path / "written"
    _refusal(capsys, (WRITES | REFUSED)[attack].format(out=out), runs, "--allow-files")
    assert list(tmp_path.iterdir()) == []


def test_files_that_are_allowed_are_read(runs, tmp_path, capsys):
    (tmp_path / "scores.csv").write_text("seed,score\n1,195\n2,200\n")
    sql = f"select score from runs join '{tmp_path}/scores.csv' using (seed) order by seed"
    assert main(["query", sql, "--runs", str(runs), "--allow-files"]) == 0
    assert "195" in capsys.readouterr().out


def test_what_connect_returns_stays_locked(runs):
    import duckdb

    database = connect(runs)
    for sql in ("set enable_external_access = true", "from read_text('/etc/passwd')"):
        with pytest.raises(duckdb.Error):
            database.execute(sql).fetchall()
    database.close()


def test_a_query_that_needs_much_memory_ends_and_spills_nothing(runs, monkeypatch, tmp_path):
    from isobatch.study import query

    monkeypatch.setitem(query.BOUNDS, "memory_limit", "100MB")
    monkeypatch.chdir(tmp_path)
    distinct = "select random() as x from range(20000000)"
    with pytest.raises(UserError, match="Out of Memory"):
        run_query(runs, f"select count(*) from (select x from ({distinct}) group by x)")
    assert list(tmp_path.iterdir()) == []


ASKING = """
import sys
from isobatch.cli import main
from isobatch.study import query

answer = query._answer

def asking(*given):
    print("asking", flush=True)
    return answer(*given)

query._answer = asking
sys.exit(main(sys.argv[1:]))
"""
"""A command that says when it comes to the database."""


def test_ctrl_c_ends_a_query(runs):
    sql = "select count(*) from range(100000000) a, range(1000000) b where a.range * b.range = 3"
    process = subprocess.Popen(
        [sys.executable, "-c", ASKING, "query", sql, "--runs", str(runs)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        assert process.stdout
        assert process.stdout.readline() == b"asking\n"
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=soon(30))
    finally:
        process.kill()
    assert (process.returncode, said) == (130, b"isobatch: interrupted\n")


def test_an_answer_takes_a_links_place(runs, tmp_path):
    victim, out = tmp_path / "victim", tmp_path / "answer.csv"
    victim.write_text("mine")
    out.symlink_to(victim)
    run_query(runs, "select 1 as one", out)
    assert (victim.read_text(), out.read_text()) == ("mine", "one\n1\n")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["answer.csv", "victim"]


@pytest.mark.parametrize("where", ["missing/answer.csv", "folder.csv", "file/answer.csv"])
def test_an_answer_that_cannot_be_written_is_one_line(runs, tmp_path, capsys, where):
    (tmp_path / "folder.csv").mkdir()
    (tmp_path / "file").touch()
    assert where in _refusal(capsys, "select 1", runs, "--out", str(tmp_path / where))


def test_an_argument_that_is_no_text_is_one_line(runs, capsys):
    assert "UTF-8" in _refusal(capsys, "select '\udcff'", runs)


@pytest.fixture
def run(tmp_path):
    """A run whose directory no one would name so."""
    path = tmp_path / "a'b\"; drop table runs; --\x1b[31m\udcff"
    path.mkdir()
    (path / "recipe.toml").write_text(isobatch.preset("CartPole-v1").to_toml())
    return path


def test_names_are_data(run):
    rows = [{"iterations": 1, "select": 1, 'a"b': 2, "Loss": 3, "loss": 4, "run": 5, "x; --": None}]
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    database = connect(run.parent)
    ((name,),) = database.execute("select run from runs").fetchall()
    assert "drop table" in name
    assert "\\xff" in name
    answer = database.execute(
        'select "select", "a""b", "Loss", loss_1, run_1, "x; --" from metrics'
    )
    assert answer.fetchall() == [(1, 2, 3, 4, 5, None)]
    assert database.execute("select count(*) from metrics join runs using (run)").fetchall()[0][0]
    database.close()
    assert "\x1b" not in run_query(run.parent, "select run from runs")


def test_types_are_those_of_all_rows(run):
    rows = [
        {"whole": 1, "real": 1, "flag": True, "text": "a", "mixed": 1, "unknown": None},
        {"whole": None, "real": 0.5, "flag": None, "text": None, "mixed": "b", "later": 2},
    ]
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    database = connect(run)
    types = dict(
        database.execute("select column_name, column_type from (describe metrics)").fetchall()
    )
    assert types == {
        "run": "VARCHAR", "whole": "BIGINT", "real": "DOUBLE", "flag": "BOOLEAN",
        "text": "VARCHAR", "mixed": "VARCHAR", "unknown": "DOUBLE", "later": "BIGINT",
    }  # fmt: skip
    found = database.execute("select * exclude (run) from metrics").fetchall()
    assert found == [(1, 1.0, True, "a", "1", None, None), (None, 0.5, None, None, "b", None, 2)]
    database.close()


MALFORMED = {
    "no object": b"[1]\n",
    "a list": b'{"a": [1]}\n',
    "a table": b'{"a": {"b": 1}}\n',
    "huge": b'{"a": 123456789012345678901234567890}\n',
    "longer than Python reads": b'{"a": ' + b"9" * 5000 + b"}\n",
    "deep": b"[" * 100_000 + b"\n",
    "not UTF-8": b'{"a": "\xff"}\n',
    "not Unicode": b'{"a": "\\ud800"}\n',
    "control character in a name": b'{"\\u001b[31m": 1}\n',
    "no name": b'{"": 1}\n',
    "not JSON": b"hello\n",
    "many columns": json.dumps({str(k): k for k in range(2000)}).encode() + b"\n",
}


@pytest.mark.parametrize("malformed", MALFORMED)
def test_malformed_metrics_are_one_line_that_names_the_file(run, capsys, malformed):
    (run / "metrics.jsonl").write_bytes(MALFORMED[malformed])
    line = _refusal(capsys, "select 1", run.parent)
    assert "metrics.jsonl" in line
    assert "\x1b" not in line


def test_what_is_no_file_is_one_line_that_names_it(run, capsys):
    file = run / "metrics.jsonl"
    os.mkfifo(file)
    assert "metrics.jsonl is not a regular file" in _refusal(capsys, "select 1", run)
    file.unlink()
    file.mkdir()
    assert "metrics.jsonl is not a regular file" in _refusal(capsys, "select 1", run)
    file.rmdir()
    file.symlink_to("/etc/passwd")
    assert "metrics.jsonl is a symbolic link" in _refusal(capsys, "select 1", run)
