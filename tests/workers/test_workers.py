"""Processes that train together: they find each other, are watched, restarted and ended.

Each test launches `crew.py` or `alone.py` as a few workers, and leaves no process behind.
"""

import json
import multiprocessing
import os
import signal
import socket
import sys
import time
from pathlib import Path

import pytest
from busy import soon

from isobatch.errors import UserError
from isobatch.workers.agent import launch
from isobatch.workers.heartbeat import Beat, Heartbeat
from isobatch.workers.membership import LOST, Membership, Peer, is_loopback, join, membership

HERE = Path(__file__).parent
# A server with the imports done forks an agent in milliseconds.
SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(["isobatch.workers.agent"])
TORCHRUN = {
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RUN_ID": "x",
    "TORCHELASTIC_RESTART_COUNT": "2",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
}


def be_agent(module, task, folder, workers, max_restarts):
    """Launch workers, in a process of its own; what is printed goes to files."""
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
    os.setsid()  # Whatever it leaves is found by its session, or by its parent.
    os.environ["PYTHONPATH"] = f"{HERE}:{HERE.parents[1]}"
    # A host's name may mean loopback, as here, or another interface: gloo would take that one.
    others = [name for _, name in socket.if_nameindex() if not name.startswith("lo")]
    os.environ["GLOO_SOCKET_IFNAME"] = others[0] if others else "lo"
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.exit(launch(workers, [task, str(folder)], max_restarts, module=module))


class Crew:
    """An agent with its workers, and the files they leave in a folder."""

    def __init__(self, folder, module, task, workers=2, max_restarts=2):
        self.folder, self.workers = folder, workers
        words = (module, task, folder, workers, max_restarts)
        self.agent = SERVER.Process(target=be_agent, args=words)
        self.agent.start()

    def left(self, restarts=0):
        """Return what each worker left, when all have."""
        paths = [self.folder / f"{restarts}-{rank}.json" for rank in range(self.workers)]
        wait_until(lambda: all(path.exists() for path in paths), self.said)
        return [json.loads(path.read_text()) for path in paths]

    def said(self):
        return (self.folder / "err").read_text() if (self.folder / "err").exists() else ""

    def code(self, seconds=20.0):
        self.agent.join(soon(seconds))
        assert self.agent.exitcode is not None, self.said()
        return self.agent.exitcode

    def processes(self):
        """Return the processes of the agent and its workers."""
        assert self.agent.pid is not None
        found, more = [], [self.agent.pid]
        while more:
            pid = more.pop()
            found.append(pid)
            for path in Path(f"/proc/{pid}/task").glob("*/children"):
                more += [int(each) for each in path.read_text().split()]
        return found


@pytest.fixture
def start(tmp_path):
    crews = []

    def started(*words, **options):
        crews.append(Crew(tmp_path, *words, **options))
        return crews[-1]

    yield started
    pids = [json.loads(path.read_text()).get("pid") for path in tmp_path.glob("*-*.json")]
    for crew in crews:
        crew.agent.kill()
        crew.agent.join()
    left = []
    for pid in filter(None, pids):
        deadline = time.monotonic() + soon(5)
        while alive(pid) and time.monotonic() < deadline:
            time.sleep(0.02)
        if alive(pid):
            os.kill(pid, signal.SIGKILL)
            left.append(pid)
    assert not left, "workers outlived their agent"


