import fcntl
import re

import pytest
from fakes import finish_study

from isobatch.cli import main
from isobatch.run.store import read_metrics
from isobatch.study.design import from_toml
from isobatch.study.queue import Queue

TOML = """
[study]
envs = ["CartPole-v1"]
budget = 256
seeds = 3
evaluate = 2
[base]
eval_marks = 2
eval_episodes = 2
n_minibatches = 2
n_epochs = 1
[arms]
a = { n_envs = 4, n_steps = 16 }
b = { n_envs = 16, n_steps = 4 }
[[claims]]
text = "b is better than a."
better = "b"
than = "a"
"""


@pytest.fixture
def file(tmp_path):
    file = tmp_path / "small.toml"
    file.write_text(TOML)
    return file


def isobatch(capsys, *arguments):
    """Return (exit code, output, error output)."""
    code = main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_a_dry_run_tells_the_cost_and_writes_nothing(file, tmp_path, capsys):
    arguments = ["study", file, "--dry-run", "--jobs", 1, "--out", tmp_path / "study"]
    code, out, _ = isobatch(capsys, *arguments)
    assert code == 0
    assert "6 runs of 256 env steps, 3 seeds per arm and environment" in out
    assert "MB" in out
    assert len(re.findall(r"^  [ab]    CartPole-v1  \d+ s +3 together$", out, re.M)) == 2
    assert not (tmp_path / "study").exists()


def test_jobs_were_called_workers(file, tmp_path, capsys):
    arguments = ["study", file, "--dry-run", "--out", tmp_path / "study"]
    code, out, err = isobatch(capsys, *arguments, "--workers", 3)
    assert (code, err) == (0, "--workers is now --jobs\n")
    assert "with 3 jobs, " in out
    code, _, err = isobatch(capsys, *arguments, "--workers", 3, "--jobs", 2)
    assert (code, err) == (2, "isobatch: --workers is now --jobs: give one of them\n")
    with pytest.raises(SystemExit):
        main(["study", "--help"])
    assert "--workers" not in capsys.readouterr().out


def test_the_plan_says_which_runs_are_trained_alone_and_why(file, tmp_path, capsys):
    file.write_text(TOML.replace("b = {", 'b = { algo = "ppg", n_policy_iterations = 2, '))
    arguments = ["study", file, "--dry-run", "--out", tmp_path / "study"]
    ppg = "  one at a time (b): ppg is trained alone"
    few = "  one at a time (a): fewer than 3 similar runs for each job"
    off = "  one at a time (a, b): cohorts are off"
    for options, found, reasons in (
        (["--jobs", 1], "3 together", [ppg]),
        (["--jobs", 3], "one at a time", [few, ppg]),
        (["--jobs", 1, "--no-cohorts"], "one at a time", [off]),
    ):
        code, out, _ = isobatch(capsys, *arguments, *options)
        assert code == 0
        first, second = (line for line in out.splitlines() if "CartPole-v1" in line)
        assert first.endswith(f"  {found}")
        assert second.endswith("  one at a time")
        assert [line for line in out.splitlines() if "one at a time (" in line] == reasons


def test_cohorts_may_be_turned_off_and_on_again(file, tmp_path, capsys):
    root = tmp_path / "study"
    arguments = ["study", file, "--out", root, "--jobs", 1, "--quiet"]
    assert isobatch(capsys, *arguments, "--no-cohorts", "--seeds", 1)[0] == 0
    assert isobatch(capsys, *arguments, "--seeds", 4)[0] == 0
    queue = Queue.open(root)
    for cell in queue.study.cells:
        first = read_metrics(queue.run_path(cell))[0]
        assert first.get("cohort_width") == (None if cell.seed == 1 else 5)


def test_one_command_runs_judges_and_reports_and_again_has_nothing_to_do(file, tmp_path, capsys):
    root = tmp_path / "study"
    code, out, _ = isobatch(capsys, "study", file, "--jobs", 1, "--out", root)
    assert code == 0
    assert out.count("done") >= 6
    assert "b is better than a." in out
    assert "undecided" in out or "supported" in out or "contradicted" in out
    assert (root / "report.html").is_file()
    files = {path: path.stat().st_mtime_ns for path in root.rglob("metrics.jsonl")}
    code, out, _ = isobatch(capsys, "study", file, "--jobs", 1, "--out", root)
    assert code == 0
    assert "done   " not in out
    assert files == {path: path.stat().st_mtime_ns for path in root.rglob("metrics.jsonl")}

    # A damaged run is reported and left out, and the study runs it again.
    queue = Queue.open(root)
    cell = queue.study.cells[2]
    with (queue.run_path(cell) / "metrics.jsonl").open("a") as damaged:
        damaged.write("{}\n")
    code, out, _ = isobatch(capsys, "report", root)
    assert code == 0
    assert "1 run damaged" in out
    assert "5 of 6 runs" in out
    code, out, _ = isobatch(capsys, "study", file, "--jobs", 1, "--out", root)
    assert code == 0
    assert f"damaged, will be run again: {cell}" in out
    assert "6 of 6 runs" in out

    # More seeds are the same study; another design in its place is not.
    code, out, _ = isobatch(capsys, "study", file, "--seeds", 4, "--jobs", 1, "--out", root)
    assert code == 0
    assert "8 of 8 runs" in out
    file.write_text(TOML.replace("budget = 256", "budget = 512"))
    code, _, error = isobatch(capsys, "study", file, "--out", root)
    assert code == 2
    assert "another study" in error
    sql = "select count(*) from runs where outcome = 'done'"
    code, out, _ = isobatch(capsys, "query", sql, "--runs", root)
    assert code == 0
    assert "8" in out


