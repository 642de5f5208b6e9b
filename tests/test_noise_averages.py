"""What probes in training measured, averaged."""

import math
from typing import Any

import pytest
import torch

from isobatch.noise.averages import Averages, Measured


def measured(**values) -> Measured:
    known: dict[str, Any] = {
        "rows": 100, "signal": 1.0, "trace": 50.0, "variance": 1.0, "half_variance": 1.5,
        "bias": 0.1,
    }  # fmt: skip
    return Measured(**known | values)


def test_averages_are_taken_before_dividing():
    averages = Averages(decay=0.5)
    averages.update(measured(signal=-1.0, trace=10.0))
    assert averages.noise_scale is None
    assert "noise_scale" not in averages.columns
    averages.update(measured(signal=3.0, trace=40.0, variance=2.0))
    assert averages.mean("signal") == pytest.approx((0.5 * -1 + 3) / 1.5)
    assert averages.noise_scale == pytest.approx((0.5 * 10 + 40) / (0.5 * -1 + 3))
    effect = averages.columns["design_effect"]
    assert effect == pytest.approx((0.5 * 1 + 2) / (0.5 * 10 + 40) * 100)
    assert averages.columns["design_effect_half"] == pytest.approx(1.5 * 50 / 30)
    assert averages.columns["bias_half"] == pytest.approx(0.1 * 1.5 / (0.5 * -1 + 3))
    again = Averages(decay=0.5)
    again.load_state_dict(averages.state_dict())
    for each in (averages, again):
        each.update(measured(trace=7.0))
    assert again.columns == averages.columns
    assert again.probes == averages.probes == 3


def test_a_noise_scale_is_never_below_zero():
    averages = Averages()
    averages.update(measured(trace=-5.0))
    assert averages.noise_scale is None


def test_the_error_of_the_squared_gradient_is_that_of_a_weighted_mean():
    """Of weights w, unbiased where probes scatter alike: s^2 sum w^2 / (sum w)^2."""
    found, averages = [1.0, 4.0, -2.0, 3.0], Averages(decay=0.5)
    assert not averages.has_signal
    averages.update(measured(signal=found[0]))
    assert averages.signal_error == math.inf
    assert not averages.has_signal, "one probe tells nothing, whatever it found"
    for signal in found[1:]:
        averages.update(measured(signal=signal))
    weights = torch.tensor([0.125, 0.25, 0.5, 1.0], dtype=torch.float64)
    share = weights / weights.sum()
    values = torch.tensor(found, dtype=torch.float64)
    spread = share @ (values - share @ values).square() / (1 - share.square().sum())
    expected = (spread * share.square().sum()).sqrt()
    assert averages.signal_error == pytest.approx(float(expected))
    again = Averages(decay=0.5)
    again.load_state_dict(averages.state_dict())
    assert again.signal_error == averages.signal_error


def test_averages_of_a_checkpoint_that_kept_no_scatter_wait_for_it():
    averages = Averages()
    averages.load_state_dict({"probes": 9, "weights": {"signal": 6.0}, "totals": {"signal": 12.0}})
    assert averages.mean("signal") == 2
    assert not averages.has_signal
    assert averages.errors is None


def test_averages_of_another_shape_begin_anew():
    averages = Averages()
    averages.update(measured())
    averages.restart(reshaped=False)
    assert averages.probes == 0
    assert averages.mean("variance") == 1.0
    averages.restart(reshaped=True)
    assert averages.mean("variance") is None
    assert averages.noise_scale == 50.0
    averages.update(measured(variance=4.0))
    assert averages.mean("variance") == 4.0
