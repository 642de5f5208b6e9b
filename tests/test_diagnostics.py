import math
import warnings

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from torch import nn

from isobatch import diagnostics
from isobatch.diagnostics import (
    StateCoverage,
    VisitCounts,
    dormant_fraction,
    effective_rank,
    feature_rank,
    gradient_kurtosis,
    gradient_norm_kurtosis,
    importance_ess,
    kurtosis,
    policy_variance,
    singular_values,
    srank,
    state_coverage,
    visited_entropy,
    weight_norm,
)

NAN, INF = math.nan, math.inf


@pytest.fixture(autouse=True)
def _quiet_and_without_chance():
    """No function warns or moves a global generator, whatever it is given."""
    before = torch.random.get_rng_state(), np.random.get_state()[1].copy()  # pyright: ignore
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield
    assert torch.equal(torch.random.get_rng_state(), before[0])
    assert (np.random.get_state()[1] == before[1]).all()  # pyright: ignore


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def with_singular_values(values, rows, columns, seed=0):
    """Return a matrix [rows, columns] that has these singular values, and zeros."""
    left, _ = torch.linalg.qr(normal(rows, len(values), seed=seed).double())
    right, _ = torch.linalg.qr(normal(columns, len(values), seed=seed + 1).double())
    return left @ torch.tensor(values, dtype=torch.float64).diag() @ right.T


# Networks


def test_weight_norm_by_hand():
    assert weight_norm(nn.ParameterList([torch.tensor([[2.0, 3.0]]), torch.tensor([6.0])])) == 7
    assert weight_norm(nn.ReLU()) == 0


def test_weight_norm_is_that_of_all_parameters_as_one_vector():
    with torch.random.fork_rng():
        model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Linear(8, 5))
    vector = nn.utils.parameters_to_vector(model.parameters()).detach().double()
    assert weight_norm(model) == pytest.approx(float(vector.norm()), rel=1e-12)


def test_dormant_units_by_hand():
    # Means of |h|: 2, 2, 0.05, 0. Their mean is 1.0125, so that the third's score is 0.0494.
    layer = torch.tensor([[1.0, -3, 0.1, 0], [-3, 1, 0, 0]])
    assert dormant_fraction(layer) == 0.25
    assert dormant_fraction(layer, tau=0.05) == 0.5
    assert dormant_fraction(layer, tau=0.0) == 0.25


def test_the_threshold_itself_is_dormant():
    assert dormant_fraction(torch.tensor([[0.5, 1.5]]), tau=0.5) == 0.5


def test_dormant_units_of_layers_are_counted_over_all_units():
    dead = torch.zeros(5, 2)
    awake = torch.ones(3, 6)
    assert dormant_fraction([dead, awake]) == 2 / 8
    # Each layer has its own mean: a small one is not dormant beside a large one.
    assert dormant_fraction([1e-6 * awake, awake]) == 0


def test_a_channel_is_one_unit():
    maps = torch.zeros(2, 3, 4, 4)
    maps[0, 0, 1, 2] = 1.0
    maps[:, 1] = -1.0
    assert dormant_fraction(maps) == 1 / 3  # The first scores (1 / 32) / (33 / 96) = 0.09.
    assert dormant_fraction(maps, tau=0.1) == 2 / 3


@given(st.integers(0, 1000), st.floats(1e-3, 1e3))
def test_dormant_units_depend_on_neither_scale_nor_order(seed, scale):
    layer = normal(20, 16, seed=seed).relu() * torch.logspace(-4, 0, 16)
    found = dormant_fraction(layer)
    assert 0 <= found <= 1
    assert dormant_fraction(layer * scale) == found
    assert dormant_fraction(layer.flip(0)) == found
    assert dormant_fraction(layer.flip(1)) == found


def test_dormant_units_at_the_edges():
    assert dormant_fraction(torch.zeros(4, 3)) == 1
    assert dormant_fraction(torch.ones(1, 3)) == 0
    for nothing in (torch.zeros(0, 3), torch.zeros(3, 0), [], torch.tensor([[1, NAN]])):
        assert math.isnan(dormant_fraction(nothing))
    assert math.isnan(dormant_fraction(torch.tensor([[1, INF]])))
    with pytest.raises(ValueError, match=r"\[B, H\]"):
        dormant_fraction(torch.zeros(3))