def state(pid):
    """Return a process's state as Linux names it, or X where there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "X"


def alive(pid):
    """Say whether a process runs: one that ended and was not waited for does not."""
    return state(pid) not in "ZX"


def wait_until(reached, said=lambda: "", seconds=20.0):
    began = time.monotonic()
    while not reached():
        assert time.monotonic() - began < soon(seconds), said()
        time.sleep(0.01)
    return time.monotonic() - began


def listening(pids):
    """Return the addresses at which processes listen, in the hexadecimal of /proc/net/tcp."""
    inodes = set()
    for pid in pids:
        for link in Path(f"/proc/{pid}/fd").iterdir():
            name = os.readlink(link) if link.is_symlink() else ""
            if name.startswith("socket:["):
                inodes.add(name[8:-1])
    found = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A" and words[9] in inodes:
                found.append(words[1].partition(":")[0])
    return found


LOOPBACK = {
    "0100007F",
    "00000000000000000000000001000000",
    "0000000000000000FFFF00000100007F",  # 127.0.0.1 in a socket of both families.
}


def test_the_walk_sees_a_socket_that_listens_everywhere():
    with socket.create_server(("", 0)):
        assert "00000000" in listening([os.getpid()])
    with socket.create_server(("127.0.0.1", 0)):
        assert "0100007F" in listening([os.getpid()])


def test_exchanges_and_nothing_listens_beyond_loopback(start, tmp_path):
    crew = start("crew", "exchange", workers=3)
    found = crew.left()
    pids = crew.processes()
    assert {each["pid"] for each in found} < set(pids)
    addresses = listening(pids)
    assert len(addresses) >= 4, "the agent's store, and gloo in each worker"
    assert set(addresses) <= LOOPBACK
    (tmp_path / "seen").touch()
    assert crew.code() == 0, crew.said()
    host = socket.gethostname()
    for each in found:
        assert each["equal"] == [[0, 1, 2, 3, 4], [10, 11, 12, 13, 14], [20, 21, 22, 23, 24]]
        assert each["unequal"] == [0, 140_000, 280_000]
        assert each["same"]
        assert each["empty"] == ["", "", ""]
        assert (each["said"], each["nothing"]) == ("from 0", "")
        assert each["peers"] == [
            f"worker {rank} (pid {other['pid']} on {host})" for rank, other in enumerate(found)
        ]
    seconds, message = found[0]["waited"]
    assert 1.4 < seconds < soon(4)
    assert message.startswith("an exchange between workers failed: Timed out waiting 1500ms")
    assert crew.said() == ""


def test_lost_workers_are_named_and_all_start_again(start, tmp_path):
    crew = start("crew", "steady")
    first = crew.left()
    os.kill(first[1]["pid"], signal.SIGKILL)
    second = crew.left(restarts=1)
    assert not any(alive(each["pid"]) for each in first)
    host = socket.gethostname()
    said = crew.said()
    assert f"isobatch: worker 1 (pid {first[1]['pid']} on {host}) was killed by SIGKILL\n" in said
    assert said.endswith("isobatch: starting all 2 workers again, restart 1 of 2\n")
    assert "Traceback" not in said

    # Worker 0, which prints for all; that it is lost is said by another.
    began = time.monotonic()
    os.kill(second[0]["pid"], signal.SIGSTOP)
    name = f"isobatch: worker 0 (pid {second[0]['pid']} on {host})"
    wait_until(lambda: f"{name} has not been heard from for " in crew.said(), crew.said)
    assert 2.2 < time.monotonic() - began < soon(5)
    crew.left(restarts=2)
    assert not any(alive(each["pid"]) for each in second)
    said = crew.said()
    assert said.count("has not been heard from") == 1
    assert said.endswith("isobatch: starting all 2 workers again, restart 2 of 2\n")

    (tmp_path / "finish").touch()
    assert crew.code() == 0, crew.said()
    assert crew.said() == said, "a worker that was done was missed"


def test_a_worker_that_hangs_is_named_with_the_place(start):
    crew = start("crew", "hang", max_restarts=0)
    assert crew.code() == LOST, crew.said()
    (line,) = [line for line in crew.said().splitlines() if " hangs: " in line]
    assert line.startswith("isobatch: worker 1 (pid ")
    assert "in oversleep, crew.py line " in line


def test_workers_end_with_an_agent_that_is_killed(start):
    crew = start("alone", "deaf")
    pids = [each["pid"] for each in crew.left()]
    os.kill(pids[1], signal.SIGSTOP)  # Even one that no signal but SIGKILL ends.
    crew.agent.kill()
    wait_until(lambda: not any(alive(pid) for pid in pids), seconds=5)


def test_a_pause_loses_nobody_and_ctrl_c_lets_the_workers_agree_and_save(start, tmp_path):
    crew = start("crew", "steady")
    everyone = [crew.agent.pid, *(each["pid"] for each in crew.left())]
    os.kill(crew.agent.pid, signal.SIGTSTP)
    wait_until(lambda: [state(pid) for pid in everyone] == ["T"] * 3)
    time.sleep(3)  # Longer than a silence.
    os.kill(crew.agent.pid, signal.SIGCONT)
    wait_until(lambda: "T" not in [state(pid) for pid in everyone])
    time.sleep(1)
    os.kill(crew.agent.pid, signal.SIGINT)
    assert crew.code() == 130
    assert sorted(path.name for path in tmp_path.glob("saved-*")) == ["saved-0", "saved-1"]
    assert crew.said() == ""


def test_a_second_signal_ends_at_once_what_does_not_listen(start):
    crew = start("alone", "deaf")
    pids = [each["pid"] for each in crew.left()]
    os.kill(crew.agent.pid, signal.SIGTERM)
    time.sleep(0.5)
    assert all(alive(pid) for pid in pids)
    began = time.monotonic()
    os.kill(crew.agent.pid, signal.SIGINT)
    assert crew.code() == 143
    assert time.monotonic() - began < soon(2)


def test_a_mistake_of_the_users_is_said_once_and_not_tried_again(start, tmp_path):
    crew = start("alone", "mistake", max_restarts=3)
    assert crew.code() == 2
    assert crew.said() == "isobatch: there is no such environment\n"
    assert not list(tmp_path.glob("1-*"))


def test_a_crash_shows_where_and_ends_after_the_last_restart(start):
    crew = start("alone", "crash", max_restarts=0)
    assert crew.code() == 1
    lines = crew.said().splitlines()
    assert any(line.endswith("LookupError: nothing there") for line in lines)
    assert lines[-2].startswith("isobatch: worker 1 (pid ")
    assert lines[-2].endswith("ended with exit code 1")
    assert lines[-1] == "isobatch: the workers are not started again, after 0 restarts"
    assert not any(alive(each["child"]) for each in crew.left())


def test_torchruns_environment_says_who_this_is():
    expected = Membership(3, 4, 1, "127.0.0.1", 29500, "x", restarts=2)
    assert membership(TORCHRUN) == expected
    first = TORCHRUN | {"RANK": "0", "TORCHELASTIC_USE_AGENT_STORE": "False"}
    serving = membership(first)
    assert serving is not None
    assert serving.serves
    assert membership({"RANK": "0", "WORLD_SIZE": "2"}) is None


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("RANK", "4", "RANK is 4, of WORLD_SIZE 4"),
        ("WORLD_SIZE", "0", "WORLD_SIZE must be a whole number of at least 1, got '0'"),
        ("MASTER_PORT", "http", "MASTER_PORT must be a whole number"),
        ("MASTER_ADDR", "", "MASTER_ADDR is not set"),
    ],
)
def test_an_environment_that_is_not_torchruns_is_refused(name, value, message):
    with pytest.raises(UserError, match=message):
        membership(TORCHRUN | {name: value})


def test_a_port_that_is_taken_is_refused_in_a_line():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        member = Membership(0, 2, 0, "127.0.0.1", port, "x", restarts=0, serves=True)
        with pytest.raises(UserError, match=f"127.0.0.1, port {port}: Address already in use"):
            join(member)


def test_a_store_that_is_not_there_is_refused_in_a_line():
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    member = Membership(1, 2, 1, "127.0.0.1", port, "x", restarts=0)
    with pytest.raises(UserError, match=f"worker 1 finds no store at 127.0.0.1, port {port}"):
        join(member, patience=0.5)


def test_loopback_by_name_and_number():
    assert all(is_loopback(host) for host in ("127.0.0.1", "127.1.2.3", "::1", "localhost"))
    assert not any(is_loopback(host) for host in ("0.0.0.0", "10.0.0.1", "::", "node-1"))


class Apart:
    """A group of three whose store never answers."""

    rank, size, exchanges = 0, 3, 0
    member = Membership(0, 3, 0, "10.0.0.1", 29500, "x", restarts=0)
    peers = tuple(Peer(rank, f"node-{rank}", 100 + rank) for rank in range(3))

    def connect(self, seconds):
        raise RuntimeError("no route")


@pytest.fixture
def watch():
    """A watch that does not end this process: what it would say is asked of it."""
    with Heartbeat(Apart(), silence=30.0, interval=10.0, patience=60.0) as found:  # pyright: ignore
        yield found


def heard(watch, beats, now, beaten, moved):
    watch._beats, watch._heard = dict(enumerate(beats)), now
    watch._beaten, watch._moved = dict(enumerate(beaten)), dict(enumerate(moved))
    return watch._problem(now)


def beat(exchanges, done=False):
    return Beat(1, exchanges, 0, "in step, env.py line 5", done)


def test_who_is_lost_and_who_hangs(watch):
    even = [beat(7), beat(7), beat(7)]
    assert heard(watch, even, 1000.0, [1000, 971, 1000], [1000, 1000, 1000]) is None
    lost = heard(watch, even, 1000.0, [1000, 969, 1000], [1000, 1000, 1000])
    assert lost == "worker 1 (pid 101 on node-1) has not been heard from for 31 s"
    done = [beat(7), beat(7, done=True), beat(7)]
    assert heard(watch, done, 1000.0, [1000, 969, 1000], [1000, 900, 1000]) is None
    behind = [beat(8), beat(8), beat(7)]
    assert heard(watch, behind, 1000.0, [1000] * 3, [930, 930, 941]) is None
    hangs = heard(watch, behind, 1000.0, [1000] * 3, [930, 930, 939])
    assert hangs is not None
    assert hangs.startswith("worker 2 (pid 102 on node-2) hangs: ")
    assert hangs.endswith("no progress for 61 s, in step, env.py line 5")
    left = [beat(8), beat(7, done=True), beat(8)]
    gone = heard(watch, left, 1000.0, [1000, 900, 1000], [930, 939, 930])
    assert gone is not None, "a worker that others wait for is not done"
    assert gone.startswith("worker 1 (pid 101 on node-1) hangs: ")
    # All are at the same place, for however long: nobody waits for another.
    assert heard(watch, even, 1000.0, [1000] * 3, [100, 100, 100]) is None


def test_a_store_that_does_not_answer_is_no_silence_of_the_others(watch):
    watch._heard = 1000.0
    watch._beaten = dict.fromkeys(range(3), 999.0)
    assert watch._problem(1029.0) is None
    assert watch._problem(1031.0) == (
        "the rendezvous host is gone: 10.0.0.1, port 29500, has not answered for 31 s"
    )


def test_a_host_that_is_gone_ends_a_worker():
    """The watch itself, in a process whose store never answers."""
    process = SERVER.Process(target=watch_a_store_that_is_gone)
    process.start()
    process.join(soon(10))
    assert process.exitcode == LOST


def watch_a_store_that_is_gone():
    Heartbeat(Apart(), silence=0.8, interval=0.1)  # pyright: ignore
    time.sleep(100)
