"""Copies are told from ordinary tasks with one start, by real environments of both kinds."""

import subprocess
import sys
import warnings
from importlib.metadata import version
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

import isobatch
from isobatch import envs, preset
from isobatch.experience import Collector
from isobatch.experience.copies import CHANCE, CopyWatch, chance
from isobatch.run.store import read_policy
from isobatch.state import TrainState

SEEDS = [11, 22, 33, 44]


class Walk(gymnasium.Env):
    """Walks from a random start for five steps, up or down as the action says."""

    def __init__(self, seeded=True, starts=1 << 30, noise=0.0):
        self.observation_space = spaces.Box(-np.inf, np.inf, (1,), np.float32)
        self.action_space = spaces.Discrete(2)
        self.seeded, self.starts, self.noise = seeded, starts, noise
        self.random = np.random.default_rng(0)

    def reset(self, *, seed=None, options=None):
        if self.seeded and seed is not None:
            self.random = np.random.default_rng(seed)
        self.age, self.place = 0, float(self.random.integers(self.starts))
        return self._observation(), {}

    def step(self, action):
        self.age += 1
        self.place += (2 * int(action) - 1) + self.noise * self.random.normal()
        return self._observation(), 1.0, self.age == 5, False, {}

    def _observation(self):
        return np.array([self.place / self.starts], np.float32)


class Deaf(Walk):
    """Begins at 0 and goes on whatever is done."""

    def __init__(self):
        super().__init__(starts=1)

    def step(self, action):
        return super().step(1)


