import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from busy import soon
from chaos import check, torment

import isobatch
from isobatch.errors import UserError
from isobatch.study.design import Cell, from_toml
from isobatch.study.driver import conduct, last_row
from isobatch.study.executors import Ending, LocalExecutor
from isobatch.study.live import Silent
from isobatch.study.queue import Queue
from isobatch.study.worker import run, work

TOML = """
[study]
envs = ["CartPole-v1"]
budget = 256
seeds = 2
evaluate = 2
[base]
eval_marks = 2
eval_episodes = 2
n_minibatches = 2
n_epochs = 1
compile = "off"
[arms]
a = { n_envs = 4, n_steps = 16 }
b = { n_envs = 16, n_steps = 4 }
"""


def study_queue(tmp_path, toml=TOML):
    return Queue.create(tmp_path / "study", from_toml(toml, "small"))


def test_local_workers_run_every_cell(tmp_path):
    queue = study_queue(tmp_path)
    outcome = conduct(queue, LocalExecutor(), 2, Silent())
    assert (outcome.done, outcome.failed, outcome.left) == (4, {}, 0)
    for cell in queue.study.cells:
        result = queue.result(cell)
        assert queue.study.budget - result.env_steps < queue.study.recipe(cell).batch.n_envs
        assert isobatch.load(queue.run_path(cell)).recipe == queue.study.recipe(cell)


def test_a_worker_in_this_process_gives_the_same_result_twice(tmp_path):
    scores = []
    for name in ("one", "two"):
        queue = study_queue(tmp_path / name)
        work(queue.root)
        scores.append([queue.result(cell).score for cell in queue.study.cells])
    assert scores[0] == scores[1]


def test_the_score_is_an_evaluation_and_without_one_of_its_own_the_last_mark(tmp_path):
    toml = TOML.replace("evaluate = 2", "evaluate = 0").replace("eval_marks = 2\n", "")
    queue = study_queue(tmp_path, toml)
    claim = queue.claim()
    assert claim is not None
    assert run(claim) == "done"
    result = queue.result(claim.cell)
    marks = isobatch.Run(queue.run_path(claim.cell)).evaluations
    assert len(marks) == 17
    assert result.score == marks[-1]["episode_return"]
    assert result.training_return == last_row(queue.run_path(claim.cell))["episode_return"]


def test_a_run_that_cannot_train_is_failed_at_once_and_the_others_go_on(tmp_path):
    toml = TOML.replace("b = {", "b = { vf_coef = 1e38, ")
    queue = study_queue(tmp_path, toml)
    work(queue.root)
    states = queue.states()
    assert [states[cell] for cell in queue.study.cells] == ["done", "failed"] * 2
    assert "diverged" in queue.failure(Cell("b", "CartPole-v1", 1))


def test_a_run_begun_with_another_recipe_is_set_aside_and_begun_anew(tmp_path):
    queue = study_queue(tmp_path)
    cell = queue.study.cells[0]
    other = queue.study.recipe(cell).replace(learning_rate=0.5)
    isobatch.train(recipe=other, out=queue.run_path(cell), quiet=True)
    work(queue.root)
    assert queue.states()[cell] == "done"
    assert isobatch.load(queue.run_path(cell)).recipe == queue.study.recipe(cell)


def test_what_a_worker_killed_at_its_start_left_is_cleared_away(tmp_path):
    queue = study_queue(tmp_path)
    path = queue.run_path(queue.study.cells[0])
    litter = path.parent / f".{path.name}-x1y2z3w4"
    litter.mkdir(parents=True)
    (litter / "recipe.toml").touch()
    work(queue.root)
    assert not litter.exists()
    assert set(queue.states().values()) == {"done"}


def test_no_link_in_a_study_is_written_through(tmp_path):
    queue = study_queue(tmp_path)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (queue.root / "runs").symlink_to(elsewhere)
    work(queue.root)
    assert set(queue.states().values()) == {"failed"}
    assert "symbolic link" in queue.failure(queue.study.cells[0])
    assert not any(elsewhere.iterdir())


