"""Experience of a frozen policy: spread over episodes, cut into rollouts of any length."""

import pytest
import torch
from hand_made import PLAIN, begin, experience
from probe_envs import Counter

from isobatch.advantages import gae
from isobatch.errors import UserError
from isobatch.presets import preset
from isobatch.probe.collection import Experience, collect
from isobatch.probe.probing import untrained
from isobatch.recipe import Recipe
from isobatch.run.policy import Policy


def policy_of(make_env, **fields) -> Policy:
    """Return an untrained policy for a user's environment."""
    from isobatch import envs
    from isobatch.state import TrainState

    recipe = Recipe(env="python:make_env").replace(hidden_sizes=(4,), **fields)
    env = envs.wrap(make_env, "python:make_env", [1])
    layouts = env.observation_layout, env.action_layout
    env.close()
    state = TrainState.begin(recipe, *layouts, torch.device("cpu"))
    return Policy(recipe, *layouts, state.model, state.observation_normalizer)


def test_environments_whose_episodes_are_all_alike_are_not_in_step():
    policy = policy_of(lambda: Counter(length=40))
    found = collect(policy, 32, 10, 10, make_env=lambda: Counter(length=40))
    ages = found.rollout.observations["vector"][0, :, 0]
    assert found.episode_length == pytest.approx(40, abs=6)
    assert len(ages.unique()) > 12
    assert float(ages.mean()) == pytest.approx(20, abs=8)


def test_every_row_follows_the_one_before():
    """Observations, rewards, dones and values stay together when environments are cut apart."""
    policy = policy_of(lambda: Counter(length=7))
    found = collect(policy, 8, 50, 30, make_env=lambda: Counter(length=7)).rollout
    seen = found.observations["vector"][..., 0]
    assert seen.shape == (30, 8)
    assert found.values.shape == (51, 8)
    step = found.valid[:30] & ~found.truncated[:30]
    assert torch.equal(seen[1:][step[:-1]], seen[:-1][step[:-1]] + 1)
    assert torch.equal(found.rewards[:30][found.valid[:30]], seen[found.valid[:30]] + 1)
    with torch.no_grad():
        values = policy.model.values({"vector": found.observations["vector"].flatten(0, 1)})
    torch.testing.assert_close(values.view(30, 8), found.values[:30])


def test_the_same_seed_gives_the_same_experience_and_another_another():
    policy = untrained(preset("CartPole-v1"))
    first, again, other = (collect(policy, 4, 8, 8, seed=seed).rollout for seed in (0, 0, 1))
    assert torch.equal(first.observations["vector"], again.observations["vector"])
    assert not torch.equal(first.observations["vector"], other.observations["vector"])


def test_episodes_longer_than_patience_are_said_to_be(monkeypatch):
    monkeypatch.setattr("isobatch.experience.stagger.BURN_IN", 128)
    policy = policy_of(lambda: Counter(length=10_000))
    found = collect(policy, 2, 4, 4, make_env=lambda: Counter(length=10_000))
    assert found.episode_length is None
    assert found.burn_in == 128


def test_rollouts_cut_from_a_trajectory_are_bootstrapped_at_their_ends():
    rollout = experience(begin(PLAIN))
    found = Experience(rollout, 0, None).advantages(4, 16, 0.9, 0.8)
    for begins in range(0, 16, 4):
        rows = slice(begins, begins + 4)
        alone, _ = gae(
            rollout.rewards[rows], rollout.values[begins : begins + 5],
            rollout.terminated[rows], rollout.truncated[rows], 0.9, 0.8,
        )  # fmt: skip
        torch.testing.assert_close(found[rows], alone)


def test_full_advantages_look_to_the_trajectorys_end():
    rollout = experience(begin(PLAIN))
    found = Experience(rollout, 0, None).full_advantages(5, 0.9, 0.8)
    whole, _ = gae(rollout.rewards, rollout.values, rollout.terminated, rollout.truncated, 0.9, 0.8)
    torch.testing.assert_close(found, whole[:5])


def test_rewards_are_in_the_unit_the_values_were_trained_in():
    policy = policy_of(lambda: Counter(length=7), normalize_rewards=True)
    policy.env_steps = 100
    policy.reward_moments = {
        "mean": torch.tensor(0.0), "var": torch.tensor(4.0), "count": torch.tensor(10.0),
    }  # fmt: skip
    found = collect(policy, 4, 20, 20, make_env=lambda: Counter(length=7)).rollout
    torch.testing.assert_close(found.rewards[found.valid], found.scores[found.valid] / 2)
    policy.reward_moments = None
    with pytest.raises(UserError, match="no reward normalisation statistics"):
        collect(policy, 4, 20, 20, make_env=lambda: Counter(length=7))
