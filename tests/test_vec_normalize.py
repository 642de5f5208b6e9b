"""Statistics that are updated at every step: the numbers of SB3's VecNormalize."""

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

import isobatch
from isobatch.envs.gym import GymEnv
from isobatch.experience import Collector
from isobatch.recipe import Recipe
from isobatch.run.cohort import why_alone
from isobatch.run.store import read_policy
from isobatch.state import TrainState

N, T, SEED = 3, 20, 7
SETTINGS: dict[str, Any] = {
    "gamma": 0.9, "clip_obs": 1.5, "clip_reward": 0.8, "epsilon": 1e-3,
}  # fmt: skip
RECIPE = Recipe(env="stream").replace(
    n_envs=N, n_steps=T, normalize_observations=True, normalize_rewards=True, compile="off",
    update_statistics="step", reward_gamma=0.9, observation_clip=1.5, reward_clip=0.8,
    normalize_epsilon=1e-3,
)  # fmt: skip


class Stream(gymnasium.Env):
    """Random observations and rewards, whatever is done, in episodes of random length."""

    observation_space = spaces.Box(-np.inf, np.inf, (4,))
    action_space = spaces.Discrete(2)

    def _observe(self):
        return self.np_random.normal([0, 5, -3, 0.1], [1, 2, 30, 0.01]).astype(np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self._observe(), {}

    def step(self, action):
        ends, reward = self.np_random.random() < 0.2, self.np_random.normal(1, 3)
        return self._observe(), reward, False, bool(ends), {}


def state_of(env, recipe=RECIPE) -> Any:
    layouts = env.observation_layout, env.action_layout
    return TrainState.begin(recipe, *layouts, torch.device("cpu"))


@pytest.mark.parametrize("architecture", ["shared", "dual"])
def test_what_is_acted_on_and_learned_from_is_what_vecnormalize_gives(architecture):
    vector = SyncVectorEnv([Stream] * N, autoreset_mode=AutoresetMode.SAME_STEP)
    env = GymEnv(vector, "stream", [SEED + i for i in range(N)])
    state = state_of(env, RECIPE.replace(architecture=architecture))
    collector = Collector(env, torch.device("cpu"), 1000)
    theirs: Any = VecNormalize(DummyVecEnv([Stream] * N), **SETTINGS)
    theirs.seed(SEED)
    observation = theirs.reset()
    for _ in range(2):
        rollout: Any = collector.collect(state.actor, T)
        rewards = state.reward_normalizer(rollout.rewards, rollout.first, rollout.valid)
        assert bool(rollout.truncated.any())
        for t in range(T):
            np.testing.assert_allclose(rollout.vectors[t], observation, rtol=2e-6, atol=1e-6)
            observation, reward, done, infos = theirs.step(np.zeros(N, int))
            np.testing.assert_allclose(rewards[t], reward, rtol=2e-6)
            for n in np.flatnonzero(done):
                final = torch.from_numpy(infos[n]["terminal_observation"])[None]
                with torch.no_grad():
                    value = state.model.values({"vector": final})
                assert float(rollout.final_values[t, n]) == pytest.approx(float(value), abs=1e-5)
        np.testing.assert_allclose(rollout.vectors[T], observation, rtol=2e-6, atol=1e-6)
        rows = rollout.acted_on(state.observation_normalizer)
        with torch.no_grad():
            params, values = state.model(rows)
        # What is learned from has the log-probabilities and values of acting.
        torch.testing.assert_close(params, rollout.params.flatten(0, 1))
        torch.testing.assert_close(values, rollout.values[:-1].flatten())
    moments = state.observation_normalizer.moments
    np.testing.assert_allclose(moments.mean, theirs.obs_rms.mean, rtol=1e-6)
    np.testing.assert_allclose(moments.var, theirs.obs_rms.var, rtol=1e-6)
    assert float(state.reward_normalizer.moments.var) == pytest.approx(theirs.ret_rms.var, rel=1e-6)


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_final_observations_are_no_part_of_the_statistics(mode):
    """SB3's never see them; of environments that reset on the next step they are a row."""

    class Clock(gymnasium.Env):
        observation_space, action_space = spaces.Box(0, 99, (1,)), spaces.Discrete(2)

        def reset(self, *, seed=None, options=None):
            self.time = 0
            return np.zeros(1, np.float32), {}

        def step(self, action):
            self.time += 1
            final = self.time == 3
            return np.full(1, 99 if final else self.time, np.float32), 0.0, final, False, {}

    env = GymEnv(SyncVectorEnv([Clock] * 2, autoreset_mode=mode), "clock", [1, 2])
    state = state_of(env)
    Collector(env, torch.device("cpu"), 1000).collect(state.actor, 24)
    moments = state.observation_normalizer.moments
    # Actions are taken on 0, 1 and 2, on the first of them once more than on the others.
    assert float(moments.mean) == pytest.approx(1, abs=0.06)
    assert float(moments.var) == pytest.approx(2 / 3, abs=0.06)


def test_evaluation_leaves_the_statistics_alone_and_a_run_is_trained_alone(tmp_path):
    settings = {
        "n_envs": 4, "n_steps": 8, "total_timesteps": 64, "normalize_observations": True,
        "update_statistics": "step", "compile": "off", "hidden_sizes": (4,),
    }  # fmt: skip
    for name, marks in (("plain", 0), ("evaluated", 2)):
        out = tmp_path / name
        isobatch.train("CartPole-v1", **settings, eval_marks=marks, quiet=True, out=out)
    plain, _ = read_policy(tmp_path / "plain")
    evaluated, _ = read_policy(tmp_path / "evaluated")
    # 64 transitions, and the observations of up to four that the next rollout would begin with.
    assert 64 < float(plain["observation.count"]) < 68.1
    for name, tensor in plain.items():
        assert torch.equal(tensor, evaluated[name])
    recipe = Recipe.load(tmp_path / "plain" / "recipe.toml")
    assert "statistics" in str(why_alone(recipe))
    assert why_alone(recipe.replace(update_statistics="rollout")) is None
