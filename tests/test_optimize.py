import copy

import pytest
import torch
from torch import nn

from isobatch.recipe import Optimizer
from isobatch.update.optimize import FlatParameters, make_optimizer, scheduled


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def network(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).double()


def pictures(memory_format=torch.contiguous_format):
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 5, 3, stride=2), nn.ReLU(), nn.Conv2d(5, 4, 1), nn.Flatten()]
    module = nn.Sequential(*layers, nn.Linear(36, 2))
    return module.to(memory_format=memory_format)  # pyright: ignore[reportCallIssue]


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_flat_parameters_change_nothing_but_where_they_lie(memory_format):
    plain = pictures(memory_format)
    flat = copy.deepcopy(plain)
    parameters = FlatParameters(flat)
    images = torch.randn(6, 3, 8, 8, generator=seeded()).contiguous(memory_format=memory_format)
    assert torch.equal(flat(images), plain(images))
    plain(images).square().mean().backward()
    flat(images).square().mean().backward()
    for mine, theirs in zip(flat.parameters(), plain.parameters(), strict=True):
        assert mine.stride() == theirs.stride()
        torch.testing.assert_close(mine.grad, theirs.grad)
    squares = sum(each.grad.square().sum() for each in plain.parameters() if each.grad is not None)
    torch.testing.assert_close(parameters.gradient.square().sum(), squares)


def test_transposed_parameters_keep_their_values():
    module = nn.Linear(3, 4)
    module.weight = nn.Parameter(torch.randn(3, 4, generator=seeded()).t())
    inputs = torch.randn(5, 3, generator=seeded(1))
    expected = module(inputs)
    FlatParameters(module)
    assert torch.equal(module(inputs), expected)


def test_views_are_the_modules_own_parameters():
    module = network()
    parameters = FlatParameters(module)
    views = parameters.views(parameters.vector)
    assert list(views) == [name for name, _ in module.named_parameters()]
    for name, parameter in module.named_parameters():
        assert torch.equal(views[name], parameter)


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("optimizer", ["adam", "radam", "rmsprop", "sgd"])
def test_stepping_the_flat_vector_trains_the_module(memory_format, optimizer):
    plain = pictures(memory_format)
    flat = copy.deepcopy(plain)
    parameters = FlatParameters(flat)
    images = torch.randn(6, 3, 8, 8, generator=seeded())
    settings = Optimizer(optimizer=optimizer, momentum=0.9)
    ours = make_optimizer(parameters, settings)
    theirs = {
        "adam": lambda: torch.optim.Adam(plain.parameters(), lr=0.01, eps=1e-5),
        "radam": lambda: torch.optim.RAdam(plain.parameters(), lr=0.01, eps=1e-5),
        "rmsprop": lambda: torch.optim.RMSprop(plain.parameters(), lr=0.01, eps=1e-5),
        "sgd": lambda: torch.optim.SGD(plain.parameters(), lr=0.01, momentum=0.9),
    }[optimizer]()
    for _ in range(10):
        theirs.zero_grad()
        parameters.gradient.zero_()
        plain(images).square().mean().backward()
        flat(images).square().mean().backward()
        theirs.step()
        ours.step(settings, 0.01)
    torch.testing.assert_close(flat(images), plain(images), rtol=1e-4, atol=1e-5)
    assert (flat(images) - pictures()(images)).abs().max() > 0.01


def taken(gradients, learning_rate, **settings):
    """Return a weight's values after each gradient, from 0."""
    module = nn.Linear(1, 1, bias=False).double()
    parameters = FlatParameters(module)
    parameters.vector.data.zero_()
    chosen = Optimizer(**settings)
    optimizer = make_optimizer(parameters, chosen)
    values = []
    for gradient in gradients:
        parameters.gradient.fill_(gradient)
        optimizer.step(chosen, learning_rate)
        values.append(module.weight.item())
    return values


def test_sgd_by_hand():
    assert taken([2.0, 4.0], 0.5, optimizer="sgd") == pytest.approx([-1.0, -3.0])
    # Velocity 2, then 0.5 * 2 + 4 = 5.
    assert taken([2.0, 4.0], 0.5, optimizer="sgd", momentum=0.5) == pytest.approx([-1.0, -3.5])


def test_adam_by_hand():
    first, second = taken([2.0, 4.0], 0.1, adam_beta1=0.5, adam_beta2=0.75, adam_eps=1.0)
    assert first == pytest.approx(-0.1 * 2 / (2 + 1))
    mean, square = (0.25 * 2 + 0.5 * 4) / 0.75, (0.1875 * 4 + 0.25 * 16) / 0.4375
    assert second - first == pytest.approx(-0.1 * mean / (square**0.5 + 1))


@pytest.mark.parametrize("optimizer", ["adam", "radam", "rmsprop"])
@pytest.mark.parametrize("factor", [0.25, 4.0])
def test_steps_are_right_at_once_when_the_minibatch_changes(optimizer, factor):
    """Of gradients that are all noise, v goes as 1 / B; and v forgets in 1,000 steps."""
    settings = Optimizer(optimizer=optimizer)

    def last_steps(factor):
        """Return the mean length of steps 210 to 220; from 200 on the noise's variance differs."""
        parameters = FlatParameters(nn.Linear(4000, 1, bias=False))
        ours, random, lengths = make_optimizer(parameters, settings), seeded(), []
        for step in range(220):
            before = parameters.vector.detach().clone()
            parameters.gradient.normal_(generator=random)
            if step == 200:
                ours.rescale_noise(factor)
            if step >= 200:
                parameters.gradient.mul_(factor**0.5)
            ours.step(settings, 0.01)
            lengths.append(float((parameters.vector.detach() - before).norm()))
        return sum(lengths[-10:]) / 10

    assert last_steps(factor) == pytest.approx(last_steps(1.0), rel=0.1)


@pytest.mark.parametrize("optimizer", ["adam", "radam", "rmsprop", "sgd"])
def test_optimizer_state_restores_what_follows(optimizer):
    settings = Optimizer(optimizer=optimizer, momentum=0.9)
    moved = []
    first = FlatParameters(network())
    ours = make_optimizer(first, settings)
    first.gradient.normal_(generator=seeded())
    for _ in range(3):
        ours.step(settings, 0.1)
    second = FlatParameters(network())
    second.vector.data.copy_(first.vector.data)
    restored = make_optimizer(second, settings)
    restored.load_state_dict(copy.deepcopy(ours.state_dict()))
    for parameters, each in ((first, ours), (second, restored)):
        parameters.gradient.fill_(0.5)
        each.step(settings, 0.1)
        moved.append(parameters.vector.detach())
    assert torch.equal(*moved)


@pytest.mark.parametrize(("env_steps", "value"), [(0, 0.2), (250, 0.15), (1000, 0.0), (1100, 0.0)])
def test_linear_schedule(env_steps, value):
    assert scheduled(0.2, "linear", env_steps, 1000) == pytest.approx(value)
    assert scheduled(0.2, "constant", env_steps, 1000) == 0.2
