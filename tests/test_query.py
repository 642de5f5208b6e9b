import csv

import pytest

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


def test_no_runs_is_one_clear_line(tmp_path, capsys):
    assert main(["query", "select 1", "--runs", str(tmp_path)]) == 2
    assert "no runs" in capsys.readouterr().err
