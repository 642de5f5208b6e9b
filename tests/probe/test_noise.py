"""The noise scale: known answers, and what each of its three estimates takes for granted."""

import math

import pytest
import torch
from known_gradients import SIGNAL, correlated, without_intervals

from isobatch.errors import UserError
from isobatch.probe import noise_scale

N_ENVS, N_STEPS, SIZE = 32, 16, 4
SQUARED = SIZE * SIGNAL**2


def test_signal_and_trace_of_independent_samples_are_unbiased(monkeypatch):
    without_intervals(monkeypatch)
    generator = torch.Generator().manual_seed(1)
    found = {kind: [] for kind in ("per-sample", "two-batch", "per-environment", "minibatch")}
    for _ in range(100):
        for kind, each in noise_scale(correlated(generator, (N_ENVS, N_STEPS, SIZE))).items():
            found[kind].append([each.signal.value, each.trace.value])
    truth = torch.tensor([SQUARED, float(SIZE)], dtype=torch.float64)
    for kind, values in found.items():
        values = torch.tensor(values, dtype=torch.float64)
        error = values.std(0) / math.sqrt(len(values))
        assert ((values.mean(0) - truth).abs() < 4 * error).all(), kind


def test_what_each_estimate_sees_of_correlation(monkeypatch):
    without_intervals(monkeypatch)
    generator = torch.Generator().manual_seed(2)
    phi = 0.9
    effect = 1 + 2 * sum((1 - k / N_STEPS) * phi**k for k in range(1, N_STEPS))
    traces = {"per-sample": [], "two-batch": [], "per-environment": [], "minibatch": []}
    signals = {kind: [] for kind in traces}
    for _ in range(100):
        for kind, each in noise_scale(correlated(generator, (N_ENVS, N_STEPS, SIZE), phi)).items():
            traces[kind].append(each.trace.value)
            signals[kind].append(each.signal.value)
    means = {kind: sum(values) / len(values) for kind, values in traces.items()}
    assert means["per-environment"] == pytest.approx(SIZE * effect, rel=0.05)
    assert means["per-sample"] == pytest.approx(SIZE, rel=0.05)
    assert means["two-batch"] == pytest.approx(SIZE, rel=0.1)
    # Minibatches: the noise of single samples, and a gradient that correlation does not inflate.
    assert means["minibatch"] == means["per-sample"]
    assert signals["minibatch"] == signals["per-environment"]
    too_large = sum(signals["per-sample"]) / sum(signals["minibatch"])
    assert too_large > 1.02


def test_the_scale_is_trace_over_signal_with_an_interval_around_it():
    g = correlated(torch.Generator().manual_seed(3), (64, N_STEPS, SIZE))
    for each in noise_scale(g).values():
        scale = each.noise_scale
        assert scale.value == pytest.approx(each.trace.value / each.signal.value)
        assert scale.low < scale.value < scale.high
        assert scale.low < SIZE / SQUARED < scale.high


def test_a_lost_signal_leaves_no_upper_bound():
    g = torch.randn(16, 8, 50, generator=torch.Generator().manual_seed(4))
    g -= g.mean((0, 1))
    each = noise_scale(g)["per-environment"]
    assert each.signal.value < 0
    assert math.isinf(each.noise_scale.value)
    assert math.isinf(each.noise_scale.high)
    assert each.noise_scale.json[0] is None


def test_batches_are_taken_together():
    g = correlated(torch.Generator().manual_seed(5), (4, 8, N_STEPS, SIZE))
    assert noise_scale(g) == noise_scale(g.flatten(0, 1))


def test_one_environment_is_refused():
    with pytest.raises(UserError, match="take two or more"):
        noise_scale(torch.randn(1, 8, 2))
