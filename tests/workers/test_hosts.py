"""torchrun over two agents: workers that leave and join, and two hosts whose link is cut.

Hosts are network namespaces of this machine, where those can be made. Their addresses are nobody
else's.
"""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from itertools import pairwise

import pytest
from busy import soon
from runs import PATHS, alive, descendants, numbers, rows_of, wait_until

from isobatch import Recipe, train

pytestmark = pytest.mark.long
FIRST, SECOND = "10.77.0.1", "10.77.0.2"
TRAIN = [
    *["train", "CartPole-v1", "--algo", "ppo-ewma", "--n-envs", "8", "--n-steps", "32"],
    *["--n-epochs", "2", "--shards", "4", "--checkpoint-seconds", "0.2"],
    *["--total-timesteps", "4_000_000", "--quiet"],
]


class Agent:
    """A torchrun of one worker."""

    def __init__(self, folder, name, address, port, nodes, host=None, options=()):
        conf = {"is_host": int(name == "first"), "last_call_timeout": 2, "join_timeout": 60}
        if host is None:
            conf["keep_alive_interval"] = 1
        words = [
            *([] if host is None else ["ip", "netns", "exec", host]),
            *[sys.executable, "-m", "torch.distributed.run", "--nnodes", nodes],
            *["--nproc-per-node", "1", "--max-restarts", "5", "--rdzv-backend", "c10d"],
            *["--rdzv-endpoint", f"{FIRST if host else address}:{port}", "--local-addr", address],
            *["--rdzv-conf", ",".join(f"{key}={value}" for key, value in conf.items())],
            *["-m", "isobatch", *TRAIN, "--out", str(folder / "run"), *options],
        ]
        environment = os.environ | {
            "PYTHONPATH": PATHS,
            "OMP_NUM_THREADS": "1",
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",  # Else torch 2.13 lets nobody join later.
        }
        environment.pop("GLOO_SOCKET_IFNAME", None)
        self.log = folder / f"{name}.log"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                words, env=environment, stdout=log, stderr=log, start_new_session=True
            )

    def said(self):
        return [each for each in self.log.read_text().splitlines() if each.startswith("isobatch:")]

    def end(self, number=signal.SIGKILL):
        """Send a signal; return its processes."""
        found = [self.process.pid, *descendants(self.process.pid)]
        self.process.send_signal(number)
        return found


@pytest.fixture
def agents(tmp_path):
    """What starts agents, and ends them with their workers."""
    started = []

    def start(*words, **options):
        started.append(Agent(tmp_path, *words, **options))
        return started[-1]

    yield start
    pids = [pid for agent in started for pid in agent.end()]
    for agent in started:
        agent.process.wait()
    with suppress(AssertionError):
        wait_until(lambda: not any(alive(pid) for pid in pids), 10)
    left = [pid for pid in pids if alive(pid)]
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert not left, "workers outlived their agent"


def resumed(run):
    return [row for row in rows_of(run) if "resumed" in row]


def wait_for_more(run, count=3):
    had = len(rows_of(run))
    wait_until(lambda: len(rows_of(run)) >= had + count, 120)


@pytest.mark.parametrize("elastic", ["hold", "rescale"])
def test_a_worker_that_leaves_and_another_that_joins(agents, tmp_path, elastic):
    run = tmp_path / "run"
    options = ["--elastic", elastic, *(["--exact-resume"] if elastic == "hold" else [])]
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    place = ("127.0.0.1", port, "1:2")
    first = agents("first", *place, options=options)
    wait_until(lambda: not socket.socket().connect_ex(("127.0.0.1", port)))
    second = agents("second", *place, options=options)
    wait_for_more(run)
    began = time.monotonic()
    second.end()
    wait_until(lambda: len(resumed(run)) == 1, 120)
    print(f"{elastic}: goes on alone after {time.monotonic() - began:.1f} s")
    wait_for_more(run)
    began = time.monotonic()
    third = agents("third", *place, options=options)
    wait_until(lambda: len(resumed(run)) == 2, 120)
    print(f"{elastic}: goes on with another after {time.monotonic() - began:.1f} s")
    wait_for_more(run)
    for agent in (first, third):
        agent.end(signal.SIGINT)
    for agent in (first, third):
        agent.process.wait(soon(40))
    rows = rows_of(run)
    assert [row["iterations"] for row in rows] == list(range(1, len(rows) + 1))
    if elastic == "hold":
        assert_as_undisturbed(run, tmp_path / "undisturbed")
    else:
        assert_followed(rows, Recipe.load(run / "recipe.toml"))


