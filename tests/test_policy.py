from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import concatenate, create_empty_array
from probe_envs import Acting, Both, Counter, Journal, TensorCounter, vector_of

import isobatch
from isobatch import UserError

TINY: dict[str, Any] = {"n_envs": 2, "n_steps": 8, "n_minibatches": 2, "n_epochs": 1, "quiet": True}
ACTIONS = {
    "Discrete": spaces.Discrete(3, start=2),
    "Box": spaces.Box(-1, 1, (2,), np.float32),
    "Box in rows": spaces.Box(-1, 1, (2, 2), np.float32),
    "MultiDiscrete": spaces.MultiDiscrete([2, 3]),
    "MultiBinary": spaces.MultiBinary(3),
}


class Seeing(Counter):
    """A counter that shows random observations of a space of choice."""

    def __init__(self, space):
        super().__init__()
        self.observation_space = space

    def observation(self):
        return self.observation_space.sample()


OBSERVATIONS = {
    "vector": spaces.Box(-1, 1, (3,), np.float32),
    "double": spaces.Box(-1, 1, (3,), np.float64),
    "matrix": spaces.Box(-1, 1, (2, 2), np.float32),
    "image": spaces.Box(0, 255, (3, 36, 36), np.uint8),
    "channels last": spaces.Box(0, 255, (36, 36, 3), np.uint8),
    "discrete": spaces.Discrete(4, start=1),
    "choices": spaces.MultiDiscrete([2, 3]),
    "both": Both().observation_space,
}


@pytest.fixture(scope="module")
def cartpole(tmp_path_factory):
    path = tmp_path_factory.mktemp("cartpole") / "run"
    settings = TINY | {"n_steps": 32, "normalize_observations": True}
    return isobatch.train("CartPole-v1", out=path, total_timesteps=512, **settings)


def trained(make_env, path, **settings):
    isobatch.train(make_env=make_env, out=path, total_timesteps=16, **TINY | settings)
    return isobatch.load(path)


@pytest.mark.parametrize("kind", OBSERVATIONS)
def test_one_observation_gets_the_action_it_gets_within_a_batch(kind, tmp_path):
    space = OBSERVATIONS[kind]
    policy = trained(lambda: Seeing(space), tmp_path / "run", normalize_observations=True)
    space.seed(0)
    singles = [space.sample() for _ in range(5)]
    stacked = concatenate(space, singles, create_empty_array(space, 5))
    together = policy.predict(stacked, deterministic=True)
    assert together.shape == (5,)
    assert [int(policy.predict(each, deterministic=True)) for each in singles] == together.tolist()


@pytest.mark.parametrize("kind", ACTIONS)
@pytest.mark.parametrize("deterministic", [True, False])
def test_predicted_actions_are_the_environments_own(kind, deterministic, tmp_path):
    space = ACTIONS[kind]
    policy = trained(lambda: Acting(space), tmp_path / "run")
    single = policy.predict(np.array([1.0], np.float32), deterministic=deterministic)
    assert space.contains(single), f"{single!r} is not in {space}"
    several = policy.predict(np.array([[0.0], [1.0], [2.0]], np.float32), deterministic)
    assert several.shape == (3, *space.shape)


def test_a_loaded_policy_predicts_what_it_did_before(cartpole):
    observations = np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32)
    first, second = isobatch.load(cartpole.path), isobatch.load(cartpole.path)
    assert np.array_equal(
        first.predict(observations, deterministic=True),
        second.predict(observations, deterministic=True),
    )
    assert np.array_equal(first.values(observations), second.values(observations))
    assert np.array_equal(first.predict(observations), second.predict(observations))


def test_a_deterministic_prediction_is_the_most_likely_one(cartpole):
    policy = isobatch.load(cartpole.path)
    observation = np.array([0.1, 0.2, 0.02, 0.3], np.float32)
    drawn = [int(policy.predict(observation)) for _ in range(500)]
    chosen = {int(policy.predict(observation, deterministic=True)) for _ in range(20)}
    assert chosen == {max(set(drawn), key=drawn.count)}
    assert len(set(drawn)) == 2


