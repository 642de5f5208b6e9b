"""CleanRL as a peer: its scripts, run as they are from a checkout that the user names.

A script prints a line with its steps per second at the end of each iteration; when that line
arrives is when the iteration has ended. The scripts' networks are the cases' networks.
"""

import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.peers.cases import Case
from benchmarks.peers.record import Cannot, Task, Watch, mean_or_none, one_by_one, serve

SCRIPTS = {
    "CartPole-v1": "ppo.py",
    "Pendulum-v1": "ppo_continuous_action.py",
    "Breakout-v5": "ppo_atari_envpool.py",
}
REASONS = {
    "StarpilotHard-v0": "ppo_procgen.py plays the easy levels",
    "MiniGrid-Empty-8x8-v0": "no script reads MiniGrid's observations",
}
RETURN = re.compile(r"episodic_return=\[?(-?[0-9.]+)")
RATE = re.compile(r"^SPS: ([0-9]+)")


def command(case: Case, checkout: Path, seed: int) -> list[str]:
    """Return the command that trains a case."""
    if case.env not in SCRIPTS:
        raise Cannot(REASONS.get(case.env, "no script for it"))
    script = checkout / "cleanrl" / SCRIPTS[case.env]
    if not script.is_file():
        raise Cannot(f"{checkout} has no cleanrl/{SCRIPTS[case.env]}")
    values = {
        "seed": seed,
        "env-id": case.env,
        "total-timesteps": case.total_timesteps,
        "num-envs": case.n_envs,
        "num-steps": case.n_steps,
        "num-minibatches": case.n_minibatches,
        "update-epochs": case.n_epochs,
        "learning-rate": case.learning_rate,
        "gamma": case.gamma,
        "gae-lambda": case.gae_lambda,
        "clip-coef": case.clip_range,
        "ent-coef": case.ent_coef,
        "vf-coef": case.vf_coef,
        "max-grad-norm": case.max_grad_norm,
    }
    words = [word for name, value in values.items() for word in (f"--{name}", str(value))]
    return [sys.executable, "-u", str(script), *words, "--no-anneal-lr", "--no-clip-vloss"]


def read(line: str, case: Case, marks: int, watch: Watch, returns: list[float]) -> int:
    """Take from a line of output what it says; return how many iterations have ended by now."""
    returns += map(float, RETURN.findall(line))
    rate = RATE.match(line)
    if rate is None:
        return marks
    now = time.monotonic()
    if marks == 0:
        # The script's own rate says when its first iteration began.
        watch.begin(case.warm_up, at=now - case.rollout_size / max(int(rate[1]), 1))
    watch.mark((marks + 1) * case.rollout_size, at=now)
    return marks + 1


def train_one(task: Task, seed: int) -> float | None:
    """Run a script to its end in a folder that is thrown away."""
    case, returns, marks = task.case, [], 0
    words = command(case, Path(task.options["checkout"]), seed)
    threads = {} if case.torch_threads is None else {"OMP_NUM_THREADS": str(case.torch_threads)}
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile("w+") as errors:
        child = subprocess.Popen(
            words,
            cwd=folder,
            env=os.environ | threads,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
        assert child.stdout is not None
        for line in child.stdout:
            marks = read(line, case, marks, task.watch, returns)
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode:
            errors.seek(0)
            raise RuntimeError(errors.read()[-2000:])
    task.watch.child_peak_mb = max(task.watch.child_peak_mb, usage.ru_maxrss / 1024)
    return mean_or_none(returns)


if __name__ == "__main__":
    serve(one_by_one(train_one), ("torch", "gymnasium", "gym", "envpool", "numpy"))
