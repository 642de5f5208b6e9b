import numpy as np
import pytest
import torch
from gymnasium.envs.classic_control import CartPoleEnv
from probe_envs import TensorCounter

from isobatch import UserError, envs
from isobatch.envs.tensor import TensorCartPole


def wrapped(make_env, seeds):
    return envs.wrap(make_env, "Probe", seeds, "sync")


def no_action(n_envs):
    return torch.zeros(n_envs, 1, dtype=torch.int64)


def test_the_tensor_cart_moves_as_gymnasiums_does():
    tensor = TensorCartPole(3)
    state, _ = tensor.reset(seed=1)
    carts = [CartPoleEnv() for _ in range(3)]
    for cart, start in zip(carts, state, strict=True):
        cart.reset()
        cart.state = start.double().numpy()
    rng = np.random.default_rng(0)
    for _ in range(8):
        actions = rng.integers(0, 2, 3)
        state, reward, terminated, _, _ = tensor.step(torch.from_numpy(actions))
        expected = [cart.step(action)[0] for cart, action in zip(carts, actions, strict=True)]
        np.testing.assert_allclose(state, expected, atol=1e-5)
        assert reward.tolist() == [1, 1, 1]
        assert not terminated.any()


def test_the_tensor_cart_falls_when_gymnasiums_does():
    tensor = TensorCartPole(2)
    state, _ = tensor.reset(seed=1)
    cart = CartPoleEnv()
    cart.reset()
    cart.state = state[0].double().numpy()
    for _ in range(20):
        final, _, fallen, *_ = cart.step(1)
        state, _, terminated, truncated, info = tensor.step(torch.tensor([1, 1]))
        assert bool(terminated[0]) == fallen
        if fallen:
            break
    np.testing.assert_allclose(info["final_observation"][0], final, atol=1e-5)
    assert state[0].abs().max() <= 0.05
    assert not truncated.any()


def test_a_balanced_tensor_cart_is_truncated_after_500_steps():
    tensor = TensorCartPole(4)
    state, _ = tensor.reset(seed=1)
    for t in range(1, 501):
        weights = torch.tensor([0.1, 0.3, 1.0, 0.5])
        state, _, terminated, truncated, info = tensor.step((state @ weights > 0).long())
        assert not terminated.any()
        assert truncated.tolist() == [t == 500] * 4
    assert state.abs().max() <= 0.05
    assert (info["final_observation"] != state).any(1).all()


def test_ended_carts_start_anew_and_the_others_go_on():
    tensor = TensorCartPole(64)
    before, _ = tensor.reset(seed=1)
    ended = 0
    for t in range(40):
        state, _, terminated, _, _ = tensor.step(torch.full((64,), t % 3 == 0).long())
        assert (state[terminated].abs() <= 0.05).all()
        assert (state[~terminated] != before[~terminated]).any(1).all()
        ended += int(terminated.sum())
        before = state
    assert ended >= 64


def test_the_same_seed_starts_the_same_carts():
    starts = [TensorCartPole(5).reset(seed=seed)[0] for seed in (1, 1, 2)]
    assert torch.equal(starts[0], starts[1])
    assert not torch.equal(starts[0], starts[2])


def test_episodes_that_end_give_their_final_observation_beside_the_next_ones_first():
    env = wrapped(lambda: TensorCounter(2, length=3), [1, 2])
    assert env.reset()["vector"].tolist() == [[0], [0]]
    for t in (1, 2, 3, 1, 2, 3):
        step = env.step(no_action(2))
        assert step.observation["vector"].tolist() == [[t % 3]] * 2
        assert step.reward.tolist() == [t, t]
        assert step.truncated.tolist() == [t == 3] * 2
        assert not step.terminated.any()
        if t == 3:
            assert step.final is not None
            assert step.final["vector"].tolist() == [[3], [3]]


def test_every_row_of_a_tensor_environment_is_a_transition():
    env = wrapped(lambda: TensorCounter(2, length=2), [1, 2])
    env.reset()
    assert all(env.step(no_action(2)).valid.all() for _ in range(5))


def test_a_truncation_without_its_final_observation_is_refused():
    env = wrapped(lambda: TensorCounter(2, length=2, gives_final=False), [1, 2])
    env.reset()
    env.step(no_action(2))
    with pytest.raises(UserError, match="final_observation"):
        env.step(no_action(2))


def test_a_tensor_environment_of_another_number_is_refused():
    with pytest.raises(UserError, match=r"vector of 3 environments.*n_envs is 2"):
        wrapped(lambda: TensorCounter(3), [1, 2])


def test_thousands_of_carts_step_together():
    env = wrapped(lambda: TensorCartPole(4096), list(range(4096)))
    assert env.reset()["vector"].shape == (4096, 4)
    step = env.step(no_action(4096))
    assert step.observation["vector"].shape == (4096, 4)
    assert step.reward.shape == step.terminated.shape == step.valid.shape == (4096,)