def assert_as_undisturbed(run, out):
    """Assert that rows are those of one process that nobody disturbed, to the bit."""
    rows = rows_of(run)
    train(
        recipe=Recipe.load(run / "recipe.toml"),
        out=out,
        quiet=True,
        on_iteration=lambda row: row["iterations"] < len(rows),
    )
    without = [{k: v for k, v in row.items() if k != "resumed"} for row in numbers(rows)]
    assert without == numbers(rows_of(out))


def assert_followed(rows, recipe):
    """Assert that batch and hyperparameters followed the workers, and came back."""
    left, joined = (row for row in rows if "resumed" in row)
    assert left["reshaped"].startswith("n_envs 8 -> 4, ")
    assert joined["reshaped"].startswith("n_envs 4 -> 8, ")
    there, back = (set(row["reshaped"].split(", ")) for row in (left, joined))
    assert {reverse(each) for each in there} == back
    assert {each.split()[0] for each in there} >= {"n_envs", "learning_rate", "proximal_decay"}
    batches = [row["n_envs"] for row in rows]
    begins, ends = left["iterations"] - 1, joined["iterations"] - 1
    assert batches == [8] * begins + [4] * (ends - begins) + [8] * (len(rows) - ends)
    # The step size's own schedule is linear in the steps that were taken before a rollout.
    for before, row in pairwise(rows):
        expected = recipe.optimizer.learning_rate * (row["n_envs"] / 8) ** 0.5
        if recipe.optimizer.learning_rate_schedule == "linear":
            expected *= 1 - before["env_steps"] / recipe.total_timesteps
        assert row["learning_rate"] == pytest.approx(expected, rel=1e-6)


def reverse(change):
    """Return "name 2 -> 1" for "name 1 -> 2"."""
    name, old, _, new = change.split()
    return f"{name} {new} -> {old}"


def ip(words):
    return subprocess.run(["ip", *words.split()], capture_output=True, text=True, check=False)


@pytest.fixture
def hosts():
    """Two hosts with a link between them."""
    if shutil.which("ip") is None:
        pytest.skip("iproute2 is not installed")
    names = [f"isobatch-{os.getpid()}-{each}" for each in "ab"]
    made = [ip(f"netns add {name}") for name in names]
    try:
        if any(each.returncode for each in made):
            pytest.skip(f"no network namespace can be made: {made[0].stderr.strip()}")
        made = ip(f"link add link0 netns {names[0]} type veth peer name link0 netns {names[1]}")
        if made.returncode:
            pytest.skip(f"no link between namespaces can be made: {made.stderr.strip()}")
        for name, address in zip(names, (FIRST, SECOND), strict=True):
            ip(f"-n {name} addr add {address}/24 dev link0")
            ip(f"-n {name} link set lo up")
            ip(f"-n {name} link set link0 up")
            # Linux gives a connection up after some 15 minutes, and torchrun's agent with it; so
            # after 100 s.
            ip(f"netns exec {name} sysctl -qw net.ipv4.tcp_retries2=8")
        yield names
    finally:
        for name in names:
            ip(f"netns del {name}")


@pytest.mark.parametrize("restored", [True, False])
def test_a_link_that_is_cut(agents, hosts, tmp_path, restored):
    run, port = tmp_path / "run", 29777
    both = [
        agents("first", FIRST, port, "2:2", host=hosts[0]),
        agents("second", SECOND, port, "2:2", host=hosts[1]),
    ]
    wait_for_more(run)
    began = time.monotonic()
    assert ip(f"-n {hosts[0]} link set link0 down").returncode == 0
    for agent in both:
        wait_until(agent.said, 40)
        print(f"{time.monotonic() - began:.1f} s: {agent.said()[0]}")
    assert time.monotonic() - began < soon(32)
    said = sorted(each.said()[0] for each in both)
    assert said[0].startswith(f"isobatch: the rendezvous host is gone: {FIRST}, port ")
    assert said[1].startswith("isobatch: worker 1 (pid ")
    assert "has not been heard from for 2" in said[1]
    if restored:
        ip(f"-n {hosts[0]} link set link0 up")
        began = time.monotonic()
        wait_until(lambda: resumed(run), 120)
        print(f"goes on {time.monotonic() - began:.1f} s after the link is restored")
        wait_for_more(run)
        rows = rows_of(run)
        assert [row["iterations"] for row in rows] == list(range(1, len(rows) + 1))
    else:
        for agent in both:
            assert agent.process.wait(soon(150)) != 0
        print(f"both have ended {time.monotonic() - began:.1f} s after the cut")
        assert sum(len(agent.said()) for agent in both) == 2, "a line each"
