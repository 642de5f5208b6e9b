"""Cells of a study that are alike are trained together; whatever goes wrong with one is its own."""

import os
import signal
import subprocess
import sys
import threading
import time

import gymnasium
import pytest
import torch
from busy import soon
from chaos import check

import isobatch
from isobatch.run.store import (
    CLOCK_COLUMNS,
    RunDirectory,
    read_evaluations,
    read_metrics,
    read_policy,
)
from isobatch.study.design import Cell, from_toml
from isobatch.study.queue import Queue
from isobatch.study.together import COHORT, Kinds
from isobatch.study.worker import work

TOML = """
[study]
envs = ["CartPole-v1"]
budget = 640
seeds = 5
evaluate = 2
[base]
eval_marks = 2
eval_episodes = 2
n_envs = 4
n_steps = 16
n_minibatches = 2
n_epochs = 1
hidden_sizes = [16]
compile = "off"
checkpoint_seconds = 0.1
[arms]
slow = { learning_rate = 1e-4 }
quick = { learning_rate = 1e-2 }
"""
ENV = "CartPole-v1"


def queue_of(root, toml=TOML):
    return Queue.create(root, from_toml(toml, "small"))


def weights(path):
    tensors, _ = read_policy(path)
    return torch.cat([tensors[name].double().flatten() for name in sorted(tensors)])


def widths(queue, cell):
    """Return the widths of the stacks that a run was trained in, one a sitting; none alone."""
    rows = read_metrics(queue.run_path(cell))
    return [row["cohort_width"] for row in rows if "cohort_width" in row]


def test_cells_trained_together_begin_as_cells_trained_alone(tmp_path):
    together = queue_of(tmp_path / "together")
    alone = queue_of(tmp_path / "alone", TOML.replace("seeds = 5", "seeds = 5\ncohorts = false"))
    for queue in (together, alone):
        work(queue.root)
        assert set(queue.states().values()) == {"done"}
        assert check(queue.root) == 10
    for cell in together.study.cells:
        assert (widths(together, cell), widths(alone, cell)) == ([COHORT], [])
        mine, its = (read_metrics(queue.run_path(cell)) for queue in (together, alone))
        assert len(mine) == len(its)
        for row, other in list(zip(mine, its, strict=True))[:3]:
            for name in other.keys() - set(CLOCK_COLUMNS):
                wanted = other[name]
                if wanted is not None:  # A diagnostic that this iteration did not measure.
                    wanted = pytest.approx(wanted, rel=2e-3, abs=2e-4)
                assert row[name] == wanted, name
        mine, its = (read_evaluations(queue.run_path(cell)) for queue in (together, alone))
        assert mine[0]["returns"] == its[0]["returns"]
        assert [row["mark"] for row in mine] == [row["mark"] for row in its]


def test_a_result_does_not_depend_on_how_many_cells_were_claimed(tmp_path):
    found = []
    for name, seeds in (("three", 3), ("five", 5)):
        one_arm = TOML.replace("seeds = 5", f"seeds = {seeds}").replace("quick =", "# quick =")
        queue = queue_of(tmp_path / name, one_arm)
        work(queue.root)
        cells = queue.study.cells[:3]
        assert [widths(queue, cell) for cell in cells] == [[COHORT]] * 3
        found.append([weights(queue.run_path(cell)) for cell in cells])
    assert all(torch.equal(*pair) for pair in zip(*found, strict=True))


def test_a_cell_that_diverges_fails_alone_and_is_not_trained_again(tmp_path):
    queue = queue_of(tmp_path / "study", TOML.replace("learning_rate = 1e-2", "vf_coef = 1e38"))
    kinds = Kinds(queue.study)
    assert len({kinds(cell) for cell in queue.study.cells}) == 1
    work(queue.root)
    states = queue.states()
    assert [states[cell] for cell in queue.study.cells] == ["done", "failed"] * 5
    for seed in queue.study.seeds:
        cell = Cell("quick", ENV, seed)
        assert "diverged" in queue.failure(cell)
        assert [each["kind"] for each in queue.attempts(cell)] == ["failed"]
        assert not any(row.get("resumed") for row in read_metrics(queue.run_path(cell)))
        assert widths(queue, Cell("slow", ENV, seed)) == [COHORT]


