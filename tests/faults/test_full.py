"""A disk that is full, or files that may not grow, at the moment of each kind of write."""

import os
import resource
import subprocess

import pytest
from inside import command, here

from isobatch.cli import probe as probe_command
from isobatch.errors import UserError
from isobatch.run.store import RunDirectory, read_metrics
from isobatch.study import report
from isobatch.study.design import from_toml
from isobatch.study.driver import conduct
from isobatch.study.executors import LocalExecutor
from isobatch.study.live import Silent
from isobatch.study.queue import Lease, Queue

DESIGN = """
[study]
envs = ["CartPole-v1"]
budget = 256
seeds = 1
evaluate = 1
[base]
n_minibatches = 1
n_epochs = 1
hidden_sizes = [4]
compile = "off"
threads = 1
eval_marks = 1
eval_episodes = 1
[arms]
a = { n_envs = 2, n_steps = 8 }
b = { n_envs = 4, n_steps = 4 }
"""
TRAIN = [
    "train", "CartPole-v1", "--n-envs", "2", "--n-steps", "8", "--n-minibatches", "1",
    "--hidden-sizes", "4", "--total-timesteps", "480", "--compile", "off", "--threads", "1",
    "--checkpoint-seconds", "0", "--quiet", "--out",
]  # fmt: skip
PROBE = ["--batches", "2", "--shapes", "2x8", "--no-speed"]


class Full:
    """A small disk that can be filled to the last byte."""

    def __init__(self, path):
        self.path = path

    def fill(self):
        with open(self.path / "ballast", "ab", buffering=0) as file:
            try:
                while file.write(bytes(4096)):
                    pass
            except OSError:
                return

    def make_room(self):
        (self.path / "ballast").unlink()


class Limited(Full):
    """A directory whose files may not grow past some bytes, for the process that fills it."""

    def fill(self):
        resource.setrlimit(resource.RLIMIT_FSIZE, (64, resource.RLIM_INFINITY))

    def make_room(self):
        pass


@pytest.fixture
def small_disk(tmp_path):
    mount = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(tmp_path)]
    if os.geteuid() or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("no tmpfs can be mounted here")
    yield Full(tmp_path)
    subprocess.run(["umount", "-l", str(tmp_path)], check=True)


@pytest.fixture(params=["tmpfs", "RLIMIT_FSIZE"])
def disk(request, tmp_path):
    is_limited = request.param == "RLIMIT_FSIZE"
    return Limited(tmp_path) if is_limited else request.getfixturevalue("small_disk")


def filled_before(disk, owner, name, call=1):
    """Fill the disk as a function is called for the `call`-th time."""
    original, calls = getattr(owner, name), []

    def filling(*arguments, **named):
        calls.append(name)
        if len(calls) == call:
            disk.fill()
        return original(*arguments, **named)

    return lambda: setattr(owner, name, filling)


def contents(root):
    """Return every file but locks and ballast."""
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in root.rglob("*")
        if path.is_file() and path.name not in (".lock", ".driver", "ballast")
    }


def assert_one_line(ended):
    assert ended.code == 2, ended
    assert len(ended.said) == 1, ended
    assert ended.said[0].startswith("isobatch: ")
    assert "the disk is full" in ended.said[0]


def rows(run):
    """Return a run's rows, after a look whether one is lost or there twice."""
    found = read_metrics(run)
    assert [row["iterations"] for row in found] == list(range(1, len(found) + 1))
    assert found[-1]["env_steps"] == sum(row["rows"] for row in found)
    return found


@pytest.mark.parametrize(
    "write", ["append", pytest.param("save_checkpoint", marks=pytest.mark.long)]
)
def test_a_run_resumes_once_there_is_room(disk, write):
    run = disk.path / "run"
    hook = filled_before(disk, RunDirectory, write, call=5)
    assert_one_line(command(*TRAIN, run, before=hook))
    assert not list(run.rglob("*.new"))
    assert here("check", run) == 0
    before = rows(run)
    assert 3 < len(before) < 12
    disk.make_room()
    assert here("resume", run, "--quiet") == 0
    after = rows(run)
    assert after[-1]["env_steps"] > 478
    assert after[:3] == before[:3]
    assert here("check", run) == 0


@pytest.mark.long
def test_a_runs_page_stays_as_it_was(disk):
    run = disk.path / "run"
    assert here(*TRAIN, run) == 0
    for name in ("probe.json", "probe.html"):
        (run / name).write_text("of another day")
    before = contents(run)
    hook = filled_before(disk, probe_command, "_write")
    assert_one_line(command("probe", run, *PROBE, before=hook))
    assert contents(run) == before
    disk.make_room()
    assert here("probe", run, *PROBE) == 0
    changed = {name for name, content in contents(run).items() if content != before[name]}
    assert changed == {"probe.json", "probe.html"}


@pytest.fixture
def design(disk):
    path = disk.path / "design.toml"
    path.write_text(DESIGN)
    return path


def test_a_studys_result_is_written_once_there_is_room(disk, design):
    root = disk.path / "study"
    hook = filled_before(disk, Lease, "finish", call=2)
    words = ["study", design, "--out", root, "--quiet"]
    assert_one_line(command(*words, before=hook))
    queue = Queue.open(root)
    assert list(queue.states().values()) == ["done", "free"]
    assert here("check", root) == 0
    disk.make_room()
    kept = contents(root / "runs" / "a")
    assert here(*words) == 0
    assert set(queue.states().values()) == {"done"}
    assert contents(root / "runs" / "a") == kept
    assert all(not queue.attempts(cell) for cell in queue.study.cells)
    assert all(rows(queue.run_path(cell))[-1]["env_steps"] > 252 for cell in queue.study.cells)
    assert here("check", root) == 0


@pytest.mark.long
def test_a_studys_page_stays_as_it_was(disk, design):
    root = disk.path / "study"
    words = ["study", design, "--out", root, "--quiet"]
    assert here(*words) == 0
    before = contents(root)
    hook = filled_before(disk, report.Queue, "save")
    assert_one_line(command("report", root, before=hook))
    assert contents(root) == before
    disk.make_room()
    (root / "report.html").unlink()
    assert here("report", root) == 0
    assert contents(root) == before


def test_workers_of_a_full_disk_say_so_though_their_log_cannot(small_disk):
    queue = Queue.create(small_disk.path / "study", from_toml(DESIGN, "small"))
    small_disk.fill()
    with pytest.raises(UserError, match="the disk is full"):
        conduct(queue, LocalExecutor(), 1, Silent())
    assert set(queue.states().values()) == {"free"}