# Gradients


@pytest.mark.parametrize(
    ("law", "expected"), [("standard_normal", 3.0), ("random", 1.8), ("laplace", 6.0)]
)
def test_kurtosis_of_known_laws(law, expected):
    """Pearson's: 3 for the normal law."""
    values = getattr(np.random.default_rng(0), law)(size=2_000_000)
    assert kurtosis(torch.from_numpy(values)) == pytest.approx(expected, rel=0.01)


@given(arrays(np.float64, st.integers(2, 50), elements=st.floats(-1e3, 1e3, width=32)))
def test_kurtosis_is_scipys(values):
    if np.ptp(values) < 1e-3:
        return  # Scipy has its own idea of what is constant.
    expected = scipy.stats.kurtosis(values, fisher=False)
    assert kurtosis(torch.from_numpy(values)) == pytest.approx(expected, rel=1e-9)


@given(st.integers(0, 1000), st.floats(0.01, 100), st.floats(-10, 10))
def test_kurtosis_depends_on_neither_place_scale_nor_order(seed, scale, place):
    values = normal(64, seed=seed).double()
    expected = pytest.approx(kurtosis(values), rel=1e-6)
    assert kurtosis(scale * values + place) == expected
    assert kurtosis(values.flip(0)) == expected


def test_kurtosis_at_the_edges():
    assert kurtosis(torch.tensor([-1.0, 1.0])) == 1.0  # The least there is.
    for undefined in ([], [2.0], [0.1] * 7, [1.0, NAN], [1.0, INF]):
        assert math.isnan(kurtosis(torch.tensor(undefined)))


def test_gradient_kurtosis_is_of_logarithms_pooled_over_parameters():
    parts = [normal(8, 4), normal(8, seed=1), torch.zeros(3)]
    entries = np.concatenate([part.numpy().ravel() for part in parts]).astype(np.float64)
    expected = scipy.stats.kurtosis(np.log(np.abs(entries) + 1e-8), fisher=False)
    assert gradient_kurtosis(parts) == pytest.approx(expected, rel=1e-4)
    assert gradient_kurtosis(torch.cat([part.flatten() for part in parts])) == pytest.approx(
        expected, rel=1e-4
    )


def test_gradient_kurtosis_of_a_log_normal_law_is_that_of_the_normal_one():
    assert gradient_kurtosis(normal(1_000_000).exp()) == pytest.approx(3, rel=0.02)


def test_gradient_kurtosis_leaves_the_gradient_alone():
    gradient = torch.tensor([1.0, -2.0, 4.0])
    gradient_kurtosis([gradient])
    assert gradient.tolist() == [1, -2, 4]


def test_gradient_kurtosis_at_the_edges():
    for undefined in ([], [torch.zeros(0)], torch.zeros(9), torch.tensor([1.0, 2.0, NAN])):
        assert math.isnan(gradient_kurtosis(undefined))


def test_one_sample_that_stands_out_makes_norms_heavy_tailed():
    norms = torch.ones(100)
    norms[0] = 50.0
    # One in n: kurtosis = n - 2 + 1 / (n - 1).
    assert gradient_norm_kurtosis(norms) == pytest.approx(98 + 1 / 99)


# Policies


def test_policy_variance_by_hand():
    probabilities = torch.tensor([0.2, 0.4, 0.9])
    assert policy_variance(probabilities.log()) == pytest.approx((0.09 + 0.01 + 0.16) / 3)
    assert policy_variance(torch.tensor([-0.7])) == 0
    assert math.isnan(policy_variance(torch.zeros(0)))
    assert math.isnan(policy_variance(torch.tensor([-1.0, NAN])))


def test_ess_of_known_weights():
    weights = torch.tensor([1.0, 2.0, 3.0])
    assert importance_ess(weights.log()) == pytest.approx(36 / (3 * 14))
    assert importance_ess(torch.zeros(7)) == 1
    assert importance_ess(torch.tensor([0.0, 0.0, -INF, -INF])) == 0.5


def test_one_huge_weight_does_not_overflow():
    assert importance_ess(torch.tensor([1e4, 0.0, -1e4, 3.0])) == 0.25
    assert importance_ess(torch.tensor([1e4, 1e4])) == 1


