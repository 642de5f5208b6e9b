import math

import pytest
import torch

from isobatch import losses
from isobatch.losses import (
    approximate_kl,
    clip_loss,
    clipped_fraction,
    clipped_value_loss,
    floored,
    kl_loss,
    value_loss,
)


def draws(n=64, spread=0.3, seed=0):
    """Return (logp, logp_behav, logp_prox, advantages), float64."""
    random = torch.Generator().manual_seed(seed)

    def normal():
        return torch.randn(n, generator=random, dtype=torch.float64)

    logp = -1.5 + 0.5 * normal()
    return logp, logp + spread * normal(), logp + spread * normal(), normal()


def textbook_ppo(logp, logp_old, advantages, clip_range):
    ratio = (logp - logp_old).exp()
    clipped = ratio.clamp(1 - clip_range, 1 + clip_range)
    return -torch.minimum(ratio * advantages, clipped * advantages)


@pytest.mark.parametrize("clip_range", [0.1, 0.2, 1.5])
def test_prox_equal_to_behav_is_ppo(clip_range):
    logp, behav, _, advantages = draws()
    loss = clip_loss(logp, behav, behav, advantages, clip_range)
    torch.testing.assert_close(loss, textbook_ppo(logp, behav, advantages, clip_range))


def test_decoupled_weights_the_clipped_objective_by_prox_over_behav():
    logp, behav, prox, advantages = draws()
    loss = clip_loss(logp, behav, prox, advantages, 0.2)
    expected = (prox - behav).exp() * textbook_ppo(logp, prox, advantages, 0.2)
    torch.testing.assert_close(loss, expected)


def test_unlimited_step_is_the_importance_sampled_policy_gradient():
    logp, behav, prox, advantages = draws()
    plain = -(logp - behav).exp() * advantages
    torch.testing.assert_close(clip_loss(logp, behav, prox, advantages, 1e9), plain)
    torch.testing.assert_close(kl_loss(logp, behav, prox, advantages, 0.0), plain)


def test_kl_penalty_by_hand():
    logp, behav, prox = (torch.log(torch.tensor([p])) for p in (0.5, 0.25, 0.4))
    advantages = torch.tensor([3.0])
    squared = kl_loss(logp, behav, prox, advantages, 2.0)
    assert squared.item() == pytest.approx(-2 * 3 + 2 * 0.5 * math.log(0.5 / 0.4) ** 2)
    exact = kl_loss(logp, behav, prox, advantages, 2.0, kl=torch.tensor([0.7]))
    assert exact.item() == pytest.approx(-2 * 3 + 2 * 0.7)


@pytest.mark.parametrize(
    ("advantage", "loss", "gradient"),
    # pi/behav is 1000, capped at 100. Up: held at 1.2 pi_prox/behav = 1.2/10. Down: the free term.
    [(2.0, -0.24, 0.0), (-2.0, 200.0, 200.0)],
)
def test_ratio_is_capped_at_100(advantage, loss, gradient):
    logp = torch.tensor([math.log(0.5)], dtype=torch.float64, requires_grad=True)
    behav = logp.detach() - math.log(1000)
    result = clip_loss(logp, behav, behav, torch.tensor([advantage]), 0.2)
    result.sum().backward()
    assert logp.grad is not None
    assert result.item() == pytest.approx(loss)
    assert logp.grad.item() == pytest.approx(gradient)


def test_no_gradient_through_the_floor():
    logp = torch.tensor([0.0, 0.0], requires_grad=True)
    behav = torch.tensor([-1.0, -20.0])
    floor = floored(logp, behav, 100.0)
    assert not floor.requires_grad
    assert floor.tolist() == pytest.approx([-1.0, -math.log(100)])
    loss = kl_loss(logp, behav, behav, torch.tensor([1.0, 1.0]), 0.0)
    loss.sum().backward()
    assert logp.grad is not None
    assert logp.grad.tolist() == pytest.approx([-math.e, -100.0])


def test_own_max_ratio():
    logp, behav = torch.tensor([0.0]), torch.tensor([-3.0])
    loss = kl_loss(logp, behav, behav, torch.tensor([1.0]), 0.0, max_ratio=5.0)
    assert loss.item() == pytest.approx(-5.0)


@pytest.mark.parametrize("behav", [-500.0, 500.0])
@pytest.mark.parametrize("prox", [-500.0, 500.0])
@pytest.mark.parametrize("advantage", [-1.0, 1.0])
def test_gradient_is_bounded_whatever_the_policies(behav, prox, advantage):
    logp = torch.tensor([-1.0], requires_grad=True)
    given = torch.tensor([behav]), torch.tensor([prox]), torch.tensor([advantage])
    clip_loss(logp, *given, clip_range=0.2).sum().backward()
    assert logp.grad is not None
    assert logp.grad.abs().item() <= 100.001


