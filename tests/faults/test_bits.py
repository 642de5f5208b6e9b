"""Killed anywhere and resumed, a run has the weights of one that was left alone, to the bit."""

import gc
import hashlib
import os
import random
import signal
import time
from typing import Any

import pytest

import isobatch
from isobatch.run.store import read_policy

SEEDS = int(os.environ.get("ISOBATCH_SEEDS", "1"))
"""Of each case; 10 in `make test-faults`."""
KILLS = 2
COMMON = {
    "compile": "off", "threads": 1, "env_threads": 1, "keep_policies": 0, "exact_resume": True,
    "checkpoint_seconds": 0.01, "n_minibatches": 2, "n_epochs": 2,
}  # fmt: skip
SMALL = {"n_envs": 8, "n_steps": 32, "hidden_sizes": (16,), "total_timesteps": 8192}
IMAGES = {"n_envs": 4, "n_steps": 16, "total_timesteps": 512}
ENVS = {
    "CartPole-v1": SMALL | {"normalize_observations": True, "normalize_rewards": True},
    "LunarLander-v3": SMALL,
    "Breakout-v5": IMAGES,
    "StarpilotEasy-v0": IMAGES,
}
ALGOS = {
    "ppo": {"algo": "ppo"},
    "ppo-ewma": {"algo": "ppo-ewma"},
    "ppg-ewma": {"algo": "ppg-ewma", "n_policy_iterations": 3, "n_aux_epochs": 1},
    "stale": {"algo": "ppo-ewma", "staleness": 2},
}


def child(act):
    """Begin `act` in a process of its own."""
    number = os.fork()
    if not number:
        gc.freeze()  # Vectors that are garbage have threads in the parent only.
        code = 1
        try:
            act()
            code = 0
        finally:
            os._exit(code)
    return number


def ended(number):
    return os.waitstatus_to_exitcode(os.waitpid(number, 0)[1])


def weights(path):
    tensors, _ = read_policy(path)
    total = hashlib.sha256()
    for name in sorted(tensors):
        total.update(tensors[name].numpy().tobytes())
    return total.hexdigest()


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    """What a run imports: loaded once, here, and not in every process."""
    settings: dict[str, Any] = COMMON | SMALL | {"total_timesteps": 256}
    isobatch.train("CartPole-v1", **settings, out=tmp_path_factory.mktemp("run") / "a", quiet=True)


@pytest.mark.long
@pytest.mark.usefixtures("loaded")
@pytest.mark.parametrize("env", ENVS)
@pytest.mark.parametrize("algo", ALGOS)
@pytest.mark.parametrize("seed", range(1, SEEDS + 1))
def test_the_same_weights_whenever_it_was_killed(tmp_path, env, algo, seed):
    whole, killed = tmp_path / "whole", tmp_path / "killed"

    def go_on(path):
        if (path / "recipe.toml").exists():
            isobatch.resume(path, quiet=True)
        else:
            settings: dict[str, Any] = COMMON | ENVS[env] | ALGOS[algo]
            isobatch.train(env, **settings, seed=seed, out=path, quiet=True)

    began = time.monotonic()
    assert ended(child(lambda: go_on(whole))) == 0
    seconds, draw = time.monotonic() - began, random.Random(f"{env} {algo} {seed}")
    for _ in range(KILLS):
        number = child(lambda: go_on(killed))
        time.sleep(draw.uniform(0.2, 1.0) * seconds)
        os.kill(number, signal.SIGKILL)
        assert ended(number) in (0, -signal.SIGKILL)
    assert ended(child(lambda: go_on(killed))) == 0
    assert weights(killed) == weights(whole)
