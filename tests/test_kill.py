import multiprocessing
import os
import random
import signal
import sys
import time
from datetime import UTC, datetime
from itertools import pairwise

import pytest
from busy import soon

from isobatch.cli import main
from isobatch.run.store import read_metrics, read_policy

KILLS = int(os.environ.get("ISOBATCH_KILLS", "6"))
"""Of each run; 15 in `make test-faults`, over seven algorithms."""
BUDGET, N_ENVS = 1_000 * KILLS, 4
TRAIN = [
    *["train", "CartPole-v1", "--total-timesteps", BUDGET, "--n-envs", N_ENVS, "--n-steps", 32],
    *["--checkpoint-seconds", 0.2],
]
SEVERAL, ONE = ["--n-minibatches", 8, "--n-epochs", 4], ["--n-minibatches", 1, "--n-epochs", 1]
PHASES = ["--n-minibatches", 8, "--n-epochs", 1, "--n-policy-iterations", 4]
ALGOS = {"ppo": SEVERAL, "ppo-ewma": SEVERAL, "ppg": PHASES, "ppg-ewma": PHASES, "a2c": ONE,
         "reinforce": ONE, "pqn": SEVERAL}  # fmt: skip
# A server with the imports done forks a command in milliseconds: the kills then fall into the
# command's own work, and not into the seconds that imports take.
SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(
    ["isobatch.cli.flags", "isobatch.run.loop", "envpool", "safetensors.torch"]
)


def run_command(words):
    sys.exit(main([str(word) for word in words]))


def start(*words):
    process = SERVER.Process(target=run_command, args=([*words, "--quiet"],))
    process.start()
    return process


def end(process):
    process.kill()
    process.join()


def wait_until(reached, seconds=60):
    deadline = time.monotonic() + soon(seconds)
    while not reached():
        assert time.monotonic() < deadline, "the run does not get on"
        time.sleep(0.002)


def wait_for_new_rows(run, count):
    born = datetime.now(UTC).isoformat(timespec="milliseconds")
    wait_until(lambda: sum(row["time"] > born for row in read_metrics(run)) >= count)


@pytest.mark.parametrize(
    "algo",
    ["ppo", *(pytest.param(each, marks=pytest.mark.long) for each in ALGOS if each != "ppo")],
)
def test_a_run_killed_again_and_again_completes_without_a_gap_or_a_double_row(tmp_path, algo):
    run, chance = tmp_path / "run", random.Random(0)
    process = start(*TRAIN, "--algo", algo, *ALGOS[algo], "--out", run)
    try:
        wait_until(run.exists)
        for kill in range(KILLS):
            # None of its own rows yet: killed as it starts or cuts back; some: as it trains.
            wait_for_new_rows(run, chance.randrange(5))
            time.sleep(chance.uniform(0, 0.15))
            end(process)
            assert process.exitcode == -signal.SIGKILL, f"kill {kill} came after the run's end"
            process = start("resume", run)
        process.join(timeout=soon(120))
        assert process.exitcode == 0
    finally:
        end(process)
    metrics = read_metrics(run)
    assert [row["iterations"] for row in metrics] == list(range(1, len(metrics) + 1))
    steps = [row["env_steps"] for row in metrics]
    assert all(before < after for before, after in pairwise(steps))
    assert steps[-1] == sum(row["rows"] for row in metrics)
    assert BUDGET - N_ENVS < steps[-1] <= BUDGET
    assert any("resumed" in row for row in metrics)
    assert read_policy(run)[1]["env_steps"] == steps[-1]
    assert [path.name for path in tmp_path.iterdir()] == ["run"], "nothing half-made is left beside"