@pytest.mark.parametrize("loss", [clip_loss, kl_loss])
def test_gradient_agrees_with_finite_differences(loss):
    logp, behav, prox, advantages = draws()
    ratio = (logp - prox).exp()
    smooth = ((ratio - 1.2).abs() > 0.01) & ((ratio - 0.8).abs() > 0.01)
    assert smooth.sum() > 50
    given = behav[smooth], prox[smooth], advantages[smooth]
    point = logp[smooth].requires_grad_()
    assert torch.autograd.gradcheck(lambda x: loss(x, *given, 0.2), (point,))


def test_clipped_side_gives_no_gradient():
    ratios = torch.tensor([1.5, 1.5, 0.5, 0.5, 1.1, 0.9])
    advantages = torch.tensor([1.0, -1.0, 1.0, -1.0, 1.0, -1.0])
    logp = ratios.log().requires_grad_()
    clip_loss(logp, torch.zeros(6), torch.zeros(6), advantages, 0.2).sum().backward()
    assert logp.grad is not None
    torch.testing.assert_close(logp.grad, torch.tensor([0.0, 1.5, -0.5, 0.0, -1.1, 0.9]))


def test_losses_are_per_sample():
    logp, behav, prox, advantages = draws(n=7)
    for loss in (
        clip_loss(logp, behav, prox, advantages, 0.2),
        kl_loss(logp, behav, prox, advantages, 1.0),
        value_loss(logp, behav),
    ):
        assert loss.shape == (7,)


def test_value_loss_by_hand():
    loss = value_loss(torch.tensor([1.0, 2.0]), torch.tensor([4.0, 2.0]))
    assert loss.tolist() == [4.5, 0.0]


@pytest.mark.parametrize(
    ("kind", "expected", "slopes"),
    [
        # v - v_behav: within the range; past it towards the target; past it away from it.
        ("clipped", [0.405, 0.32, 0.72], [-0.9, 0.0, 0.0]),
        ("max", [0.405, 0.32, 1.125], [-0.9, 0.0, -1.5]),
    ],
)
def test_clipped_value_loss_by_hand(kind, expected, slopes):
    values = torch.tensor([0.1, 0.5, -0.5], requires_grad=True)
    loss = clipped_value_loss(values, torch.ones(3), torch.zeros(3), 0.2, kind)
    assert loss.tolist() == pytest.approx(expected)
    loss.sum().backward()
    assert values.grad is not None
    assert values.grad.tolist() == pytest.approx(slopes)


def test_clipped_fraction_by_hand():
    logp = torch.tensor([0.5, 0.79, 0.81, 1.0, 1.19, 1.21]).log()
    assert clipped_fraction(logp, torch.zeros(6), 0.2).tolist() == [1, 1, 0, 0, 0, 1]


def test_approximate_kl_estimates_the_kl():
    random = torch.Generator().manual_seed(0)
    behav = torch.tensor([0.5, 0.3, 0.2])
    current = torch.tensor([0.4, 0.4, 0.2])
    actions = torch.multinomial(behav, 200_000, replacement=True, generator=random)
    estimates = approximate_kl(current.log()[actions], behav.log()[actions])
    exact = (behav * (behav / current).log()).sum().item()
    assert estimates.min() >= 0
    error = estimates.std().item() / math.sqrt(len(actions))
    assert estimates.mean().item() == pytest.approx(exact, abs=4 * error)


@pytest.mark.parametrize("name", ["clip", "kl", "pg", "value", "clipped"])
def test_a_column_where_a_row_belongs_is_refused_and_not_broadcast(name):
    """[B] against [B, 1] would give [B, B] losses, whose mean is still a number."""
    row, column = torch.zeros(5), torch.zeros(5, 1)
    calls = {
        "clip": lambda: losses.clip_loss(row, row, row, column, 0.2),
        "kl": lambda: losses.kl_loss(row, row, row, row, 1.0, kl=column),
        "pg": lambda: losses.policy_gradient_loss(row, column),
        "value": lambda: losses.value_loss(column, row),
        "clipped": lambda: losses.clipped_value_loss(row, row, column, 0.2, "max"),
    }
    with pytest.raises(ValueError, match=r"all \[B\]; got .*\(5, 1\)"):
        calls[name]()
