import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from isobatch.algos.stepping import _side_by_side
from isobatch.errors import UserError
from isobatch.recipe import Optimizer
from isobatch.update import CompiledGradient, Stepper, chunk_rows, minibatches
from isobatch.update.optimize import FlatParameters, make_optimizer


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


@given(partitions(), st.sampled_from(["samples", "envs"]), st.integers(0, 1000))
def test_by_shards_too_every_valid_row_exactly_once(partition, by, seed):
    valid, count = partition
    parts = minibatches(valid, count, seeded(seed), by, valid.shape[1])
    assert len(parts) == count
    assert all(len(part) for part in parts)
    assert sorted(torch.cat(parts).tolist()) == valid.flatten().nonzero().flatten().tolist()


@pytest.mark.parametrize(("by", "unit"), [("samples", 1), ("envs", 16)])
def test_every_minibatch_has_its_share_of_each_shard_and_which_rows_is_chance(by, unit):
    valid, generator = torch.ones(16, 24, dtype=torch.bool), seeded()
    valid[:, 18:] = by == "envs"  # By samples, the last of four shards is all reset rows.
    seen = set()
    for _ in range(50):
        for part in minibatches(valid, 6, generator, by, 4):
            shares = torch.bincount(part % 24 // 6, minlength=4)
            fair = valid.view(16, 4, 6).sum((0, 2)) / 6
            assert (shares - fair).abs().max() <= unit
            seen.add(tuple((part % 24).unique().tolist()))
    assert len(seen) > 50


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
    chosen = Optimizer(max_grad_norm=max_grad_norm, **settings)
    optimizer = make_optimizer(parameters, chosen)
    return Stepper(module, parameters, optimizer, squared_errors, chosen, chunk_size)


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
def test_padded_minibatch_has_the_gradient_of_its_own_rows(n_rows, traced_only):
    taker = stepper(network().float())
    compiled = CompiledGradient(
        taker.model, taker.parameters, squared_errors, capacity=32, name="squared errors"
    )
    rows = torch.randperm(50, generator=seeded())[:n_rows]
    expected = taker.gradient(rows, gather_float32)
    gradient = taker.parameters.gradient.clone()
    taker.parameters.gradient.zero_()
    taker.compiled = compiled
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


def test_networks_with_buffers_are_not_compiled_since_these_may_change():
    plain, taker = (stepper(network().float()) for _ in range(2))
    taker.model.register_buffer("running", torch.zeros(1))
    taker.compiled = CompiledGradient(taker.model, taker.parameters, squared_errors, capacity=32)
    with pytest.warns(UserWarning, match="have buffers.*continues uncompiled"):
        taker.gradient(torch.arange(20), gather_float32)
    plain.gradient(torch.arange(20), gather_float32)
    assert torch.equal(taker.parameters.gradient, plain.parameters.gradient)


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


def test_frozen_parameters_stay_out_of_the_flat_vector():
    module = network()
    module[0].requires_grad_(False)
    kept = copy.deepcopy(module[0].state_dict())
    taker = stepper(module, optimizer="sgd")
    taker.gradient(torch.arange(50), gather)
    taker.step(learning_rate=1.0)
    assert taker.parameters.vector.numel() == 9
    assert all(torch.equal(kept[name], value) for name, value in module[0].state_dict().items())


def test_chunk_rows():
    assert chunk_rows((3, 64, 64)) == 64
    assert chunk_rows((3, 512, 512)) == 16
    assert chunk_rows(None) > 1000
    assert chunk_rows((3, 64, 64), chosen=5) == 5
    # Two threads' halves of a minibatch of 256 are a pass each.
    assert chunk_rows((4, 84, 84), "nature") == chunk_rows((4, 84, 84), "auto") >= 128
    assert chunk_rows((4, 84, 84), "impala") == chunk_rows((4, 84, 84)) == 37


def test_statistics_of_another_device_stand_beside_norms_of_the_cpu():
    """As on a GPU; of the devices there always are, only "meta" refuses to mix with the CPU."""
    measured = {"policy_loss": torch.zeros((), device="meta"), "grad_norm": torch.tensor(2.0)}
    assert _side_by_side(measured).device.type == "meta"
    assert _side_by_side({"a": torch.tensor(1.0), "b": torch.tensor(2.0)}).tolist() == [1, 2]
