"""Full disks, several processes at once, many runs in one process."""

import gc
import os
import resource
import subprocess
import sys
import threading

import pytest
from busy import soon

import isobatch
from isobatch.errors import UserError
from isobatch.run.examine import examine
from isobatch.run.store import read_metrics

SMALL = {
    "n_envs": 2, "n_steps": 8, "n_minibatches": 1, "n_epochs": 1, "hidden_sizes": (4,),
    "compile": "off", "threads": 1, "env_threads": 1, "total_timesteps": 32,
}  # fmt: skip
RUNS = int(os.environ.get("ISOBATCH_RUNS", "25"))
"""In one process; 200 in `make test-faults`."""


def limited(arguments, size):
    """Run a command that may write no file larger than `size` bytes."""
    return subprocess.run(
        [sys.executable, "-m", "isobatch", *arguments],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size)),
        capture_output=True,
        text=True,
        timeout=soon(120),
        check=False,
    )


TRAIN = [
    "train", "CartPole-v1", "--n-envs", "2", "--n-steps", "8", "--n-minibatches", "1",
    "--hidden-sizes", "4", "--total-timesteps", "1600", "--compile", "off", "--threads",
    "1", "--checkpoint-seconds", "0", "--quiet", "--out", "run",
]  # fmt: skip


@pytest.mark.parametrize(
    ("size", "what"),
    [
        (16_000, "metrics"),
        pytest.param(3_000, "the first checkpoint", marks=pytest.mark.long),
    ],
)
def test_a_disk_that_fills_up_is_one_line_and_the_run_resumes(tmp_path, monkeypatch, size, what):
    monkeypatch.chdir(tmp_path)
    ended = limited(TRAIN, size)
    assert ended.returncode == 2, what
    assert ended.stderr.splitlines() == [
        "isobatch: the disk is full; files written so far are intact"
    ]
    assert all(each.is_whole for each in examine("run"))
    isobatch.resume("run", total_timesteps=1616, quiet=True)
    rows = read_metrics("run")
    assert [row["iterations"] for row in rows] == list(range(1, len(rows) + 1))


def test_of_twenty_that_start_at_once_one_trains(tmp_path):
    isobatch.train("CartPole-v1", **SMALL, out=tmp_path / "warm", quiet=True)
    go, start = os.pipe()
    children = []
    for _ in range(20):
        child = os.fork()
        if not child:
            gc.freeze()  # Vectors that are garbage have threads in the parent only.
            code = 3
            try:
                os.close(start)
                os.read(go, 1)  # Until the parent closes its end.
                isobatch.train("CartPole-v1", **SMALL, out=tmp_path / "run", quiet=True)
                code = 0
            except UserError as error:
                code = 2 if "run" in str(error) else 4
            finally:
                os._exit(code)
        children.append(child)
    os.close(go)
    os.close(start)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    assert sorted(codes) == [0] + [2] * 19
    assert all(each.is_whole for each in examine(tmp_path / "run"))
    assert {path.name for path in tmp_path.iterdir()} == {"warm", "run"}


def held():
    gc.collect()
    with open("/proc/self/statm") as file:
        pages = int(file.read().split()[1])
    return {
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": len(os.listdir("/proc/self/task")),
        "python threads": threading.active_count(),
        "megabytes": pages * resource.getpagesize() / 2**20,
    }


def test_many_runs_in_one_process_leave_nothing_open(tmp_path):
    def train(number):
        isobatch.train("CartPole-v1", **SMALL, out=tmp_path / f"{number}", quiet=True)

    for number in range(5):
        train(f"warm-{number}")
    before = held()
    for number in range(RUNS):
        train(number)
    after = held()
    growth = {name: after[name] - before[name] for name in before}
    assert growth.pop("megabytes") < 20 + 0.05 * RUNS
    assert set(growth.values()) == {0}, growth
