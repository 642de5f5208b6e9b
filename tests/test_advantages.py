import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from isobatch.advantages import AdvantageMoments, gae, reward_to_go

GAMMA = 0.9


@st.composite
def trajectories(draw):
    """Return (rewards, values, terminated, truncated) [T, N], float64."""
    steps, n_envs = draw(st.integers(1, 12)), draw(st.integers(1, 4))
    random = torch.Generator().manual_seed(draw(st.integers(0, 10_000)))
    rewards = torch.randn(steps, n_envs, generator=random, dtype=torch.float64)
    values = torch.randn(steps + 1, n_envs, generator=random, dtype=torch.float64)
    fate = torch.rand(steps, n_envs, generator=random)
    return rewards, values, fate < 0.15, fate > 0.85


def monte_carlo(rewards, values, terminated, truncated):
    """Return each row's discounted return, bootstrapped where it was cut short, by brute force."""
    returns = torch.zeros_like(rewards)
    steps, n_envs = rewards.shape
    for n in range(n_envs):
        for t in range(steps):
            discount = 1.0
            for s in range(t, steps):
                returns[t, n] += discount * rewards[s, n]
                discount *= GAMMA
                if terminated[s, n]:
                    break
                if truncated[s, n] or s == steps - 1:
                    returns[t, n] += discount * values[s + 1, n]
                    break
    return returns


@given(trajectories())
def test_lambda_1_is_monte_carlo(data):
    advantages, targets = gae(*data, gamma=GAMMA, gae_lambda=1.0)
    returns, values = monte_carlo(*data), data[1]
    torch.testing.assert_close(advantages, returns - values[:-1])
    torch.testing.assert_close(targets, returns)


@given(trajectories())
def test_reward_to_go_is_monte_carlo_without_bootstrap(data):
    rewards, values, terminated, truncated = data
    done = terminated | truncated
    returns, complete = reward_to_go(rewards, done, GAMMA)
    nothing = torch.zeros_like(values)
    torch.testing.assert_close(returns, monte_carlo(rewards, nothing, terminated, truncated))
    ends_later = done.flip(0).cummax(0).values.flip(0)
    assert torch.equal(complete, ends_later)


@given(trajectories())
def test_lambda_0_is_the_one_step_error(data):
    rewards, values, terminated, _ = data
    advantages, targets = gae(*data, gamma=GAMMA, gae_lambda=0.0)
    expected = torch.where(terminated, rewards, rewards + GAMMA * values[1:])
    torch.testing.assert_close(targets, expected)
    torch.testing.assert_close(advantages, expected - values[:-1])


@given(trajectories(), st.integers(0, 10_000))
def test_nothing_after_an_end_reaches_back(data, seed):
    rewards, values, terminated, truncated = data
    before, _ = gae(*data, gamma=GAMMA, gae_lambda=0.95)
    random = torch.Generator().manual_seed(seed)
    # Values stay: the one right after a truncation is that episode's bootstrap.
    garbage = 1e6 * torch.randn(rewards.shape, generator=random, dtype=torch.float64)
    ended = (terminated | truncated).long().cumsum(0)
    later = torch.cat([torch.zeros_like(ended[:1]), ended[:-1]]) > 0
    after, _ = gae(torch.where(later, garbage, rewards), values, terminated, truncated, GAMMA, 0.95)
    assert torch.equal(before[~later], after[~later])
    assert not later.any() or not torch.equal(before[later], after[later])


def column(*numbers):
    return torch.tensor(numbers, dtype=torch.float64)[:, None]


def ends(*rows, steps=3):
    return torch.tensor([[row in rows] for row in range(steps)])


def test_by_hand():
    advantages, targets = gae(
        column(1, 2, 3), column(0.5, 1, 1.5, 2), ends(), ends(), gamma=0.5, gae_lambda=0.5
    )
    # deltas: 1 + .5 - .5 = 1, 2 + .75 - 1 = 1.75, 3 + 1 - 1.5 = 2.5
    expected = column(1 + 0.25 * (1.75 + 0.25 * 2.5), 1.75 + 0.25 * 2.5, 2.5)
    torch.testing.assert_close(advantages, expected)
    torch.testing.assert_close(targets, expected + column(0.5, 1, 1.5))