def test_predicting_leaves_the_torch_random_state_alone(cartpole):
    policy = isobatch.load(cartpole.path)
    before = torch.get_rng_state()
    policy.predict(np.zeros(4, np.float32))
    assert torch.equal(torch.get_rng_state(), before)


def test_the_observation_statistics_come_with_the_policy(cartpole):
    policy = isobatch.load(cartpole.path)
    moments = policy.normalizer.moments
    assert moments is not None
    assert float(moments.count) == pytest.approx(cartpole.metrics[-1]["env_steps"], abs=0.01)
    at_mean = policy.normalizer({"vector": moments.mean.float()[None]})["vector"]
    torch.testing.assert_close(at_mean, torch.zeros(1, 4), atol=1e-5, rtol=0)


def test_evaluation_plays_as_many_whole_episodes_as_asked(tmp_path):
    trained(lambda: Counter(3), tmp_path / "run")
    for episodes in (1, 7, 16, 37):
        result = isobatch.evaluate(tmp_path / "run", episodes, make_env=lambda: Counter(3))
        assert result.returns == [6.0] * episodes
        assert result.lengths == [3] * episodes
        assert (result.mean, result.std) == (6, 0)


def test_short_episodes_are_not_evaluated_more_often_than_long_ones(tmp_path):
    class BySeed(Counter):
        def reset(self, *, seed=None, options=None):
            if seed is not None:
                self.length = 40 if seed % 2 else 1
            return super().reset(seed=seed)

    journal = Journal()
    trained(Counter, tmp_path / "run")
    result = isobatch.evaluate(tmp_path / "run", 16, make_env=lambda: BySeed(journal=journal))
    odd = sum(seed % 2 for seed in journal.seeds)
    assert 0 < odd < 16
    assert sorted(result.lengths) == [1] * (16 - odd) + [40] * odd


@pytest.mark.parametrize(
    "make_env",
    [vector_of(AutoresetMode.SAME_STEP, Counter, Counter), lambda: TensorCounter(2)],
    ids=["vector", "tensor"],
)
def test_a_run_on_the_users_own_vector_is_evaluated_on_it(make_env, tmp_path):
    trained(make_env, tmp_path / "run")
    result = isobatch.evaluate(tmp_path / "run", 5, make_env=make_env)
    assert result.returns == [6.0] * 5


def test_the_same_evaluation_twice_gives_the_same_returns(cartpole):
    results = [isobatch.evaluate(cartpole.path, 8, seed=seed).returns for seed in (0, 0, 1)]
    assert results[0] == results[1]
    assert results[0] != results[2]


def test_an_episode_cut_by_the_clock_counts_as_whole(tmp_path):
    options = ("max_episode_steps=4",)
    isobatch.train(
        "CartPole-v1", out=tmp_path / "run", env_options=options, total_timesteps=16, **TINY
    )
    assert isobatch.evaluate(tmp_path / "run", 3).returns == [4.0] * 3


def test_atari_is_evaluated_by_whole_games_and_their_own_score(tmp_path):
    options = ("max_episode_steps=130",)
    isobatch.train(
        "SpaceInvaders-v5", out=tmp_path / "run", env_options=options, total_timesteps=16, **TINY
    )
    result = isobatch.evaluate(tmp_path / "run", 1)
    assert result.lengths[0] > 100, "a life is lost before that, and is no end"
    assert result.returns[0] % 5 == 0
    assert result.returns[0] > 5


def kept(path):
    return sorted(int(file.stem) for file in (path / "policies").glob("*.safetensors"))


def passed(run, parts):
    """Return the env steps at which a run first passed each part of its budget but the last."""
    steps = [row["env_steps"] for row in run.metrics]
    marks = [part * run.recipe.total_timesteps / parts for part in range(1, parts)]
    return sorted({min(each for each in steps if each >= mark) for mark in marks})