def test_cells_that_cannot_be_stacked_are_trained_alone(tmp_path):
    toml = TOML.replace("learning_rate = 1e-2", 'algo = "ppg", n_policy_iterations = 4')
    queue = queue_of(tmp_path / "study", toml)
    assert "trained alone" in (Kinds(queue.study).why_alone("quick", ENV) or "")
    work(queue.root)
    assert set(queue.states().values()) == {"done"}
    for cell in queue.study.cells:
        assert widths(queue, cell) == ([COHORT] if cell.arm == "slow" else [])


def begin(queue, cell):
    """Train a cell's first iterations."""
    isobatch.train(
        recipe=queue.study.recipe(cell),
        out=queue.run_path(cell),
        quiet=True,
        on_iteration=lambda row: row["iterations"] < 3,
    )


def test_damaged_and_foreign_runs_do_not_keep_the_others_from_training_together(tmp_path):
    queue = queue_of(tmp_path / "study")
    damaged, foreign, *others = queue.study.cells
    begin(queue, damaged)
    for file in (queue.run_path(damaged) / "checkpoints").iterdir():
        file.write_bytes(b"?")
    other = queue.study.recipe(foreign).replace(ent_coef=0.5)
    isobatch.train(recipe=other, out=queue.run_path(foreign), quiet=True)
    work(queue.root)
    assert check(queue.root) == 10
    for cell in (damaged, foreign):
        assert [each["kind"] for each in queue.attempts(cell)] == ["error"]
    assert len(list((queue.root / "set-aside").iterdir())) == 2
    assert all(widths(queue, cell) == [COHORT] for cell in others)


def test_a_run_in_use_is_left_and_finished_later(tmp_path):
    queue = queue_of(tmp_path / "study")
    used, *others = queue.study.cells
    begin(queue, used)
    held = RunDirectory.open(queue.run_path(used))
    timer = threading.Timer(3, held.release)
    timer.start()
    work(queue.root)
    timer.join()
    assert check(queue.root) == 10
    assert queue.attempts(used) == []
    assert [widths(queue, cell) for cell in others[:8]] == [[COHORT]] * 8


def test_environments_that_fail_together_are_tried_alone(tmp_path):
    """One of the pool's fails once, and with it the pool; no run is the worse for it."""
    once = tmp_path / "failed"
    gymnasium.register("FailsOnce-v0", "failing_envs:Failing", kwargs={"once": once})
    try:
        toml = TOML.replace(ENV, "gymnasium:FailsOnce-v0").replace("quick =", "# quick =")
        queue = queue_of(tmp_path / "study", toml)
        work(queue.root)
        assert check(queue.root) == 5
    finally:
        del gymnasium.registry["FailsOnce-v0"]
    assert once.exists()
    for cell in queue.study.cells:
        assert queue.attempts(cell) == []
        rows = read_metrics(queue.run_path(cell))
        assert [row["iterations"] for row in rows if row.get("resumed")] == [2]


LONG = TOML.replace("budget = 640", "budget = 6_000").replace("seeds = 5", "seeds = 3")


def started(queue):
    """Return a worker that has begun to train all cells of a cohort."""
    process = subprocess.Popen(
        [sys.executable, "-m", "isobatch.study.child", str(os.getpid()), str(queue.root), "1"]
    )
    deadline = time.monotonic() + soon(60)
    files = [queue.run_path(cell) / "metrics.jsonl" for cell in queue.study.cells[:COHORT]]
    while not all(file.exists() and file.stat().st_size for file in files):
        assert time.monotonic() < deadline, "no cohort began"
        time.sleep(0.05)
    return process


def test_a_worker_killed_within_a_cohort_costs_no_run(tmp_path):
    queue = queue_of(tmp_path / "study", LONG)
    process = started(queue)
    time.sleep(0.3)
    process.kill()
    process.wait()
    assert list(queue.states().values()).count("running") == COHORT
    work(queue.root)
    assert check(queue.root) == 6
    for cell in queue.study.cells[:COHORT]:
        assert [each["kind"] for each in queue.attempts(cell)] == ["lost"]
        assert widths(queue, cell)[-1] == COHORT


def test_a_worker_that_is_asked_to_stop_lets_go_of_all_its_cells(tmp_path):
    queue = queue_of(tmp_path / "study", LONG.replace("6_000", "10_000_000"))
    process = started(queue)
    process.send_signal(signal.SIGTERM)
    assert process.wait(soon(30)) == 0
    assert set(queue.states().values()) == {"free"}
    assert not any(queue.attempts(cell) for cell in queue.study.cells)