def test_scores_that_cannot_be_normalised_are_said_before_and_after(file, tmp_path, capsys):
    unknown = TOML.replace("CartPole-v1", "NChain-v0")
    file.write_text(unknown)
    root = tmp_path / "study"
    line = "scores of NChain-v0 cannot be normalised"
    code, out, _ = isobatch(capsys, "study", file, "--dry-run", "--out", root)
    assert code == 0
    assert out.startswith(line)
    finish_study(root, from_toml(unknown, "small"), lambda cell: float(cell.seed))
    code, out, _ = isobatch(capsys, "report", root)
    assert code == 0
    assert out.count(line) == 1

    # Given afterwards, they count without a run being repeated.
    file.write_text(unknown + '[scores]\n"NChain-v0" = { random = 1313, reference = 3677 }\n')
    code, out, _ = isobatch(capsys, "study", file, "--jobs", 1, "--out", root)
    assert code == 0
    assert line not in out
    assert "done   " not in out
    assert "report of 6 of 6 runs" in out


def test_failed_runs_are_named_and_the_exit_code_tells(file, tmp_path, capsys):
    file.write_text(TOML.replace("b = {", "b = { vf_coef = 1e38, "))
    root = tmp_path / "study"
    code, out, _ = isobatch(capsys, "study", file, "--jobs", 1, "--out", root)
    assert code == 1
    assert "failed: b, CartPole-v1, seed 1: training diverged" in out
    assert "3 runs failed, not in the results" in out


MISTAKES = {
    "unknown preset": (["study", "n-vs-x"], "n-vs-t"),
    "no such file": (["study", "nowhere.toml"], "cannot read"),
    "no study named": (["study"], "--list"),
    "no such scale": (["study", "n-vs-t", "--scale", "galaxy"], "galaxy"),
    "no jobs": (["study", "n-vs-t", "--jobs", "0"], "--jobs"),
    "no seeds": (["study", "n-vs-t", "--seeds", "0"], "seeds"),
    "unknown cluster": (["study", "n-vs-t", "--cluster", "moon"], "moon"),
    "report of nothing": (["report", "nowhere"], "holds no study"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_one_clear_line(mistake, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arguments, expected = MISTAKES[mistake]
    code, out, error = isobatch(capsys, *arguments)
    assert code == 2
    assert out == ""
    assert expected in error
    assert error.count("\n") == 1
    assert not list(tmp_path.iterdir())


FILE_MISTAKES = {
    "unknown arm field": ("n_steps = 4", "n_stesp = 4", "n_steps"),
    "unknown environment": ("CartPole-v1", "CartPool-v1", "CartPole-v1"),
    "budget below a rollout": ("budget = 256", "budget = 32", "rollout"),
    "arms that differ in budget": ("n_steps = 4", "n_steps = 4, total_timesteps = 99", "budget"),
}


@pytest.mark.parametrize("mistake", FILE_MISTAKES)
def test_mistakes_in_a_file_are_one_clear_line_and_nothing_is_written(
    mistake, file, tmp_path, capsys
):
    before, after, expected = FILE_MISTAKES[mistake]
    file.write_text(TOML.replace(before, after))
    code, out, error = isobatch(capsys, "study", file, "--out", tmp_path / "study")
    assert code == 2
    assert out == ""
    assert expected in error
    assert error.count("\n") == 1
    assert not (tmp_path / "study").exists()


def test_presets_are_listed_with_their_claims(capsys):
    code, out, _ = isobatch(capsys, "study", "--list")
    assert code == 0
    assert "n-vs-t" in out
    assert "arXiv 2506.03404" in out


def test_a_second_driver_of_a_finished_study_reports_it_too(file, tmp_path, capsys):
    root = tmp_path / "study"
    queue = finish_study(root, from_toml(TOML, "small"), lambda cell: 100.0 + cell.seed)
    with (queue.root / "queue" / ".driver").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        code, out, _ = isobatch(capsys, "study", file, "--out", root, "--quiet")
    assert code == 0
    assert "report of 6 of 6 runs" in out
    assert (root / "report.html").read_text().endswith("</html>")


@pytest.mark.parametrize("where", ["missing/page.html", "/proc/page.html", "folder"])
def test_a_page_that_cannot_be_written_is_one_line(tmp_path, capsys, where):
    root = tmp_path / "study"
    finish_study(root, from_toml(TOML, "small"), lambda cell: 100.0 + cell.seed)
    (tmp_path / "folder").mkdir()
    code, out, err = isobatch(capsys, "report", root, "--out", tmp_path / where)
    assert (code, out) == (2, "")
    (line,) = err.splitlines()
    assert line.startswith(f"isobatch: cannot write the report {tmp_path / where}: ")


@pytest.mark.parametrize("where", ["missing/batch.svg", "/proc/batch.svg", "folder"])
def test_an_image_that_cannot_be_written_is_one_line(tmp_path, capsys, where):
    (tmp_path / "folder").mkdir()
    code, out, err = isobatch(capsys, "show", "CartPole-v1", "--svg", tmp_path / where)
    assert (code, out) == (2, "")
    (line,) = err.splitlines()
    assert line.startswith(f"isobatch: cannot write {tmp_path / where}: ")