def test_the_policy_is_kept_at_parts_of_the_budget(cartpole):
    last = cartpole.metrics[-1]["env_steps"]
    assert kept(cartpole.path) == passed(cartpole, 4)
    assert len(kept(cartpole.path)) == 3
    nearest = [isobatch.load(cartpole.path, at=at).env_steps for at in (0, 0.25, 0.5, 0.8, 1.0)]
    first, second, third = kept(cartpole.path)
    assert nearest == [first, first, second, third, last]
    assert isobatch.load(cartpole.path).env_steps == last


def test_a_kept_policy_is_that_of_a_run_that_ended_there(tmp_path):
    make_env = vector_of(AutoresetMode.SAME_STEP, Counter, Counter)
    settings = TINY | {"n_steps": 9, "normalize_rewards": True, "keep_policies": 2}
    for name, budget in (("long", 72), ("short", 36)):
        isobatch.train(make_env=make_env, out=tmp_path / name, total_timesteps=budget, **settings)
    half, whole = (isobatch.load(tmp_path / "long", at=at) for at in (0.5, 1.0))
    short = isobatch.load(tmp_path / "short")
    assert half.env_steps == short.env_steps == 36
    weights = [each.model.state_dict() for each in (half, short, whole)]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    assert not all(torch.equal(weights[0][name], weights[2][name]) for name in weights[0])
    for one, other in ((half, short), (whole, short)):
        assert one.reward_moments is not None
        assert other.reward_moments is not None
        alike = float(one.reward_moments["var"]) == float(other.reward_moments["var"])
        assert alike == (one is half)


@pytest.mark.parametrize("parts", [0, 1])
def test_no_policy_but_the_last_is_kept_where_none_is_asked_for(parts, tmp_path):
    run = isobatch.train(
        make_env=Counter, out=tmp_path / "run", total_timesteps=64, keep_policies=parts, **TINY
    )
    assert not (run.path / "policies").exists()
    assert isobatch.load(run.path, at=0.5).env_steps == run.metrics[-1]["env_steps"]


def test_a_resumed_run_keeps_each_policy_once(tmp_path):
    settings = TINY | {"checkpoint_seconds": 1e-9, "keep_policies": 64}
    out = tmp_path / "run"
    before = isobatch.train("CartPole-v1", out=out, total_timesteps=128, **settings)
    known = kept(out)
    assert known == passed(before, 64)
    max((out / "checkpoints").glob("*.safetensors")).unlink()
    resumed_at = int(max((out / "checkpoints").glob("*.safetensors")).stem)
    env_steps = before.metrics[resumed_at - 1]["env_steps"]
    assert known[-2] <= env_steps < known[-1]
    # A policy past the checkpoint belongs to rows that are cut, and made again otherwise.
    stray = out / "policies" / f"{env_steps + 1:012d}.safetensors"
    stray.write_bytes((out / "policies" / f"{known[0]:012d}.safetensors").read_bytes())
    after = isobatch.resume(out, quiet=True)
    assert kept(out) == passed(after, 64)
    assert kept(out)[:-1] == known[:-1]


@pytest.mark.parametrize("at", [-0.1, 1.5, float("nan")])
def test_a_policy_at_no_part_of_the_budget_is_refused(at, cartpole):
    with pytest.raises(UserError, match=r"at must lie in \[0, 1\]") as caught:
        isobatch.load(cartpole.path, at=at)
    assert "\n" not in str(caught.value)


def test_a_flipped_byte_of_the_policy_is_one_clear_error(tmp_path):
    trained(Counter, tmp_path / "run")
    file = tmp_path / "run" / "policy.safetensors"
    content = bytearray(file.read_bytes())
    content[-10] ^= 4
    file.write_bytes(content)
    with pytest.raises(UserError, match="damaged") as caught:
        isobatch.load(tmp_path / "run")
    assert "\n" not in str(caught.value)


def test_a_directory_without_a_policy_is_one_clear_error(tmp_path):
    with pytest.raises(UserError, match=r"holds no policy yet: there is no policy\.safetensors"):
        isobatch.load(tmp_path)
    with pytest.raises(UserError, match="holds no policy"):
        isobatch.load(tmp_path, at=0.5)
    with pytest.raises(UserError, match="holds no policy"):
        isobatch.evaluate(tmp_path / "nowhere")
