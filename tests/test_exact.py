"""A run that was stopped and resumed equals one that was not, to the bit."""

import hashlib
import os
from typing import Any

import gymnasium
import numpy as np
import pytest

import isobatch
from isobatch import UserError
from isobatch.run.examine import examine
from isobatch.run.store import CLOCK_COLUMNS, read_policy, read_sealed

SMALL = {
    "n_envs": 4, "n_steps": 16, "n_minibatches": 2, "n_epochs": 2, "hidden_sizes": (8,),
    "compile": "off", "threads": 1, "env_threads": 1, "total_timesteps": 640, "keep_policies": 0,
    "exact_resume": True,
}  # fmt: skip
FREE = (*CLOCK_COLUMNS, "resumed")


def weights(path):
    tensors, _ = read_policy(path)
    total = hashlib.sha256()
    for name in sorted(tensors):
        total.update(tensors[name].numpy().tobytes())
    return total.hexdigest()


def rows(run):
    return [{k: v for k, v in row.items() if k not in FREE} for row in run.metrics]


def stop_after(count):
    seen = []

    def on_iteration(row):
        seen.append(row)
        return len(seen) < count

    return on_iteration


CASES = {
    "ppo": {"normalize_observations": True, "normalize_rewards": True},
    "by-step": {
        "normalize_observations": True,
        "normalize_rewards": True,
        "update_statistics": "step",
        "stagger": True,
    },
    "ppo-ewma": {"algo": "ppo-ewma", "n_epochs": 1},
    "a2c": {"algo": "a2c", "n_minibatches": 1, "n_epochs": 1},
    "pqn": {"algo": "pqn"},
    "reinforce": {"algo": "reinforce", "n_minibatches": 1, "n_epochs": 1},
    "ppg-ewma": {"algo": "ppg-ewma", "n_policy_iterations": 4, "n_aux_epochs": 2, "n_epochs": 1},
    "kl-adaptive": {"learning_rate_schedule": "kl-adaptive", "desired_kl": 1e-4},
    "stale": {"staleness": 2},
    "staggered": {"stagger": True},
    "scheduled": {"batch_schedule": "0:4x16, 200:8x8"},
    "adaptive": {"batch_schedule": "adaptive", "probe_every": 2},
    "evaluated": {"eval_marks": 4, "eval_episodes": 2},
    "pendulum": {"env": "Pendulum-v1", "normalize_rewards": True},
    "gSDE": {"env": "Pendulum-v1", "use_sde": True, "sde_sample_freq": 3},
    "gymnasium": {"env": "gymnasium:CartPole-v1"},
}


@pytest.mark.parametrize("case", CASES)
def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path, case):
    settings = {"env": "CartPole-v1", **SMALL, **CASES[case]}
    env = settings.pop("env")
    whole = isobatch.train(env, **settings, out=tmp_path / "whole", quiet=True)
    isobatch.train(env, **settings, out=tmp_path / "cut", quiet=True, on_iteration=stop_after(2))
    isobatch.resume(tmp_path / "cut", quiet=True, on_iteration=stop_after(3))
    cut = isobatch.resume(tmp_path / "cut", quiet=True)
    assert rows(cut) == rows(whole)
    assert weights(tmp_path / "cut") == weights(tmp_path / "whole")
    drop = {"seconds"}
    assert [{k: v for k, v in row.items() if k not in drop} for row in cut.evaluations] == [
        {k: v for k, v in row.items() if k not in drop} for row in whole.evaluations
    ]


REMADE = {
    "ppo": {"normalize_rewards": True, "normalize_observations": True},
    "reinforce": {"algo": "reinforce", "n_minibatches": 1, "n_epochs": 1},
    "ppg-ewma": {"algo": "ppg-ewma", "n_policy_iterations": 4, "n_aux_epochs": 2, "n_epochs": 1},
    "stale": {"staleness": 2},
    "staggered": {"stagger": True},
    "scheduled": {"batch_schedule": "0:4x16, 300:6x8, 900:3x16", "n_minibatches": 1},
    "adaptive": {"batch_schedule": "adaptive", "probe_every": 2},
    "alone": {"n_envs": 1, "n_minibatches": 1, "total_timesteps": 320},
    "gymnasium": {"env": "gymnasium:CartPole-v1"},
    "processes": {"env": "gymnasium:CartPole-v1", "vectorization": "async"},
}
SHORT = {"env_options": ("max_episode_steps=2",), "remake_steps": 40, "total_timesteps": 1280}


@pytest.mark.parametrize(
    "case",
    [
        case
        if case in ("ppo", "reinforce", "gymnasium")
        else pytest.param(case, marks=pytest.mark.long)
        for case in REMADE
    ],
)
def test_it_does_with_environments_that_are_made_anew(tmp_path, case):
    """Stopped before any was, between the first and the last of the first four, and later."""
    settings: dict[str, Any] = {"env": "CartPole-v1", **SMALL, **SHORT, **REMADE[case]}
    env = settings.pop("env")
    whole = isobatch.train(env, **settings, out=tmp_path / "whole", quiet=True)
    assert sum(row["envs_remade"] for row in whole.metrics) > 4
    path = tmp_path / "cut"
    isobatch.train(env, **settings, out=path, quiet=True, on_iteration=stop_after(2))
    for count in (1, 1, 5, 2):
        isobatch.resume(path, quiet=True, on_iteration=stop_after(count))
        assert all(each.is_whole for each in examine(path))
    cut = isobatch.resume(path, quiet=True)
    assert rows(cut) == rows(whole)
    assert weights(path) == weights(tmp_path / "whole")


