import os
import sys
import threading
from typing import Any

import numpy  # noqa: F401  (its BLAS must be loaded for threadpoolctl to see it)
import pytest
import threadpoolctl
import torch

import isobatch
from isobatch import machine
from isobatch.envs.pool import PoolEnv
from isobatch.machine import (
    cgroup_limits,
    gradient_threads,
    one_core,
    thread_ids,
    torch_threads,
)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="cores are held on Linux only")


@pytest.fixture
def waiting_thread():
    """Return the id of a thread that lives for the test."""
    end, started = threading.Event(), []
    thread = threading.Thread(
        target=lambda: (started.append(threading.get_native_id()), end.wait())
    )
    thread.start()
    while not started:
        pass
    yield started[0]
    end.set()
    thread.join()


def test_threads_share_the_callers_core_and_are_let_go(waiting_thread):
    before = os.sched_getaffinity(0)
    assert waiting_thread in thread_ids()
    with one_core({waiting_thread}):
        core = os.sched_getaffinity(0)
        assert len(core) == 1
        assert core <= before
        assert os.sched_getaffinity(waiting_thread) == core
    assert os.sched_getaffinity(0) == os.sched_getaffinity(waiting_thread) == before


def test_a_thread_that_has_ended_is_left_alone(waiting_thread):
    ended = threading.Thread(target=lambda: None)
    ended.start()
    ended.join()
    assert ended.native_id is not None
    with one_core({ended.native_id, waiting_thread}):
        assert len(os.sched_getaffinity(waiting_thread)) == 1


def test_a_thread_that_ends_meanwhile_is_no_error():
    end = threading.Event()
    thread = threading.Thread(target=end.wait)
    thread.start()
    before = os.sched_getaffinity(0)
    assert thread.native_id is not None
    with one_core({thread.native_id}):
        end.set()
        thread.join()
    assert os.sched_getaffinity(0) == before


def test_cores_are_let_go_after_an_error(waiting_thread):
    before = os.sched_getaffinity(0)
    with pytest.raises(RuntimeError), one_core({waiting_thread}):
        raise RuntimeError
    assert os.sched_getaffinity(0) == os.sched_getaffinity(waiting_thread) == before


@pytest.mark.parametrize(("threads", "cores"), [(1, 1), (2, len(os.sched_getaffinity(0)))])
def test_only_a_single_envpool_worker_is_held(threads, cores):
    env = PoolEnv("CartPole-v1", [1, 2, 3, 4], threads=threads)
    with env.stepping():
        assert len(os.sched_getaffinity(0)) == cores
    env.close()


@pytest.mark.parametrize(
    ("count", "images", "sharing", "own"),
    [(3, False, 3, 1), (3, True, 3, 3), (0, False, 1, 1)],
)
def test_vectors_are_divided_by_rows_and_images_by_operations_too(count, images, sharing, own):
    before = torch.get_num_threads()
    with torch_threads(count, images):
        assert (gradient_threads(), torch.get_num_threads()) == (sharing, own)
    assert (gradient_threads(), torch.get_num_threads()) == (1, before)


def test_images_use_every_core():
    with torch_threads(0, images=True):
        assert torch.get_num_threads() == len(os.sched_getaffinity(0))


LARGEST = 9223372036854771712
"""What version 1 has where there is no limit."""


@pytest.mark.parametrize(
    ("own", "files", "limits"),
    [
        ("0::/a/b", {"a/b/memory.max": "500", "a/memory.max": "300"}, [500, 300]),
        ("0::/a/b", {"a/b/memory.max": "max", "a/memory.max": "max"}, []),
        ("0::/a", {"a/memory.max": "500", "memory.max": "200", "b/memory.max": "1"}, [500, 200]),
        ("0::/docker/1234", {"memory.max": "200"}, [200]),
        ("0::/../c", {"memory.max": "200"}, [200]),
        (
            "9:cpu,cpuacct:/x\n5:memory:/a:b/c\n0::/",
            {
                "memory/a:b/c/memory.limit_in_bytes": "400",
                "memory/a:b/memory.limit_in_bytes": "700",
                "memory/memory.limit_in_bytes": str(LARGEST),
                "cpu,cpuacct/x/memory.limit_in_bytes": "1",
                "memory.limit_in_bytes": "2",
            },
            [400, 700, LARGEST],
        ),
        ("", {"memory.max": "200"}, []),
    ],
)
def test_limits_of_control_groups_up_to_the_root(tmp_path, own, files, limits):
    groups = tmp_path / "groups"
    (tmp_path / "own").write_text(own + "\n" * bool(own))
    (tmp_path / "memory.max").write_text("3")
    for name, text in files.items():
        (groups / name).parent.mkdir(parents=True, exist_ok=True)
        (groups / name).write_text(text + "\n")
    assert cgroup_limits(tmp_path / "own", groups) == limits


