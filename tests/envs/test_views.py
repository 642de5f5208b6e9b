"""Frame stacks against SB3's VecFrameStack, and MiniGrid's flat observation."""

import sys
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from stable_baselines3.common.vec_env import DummyVecEnv, VecFrameStack

from isobatch import UserError, envs
from isobatch.envs.catalog import resolve
from isobatch.envs.gym import GymEnv
from isobatch.envs.spaces import ObservationLayout
from isobatch.envs.views import MISSION_CODES, FrameStack
from isobatch.recipe import Recipe

N, FRAMES, SEED = 2, 3, 5
SPACES = {
    "vector": spaces.Box(-9, 9, (2,)),
    "image": spaces.Box(0, 255, (36, 40, 3), np.uint8),
    "channels first": spaces.Box(0, 255, (3, 36, 40), np.uint8),
}


def streams(space) -> list[Any]:
    class Stream(gymnasium.Env):
        """Random observations, in episodes of four steps and of six."""

        observation_space, action_space = space, spaces.Discrete(2)

        def _observe(self):
            noise = self.np_random.integers(1, 9, space.shape)
            return noise.astype(space.dtype)

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            self.left = 4 + 2 * int(self.np_random.integers(2))
            return self._observe(), {}

        def step(self, action):
            self.left -= 1
            return self._observe(), 0.0, False, self.left == 0, {}

    return [Stream] * N


def encoded(layout, observation):
    ((_, rows),) = layout.encode(observation).items()
    return rows


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_frames_are_stacked_as_vecframestack_does(space, mode):
    vector = SyncVectorEnv(streams(SPACES[space]), autoreset_mode=mode)
    ours = FrameStack(GymEnv(vector, "stream", [SEED, SEED + 1]), FRAMES)
    theirs: Any = VecFrameStack(DummyVecEnv(streams(SPACES[space])), FRAMES)
    # The layout is that of the stacked space, which a policy's file has.
    layout = ours.observation_layout
    assert layout == ObservationLayout.of(theirs.observation_space, "stream")
    theirs.seed(SEED)
    ((part, seen),) = ours.reset().items()
    expected = encoded(layout, theirs.reset().copy())
    assert torch.equal(seen, expected)
    for _ in range(15):
        step = ours.step(torch.zeros(N, 1, dtype=torch.long))
        raw, _, done, infos = theirs.step(np.zeros(N, int))
        expected = encoded(layout, raw.copy())
        if mode is AutoresetMode.NEXT_STEP and done.any():
            # The final observations first, then a row in which those that ended are reset.
            seen = step.observation[part]
            for n in np.flatnonzero(done):
                final = encoded(layout, infos[n]["terminal_observation"][None])[0]
                assert torch.equal(seen[n], final)
            for n in np.flatnonzero(~done):
                assert torch.equal(seen[n], expected[n])
            return
        assert torch.equal(step.observation[part], expected)
        for n in np.flatnonzero(done):
            assert step.final is not None
            final = encoded(layout, infos[n]["terminal_observation"][None])[0]
            assert torch.equal(step.final[part][n], final)


def test_after_a_reset_row_the_frames_before_it_are_zeros():
    recipe = Recipe(env="CartPole-v1").replace(
        frame_stack=3, env_options=("max_episode_steps=2",), env_threads=1
    )
    env = envs.make(recipe, [1, 2])
    assert env.observation_layout.vector == 12
    first = env.reset()["vector"]
    assert not first[:, :8].any()
    steps = [env.step(torch.zeros(2, 1, dtype=torch.long)) for _ in range(3)]
    stacks = [step.observation["vector"] for step in steps]
    # The final observation is stacked on both before it; the reset that follows, on nothing.
    assert torch.equal(stacks[1][:, :8], torch.cat([first[:, 8:], stacks[0][:, 8:]], 1))
    assert not steps[2].valid.any()
    assert not stacks[2][:, :8].any()
    env.close()


def test_parts_of_a_dictionary_are_stacked_each_by_itself():
    space = spaces.Dict({"a": spaces.Box(0, 9, (2,)), "b": spaces.Discrete(3)})
    layout = ObservationLayout.of(space, "dict").stacked(2)
    native = {"a": np.array([[1, 2, 3, 4]], np.float32), "b": np.array([[0, 2]])}
    assert layout.encode(native)["vector"].tolist() == [[1, 2, 3, 4, 1, 0, 0, 0, 0, 1]]
    assert ObservationLayout.from_json(layout.to_json()) == layout


def test_minigrid_is_seen_as_its_flat_wrapper_shows_it():
    recipe = Recipe(env="MiniGrid-DoorKey-5x5-v0").replace(env_threads=1)
    plain, flat = (
        envs.make(recipe.replace(wrappers=wrappers), [3]) for wrappers in ((), ("flat_obs",))
    )
    image = plain.reset()["vector"][0, 4:151]
    seen = flat.reset()["vector"][0]
    assert seen.shape == (147 + 96 * 28,)  # MiniGrid's own FlatObsWrapper has 2,835.
    assert torch.equal(seen[:147], image)
    letters = seen[147:].view(96, 28)
    mission = "use the key to open the door and then get to the goal"
    assert [MISSION_CODES[int(row.argmax())] for row in letters[: len(mission)]] == list(mission)
    assert (letters[: len(mission)].sum(1) == 1).all()
    assert not letters[len(mission) :].any()
    plain.close()
    flat.close()


def test_wrappers_are_gymnasiums_own():
    recipe = Recipe(env="CartPole-v1").replace(wrappers=("frame_skip=3", "time"))
    assert resolve(recipe.env, recipe.environment.wrappers).maker == "gymnasium"
    env = envs.make(recipe, [1])
    assert env.observation_layout.vector == 5
    env.reset()
    step = env.step(torch.zeros(1, 1, dtype=torch.long))
    assert float(step.reward) == 3
    # One step of the wrapper's clock, of 500.
    assert float(step.observation["vector"][0, -1]) == pytest.approx(1 / 500)
    env.close()


@pytest.mark.parametrize(
    ("env", "wrappers", "said"),
    [
        ("CartPole-v1", ("os.system",), "there are frame_skip, resize"),
        ("CartPole-v1", ("frame_skip",), "frame_skip=2 was expected"),
        ("CartPole-v1", ("resize=64",), "resize=64x64 was expected"),
        ("CartPole-v1", ("grayscale=1",), "grayscale was expected"),
        ("CartPole-v1", ("flat_obs",), "is for MiniGrid"),
        ("envpool:CartPole-v1", ("time",), "is for Gymnasium's environments"),
        ("gymnasium:CartPole-v1", ("flat_obs",), "package minigrid"),
        ("gymnasium:CartPole-v1", ("grayscale",), "3 channels"),
    ],
)
def test_a_wrapper_that_does_not_fit_is_refused_in_one_line(env, wrappers, said, monkeypatch):
    monkeypatch.setitem(sys.modules, "minigrid", None)  # As where it is not installed.
    with pytest.raises(UserError, match=said):
        envs.make(Recipe(env=env).replace(wrappers=wrappers), [1])


def test_an_option_that_envpool_lacks_may_be_gymnasiums():
    options = Recipe(env="CartPole-v1").replace(env_options=("sutton_barto_reward=True",))
    with pytest.raises(UserError, match="gymnasium:CartPole-v1 takes Gymnasium's"):
        envs.make(options, [1])
    env = envs.make(options.replace(env="gymnasium:CartPole-v1"), [1])
    env.reset()
    assert float(env.step(torch.zeros(1, 1, dtype=torch.long)).reward) == 0
    env.close()