def test_ess_at_the_edges():
    assert importance_ess(torch.tensor([-3.0])) == 1
    for undefined in ([], [0.0, NAN], [-INF, -INF], [0.0, INF]):
        assert math.isnan(importance_ess(torch.tensor(undefined)))


@given(arrays(np.float64, st.integers(1, 40), elements=st.floats(-300, 300)), st.floats(-50, 50))
def test_ess_is_a_fraction_that_depends_on_neither_scale_nor_order(log_weights, shift):
    log_weights = torch.from_numpy(log_weights)
    found = importance_ess(log_weights)
    assert 1 / len(log_weights) <= found <= 1
    assert importance_ess(log_weights + shift) == pytest.approx(found, rel=1e-9)
    assert importance_ess(log_weights.flip(0)) == pytest.approx(found, rel=1e-9)


# Ranks


def test_ranks_of_known_singular_values():
    # Squares 100, 1, 0.01: shares 0.990, 0.9999. Themselves 10, 1, 0.1: 0.901, 0.991.
    values = [10.0, 1.0, 0.1]
    for features in (
        with_singular_values(values, 50, 8),
        with_singular_values(values, 8, 50),
        torch.tensor(values),
    ):
        assert feature_rank(features) == 1
        assert feature_rank(features, threshold=0.995) == 2
        assert feature_rank(features, threshold=0.99999) == 3
        assert srank(features) == 2
        assert srank(features, delta=0.1) == 1
        assert srank(features, delta=0.005) == 3
        shares = np.array(values) / 11.1
        assert effective_rank(features) == pytest.approx(
            np.exp(-(shares * np.log(shares)).sum()), rel=1e-5
        )


@pytest.mark.parametrize("rank", [1, 3, 16])
def test_equal_directions_all_count(rank):
    features = with_singular_values([2.0] * rank, 40, 16)
    assert feature_rank(features) == srank(features) == rank == np.linalg.matrix_rank(features)
    assert effective_rank(features) == pytest.approx(rank, rel=1e-5)


def test_a_share_that_is_reached_exactly_is_enough():
    assert feature_rank(torch.ones(4), threshold=0.5) == 2
    assert srank(torch.ones(4), delta=0.25) == 3


@pytest.mark.parametrize("shape", [(100, 16), (16, 100), (30, 30), (1, 5), (5, 1)])
def test_singular_values_are_numpys(shape):
    features = normal(*shape).relu()
    expected = np.linalg.svd(features.double().numpy(), compute_uv=False)
    np.testing.assert_allclose(singular_values(features), expected, atol=1.5e-8 * expected[0])


@given(
    arrays(np.float32, array_shapes(min_dims=2, max_dims=2), elements=st.floats(-9, 9, width=32)),
    st.sampled_from([0.5, 2.0, 1024.0]),
)
def test_ranks_stay_within_the_shape_and_depend_on_neither_scale_nor_order(features, scale):
    features = torch.from_numpy(features)
    least = min(features.shape)
    ranks = feature_rank(features), srank(features), effective_rank(features)
    assert all(0 <= each <= least + 1e-9 for each in ranks)
    assert ranks[0] <= ranks[1]  # Squares are never spread more evenly.
    assert all(each == 0 for each in ranks) == bool((features == 0).all())
    assert effective_rank(features * scale) == pytest.approx(ranks[2], rel=1e-5)
    assert effective_rank(features.flip(0)) == pytest.approx(ranks[2], rel=1e-5)
    assert effective_rank(features.T) == pytest.approx(ranks[2], rel=1e-5)


@pytest.mark.parametrize("rank", [feature_rank, srank, effective_rank])
def test_ranks_at_the_edges(rank):
    assert rank(torch.zeros(8, 4)) == 0
    assert rank(torch.ones(1, 4)) == pytest.approx(1, rel=1e-6)
    for undefined in (
        torch.zeros(0, 4),
        torch.zeros(4, 0),
        torch.tensor([[1.0, NAN], [0.0, 1.0]]),
        torch.tensor([[1.0, INF], [0.0, 1.0]]),
    ):
        assert math.isnan(rank(undefined))
    with pytest.raises(ValueError, match=r"\[B, H\]"):
        rank(torch.zeros(2, 3, 4))


# States