def warned(make_env=None, env_id=None, seeds=SEEDS, rows=400, **settings):
    """Return what is said about copies while a fresh policy acts for about `rows` rows."""
    recipe = preset(env_id or "CartPole-v1", n_envs=len(seeds), n_minibatches=1, **settings)
    if make_env is not None:
        env = envs.wrap(make_env, "python:make_env", list(seeds))
    else:
        env = envs.make(recipe, list(seeds))
    state = TrainState.begin(recipe, env.observation_layout, env.action_layout, torch.device("cpu"))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        collector = Collector(env, torch.device("cpu"), chunk_size=64)
        for _ in range(rows // (len(seeds) * 10)):
            collector.collect(state.actor, 10)
    env.close()
    return [str(each.message) for each in caught if "environments" in str(each.message)]


def test_environments_that_ignore_their_seeds_are_reported_once_in_one_line():
    said = warned(lambda: Walk(seeded=False))
    assert len(said) == 1
    assert said[0].startswith("python:make_env (gymnasium, your own): the first ")
    assert "of its 4 environments have the same starts" in said[0]
    assert "share their random numbers" in said[0]
    assert "comparisons of n_envs" in said[0]
    assert "\n" not in said[0]


def test_two_environments_need_more_episodes_to_tell():
    assert warned(lambda: Walk(seeded=False), seeds=[1, 2], rows=2 * 30) == []
    assert len(warned(lambda: Walk(seeded=False), seeds=[1, 2], rows=2 * 80)) == 1


def test_environments_in_lockstep_whatever_their_actions_are_reported():
    said = warned(Deaf, rows=4 * 300)
    assert len(said) == 1
    assert "same observations, rewards and episode ends" in said[0]
    assert "or actions have no effect" in said[0]


@pytest.mark.parametrize(
    "make_env",
    [
        Walk,
        lambda: Walk(starts=1),
        lambda: Walk(starts=1, seeded=False),
        lambda: Walk(starts=2),
        lambda: Walk(starts=1, noise=1.0),
    ],
    ids=["random start", "one start", "one start, no seed", "two starts", "random steps"],
)
def test_ordinary_environments_are_not_reported(make_env):
    assert warned(make_env, rows=4 * 300) == []
    assert warned(make_env, seeds=[1, 2], rows=2 * 300) == []


@pytest.mark.parametrize(
    "env_id",
    [
        "CartPole-v1", "FrozenLake-v1", "Taxi-v3", "CliffWalking-v0", "Pendulum-v1",
        "MiniGrid-Empty-5x5-v0", "HalfCheetah-v4", "gymnasium:FrozenLake-v1",
    ],
)  # fmt: skip
def test_real_environments_are_not_reported(env_id):
    assert warned(env_id=env_id, rows=4 * 600) == []


@pytest.mark.parametrize("life", [True, False])
def test_atari_which_begins_every_game_alike_is_not_reported(life):
    """A lost life is no start: before the first point all screens after it may be the same."""
    settings = {"episodic_life": life, "env_options": ("noop_max=1",)}
    assert warned(env_id="Breakout-v5", rows=4 * 400, **settings) == []


def test_procgen_with_one_level_is_not_reported():
    assert warned(env_id="CoinrunEasy-v0", rows=4 * 100, env_options=("num_levels=1",)) == []


MYOSUITE = {
    "myoHandReachRandom-v0": "though it is called random",
    "motorFingerPoseRandom-v0": "though it is called random",
    "myoHandReachFixed-v0": None,  # One start, as its name says.
    "myoChallengeBaodingP2-v1": None,  # One start, but another one in the very first episode.
    "MyoHandBananaRandom-v0": None,  # Draws its starts.
}


@pytest.mark.parametrize("env_id", MYOSUITE)
@pytest.mark.skipif(version("envpool") != "1.2.5", reason="what EnvPool 1.2.5 does")
def test_what_of_envpools_myosuite_begins_alike_and_should_not_is_reported(env_id):
    options = {"env_options": ("max_episode_steps=5",)}
    said = warned(env_id=env_id, seeds=range(8), rows=8 * 80, **options)
    if MYOSUITE[env_id] is None:
        assert said == []
    else:
        assert len(said) == 1
        assert said[0].startswith(f"{env_id} (envpool, myosuite): ")
        assert MYOSUITE[env_id] in said[0]
        assert "comparisons of n_envs" in said[0]


def test_the_chance_of_agreement_is_what_independent_draws_give():
    assert chance([], 4) == 1
    assert chance([b"a", b"a", b"a"], 64) == 1
    assert chance([b"a", b"b"], 2) == pytest.approx(1 / 4)
    assert chance([b"a", b"b", b"c"], 4) == pytest.approx((1 / 3) ** 9)
    assert chance([b"a", b"a", b"b"], 2) == pytest.approx((2 / 3) ** 2 / 3)
    assert chance([bytes([k]) for k in range(8)], 2) < CHANCE < chance([b"a", b"b"] * 8, 2)


def test_watching_changes_no_bit_of_training(tmp_path, monkeypatch):
    settings: dict[str, Any] = {"n_envs": 4, "n_steps": 16, "n_minibatches": 2}
    settings |= {"total_timesteps": 640, "quiet": True}

    def policy(name):
        run = isobatch.train(make_env=lambda: Walk(starts=1), out=tmp_path / name, **settings)
        return read_policy(run.path)[0]

    watched = policy("watched")
    monkeypatch.setattr(CopyWatch, "see", lambda self, rollout: None)
    unwatched = policy("unwatched")
    assert all(torch.equal(watched[name], unwatched[name]) for name in watched)


def test_on_the_command_line_the_warning_is_one_line(tmp_path):
    (tmp_path / "copied.py").write_text(
        "import gymnasium, numpy as np\n"
        "class Copied(gymnasium.Env):\n"
        "    observation_space = gymnasium.spaces.Box(0, 1, (1,), np.float32)\n"
        "    action_space = gymnasium.spaces.Discrete(2)\n"
        "    def __init__(self):\n"
        "        self.random = np.random.default_rng(0)\n"
        "    def reset(self, *, seed=None, options=None):\n"
        "        return self.random.random(1).astype(np.float32), {}\n"
        "    def step(self, action):\n"
        "        return np.zeros(1, np.float32), float(action), True, False, {}\n"
        "gymnasium.register('Copied-v0', entry_point=Copied)\n"
    )
    words = "train copied:Copied-v0 --import copied --n-envs 4 --n-steps 16 --n-minibatches 1"
    ended = subprocess.run(
        [sys.executable, "-m", "isobatch", *words.split(), "--total-timesteps", "128",
         "--out", str(tmp_path / "run"), "--quiet"],
        cwd=tmp_path, capture_output=True, text=True, check=True,
    )  # fmt: skip
    lines = ended.stderr.splitlines()
    assert len(lines) == 1, ended.stderr
    assert lines[0].startswith("isobatch: copied:Copied-v0 (gymnasium, ")
