import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest
from busy import soon

from isobatch.errors import UserError
from isobatch.run.store import read_metrics
from isobatch.study.design import from_toml
from isobatch.study.driver import conduct
from isobatch.study.executors import LocalExecutor, RayExecutor, SlurmExecutor
from isobatch.study.live import Silent
from isobatch.study.queue import Queue
from isobatch.study.records import process_start
from isobatch.study.worker import DISK_FULL

TOML = """
[study]
envs = ["CartPole-v1"]
budget = 512
seeds = 2
evaluate = 2
[base]
eval_marks = 2
eval_episodes = 2
n_minibatches = 2
n_epochs = 1
[arms]
a = { n_envs = 4, n_steps = 16 }
b = { n_envs = 16, n_steps = 4 }
"""


SIX = TOML.replace("seeds = 2", "seeds = 3")
"""Three of them are alike: a worker's first task is to train these together."""


def has_cohorts(queue):
    """Say whether the first runs were trained together."""
    runs = [queue.run_path(cell) for cell in queue.study.cells if cell.arm == "a"]
    return {read_metrics(path)[0].get("cohort_width") for path in runs} == {5}


@pytest.fixture
def queue(tmp_path):
    return Queue.create(tmp_path / "study", from_toml(TOML, "small"))


def listening(names):
    """Return the addresses that processes of these names listen on."""
    lines = subprocess.run(["ss", "-ltnp"], capture_output=True, text=True).stdout.splitlines()
    return [line.split()[3] for line in lines if any(f'"{name}' in line for name in names)]


def test_ray_runs_a_study_on_loopback_with_a_token_and_leaves_nothing(tmp_path):
    file = tmp_path / "small.toml"
    file.write_text(SIX)
    command = [sys.executable, "-m", "isobatch", "study", str(file), "--cluster", "ray"]
    command += ["--jobs", "2", "--out", str(tmp_path / "study"), "--quiet"]
    driver = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    seen, tokens = set(), set()
    while driver.poll() is None:
        seen.update(listening(("gcs_server", "raylet", "ray::")))
        tokens.update(_settings_of("raylet"))
        time.sleep(0.5)
    output = driver.communicate()[0]
    assert driver.returncode == 0, output
    queue = Queue.open(tmp_path / "study")
    assert set(queue.states().values()) == {"done"}
    assert has_cohorts(queue)
    assert seen, "Ray was never seen to listen"
    assert all("127.0.0.1" in address for address in seen), seen
    assert tokens == {("token", 64)}
    assert not listening(("gcs_server", "raylet", "ray::"))


def _settings_of(name):
    """Return (authentication mode, length of the token) of running processes of a name."""
    found = set()
    pids = subprocess.run(["pgrep", "-x", name], capture_output=True, text=True).stdout.split()
    for pid in pids:
        try:
            entries = open(f"/proc/{pid}/environ", "rb").read().decode().split("\0")  # noqa: SIM115
        except OSError:
            continue
        settings = dict(entry.split("=", 1) for entry in entries if "=" in entry)
        found.add((settings.get("RAY_AUTH_MODE"), len(settings.get("RAY_AUTH_TOKEN", ""))))
    return found


def test_submitit_runs_a_study(tmp_path):
    queue = Queue.create(tmp_path / "study", from_toml(SIX, "small"))
    executor = SlurmExecutor(queue.root, {"timeout_min": 5}, cluster="local")
    outcome = conduct(queue, executor, 1, Silent())
    assert (outcome.done, outcome.failed, outcome.left) == (6, {}, 0)
    assert has_cohorts(queue)


def test_unknown_parameters_of_submitit_are_one_clear_line(queue):
    with pytest.raises(UserError, match="submitit"):
        SlurmExecutor(queue.root, {"colour": "red"}, cluster="local")


@pytest.mark.skipif(shutil.which("srun") is not None, reason="there is a Slurm here")
def test_no_slurm_here_is_one_clear_line(queue):
    with pytest.raises(UserError, match="srun"):
        SlurmExecutor(queue.root, {})


def test_missing_extras_say_how_to_get_them(queue, monkeypatch):
    for name in ("ray", "submitit"):
        monkeypatch.setitem(sys.modules, name, None)
    before = dict(os.environ)
    with pytest.raises(UserError, match=r"isobatch\[ray\]"):
        RayExecutor(1)
    with pytest.raises(UserError, match=r"isobatch\[slurm\]"):
        SlurmExecutor(queue.root, {})
    os.environ.clear()
    os.environ.update(before)


def _drive(root, pids):
    """Be a driver: start a worker and wait to be killed."""
    pids.send(LocalExecutor().start(root).process.pid)
    time.sleep(60)


def _running(pid):
    return process_start(pid) != ""


# From before the worker's first instruction to the middle of its run.
@pytest.mark.parametrize("delay", [0.0, 0.005, 0.02, 0.05, 0.1, 0.3, 1.0, 3.0])
def test_no_worker_outlives_its_driver(tmp_path, delay):
    # Uncompiled: a stop waits four seconds for what is under way, and that would be the compiler.
    toml = TOML.replace("budget = 512", "budget = 10_000_000")
    long = from_toml(toml.replace("[base]", '[base]\ncompile = "off"'), "long")
    queue = Queue.create(tmp_path / "study", long)
    fork = multiprocessing.get_context("fork")
    received, sent = fork.Pipe(duplex=False)
    driver = fork.Process(target=_drive, args=(queue.root, sent))
    driver.start()
    worker = received.recv()
    time.sleep(delay)
    driver.kill()
    driver.join()
    deadline = time.monotonic() + soon(5)
    while _running(worker) and time.monotonic() < deadline:
        time.sleep(0.02)
    outlived = _running(worker)
    if outlived:
        os.kill(worker, signal.SIGKILL)
    assert not outlived


def test_a_worker_whose_driver_is_dead_already_does_nothing(queue):
    command = [sys.executable, "-m", "isobatch.study.child", "1", str(queue.root)]
    assert subprocess.run(command, timeout=soon(60)).returncode == 0
    assert set(queue.states().values()) == {"free"}


def test_a_workers_log_follows_no_link(queue, tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (queue.root / "logs").mkdir()
    (queue.root / "logs" / f"worker-{os.getpid()}-1.log").symlink_to(victim)
    with pytest.raises(UserError, match="symbolic link"):
        LocalExecutor().start(queue.root)
    assert victim.read_text() == "mine"


FULL = """
import errno, sys
import isobatch.study.worker as worker

def full(claim):
    raise OSError(errno.ENOSPC, "No space left on device")

worker._train = full
sys.exit(worker.main(sys.argv[1]))
"""


def test_a_full_disk_ends_the_study_in_one_line_and_frees_the_cell(queue, tmp_path):
    found = subprocess.run(
        [sys.executable, "-c", FULL, str(queue.root)], capture_output=True, text=True
    )
    assert found.returncode == DISK_FULL
    assert found.stderr.strip().splitlines() == [
        f"the disk is full: {queue.root} cannot be written"
    ]
    assert set(queue.states().values()) == {"free"}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small disk")
def test_a_study_on_a_disk_that_fills_up_stops_and_says_so(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=200k", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("this system mounts no tmpfs")
    try:
        queue = Queue.create(disk / "study", from_toml(TOML, "small"))
        with pytest.raises(UserError, match="disk is full"):
            conduct(queue, LocalExecutor(), 1, Silent())
        assert "failed" not in queue.states().values()
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)