def test_termination_does_not_bootstrap():
    rewards, values = column(1, 2, 3), column(0, 0, 100, 0)
    advantages, _ = gae(rewards, values, ends(1), ends(), GAMMA, 1.0)
    torch.testing.assert_close(advantages[:2], column(1 + GAMMA * 2, 2))


def test_truncation_bootstraps_and_stops_there():
    rewards, values = column(1, 2, 3), column(0, 0, 100, 50)
    advantages, _ = gae(rewards, values, ends(), ends(1), GAMMA, 1.0)
    torch.testing.assert_close(
        advantages[:2], column(1 + GAMMA * (2 + GAMMA * 100), 2 + GAMMA * 100)
    )


def test_values_of_another_shape_are_refused():
    rewards, never = torch.zeros(3, 2), torch.zeros(3, 2, dtype=torch.bool)
    for values in (torch.zeros(3, 2), torch.zeros(4, 1)):
        with pytest.raises(ValueError, match="values"):
            gae(rewards, values, never, never, GAMMA, 1.0)


def test_moments_decay_by_hand():
    moments = AdvantageMoments(0.5)
    moments.update(torch.tensor([2.0, 4.0]))
    assert (moments.mean, moments.var) == pytest.approx((3.0, 1.0))
    moments.update(torch.tensor([10.0]))
    # Weights .5 .5 1 on 2, 4, 10.
    assert moments.mean == pytest.approx(13 / 2)
    assert moments.var == pytest.approx((0.5 * 4 + 0.5 * 16 + 100) / 2 - (13 / 2) ** 2)


def test_decay_0_is_the_last_rollout_alone():
    moments = AdvantageMoments(0.0)
    moments.update(torch.tensor([100.0, 300.0]))
    moments.update(torch.tensor([1.0, 3.0, 5.0]))
    assert (moments.mean, moments.var) == pytest.approx((3.0, 8 / 3))


@given(st.integers(0, 10_000), st.floats(-100, 100), st.floats(0.1, 100))
def test_decay_0_normalizes_to_mean_0_std_1(seed, shift, scale):
    random = torch.Generator().manual_seed(seed)
    advantages = shift + scale * torch.randn(8, 4, generator=random, dtype=torch.float64)
    moments = AdvantageMoments(0.0)
    moments.update(advantages)
    normal = moments.normalize(advantages)
    assert normal.mean().item() == pytest.approx(0, abs=1e-6)
    assert normal.std(correction=0).item() == pytest.approx(1, abs=1e-5)


@given(st.integers(0, 10_000), st.sampled_from([0.0, 0.6]))
def test_moments_ignore_rows_that_are_not_valid(seed, decay):
    random = torch.Generator().manual_seed(seed)
    masked, alone = AdvantageMoments(decay), AdvantageMoments(decay)
    for _ in range(3):
        advantages = torch.randn(6, 4, generator=random)
        valid = torch.rand(6, 4, generator=random) < 0.7
        masked.update(torch.where(valid, advantages, 1e9), valid)
        alone.update(advantages[valid])
    assert (masked.mean, masked.var) == pytest.approx((alone.mean, alone.var))


def test_constant_advantages_normalize_to_zero():
    moments = AdvantageMoments(0.0)
    moments.update(torch.full((4, 2), 3.0))
    assert moments.normalize(torch.full((4, 2), 3.0)).abs().max() == 0


def test_moments_state_round_trip():
    moments, restored = AdvantageMoments(0.7), AdvantageMoments(0.7)
    moments.update(torch.tensor([1.0, 5.0]))
    restored.load_state_dict(moments.state_dict())
    for each in (moments, restored):
        each.update(torch.tensor([2.0]))
    assert (restored.mean, restored.var) == (moments.mean, moments.var)
