import copy

import pytest
import torch
from torch import nn

from isobatch.proximal import Ewma


class Number(nn.Module):
    """One weight, and one buffer beside it."""

    def __init__(self, weight=0.0):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([weight], dtype=torch.float64))
        self.register_buffer("seen", torch.zeros(1))

    def set(self, weight):
        self.weight.data.fill_(weight)


def average(ewma):
    return next(ewma.module.parameters()).item()


def averaged(decay, weights):
    """Return the average after each of `weights`, the first of which is the start."""
    module = Number(weights[0])
    ewma = Ewma(module, decay)
    averages = [average(ewma)]
    for weight in weights[1:]:
        module.set(weight)
        ewma.update()
        averages.append(average(ewma))
    return averages


def test_weights_of_the_past_by_hand():
    averages = averaged(0.5, [4.0, 1.0, 2.0])
    assert averages == pytest.approx([4.0, (0.5 * 4 + 1) / 1.5, (0.25 * 4 + 0.5 * 1 + 2) / 1.75])


@pytest.mark.parametrize("decay", [0.1, 0.889, 0.9995])
def test_theta_from_k_updates_ago_weighs_decay_to_the_k(decay):
    thetas = torch.randn(12, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    weights = decay ** torch.arange(11, -1, -1, dtype=torch.float64)
    expected = (weights * thetas).sum() / weights.sum()
    assert averaged(decay, thetas.tolist())[-1] == pytest.approx(expected.item())


def test_decay_0_is_the_current_policy():
    module = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    ewma = Ewma(module, 0.0)
    for parameter in module.parameters():
        parameter.data.add_(torch.randn_like(parameter))
    ewma.update()
    rows = torch.randn(5, 3)
    assert torch.equal(ewma.module(rows), module(rows))


def test_another_decay_remembers_as_many_samples():
    """A settled average, its minibatch quartered: four times the steps, each of a quarter."""
    module = Number()
    ewma = Ewma(module, 8 / 9)
    for _ in range(300):
        ewma.update()
    assert ewma.weight - 1 == pytest.approx(8)
    ewma.change_decay(32 / 33)
    assert ewma.weight - 1 == pytest.approx(32)
    module.set(1.0)
    for _ in range(32):
        ewma.update()
    assert average(ewma) == pytest.approx(1 - (32 / 33) ** 32)


def test_a_young_average_stays_as_young_in_samples():
    ewma = Ewma(Number(), 8 / 9)
    ewma.update()
    young = ewma.weight - 1
    ewma.change_decay(2 / 3)
    assert ewma.weight - 1 == pytest.approx(young / 4)
    ewma.change_decay(8 / 9)
    assert ewma.weight - 1 == pytest.approx(young)


def test_average_moves_only_when_updated():
    module = Number(1.0)
    ewma = Ewma(module, 0.5)
    module.set(7.0)
    assert average(ewma) == 1.0
    ewma.update()
    assert module.weight.item() == 7.0


def test_reset_begins_anew():
    module = Number(0.0)
    ewma = Ewma(module, 0.5)
    for weight in (5.0, 10.0):
        module.set(weight)
        ewma.update()
    ewma.reset()
    assert average(ewma) == 10.0
    module.set(4.0)
    ewma.update()
    assert average(ewma) == pytest.approx((0.5 * 10 + 4) / 1.5)


def test_buffers_are_not_averaged():
    module = Number()
    ewma = Ewma(module, 0.5)
    module.get_buffer("seen").fill_(10.0)
    ewma.update()
    assert ewma.module.get_buffer("seen").item() == 0.0


def test_average_takes_no_gradient():
    module = nn.Linear(3, 2)
    ewma = Ewma(module, 0.5)
    assert not ewma.module(torch.randn(4, 3)).requires_grad
    assert module(torch.randn(4, 3)).requires_grad


def test_state_restores_the_average_and_what_follows():
    module = Number(1.0)
    ewma = Ewma(module, 0.8)
    for weight in (3.0, -2.0):
        module.set(weight)
        ewma.update()
    other_module = copy.deepcopy(module)
    other = Ewma(other_module, 0.8)
    other.load_state_dict(copy.deepcopy(ewma.state_dict()))
    for source, each in ((module, ewma), (other_module, other)):
        source.set(0.25)
        each.update()
    assert average(other) == average(ewma)