class Heard(isobatch.Sink):
    """Remembers what is said."""

    def __init__(self):
        self.notes = []

    def note(self, text):
        self.notes.append(text)


def test_actions_before_the_oldest_environments_are_dropped_and_not_taken_again(tmp_path):
    settings: dict[str, Any] = SMALL | SHORT | {"checkpoint_seconds": 0.0}
    path, heard = tmp_path / "run", Heard()
    isobatch.train("CartPole-v1", **settings, out=path, quiet=True, on_iteration=stop_after(25))
    numbers = read_sealed(max((path / "checkpoints").glob("*")))[1]["exact"]
    assert numbers["journal"]["steps"] == 25 * 16
    oldest = min(part["made_at"] for part in numbers["parts"])
    assert oldest >= 25 * 16 - 1.75 * (40 + 4) - 16
    files = sorted(path.glob("actions-*.bin"))
    assert len(files) < 8, "those of the last two checkpoints"
    isobatch.resume(path, quiet=True, sinks=[heard], on_iteration=stop_after(1))
    assert f"replaying {25 * 16 - oldest} steps of every environment" in heard.notes[0]
    damaged = path / f"actions-{numbers['journal']['files'][0]['number']:09d}.bin"
    damaged.write_bytes(damaged.read_bytes()[:-1])
    assert any("of the" in each.said for each in examine(path) if not each.is_whole)


def test_other_environments_and_another_machine_need_to_be_allowed(tmp_path, monkeypatch):
    isobatch.train(
        "CartPole-v1", **SMALL, out=tmp_path / "run", quiet=True, on_iteration=stop_after(2)
    )
    here = isobatch.run.exact.machine()
    monkeypatch.setattr("isobatch.run.exact.machine", lambda: here | {"torch": "0.1"})
    with pytest.raises(UserError, match=r"torch was .*, is 0\.1\): --allow-inexact"):
        isobatch.resume(tmp_path / "run", quiet=True)
    isobatch.resume(tmp_path / "run", allow_inexact=True, quiet=True, on_iteration=stop_after(2))


def test_a_longer_budget_does_not_decide_anew_what_is_compiled(tmp_path, monkeypatch):
    asked = []

    def worth(batch, budget, runs):
        asked.append(budget)
        return False

    monkeypatch.setattr("isobatch.algos.stepping.worth_compiling", worth)
    settings: dict[str, Any] = SMALL | {"compile": "auto"}
    isobatch.train("CartPole-v1", **settings, out=tmp_path / "run", quiet=True)
    isobatch.resume(tmp_path / "run", total_timesteps=1280, quiet=True)
    assert set(asked) == {640}


def test_actions_after_the_checkpoint_are_forgotten(tmp_path):
    """A run that was killed before its second checkpoint, then stopped, then resumed."""
    whole = isobatch.train("CartPole-v1", **SMALL, out=tmp_path / "whole", quiet=True)
    path = tmp_path / "cut"
    isobatch.train("CartPole-v1", **SMALL, out=path, quiet=True, on_iteration=stop_after(2))
    (path / "checkpoints" / "000000002.safetensors").unlink()
    isobatch.resume(path, quiet=True, on_iteration=stop_after(2))
    cut = isobatch.resume(path, quiet=True)
    assert rows(cut) == rows(whole)
    assert all(each.is_whole for each in examine(path))


def test_trained_again_from_scratch_it_is_the_same_run(tmp_path):
    path = tmp_path / "run"
    whole = rows(isobatch.train("CartPole-v1", **SMALL, out=path, quiet=True))
    with pytest.warns(UserWarning, match="set-aside-1"):
        isobatch.resume(path, from_scratch=True, quiet=True, on_iteration=stop_after(2))
    assert rows(isobatch.resume(path, quiet=True)) == whole
    assert list((path / "set-aside-1").glob("actions-*.bin"))


def test_damaged_actions_are_found(tmp_path):
    isobatch.train(
        "CartPole-v1", **SMALL, out=tmp_path / "run", quiet=True, on_iteration=stop_after(2)
    )
    (file,) = (tmp_path / "run").glob("actions-*.bin")
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    with pytest.raises(UserError, match=r"actions-.*was changed"):
        isobatch.resume(tmp_path / "run", quiet=True)


class Unseeded(gymnasium.Env):
    """An environment that no seed brings back."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,))
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        return self._look(), {}

    def step(self, action):
        return self._look(), 0.0, False, False, {}

    def _look(self):
        return np.frombuffer(os.urandom(2), np.uint8).astype(np.float32) / 255


def test_an_environment_that_is_not_deterministic_is_found(tmp_path):
    settings: dict[str, Any] = {"quiet": True, "on_iteration": stop_after(2)}
    isobatch.train(make_env=Unseeded, **settings, **SMALL, out=tmp_path / "run")
    with pytest.raises(UserError, match="not deterministic; --allow-inexact"):
        isobatch.resume(tmp_path / "run", make_env=Unseeded, quiet=True)
    isobatch.resume(tmp_path / "run", make_env=Unseeded, allow_inexact=True, quiet=True)
