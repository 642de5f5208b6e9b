from dataclasses import replace

import pytest
from fakes import finish_study

from isobatch.study.design import from_toml
from isobatch.study.driver import Watch, last_row
from isobatch.study.live import Lines, Table, duration
from isobatch.study.queue import Queue

STUDY = from_toml(
    """
    [study]
    envs = ["CartPole-v1"]
    budget = 400
    seeds = 2
    [arms]
    "[red]a" = { n_envs = 2, n_steps = 8 }
    b = { n_envs = 4, n_steps = 4 }
    """,
    "small",
)


@pytest.fixture
def half_done(tmp_path):
    """A study with two runs done, one half-way, one failed."""
    queue = finish_study(tmp_path / "study", STUDY, lambda cell: 100.0 * cell.seed)
    running, failed = STUDY.cells[2:]
    for cell in (running, failed):
        queue._file(cell, "done").unlink()
    assert queue.claim() is not None
    other = queue.claim()
    assert other is not None
    other.fail("it diverged")
    metrics = queue.run_path(running) / "metrics.jsonl"
    metrics.write_text("".join(metrics.read_text().splitlines(keepends=True)[:2]) + '{"env_st')
    return queue


def test_progress_is_read_from_the_disk(half_done):
    progress = Watch(half_done).progress()
    assert [progress.count(each) for each in ("done", "running", "failed", "free")] == [2, 1, 1, 0]
    assert progress.share == pytest.approx((2 + 1 + 0.5) / 4)
    assert progress.partial("b", "CartPole-v1") == "100 (1)"
    assert "2 done, 1 running, 1 failed of 4 runs, 88%" in progress.headline
    # What is not finished has neither 100% nor no time left.
    almost = replace(progress, share=0.999, seconds_left=0.2).headline
    assert almost == "2 done, 1 running, 1 failed of 4 runs, 99%"


def test_a_finished_study_says_so_with_its_time(tmp_path):
    queue = finish_study(tmp_path / "study", STUDY, lambda cell: 1.0)
    finished = replace(Watch(queue).progress(), seconds=130.0)
    assert finished.headline == "finished in 2 min: 4 done, 0 failed of 4 runs"


def test_the_last_whole_row_is_found_behind_half_a_line(half_done, tmp_path):
    assert last_row(half_done.run_path(STUDY.cells[2]))["env_steps"] == 200
    assert last_row(tmp_path / "nowhere") == {}


def test_lines_tell_each_run_that_ends_once(half_done, capsys):
    view = Lines()
    view.start(Queue.create(half_done.root.parent / "empty", STUDY))
    progress = Watch(half_done).progress()
    view.show(progress)
    view.show(progress)
    out = capsys.readouterr().out
    assert out.count("done ") == 2
    assert out.count("failed ") == 1


def test_the_table_shows_names_as_they_are(half_done, capsys):
    view = Table()
    view.start(half_done)
    view.show(Watch(half_done).progress())
    view.note("a job ended unexpectedly: [bold]killed")
    view.stop()
    out = capsys.readouterr().out
    assert "[red]a" in out
    assert "[bold]killed" in out
    assert "50%" in out


@pytest.mark.parametrize(
    ("seconds", "text"), [(40, "40 s"), (600, "10 min"), (5399, "90 min"), (9000, "2.5 h")]
)
def test_durations_in_words(seconds, text):
    assert duration(seconds) == text
