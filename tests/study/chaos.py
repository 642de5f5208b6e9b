"""Run a study while its workers, and once its driver, are killed at random.

    python tests/study/chaos.py --cluster ray --runs 40

The study must finish all the same, every run once, no row of metrics lost or doubled.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from isobatch.run.store import read_metrics
from isobatch.study.queue import Queue

STUDY = """
[study]
envs = ["CartPole-v1", "Acrobot-v1"]
budget = {budget}
seeds = {seeds}
evaluate = 2
[base]
eval_marks = 2
eval_episodes = 2
n_minibatches = 2
n_epochs = 2
checkpoint_seconds = 0.2
[arms]
narrow = {{ n_envs = 4, n_steps = 32 }}
wide = {{ n_envs = 32, n_steps = 4 }}
"""


@dataclass(frozen=True)
class Torment:
    """What was done to the study."""

    workers_killed: int
    drivers_killed: int
    seconds: float


def torment(
    root: Path, cluster: str, seeds: int, budget: int, every: float, kills: int = 10_000
) -> Torment:
    """Conduct a study of 4 x `seeds` runs, killing a worker about `every` seconds."""
    dice = random.Random(0)
    file = root.with_suffix(".toml")
    file.write_text(STUDY.format(seeds=seeds, budget=budget))
    command = [sys.executable, "-m", "isobatch", "study", str(file), "--out", str(root)]
    command += ["--jobs", "2", "--cluster", cluster, "--quiet"]
    began, killed, drivers = time.monotonic(), 0, 0
    driver = subprocess.Popen(command, start_new_session=True, stdout=subprocess.DEVNULL)
    try:
        while driver.poll() is None:
            time.sleep(dice.uniform(0.5, 1.5) * every)
            if not drivers and finished(root) >= seeds:
                driver.kill()
                driver.wait()
                drivers = 1
                driver = subprocess.Popen(
                    command, start_new_session=True, stdout=subprocess.DEVNULL
                )
                continue
            victims = workers(root)
            if victims and killed < kills and driver.poll() is None:
                os.kill(dice.choice(victims), signal.SIGKILL)
                killed += 1
    finally:
        if driver.poll() is None:
            os.killpg(driver.pid, signal.SIGKILL)
    assert driver.returncode == 0, f"the study ended with {driver.returncode}"
    return Torment(killed, drivers, time.monotonic() - began)


def workers(root: Path) -> list[int]:
    """Return the processes that hold a cell."""
    if not (root / "study.json").exists():
        return []
    queue = Queue.open(root)
    holders = [
        queue._holder(cell) for cell, status in queue.states().items() if status == "running"
    ]
    return [holder.pid for holder in holders if holder is not None and not holder.is_dead]


def finished(root: Path) -> int:
    """Return how many runs are done."""
    if not (root / "study.json").exists():
        return 0
    return Counter(Queue.open(root).states().values())["done"]


def check(root: Path) -> int:
    """Assert that every run was finished once, with whole metrics; return their number."""
    queue = Queue.open(root)
    for cell, status in queue.states().items():
        assert status == "done", f"{cell} is {status}"
        result = queue.result(cell)
        rows = read_metrics(queue.run_path(cell))
        assert [row["iterations"] for row in rows] == list(range(1, len(rows) + 1)), str(cell)
        steps = [row["env_steps"] for row in rows]
        assert steps == sorted(set(steps)), str(cell)
        short = queue.study.budget - steps[-1]
        assert 0 <= short < queue.study.recipe(cell).batch.n_envs, str(cell)
        assert result.env_steps == steps[-1], str(cell)
    runs = list((root / "runs").rglob("recipe.toml"))
    assert len(runs) == len(queue.study.cells), "a run is there twice"
    return len(runs)


def main() -> None:
    """Torment a study and say how it went."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cluster", choices=["local", "ray"], default="local")
    parser.add_argument("--runs", type=int, default=40)
    parser.add_argument("--budget", type=int, default=40_000)
    parser.add_argument("--every", type=float, default=3.0, help="seconds between kills")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "study"
        done = torment(root, args.cluster, args.runs // 4, args.budget, args.every)
        print(
            f"{args.cluster}: {check(root)} of {args.runs} runs finished once each in "
            f"{done.seconds:.0f} s; {done.workers_killed} workers and {done.drivers_killed} "
            "driver killed"
        )


if __name__ == "__main__":
    main()