def test_entropy_of_visits_by_hand():
    assert visited_entropy(torch.tensor([3, 3, 3])) == 0
    assert visited_entropy(torch.arange(8)) == pytest.approx(math.log(8))
    expected = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25))
    assert visited_entropy(torch.tensor([5, 5, -2, 5])) == pytest.approx(expected)
    rows = torch.tensor([[0, 1], [0, 1], [1, 0], [0, 1]])
    assert visited_entropy(rows) == pytest.approx(expected)
    assert math.isnan(visited_entropy(torch.zeros(0, dtype=torch.long)))
    assert math.isnan(visited_entropy(torch.tensor([0.0, NAN])))


@given(st.lists(st.integers(0, 9), min_size=1, max_size=100))
def test_entropy_of_visits_is_scipys(ids):
    _, counts = np.unique(ids, return_counts=True)
    expected = pytest.approx(scipy.stats.entropy(counts), abs=1e-12)
    assert visited_entropy(torch.tensor(ids)) == expected


def test_coverage_by_hand():
    # 2 asinh(10 x) of 0, 0.02, 0.03, 1 and 9: 0, 0.40, 0.59, 5.996 and 10.39.
    rows = torch.tensor([[0.0, 0], [0.02, 0], [0.03, 0], [1.0, 0], [1.0, 9]])
    assert state_coverage(rows) == 4 / 5
    # A fifth of that, at five times the width: 0, 0.08, 0.12, 1.199 and 2.08.
    assert state_coverage(rows, width=2.5) == 3 / 5
    assert state_coverage(torch.ones(4, 3)) == 1 / 4
    assert math.isnan(state_coverage(torch.zeros(0, 3)))


def test_bins_grow_with_the_coordinate_to_half_of_it():
    def edges(low, high):
        """Return where neighbours on a fine grid are told apart."""
        grid = torch.linspace(low, high, 20_001)
        apart = [state_coverage(grid[k : k + 2]) == 1 for k in range(len(grid) - 1)]
        return grid[1:][torch.tensor(apart)]

    # Edges at 0.1 sinh((k + 1 / 2) / 2).
    expected = 0.1 * np.sinh((np.arange(-2, 2) + 0.5) / 2)
    np.testing.assert_allclose(edges(-0.1, 0.1), expected, atol=2e-5)
    expected = 0.1 * np.sinh((np.arange(15, 18) + 0.5) / 2)
    np.testing.assert_allclose(edges(100.0, 400.0), expected, atol=0.02)


def test_bins_do_not_depend_on_what_came_before():
    """Starting states alike or not, few or many: the same rows later are as many bins."""
    later = normal(500, 3)
    apart, alike = StateCoverage(), StateCoverage()
    apart.update(100 * normal(50, 3, seed=1) + 1e6)
    alike.update(torch.full((2000, 3), 1e6))
    before = apart.distinct, alike.distinct
    for each in (apart, alike):
        each.update(later)
    assert apart.distinct - before[0] == pytest.approx(alike.distinct - before[1], rel=0.02)
    assert alike.distinct - before[1] == pytest.approx(500 * state_coverage(later), rel=0.02)


def test_images_count_pixel_by_pixel():
    random = np.random.default_rng(0)
    images = random.integers(0, 256, (40, 7, 7, 3), dtype=np.uint8)  # 147 bytes: not by eight.
    seen = torch.from_numpy(np.concatenate([images, images]))
    assert state_coverage(seen) == 0.5
    seen[40:, 6, 6, 2] ^= 1
    assert state_coverage(seen) == 1


def test_single_bits_are_told_apart():
    """Wherever they are, alone or in pairs: the weak spot of sums modulo 2^64."""
    bits = torch.eye(256, dtype=torch.uint8).reshape(256, 32, 8)
    rows = (bits * (2 ** torch.arange(8, dtype=torch.uint8))).sum(2, dtype=torch.uint8)
    first, second = torch.triu_indices(256, 256)
    pairs = rows[first] ^ rows[second]  # Equal ones are zero.
    distinct = len(np.unique(pairs.numpy(), axis=0))
    assert state_coverage(pairs) == distinct / len(pairs)


def test_parts_of_an_observation_count_together():
    image = torch.tensor([[0], [0], [1], [1]], dtype=torch.uint8)
    vector = torch.tensor([[0.0], [5.0], [0.0], [0.0]])
    assert state_coverage({"image": image, "vector": vector}) == 3 / 4
    sketch = StateCoverage()
    sketch.update({"image": image, "vector": vector})
    sketch.update({"vector": vector, "image": image})
    assert sketch.distinct == pytest.approx(3, abs=0.01)


