import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from isobatch.errors import UserError
from isobatch.recipe import Optimizer
from isobatch.update import (
    CompiledGradient,
    FlatParameters,
    Stepper,
    chunk_rows,
    make_optimizer,
    minibatches,
    scheduled,
)


@st.composite
def partitions(draw):
    """Return (valid [T, N], M) with M no more than the valid rows."""
    steps, n_envs = draw(st.integers(1, 12)), draw(st.integers(1, 6))
    flags = st.lists(st.booleans(), min_size=steps * n_envs, max_size=steps * n_envs).filter(any)
    valid = torch.tensor(draw(flags)).view(steps, n_envs)
    return valid, draw(st.integers(1, int(valid.sum())))


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


@given(partitions(), st.sampled_from(["samples", "envs"]), st.integers(0, 1000))
def test_every_valid_row_exactly_once_and_no_other(partition, by, seed):
    valid, count = partition
    parts = minibatches(valid, count, seeded(seed), by)
    assert len(parts) == count
    assert all(len(part) for part in parts)
    assert sorted(torch.cat(parts).tolist()) == valid.flatten().nonzero().flatten().tolist()


@given(partitions(), st.integers(0, 1000))
def test_by_samples_sizes_differ_by_at_most_one(partition, seed):
    valid, count = partition
    sizes = [len(part) for part in minibatches(valid, count, seeded(seed), "samples")]
    assert max(sizes) - min(sizes) <= 1


@given(partitions(), st.integers(0, 1000))
def test_by_envs_keeps_trajectories_whole_while_there_are_enough(partition, seed):
    valid, count = partition
    n_envs = valid.shape[1]
    parts = [
        set((part % n_envs).tolist()) for part in minibatches(valid, count, seeded(seed), "envs")
    ]
    trajectories = int(valid.any(0).sum())
    if count <= trajectories:
        assert sum(len(envs) for envs in parts) == trajectories
        sizes = [len(envs) for envs in parts]
        assert max(sizes) - min(sizes) <= 1
    else:
        assert all(len(envs) == 1 for envs in parts)


