"""The iso-batch curve on a walk whose bias and variance are known."""

import math

import pytest
import torch
from hand_made import PLAIN, begin, experience

from isobatch.probe.collection import Experience
from isobatch.probe.curve import bias, curve
from isobatch.probe.gradients import Directions


def made(n_envs=64, length=192, rows=128, value=0.0, phi=0.0, seed=0):
    """A chain without ends: rewards 1 + noise, a constant value function, directions (1, noise).

    Returns the experience and the directions of its first rows; gamma lambda is 0.5 below.
    """
    generator = torch.Generator().manual_seed(seed)
    blank = experience(begin(PLAIN))
    noise = torch.randn(length, n_envs, generator=generator)
    for t in range(1, length):
        noise[t] = phi * noise[t - 1] + math.sqrt(1 - phi**2) * noise[t]
    never = torch.zeros(length, n_envs, dtype=torch.bool)
    rollout = type(blank)(**{**vars(blank),
        "rewards": 1 + noise, "values": torch.full((length + 1, n_envs), value),
        "terminated": never, "truncated": never, "valid": ~never, "final_values": None,
    })  # fmt: skip
    ones = torch.ones(rows, n_envs, 1)
    vectors = torch.cat([ones, torch.randn(rows, n_envs, 3, generator=generator)], 2)
    squares = vectors.square().sum(2).double()
    return Experience(rollout, 0, None), Directions(vectors, squares, 4, None)


GAMMA, LAMBDA = 0.5, 1.0
LENGTHS = [1, 2, 4, 8, 16]


def test_the_bias_is_what_bootstrapping_too_low_leaves_out():
    """With values 0, A_T(t) = sum_{k < T - t} 0.5^k = 2 - 2^{1 - (T - t)}, and 2 for long ones.

    Its mean over a window is short of 2 by (1 + 1/2 + ... + 2^{1 - T}) / T: 1, 3/4, 15/32 ...
    """
    measured = bias(*made(), LENGTHS, GAMMA, LAMBDA)
    for length in measured.lengths:
        T = length.n_steps
        short = sum(2.0 ** (1 - k) for k in range(1, T + 1)) / T
        found = measured.norm(length)
        assert found.value == pytest.approx(short / 2, abs=0.03)
        assert found.low <= short / 2 + 0.01
        assert found.high >= short / 2 - 0.01


def test_a_value_function_that_is_right_leaves_no_bias():
    measured = bias(*made(value=2.0), LENGTHS, GAMMA, LAMBDA)
    # A is then noise around 0 with no gradient: nothing to be relative to.
    assert measured.share_without_signal > 0.2


def test_the_advantage_error_is_the_root_mean_square():
    found, directions = made()
    measured = bias(found, directions, [4], GAMMA, LAMBDA)
    short = found.advantages(4, 128, GAMMA, LAMBDA)
    long = found.full_advantages(128, GAMMA, LAMBDA)
    expected = (short - long).square().mean().sqrt() / long.square().mean().sqrt()
    assert measured.lengths[0].advantage_error == pytest.approx(float(expected), rel=1e-5)


def test_the_variance_is_that_of_batches_of_that_shape():
    """Compared with batches drawn anew: 3,000 of 4 x 8, their part along G made right."""
    measured = bias(*made(), LENGTHS, GAMMA, LAMBDA)
    shape = next(each for each in curve(measured, 32) if each.name == "4x8")
    found, directions = made(n_envs=12_000, length=40, rows=8, seed=1)
    scales = found.advantages(8, 8, GAMMA, LAMBDA)
    means = torch.einsum("tn,tnp->np", scales, directions.vectors) / 8
    batches = means.view(3000, 4, 4).mean(1)
    along = float(batches[:, 0].mean()) / 2
    variance = float(batches.var(0).sum()) / along**2 / 4
    assert shape.variance.value == pytest.approx(variance, rel=0.1)
    assert shape.variance.low < variance < shape.variance.high


def test_a_shrunken_gradient_is_not_taken_for_a_wrong_one():
    """Short rollouts halve this gradient and turn it nowhere: a step size makes up for it."""
    shapes = curve(bias(*made(), LENGTHS, GAMMA, LAMBDA), 32)
    assert all(each.bias2.value < 0.02 for each in shapes)


def test_correlated_rollouts_want_more_environments():
    independent = curve(bias(*made(), LENGTHS, GAMMA, LAMBDA), 64)
    correlated = curve(bias(*made(phi=0.95), LENGTHS, GAMMA, LAMBDA), 64)

    def longest_over_shortest(shapes):
        return shapes[-1].variance.value / shapes[1].variance.value

    assert longest_over_shortest(correlated) > 1.5 * longest_over_shortest(independent)
    assert correlated[0].shape.n_envs == 64
    assert sum(each.best_share for each in correlated) == pytest.approx(1)


def test_shapes_are_those_that_divide_and_time_weighs():
    measured = bias(*made(), [1, 2, 3, 4], GAMMA, LAMBDA)
    shapes = curve(measured, 64, lambda n_envs, n_steps: None if n_steps == 1 else n_steps * 1.0)
    assert [each.name for each in shapes] == ["64x1", "32x2", "16x4"]
    assert shapes[0].steps_per_second is None
    assert shapes[0].best_share_per_second is None
    assert shapes[1].steps_per_second == 32
    assert shapes[1].best_share_per_second == 1
    assert curve(measured, 5, None)[0].name == "5x1"


def test_the_error_is_the_sum_of_both():
    for each in curve(bias(*made(), LENGTHS, GAMMA, LAMBDA), 64):
        assert each.error.value == pytest.approx(each.bias2.value + each.variance.value)
        assert each.error.low <= each.error.value <= each.error.high