def test_what_is_no_number_has_a_bin_of_its_own():
    rows = torch.tensor([NAN, NAN, INF, -INF, 0.0, 1e300])  # Of float32 the last is inf.
    assert state_coverage(rows) == 4 / 6


@pytest.mark.parametrize("count", [1, 30, 1_000, 20_000, 60_000, 500_000])
def test_the_sketch_is_near_the_truth(count):
    sketch = StateCoverage()
    for part in torch.arange(count).repeat(2).split(100_000):
        sketch.update(part)
    assert sketch.steps == 2 * count
    assert sketch.distinct == pytest.approx(count, rel=4 * 0.008, abs=0.01)
    assert sketch.coverage == sketch.distinct / (2 * count)


def test_the_sketch_agrees_with_the_exact_number():
    rows = normal(30_000, 3)
    sketch = StateCoverage()
    sketch.update(rows)
    exact = state_coverage(rows)
    assert 0.02 < exact < 0.9
    assert sketch.coverage == pytest.approx(exact, rel=4 * 0.008)


def test_a_sketch_never_counts_more_than_it_saw():
    for count in (1, 7, 300, 5_000):
        sketch = StateCoverage()
        sketch.update(torch.arange(count))
        assert 0 < sketch.coverage <= 1


@given(st.lists(st.integers(0, 60), min_size=1, max_size=6), st.integers(0, 1000))
def test_a_sketch_depends_on_neither_order_nor_parts(sizes, seed):
    rows = normal(sum(sizes), 2, seed=seed)
    whole, parts = (StateCoverage() for _ in range(2))
    whole.update(rows)
    for part in rows.flip(0).split(sizes):
        parts.update(part)
    assert whole.distinct == parts.distinct
    assert whole.steps == parts.steps


def test_a_sketch_goes_on_from_its_state():
    first, second = normal(500, 3), 3 * normal(500, 3, seed=1)
    whole, before, after = (StateCoverage() for _ in range(3))
    whole.update(first)
    before.update(first)
    state = before.state_dict()
    before.update(second)  # What a checkpoint holds does not move on with the run.
    after.load_state_dict(state)
    assert after.distinct == whole.distinct
    assert all(isinstance(each, torch.Tensor) for each in state.values())
    for each in (whole, after):
        each.update(second)
    assert after.distinct == whole.distinct == before.distinct
    assert after.coverage == whole.coverage
    again = StateCoverage()
    again.load_state_dict(state)  # Nor with a run that goes on from it.
    assert again.distinct < after.distinct


def test_an_empty_sketch():
    sketch = StateCoverage()
    sketch.update(torch.zeros(0, 3))
    assert sketch.distinct == 0
    assert math.isnan(sketch.coverage)
    sketch.load_state_dict(sketch.state_dict())
    assert sketch.steps == 0


# All of them


def test_every_number_is_a_plain_float_and_no_gradient_flows():
    rows = normal(16, 4).requires_grad_()
    others = {"singular_values", "Seen", "StateCoverage", "VisitCounts"}
    for name in set(diagnostics.__all__) - others:
        function = getattr(diagnostics, name)
        found = function(nn.ParameterList([rows]) if name == "weight_norm" else rows)
        assert type(found) is float, name
        assert math.isfinite(found), name
    assert not singular_values(rows).requires_grad


def test_visits_are_counted_over_several_rollouts():
    ids = torch.tensor([3, 1, 3, 3, 2, 1, 0, 3])
    visits = VisitCounts()
    for part in ids.split(3):
        visits.update(part.numpy().astype(np.uint64))
    assert visits.entropy == pytest.approx(visited_entropy(ids), abs=1e-12)


def test_too_many_states_have_no_entropy_any_more():
    visits = VisitCounts()
    visits.update(np.arange(VisitCounts.MOST, dtype=np.uint64))
    assert visits.entropy == pytest.approx(math.log(VisitCounts.MOST))
    visits.update(np.array([10**9], np.uint64))
    assert math.isnan(visits.entropy)
    visits.update(np.array([1], np.uint64))
    assert math.isnan(visits.entropy)