HOLD = """
import fcntl, sys, time
file = open(sys.argv[1], "w")
fcntl.flock(file, fcntl.LOCK_EX)
print("held", flush=True)
time.sleep(60)
"""


def test_two_drivers_of_one_study_are_refused(tmp_path):
    queue = study_queue(tmp_path)
    held = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(queue.root / "queue" / ".driver")],
        stdout=subprocess.PIPE,
    )
    assert held.stdout is not None
    held.stdout.readline()
    try:
        with pytest.raises(UserError, match="already being run"):
            conduct(queue, LocalExecutor(), 1, Silent())
    finally:
        held.kill()
        held.wait()
        held.stdout.close()


MALFORMED = {
    "list": b"[1]\n",
    "texts": b'{"env_steps": "many", "episode_return": {}}\n',
    "deep": b"[" * 4000 + b"\n",
    "not UTF-8": b"\xff\n",
}


@pytest.mark.parametrize("malformed", MALFORMED)
def test_metrics_that_no_run_writes_are_not_shown(tmp_path, malformed):
    (tmp_path / "metrics.jsonl").write_bytes(MALFORMED[malformed])
    assert last_row(tmp_path) == {}


def test_what_is_no_file_of_metrics_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "metrics.jsonl")
    assert last_row(tmp_path) == {}


class Broken:
    """An executor whose workers end in an error before they work."""

    class Dead:
        def is_running(self):
            return False

        def problem(self):
            return Ending("no such partition", killed=False)

        def stop(self):
            pass

    def __init__(self):
        self.started = 0

    def start(self, root, workers=1):
        self.started += 1
        return self.Dead()

    def close(self):
        pass


def test_workers_that_cannot_begin_end_the_study_with_their_reason(tmp_path):
    executor = Broken()
    with pytest.raises(UserError, match="no such partition"):
        conduct(study_queue(tmp_path), executor, 1, Silent())
    assert executor.started < 20


def alive(pid):
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] not in "ZX"


def children(pid):
    listed = subprocess.run(
        ["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True
    )
    return [int(line) for line in listed.stdout.split()]


def started_study(tmp_path, budget):
    file = tmp_path / "long.toml"
    file.write_text(TOML.replace("budget = 256", f"budget = {budget}"))
    command = [sys.executable, "-m", "isobatch", "study", str(file), "--jobs", "2"]
    driver = subprocess.Popen(
        [*command, "--out", str(tmp_path / "study"), "--quiet"],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
    )  # fmt: skip
    deadline = time.monotonic() + soon(60)
    metrics = tmp_path / "study" / "runs"
    while not any(file.stat().st_size for file in metrics.rglob("metrics.jsonl")):
        assert time.monotonic() < deadline, "no run began"
        time.sleep(0.2)
    return driver


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_stops_the_workers_and_the_same_command_goes_on(tmp_path, number):
    driver = started_study(tmp_path, budget=200_000)
    crew = children(driver.pid)
    assert len(crew) == 2
    driver.send_signal(number)
    output, _ = driver.communicate(timeout=soon(60))
    assert driver.returncode == 130
    assert "resume with the same command" in output
    assert not any(alive(pid) for pid in crew)
    assert "running" not in Queue.open(tmp_path / "study").states().values()


def test_workers_end_with_their_driver(tmp_path):
    driver = started_study(tmp_path, budget=2_000_000)
    crew = children(driver.pid)
    assert len(crew) == 2
    driver.kill()
    driver.communicate()
    deadline = time.monotonic() + soon(30)
    while any(alive(pid) for pid in crew) and time.monotonic() < deadline:
        time.sleep(0.2)
    left = [pid for pid in crew if alive(pid)]
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert not left


def test_kills_of_workers_and_driver_cost_no_run(tmp_path):
    done = torment(tmp_path / "study", "local", seeds=2, budget=4_000, every=2.0, kills=3)
    assert check(tmp_path / "study") == 8
    assert done.drivers_killed == 1
    assert done.workers_killed >= 1
