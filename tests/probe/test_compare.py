"""Shapes compared, batches sized, policies that have collapsed, and the record: known answers."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from test_curve import GAMMA, LAMBDA, LENGTHS, made

from isobatch.batch import Shape
from isobatch.estimate import Estimate
from isobatch.noise.errors import GradientError
from isobatch.probe import compare
from isobatch.probe.collapse import Exploration
from isobatch.probe.curve import bias, curve, quantiles
from isobatch.probe.sizing import Sizing
from isobatch.probe.track_record import (
    DOUBLINGS,
    RECORD,
    Doubling,
    Prediction,
    said,
    said_of_doubling,
)

numbers = st.floats(-1e6, 1e6)


def error(bias2: list[float], variance: list[float]) -> GradientError:
    return GradientError(torch.tensor(bias2).double(), torch.tensor(variance).double())


SHAPES = (Shape(8, 4), Shape(4, 8))


def test_shapes_are_compared_resample_by_resample():
    """The first is the smaller in three resamples of four, always by its own half."""
    one, other = error([0] * 5, [1, 1, 2, 3, 9]), error([0] * 5, [2, 2, 4, 6, 3])
    found = compare._compared(SHAPES, [one, other], [1, 1])
    assert found.wins == (0.75, 0.25)
    assert (found.winner, found.runner_up) == SHAPES
    assert not found.is_clear
    assert found.ratio == Estimate(0.5, 0.5, 3)
    assert [each.value for each in found.errors] == [1, 2]


def test_noise_averages_out_over_updates_and_bias_does_not():
    biased, noisy = error([1.0] * 3, [1.0] * 3), error([0.0] * 3, [8.0] * 3)
    assert compare._compared(SHAPES, [biased, noisy], [1, 1]).winner == SHAPES[0]
    many = compare._compared(SHAPES, [biased, noisy], [10, 10])
    assert many.winner == SHAPES[1]
    assert [each.value for each in many.errors] == pytest.approx([1.1, 0.8])
    assert many.is_clear


def test_where_every_error_is_infinite_nobody_wins():
    one, other = error([0, 0, math.inf], [1, 1, 1]), error([0, 0, math.inf], [2, 2, 2])
    found = compare._compared(SHAPES, [one, other], [1, 1])
    assert found.wins == (0.5, 0)
    assert not found.is_clear
    assert found.ratio == Estimate(0.5, 0, math.inf)


def test_there_is_no_ratio_to_an_infinite_error():
    one, other = error([0, 0, 0], [1, 1, 1]), error([math.inf, 0, math.inf], [2, 2, 2])
    found = compare._compared(SHAPES, [one, other], [1, 1])
    assert found.wins == (1, 0)
    assert math.isnan(found.ratio.value)
    assert (found.ratio.low, found.ratio.high) == (0, 0.5)


def test_shapes_of_two_sizes_are_evened_out():
    """Two rollouts of half the size have the same variance where samples are independent."""
    measured = bias(*made(), LENGTHS, GAMMA, LAMBDA)
    found = compare.compare(measured, (Shape(4, 8), Shape(8, 8)))
    small, large = (each.value for each in found.update.errors)
    assert found.transitions is not None
    assert found.transitions.batches == (2, 1)
    evened = [each.value for each in found.transitions.errors]
    assert evened[0] == pytest.approx(evened[1]) == pytest.approx(large)
    assert small > 1.8 * large
    assert found.update.winner == Shape(8, 8)
    assert found.update.is_clear


def test_one_shape_is_compared_with_the_best_other_one():
    points = curve(bias(*made(phi=0.9), LENGTHS, GAMMA, LAMBDA), 32)
    asked = Shape(2, 16)
    assert compare.to_compare([asked], points)[0] == asked
    (other,) = compare.to_compare([asked], points)[1:]
    rest = [each for each in points if each.shape != asked]
    assert other == max(rest, key=lambda each: each.best_share_over_updates).shape
    assert compare.to_compare(SHAPES, points) == SHAPES


def test_the_best_shape_is_the_one_that_wins_most_often_whatever_its_estimate():
    points = curve(bias(*made(), LENGTHS, GAMMA, LAMBDA), 32)
    unlucky = replace(points[0], best_share=1.0, error=Estimate(1e9))
    assert compare.most_often([unlucky, *points[1:]]) is unlucky


@given(numbers, st.lists(numbers, min_size=3, max_size=50))
def test_an_estimate_is_never_outside_its_interval(value, resamples):
    found = quantiles(torch.tensor([value, *resamples]).double())
    assert found.low <= found.value <= found.high


def test_bounds_that_are_not_known_stay_so():
    found = Estimate.around(1.0, math.nan, math.nan)
    assert math.isnan(found.low)
    assert math.isnan(found.high)


@pytest.mark.parametrize(
    ("scale", "verdict"),
    [
        ((4000, 2100, 9000), "too small"),
        ((2000, 900, 9000), "about right or too small"),
        ((1000, 600, 1900), "about right"),
        ((900, 300, 3900), "about right"),
        ((600, 100, 1500), "about right or too large"),
        ((200, 100, 480), "too large"),
        ((900, 100, 9000), "cannot tell"),
        ((9000, 5000, math.inf), "cannot tell"),
        ((math.inf, 5000, math.inf), "cannot tell"),
        ((900, math.nan, math.nan), "cannot tell"),
    ],
)
def test_a_batch_of_1000_against_the_noise_scale(scale, verdict):
    assert Sizing(1000, Estimate(*scale)).verdict == verdict


def test_doubling_buys_what_the_simple_noise_model_says():
    """At the noise scale itself: steps 1 + 1/2 over 1 + 1, on twice the samples."""
    sizing = Sizing(1000, Estimate(1000, 0, math.inf))
    assert sizing.steps == Estimate(0.75, 0.5, 1)
    assert sizing.samples == Estimate(1.5, 1, 2)


def test_a_policy_has_collapsed_where_next_to_no_chance_is_left():
    uniform = math.log(4)
    assert Exploration(1e-13, uniform, 1).has_collapsed
    assert not Exploration(0.1 * uniform, uniform, 1).has_collapsed
    normal = 0.5 * math.log(2 * math.pi * math.e)
    assert not Exploration(3 * (normal + math.log(0.1)), None, 3).has_collapsed
    assert Exploration(3 * (normal + math.log(1e-4)), None, 3).has_collapsed


def test_the_record_is_quoted_as_numbers():
    assert "not yet tested against training" in said([])
    assert f"the best shape in 1 of {len(RECORD)} environments" in said()
    rows = [
        Prediction("A-v1", "8x128", "8x128", Estimate(0.8, 0.5, 0.9), 5, 6, 2),
        Prediction("B-v1", "8x128", "64x16", Estimate(0.2, -0.3, 0.5), 3, 6, 4),
    ]
    text = said(rows)
    assert "right for 8 of 12 pairs of shapes that training told apart" in text
    assert "(always preferring longer rollouts: 6)" in text
    assert "the best shape in 1 of 2 environments" in text
    assert "mean rank correlation 0.50 [-1.00, 1.00]" in text
    assert "1 of 1 environment;" in said(rows[:1])


def test_the_record_of_doubling_counts_what_training_agreed_with():
    page = (Path(__file__).parents[2] / "docs/results/probe.md").read_text(encoding="utf-8")
    for each in DOUBLINGS:
        low, high = each.trained.low, each.trained.high
        row = f"| {each.predicted:.2f} | {each.trained.value:.2f} [{low:.2f}, {high:.2f}] |"
        assert row in page, each
    assert "in 9 of 12 cases" in page
    assert "in 9 of 12 cases" in said_of_doubling()
    off = Doubling("X-v0", "rollout", 2.0, Estimate(1.0, 0.5, 1.5))
    assert "in 0 of 1 case;" in said_of_doubling([off])