def test_no_control_groups_are_no_limit(tmp_path):
    assert cgroup_limits(tmp_path / "absent", tmp_path) == []


def test_a_container_has_no_more_memory_than_its_limit(tmp_path, monkeypatch):
    (tmp_path / "own").write_text("0::/\n")
    (tmp_path / "meminfo").write_text("MemTotal: 9 kB\nMemAvailable: 4 kB\n")
    monkeypatch.setattr(machine, "MEMORY", tmp_path / "meminfo")
    monkeypatch.setattr(machine, "CGROUP", tmp_path / "own")
    monkeypatch.setattr(machine, "CGROUPS", tmp_path)
    assert machine.available_memory() == 4096
    (tmp_path / "memory.max").write_text("1000\n")
    assert machine.available_memory() == 1000


def blas_threads():
    every = threadpoolctl.threadpool_info()
    return [each["num_threads"] for each in every if "numpy.libs" in each["filepath"]]


@pytest.fixture
def two_threads():
    """Let PyTorch have two threads by itself, and NumPy too."""
    torch.set_num_threads(2)
    with threadpoolctl.threadpool_limits(2, user_api="blas"):
        yield
    torch.set_num_threads(1)


def test_numpy_has_one_thread_whatever_pytorch_has(two_threads):
    assert blas_threads() == [2]
    for count in (0, 1, 2):
        with torch_threads(count, images=True):
            assert blas_threads() == [1]
        assert blas_threads() == [2]
    with pytest.raises(RuntimeError), torch_threads(2, images=False):
        raise RuntimeError
    assert blas_threads() == [2]


def test_pytorchs_own_threads_are_not_numpys(two_threads):
    with torch_threads(2, images=True):
        assert torch.get_num_threads() == 2


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="there is one core")
@pytest.mark.parametrize(
    ("count", "work", "threads"),
    [(0, 0, 1), (0, 2**24 - 1, 1), (0, 2**24, 2), (0, 2**30, 2), (1, 2**30, 1), (2, 0, 2)],
)
def test_a_gradient_has_as_many_threads_as_it_is_worth(two_threads, count, work, threads):
    with torch_threads(count, images=False, work=work):
        assert gradient_threads() == threads
    assert torch.get_num_threads() == 2


def test_a_process_with_one_thread_keeps_to_it():
    torch.set_num_threads(1)
    with torch_threads(0, images=False, work=2**30):
        assert gradient_threads() == 1


LARGE: dict[str, Any] = {
    "n_envs": 64, "n_steps": 64, "n_minibatches": 2, "n_epochs": 1, "compile": "off",
    "exact_resume": True, "quiet": True, "total_timesteps": 12_288,
}  # fmt: skip
"""Minibatches of 2,048 rows, of networks with 9,155 parameters."""


def used(out, **changes):
    """Train for an iteration; return the threads of each."""
    seen = []

    def look(row):
        seen.append(gradient_threads())
        return False

    isobatch.train("CartPole-v1", **LARGE | changes, on_iteration=look, out=out)
    return seen


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="there is one core")
def test_a_run_has_the_threads_its_minibatches_are_worth(two_threads, tmp_path):
    assert used(tmp_path / "large") == [2]
    assert used(tmp_path / "small", n_minibatches=4) == [1]
    assert used(tmp_path / "chunks", chunk_size=1024) == [1]
    assert used(tmp_path / "asked", threads=1) == [1]


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="there is one core")
def test_exact_resuming_refuses_other_threads(two_threads, tmp_path):
    assert used(tmp_path / "run") == [2]
    torch.set_num_threads(1)
    with pytest.raises(isobatch.UserError, match="threads was 2, is 1"):
        isobatch.resume(tmp_path / "run", quiet=True)
    torch.set_num_threads(2)
    isobatch.resume(tmp_path / "run", quiet=True)


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="there is one core")
def test_a_resumed_run_has_the_threads_it_began_with(two_threads, tmp_path):
    """Though its minibatches have grown since."""
    schedule: dict[str, Any] = {"batch_schedule": "0:64x32x2, 30%:64x64x2", "rescale": False}
    seen = []

    def look(row):
        seen.append((row["n_steps"], gradient_threads()))
        return len(seen) != 4

    run = isobatch.train("CartPole-v1", **LARGE | schedule, on_iteration=look, out=tmp_path / "run")
    assert run.interrupted
    isobatch.resume(tmp_path / "run", quiet=True, on_iteration=look)
    assert {steps for steps, _ in seen} == {32, 64}
    assert seen[3][0] == 64
    assert {threads for _, threads in seen} == {1}