@given(partitions(), st.integers(0, 1000))
def test_by_envs_cuts_in_time_into_consecutive_rows(partition, seed):
    valid, count = partition
    n_envs = valid.shape[1]
    for part in minibatches(valid, count, seeded(seed), "envs"):
        for env in set((part % n_envs).tolist()):
            times = (part[part % n_envs == env] // n_envs).tolist()
            held = valid[:, env].nonzero().flatten().tolist()
            start = held.index(times[0])
            assert times == held[start : start + len(times)]


@pytest.mark.parametrize("by", ["samples", "envs"])
def test_each_call_shuffles_anew_and_the_generator_decides_how(by):
    valid = torch.ones(16, 16, dtype=torch.bool)
    generator = seeded()
    first, second = (torch.cat(minibatches(valid, 4, generator, by)) for _ in range(2))
    again = torch.cat(minibatches(valid, 4, seeded(), by))
    assert torch.equal(first, again)
    assert not torch.equal(first, second)


def test_every_row_may_land_in_every_minibatch():
    valid = torch.ones(2, 3, dtype=torch.bool)
    generator = seeded()
    counts = torch.zeros(3, 6)
    for _ in range(600):
        for k, part in enumerate(minibatches(valid, 3, generator)):
            counts[k, part] += 1
    # Each of 18 counts is binomial(600, 1/3): deviation 11.5.
    assert (counts - 200).abs().max() < 5 * 11.5


@pytest.mark.parametrize("by", ["samples", "envs"])
def test_more_minibatches_than_valid_rows_is_an_error(by):
    valid = torch.tensor([[True, False], [True, True]])
    with pytest.raises(UserError, match="4 minibatches of 3 rows"):
        minibatches(valid, 4, seeded(), by)


def network(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).double()


INPUTS = torch.randn(50, 4, generator=seeded(), dtype=torch.float64)
TARGETS = torch.randn(50, generator=seeded(1), dtype=torch.float64)


def gather(rows):
    return INPUTS[rows], TARGETS[rows]


def gather_float32(rows):
    return INPUTS[rows].float(), TARGETS[rows].float()


def squared_errors(call, samples):
    inputs, targets = samples
    error = call(inputs).squeeze(1) - targets
    return error.square(), {"error": error, "target": targets}


def stepper(module, max_grad_norm=None, chunk_size=1000, **settings):
    parameters = FlatParameters(module)
    optimizer = make_optimizer(parameters, Optimizer(**settings))
    return Stepper(module, parameters, optimizer, squared_errors, max_grad_norm, chunk_size)


@pytest.mark.parametrize("chunk_size", [1, 7, 10, 30, 1000])
def test_chunked_gradient_is_the_gradient_of_the_mean_loss(chunk_size):
    rows = torch.randperm(50, generator=seeded())[:30]
    plain, module = network(), network()
    loss = (plain(INPUTS[rows]).squeeze(1) - TARGETS[rows]).square().mean()
    expected = torch.autograd.grad(loss, list(plain.parameters()))
    statistics = stepper(module, chunk_size=chunk_size).gradient(rows, gather)
    for parameter, gradient in zip(module.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-6, atol=1e-9)
    assert statistics["target"].item() == pytest.approx(TARGETS[rows].mean().item())


def test_order_of_rows_does_not_matter():
    taker = stepper(network(), chunk_size=8)
    taker.gradient(torch.arange(50), gather)
    ordered = taker.parameters.gradient.clone()
    taker.gradient(torch.randperm(50, generator=seeded()), gather)
    torch.testing.assert_close(taker.parameters.gradient, ordered, rtol=1e-6, atol=1e-9)


def test_float32_chunks_agree():
    whole, chunked = (stepper(network().float(), chunk_size=size) for size in (1000, 7))
    for taker in (whole, chunked):
        taker.gradient(torch.arange(50), gather_float32)
    torch.testing.assert_close(
        chunked.parameters.gradient, whole.parameters.gradient, rtol=0, atol=1e-6
    )


@pytest.mark.parametrize("n_rows", [32, 20, 1])
def test_padded_minibatch_has_the_gradient_of_its_own_rows(n_rows):
    taker = stepper(network().float())
    compiled = CompiledGradient(taker.model, taker.parameters, squared_errors, capacity=32)
    rows = torch.randperm(50, generator=seeded())[:n_rows]
    expected = taker.gradient(rows, gather_float32)
    gradient = taker.parameters.gradient.clone()
    taker.parameters.gradient.zero_()
    taker.compiled = compiled
    # The arithmetic is what is tested; PyTorch's compiler would take its ten seconds.
    with torch.compiler.set_stance("force_eager"):
        statistics = taker.gradient(rows, gather_float32)
    torch.testing.assert_close(taker.parameters.gradient, gradient, rtol=0, atol=1e-6)
    torch.testing.assert_close(statistics, expected, rtol=0, atol=1e-6)


def test_minibatch_beyond_the_compiled_size_is_taken_all_the_same():
    plain, taker = (stepper(network().float()) for _ in range(2))
    taker.compiled = CompiledGradient(taker.model, taker.parameters, squared_errors, capacity=8)
    for each in (plain, taker):
        each.gradient(torch.arange(20), gather_float32)
    assert torch.equal(taker.parameters.gradient, plain.parameters.gradient)
    assert plain.parameters.gradient.any()


def sgd_step(max_grad_norm):
    """Return (the step taken at step size 1, the gradient, the norm reported)."""
    taker = stepper(network(), max_grad_norm, optimizer="sgd")
    before = taker.parameters.vector.detach().clone()
    taker.gradient(torch.arange(50), gather)
    gradient = taker.parameters.gradient.clone()
    norm = taker.step(learning_rate=1.0)
    return before - taker.parameters.vector.detach(), gradient, norm


def test_gradient_is_clipped_to_the_norm():
    step, gradient, norm = sgd_step(max_grad_norm=0.1)
    assert norm == pytest.approx(gradient.norm().item())
    assert norm > 0.2
    torch.testing.assert_close(step, gradient * (0.1 / norm), rtol=1e-5, atol=1e-12)


@pytest.mark.parametrize("max_grad_norm", [None, 1e3])
def test_smaller_gradient_is_left_alone(max_grad_norm):
    step, gradient, _ = sgd_step(max_grad_norm)
    torch.testing.assert_close(step, gradient)


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
    expected = module(INPUTS[:5, :3].float())
    FlatParameters(module)
    assert torch.equal(module(INPUTS[:5, :3].float()), expected)


def test_views_are_the_modules_own_parameters():
    module = network()
    parameters = FlatParameters(module)
    views = parameters.views(parameters.vector)
    assert list(views) == [name for name, _ in module.named_parameters()]
    for name, parameter in module.named_parameters():
        assert torch.equal(views[name], parameter)


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_stepping_the_flat_vector_trains_the_module(memory_format, optimizer):
    plain = pictures(memory_format)
    flat = copy.deepcopy(plain)
    parameters = FlatParameters(flat)
    images = torch.randn(6, 3, 8, 8, generator=seeded())
    ours = make_optimizer(parameters, Optimizer(optimizer=optimizer, momentum=0.9))
    theirs = {
        "adam": lambda: torch.optim.Adam(plain.parameters(), lr=0.01, eps=1e-5),
        "sgd": lambda: torch.optim.SGD(plain.parameters(), lr=0.01, momentum=0.9),
    }[optimizer]()
    for _ in range(10):
        theirs.zero_grad()
        parameters.gradient.zero_()
        plain(images).square().mean().backward()
        flat(images).square().mean().backward()
        theirs.step()
        ours.step(0.01)
    torch.testing.assert_close(flat(images), plain(images), rtol=1e-4, atol=1e-5)
    assert (flat(images) - pictures()(images)).abs().max() > 0.01


def test_frozen_parameters_stay_out_of_the_flat_vector():
    module = network()
    module[0].requires_grad_(False)
    kept = copy.deepcopy(module[0].state_dict())
    taker = stepper(module, optimizer="sgd")
    taker.gradient(torch.arange(50), gather)
    taker.step(learning_rate=1.0)
    assert taker.parameters.vector.numel() == 9
    assert all(torch.equal(kept[name], value) for name, value in module[0].state_dict().items())


def taken(gradients, learning_rate, **settings):
    """Return a weight's values after each gradient, from 0."""
    module = nn.Linear(1, 1, bias=False).double()
    parameters = FlatParameters(module)
    parameters.vector.data.zero_()
    optimizer = make_optimizer(parameters, Optimizer(**settings))
    values = []
    for gradient in gradients:
        parameters.gradient.fill_(gradient)
        optimizer.step(learning_rate)
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


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_optimizer_state_restores_what_follows(optimizer):
    settings = Optimizer(optimizer=optimizer, momentum=0.9)
    moved = []
    first = FlatParameters(network())
    ours = make_optimizer(first, settings)
    first.gradient.normal_(generator=seeded())
    for _ in range(3):
        ours.step(0.1)
    second = FlatParameters(network())
    second.vector.data.copy_(first.vector.data)
    restored = make_optimizer(second, settings)
    restored.load_state_dict(copy.deepcopy(ours.state_dict()))
    for parameters, each in ((first, ours), (second, restored)):
        parameters.gradient.fill_(0.5)
        each.step(0.1)
        moved.append(parameters.vector.detach())
    assert torch.equal(*moved)


@pytest.mark.parametrize(("env_steps", "value"), [(0, 0.2), (250, 0.15), (1000, 0.0), (1100, 0.0)])
def test_linear_schedule(env_steps, value):
    assert scheduled(0.2, "linear", env_steps, 1000) == pytest.approx(value)
    assert scheduled(0.2, "constant", env_steps, 1000) == 0.2


def test_chunk_rows():
    assert chunk_rows((3, 64, 64)) == 64
    assert chunk_rows((3, 512, 512)) == 16
    assert chunk_rows(None) > 1000
    assert chunk_rows((3, 64, 64), chosen=5) == 5
