import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from isobatch.normalize import ObservationNormalizer, RewardNormalizer, RunningMoments


@given(st.lists(st.integers(0, 20), min_size=1, max_size=5), st.integers(0, 10_000))
def test_moments_do_not_depend_on_how_the_rows_came(sizes, seed):
    random = torch.Generator().manual_seed(seed)
    batches = [3 + 2 * torch.randn(size, 2, generator=random) for size in (*sizes, 30)]
    moments = RunningMoments((2,))
    for batch in batches:
        moments.update(batch)
    rows = torch.cat(batches).double().numpy()
    # The prior of weight 1e-4 on (0, 1) is all that may differ.
    np.testing.assert_allclose(moments.mean.numpy(), rows.mean(0), rtol=1e-4)
    np.testing.assert_allclose(moments.var.numpy(), rows.var(0), rtol=1e-3)


def test_moments_keep_precision_far_from_zero():
    moments = RunningMoments()
    for _ in range(100):
        moments.update(1e6 + torch.tensor([-1.0, 1.0]).repeat(1000))
    # The prior at 0 adds 1e-4 / 2e5 * 1e12 to the variance, and no more.
    assert moments.var.item() == pytest.approx(1 + 500, rel=1e-3)


def nothing_first(steps, n_envs):
    return torch.zeros(steps, n_envs, dtype=torch.bool)


def test_rewards_are_divided_by_the_deviation_of_the_return_by_hand():
    rewards = torch.tensor([[1.0], [2.0], [4.0]])
    first = torch.tensor([[True], [False], [True]])
    returns = np.array([1, 2 + 0.5 * 1, 4])
    normalized = RewardNormalizer(1, gamma=0.5)(rewards, first)
    expected = rewards / returns.std()
    torch.testing.assert_close(normalized, expected.float(), rtol=1e-3, atol=0)


def test_return_is_carried_into_the_next_rollout():
    rewards = torch.randn(20, 3, generator=torch.Generator().manual_seed(0))
    first = nothing_first(20, 3)
    whole, parts = RewardNormalizer(3), RewardNormalizer(3)
    whole(rewards, first)
    for half in (slice(0, 7), slice(7, 20)):
        parts(rewards[half], first[half])
    torch.testing.assert_close(parts.moments.var, whole.moments.var)


def test_reward_statistics_outlive_their_environments():
    normalizer, restored = RewardNormalizer(1), RewardNormalizer(1)
    normalizer(torch.tensor([[100.0], [-50.0], [70.0]]), nothing_first(3, 1))
    restored.load_state_dict(normalizer.state_dict())
    rewards, anew = torch.tensor([[1.0], [2.0]]), torch.tensor([[True], [False]])
    expected = normalizer(rewards, anew)
    assert torch.equal(restored(rewards, anew), expected)
    assert not torch.equal(RewardNormalizer(1)(rewards, anew), expected)


def test_normalized_rewards_are_clipped_and_keep_their_sign():
    rewards = torch.zeros(1000, 1)
    rewards[0], rewards[1] = 1000.0, -1000.0
    first = torch.ones(1000, 1, dtype=torch.bool)
    normalized = RewardNormalizer(1, clip=5.0)(rewards, first)
    assert normalized[0].item() == 5.0
    assert normalized[1].item() == -5.0
    assert not normalized[2:].any()


def test_no_mean_is_subtracted():
    normalized = RewardNormalizer(2)(torch.rand(50, 2) + 1, nothing_first(50, 2))
    assert normalized.min() > 0


def next_step_resets(rollouts, steps, n_envs, random):
    """Yield each rollout's (first, valid): the row after an end is a reset, the next begins."""
    begins, resets = torch.ones(n_envs, dtype=torch.bool), torch.zeros(n_envs, dtype=torch.bool)
    for _ in range(rollouts):
        first, valid = [], []
        for _ in range(steps):
            first.append(begins)
            valid.append(~resets)
            ends = (torch.rand(n_envs, generator=random) < 0.2) & ~resets
            begins, resets = resets, ends
        yield torch.stack(first), torch.stack(valid)


@given(st.integers(0, 10_000))
def test_rewards_of_rows_that_are_not_valid_change_nothing(seed):
    random = torch.Generator().manual_seed(seed)
    clean, dirty = RewardNormalizer(3), RewardNormalizer(3)
    for first, valid in next_step_resets(3, 10, 3, random):
        rewards, garbage = torch.randn(2, 10, 3, generator=random)
        expected = clean(rewards, first, valid)
        actual = dirty(torch.where(valid, rewards, 1e6 * garbage), first, valid)
        assert torch.equal(actual[valid], expected[valid])


def test_observation_statistics_are_frozen_until_updated():
    random = torch.Generator().manual_seed(0)
    rows = 5 + 3 * torch.randn(1000, 2, generator=random)
    normalizer = ObservationNormalizer(2)
    before = normalizer({"vector": rows})["vector"]
    torch.testing.assert_close(before, rows.clamp(-10, 10))
    normalizer.update(rows)
    after = normalizer({"vector": rows})["vector"]
    torch.testing.assert_close(after.mean(0), torch.zeros(2), atol=1e-4, rtol=0)
    torch.testing.assert_close(after.std(0), torch.ones(2), atol=1e-3, rtol=0)


def test_observations_are_clipped_and_the_given_ones_left_alone():
    normalizer = ObservationNormalizer(1)
    given_rows = torch.tensor([[1e6], [-1e6], [0.5]])
    kept = given_rows.clone()
    vector = normalizer({"vector": given_rows})["vector"]
    assert vector[:2, 0].tolist() == [10.0, -10.0]
    assert torch.equal(given_rows, kept)


def test_images_pass_through():
    image = torch.randint(0, 256, (2, 3, 4, 4), dtype=torch.uint8)
    observation = {"image": image, "vector": torch.ones(2, 1)}
    normalizer = ObservationNormalizer(1)
    normalizer.update(torch.randn(10, 1))
    assert normalizer(observation)["image"] is image


def test_without_a_width_observations_are_left_as_they_are():
    normalizer = ObservationNormalizer(None)
    normalizer.update(torch.randn(10, 2))
    vector = torch.tensor([[1e6, 3.0]])
    assert torch.equal(normalizer({"vector": vector})["vector"], vector)


def test_observation_state_round_trip():
    normalizer, restored = ObservationNormalizer(2), ObservationNormalizer(2)
    normalizer.update(4 + torch.randn(100, 2))
    restored.load_state_dict(normalizer.state_dict())
    rows = {"vector": torch.randn(5, 2)}
    assert torch.equal(restored(rows)["vector"], normalizer(rows)["vector"])
