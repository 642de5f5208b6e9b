import json
import math
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import stats as scipy_stats

from isobatch.study.stats import (
    area_under_curve,
    bonferroni,
    bootstrap_ci,
    bootstrap_difference,
    bootstrap_pair_ci,
    equivalence,
    iqm,
    mean,
    optimality_gap,
    paired_differences,
    paired_mean,
    performance_profile,
    probability_of_improvement,
    van_elteren,
)

RLIABLE = json.loads((Path(__file__).parents[1] / "golden" / "rliable.json").read_text())
EIGHTHS = st.integers(-16, 16).map(lambda value: value / 8)
"""Few enough that ties are common."""


@st.composite
def score_arrays(draw, min_runs=1):
    shape = draw(st.integers(min_runs, 7)), draw(st.integers(1, 4))
    return draw(arrays(float, shape, elements=EIGHTHS))


@st.composite
def score_pairs(draw, min_runs=1):
    """Return x and y with the same tasks and each its own number of runs."""
    x = draw(score_arrays(min_runs))
    runs = draw(st.integers(min_runs, 7))
    return x, draw(arrays(float, (runs, x.shape[1]), elements=EIGHTHS))


def test_iqm_by_hand():
    assert iqm([0, 1, 2, 3, 4, 5, 6, 7]) == 3.5
    assert iqm([[0, 1000], [2, 3], [4, 5], [6, -1000]]) == 3.5
    assert iqm([1, 2, 9]) == 4
    assert iqm([1, 2, 3, 4, 90]) == 3


@given(score_arrays())
def test_iqm_is_the_trimmed_mean(scores):
    assert iqm(scores) == pytest.approx(scipy_stats.trim_mean(scores.ravel(), 0.25), abs=1e-12)


@given(score_arrays(), st.randoms(use_true_random=False))
def test_iqm_does_not_know_the_order(scores, random):
    shuffled = scores.ravel().tolist()
    random.shuffle(shuffled)
    assert iqm(np.reshape(shuffled, scores.shape)) == pytest.approx(iqm(scores), abs=1e-12)


def test_optimality_gap_by_hand():
    assert optimality_gap([[0.5, 2.0]]) == pytest.approx(0.25)
    assert optimality_gap([[0.5, 2.0]], gamma=2.0) == pytest.approx(0.75)


def test_profile_by_hand():
    scores = [[0.2, 0.5], [0.6, 0.5]]
    assert performance_profile(scores, [0, 0.4, 0.5, 0.6]).tolist() == [1, 0.75, 0.25, 0]


def test_improvement_by_hand():
    assert probability_of_improvement([1, 2], [1, 3]) == 0.375
    assert probability_of_improvement([[1, 9], [2, 9]], [[1, 0], [3, 0]]) == (0.375 + 1) / 2
    assert probability_of_improvement([5], [1, 2, 3, 5]) == (3 + 0.5) / 4


@given(score_pairs())
def test_improvement_both_ways_makes_one(pair):
    x, y = pair
    both = probability_of_improvement(x, y) + probability_of_improvement(y, x)
    assert both == pytest.approx(1, abs=1e-12)


@given(score_pairs())
def test_improvement_is_mann_whitneys_u(pair):
    x, y = pair
    pairs = len(x) * len(y)
    expected = np.mean(scipy_stats.mannwhitneyu(x, y, method="asymptotic").statistic / pairs)
    assert probability_of_improvement(x, y) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    "statistic", [mean, iqm, optimality_gap, partial(performance_profile, thresholds=[0.3, 0.6])]
)
def test_a_stack_gives_what_each_of_it_gives(statistic):
    stack = np.random.default_rng(0).random((3, 2, 5, 4))
    each = [[statistic(scores) for scores in row] for row in stack]
    np.testing.assert_allclose(statistic(stack), each, rtol=1e-12)


def test_a_bootstrap_by_hand():
    # The mean of two draws from 0 and 1: 0, 1/2, 1 with 1/4, 1/2, 1/4.
    assert bootstrap_ci([0, 1], mean, level=0.4) == (0.5, 0.5)
    assert bootstrap_ci([0, 1], mean, level=0.9) == (0, 1)


def test_a_bootstrap_is_stratified_by_task():
    apart = np.tile([0.0, 100.0], (4, 1))
    assert bootstrap_ci(apart, mean) == (50, 50)
    # Drawn as whole rows, the mean of these could only be 1/2.
    assert bootstrap_ci([[0, 1], [1, 0]], mean) == (0, 1)


def test_a_bootstrap_is_its_seed():
    scores = np.random.default_rng(0).random((10, 5))
    assert bootstrap_ci(scores, seed=1) == bootstrap_ci(scores, seed=1)
    assert bootstrap_ci(scores, seed=1) != bootstrap_ci(scores, seed=2)


@given(score_arrays(), st.floats(0.1, 0.9))
def test_a_higher_level_is_a_wider_interval(scores, level):
    low, high = bootstrap_ci(scores, reps=200, level=level)
    lower, higher = bootstrap_ci(scores, reps=200, level=level + 0.09)
    assert lower <= low <= high <= higher


@given(score_arrays(), EIGHTHS)
def test_the_interval_of_symmetric_scores_holds_their_centre(scores, centre):
    symmetric = centre + np.concatenate([scores, -scores])
    low, high = bootstrap_ci(symmetric, reps=500)
    assert low - 1e-12 <= iqm(symmetric) <= high + 1e-12


def test_a_bootstrap_of_a_profile_gives_bands():
    scores = np.random.default_rng(0).random((8, 3))
    thresholds = np.linspace(0, 1, 5)
    low, high = bootstrap_ci(scores, partial(performance_profile, thresholds=thresholds))
    profile = performance_profile(scores, thresholds)
    assert np.shape(low) == np.shape(high) == (5,)
    assert (low <= profile).all()
    assert (profile <= high).all()


def test_a_statistic_may_know_nothing_of_stacks():
    random = np.random.default_rng(0)
    x, y = random.random((10, 5)), random.random((6, 5))
    assert bootstrap_ci(x, np.mean) == pytest.approx(bootstrap_ci(x, mean))
    expected = bootstrap_difference(x, y, mean)
    assert bootstrap_difference(x, y, np.mean) == pytest.approx(expected)


def test_a_bootstrap_is_fast():
    scores = np.random.default_rng(0).random((10, 5))
    begin = time.process_time()
    bootstrap_ci(scores)
    bootstrap_difference(scores, scores)
    bootstrap_pair_ci(scores, scores)
    assert time.process_time() - begin < 0.5


def test_a_difference_draws_both_sides_by_themselves():
    same = [0.0, 1.0, 2.0, 3.0]
    low, high = bootstrap_difference(same, same)
    assert low < -0.5
    assert high > 0.5
    assert bootstrap_difference([3, 3], [1, 1, 1]) == (2, 2)
    assert bootstrap_difference([3, 3], [1, 1, 1], statistic=optimality_gap) == (0, 0)


def test_a_difference_turned_round_is_its_negative():
    random = np.random.default_rng(0)
    x, y = random.random((10, 3)), random.random((6, 3))
    low, high = bootstrap_difference(x, y, reps=20_000)
    lower, higher = bootstrap_difference(y, x, reps=20_000)
    assert (low, high) == pytest.approx((-higher, -lower), abs=0.04 * (high - low))
    assert low < iqm(x) - iqm(y) < high


def test_the_interval_of_an_improvement():
    assert bootstrap_pair_ci([3, 4, 5], [1, 2]) == (1, 1)
    # x draws 0 or 2 against 1: the fraction of twos among two draws.
    assert bootstrap_pair_ci([0, 2], [1, 1], level=0.9) == (0, 1)
    assert bootstrap_pair_ci([0, 2], [1, 1], level=0.4) == (0.5, 0.5)


def test_pairs_by_hand():
    x, y = [[1, 5], [2, 7]], [[0, 4], [1, 9]]
    assert paired_differences(x, y).tolist() == [[1, 1], [1, -2]]
    # Task 1 always differs by 1; task 2 by 1, -1/2 or -2 with 1/4, 1/2, 1/4.
    assert paired_mean(x, y, level=0.9) == (0.25, -0.5, 1)
    assert paired_mean(x, y, level=0.4) == (0.25, 0.25, 0.25)


def test_pairs_forget_what_both_share():
    x = 100 * np.random.default_rng(0).random((6, 3))
    offsets = np.array([0.5, 1.0, 1.5])
    assert paired_mean(x + offsets, x) == pytest.approx((1, 1, 1))


def test_van_elteren_by_hand():
    # Task 1: ranks 1 2 5 against 3 4 6: W - E = 8 - 10.5, variance 9 x 7 / 12.
    z, p = van_elteren([1, 2, 5], [3, 4, 6])
    assert z == pytest.approx(-2.5 / math.sqrt(5.25))
    assert p == pytest.approx(math.erfc(2.5 / math.sqrt(2 * 5.25)))
    # Task 2: mid-ranks 2 2 5 against 2 5 5: 9 - 10.5, variance 9 / 12 (7 - 48 / 30).
    z, _ = van_elteren([[1, 1], [2, 1], [5, 2]], [[3, 1], [4, 2], [6, 2]])
    assert z == pytest.approx((-2.5 - 1.5) / math.sqrt(5.25 + 4.05))


@given(score_pairs(min_runs=2))
def test_one_stratum_is_wilcoxons_test(pair):
    x, y = (scores[:, 0] for scores in pair)
    z, p = van_elteren(x, y)
    if np.ptp(np.concatenate([x, y])) == 0:
        assert (z, p) == (0, 1)
        return
    reference = scipy_stats.mannwhitneyu(x, y, method="asymptotic", use_continuity=False)
    assert p == pytest.approx(reference.pvalue, abs=1e-12)
    assert np.sign(z) == np.sign(reference.statistic - len(x) * len(y) / 2)


@given(score_pairs())
def test_van_elteren_is_antisymmetric(pair):
    (z, p), (back, same) = van_elteren(*pair), van_elteren(*pair[::-1])
    assert z == pytest.approx(-back, abs=1e-12)
    assert p == pytest.approx(same, abs=1e-12)
    assert 0 <= p <= 1


@given(score_pairs())
def test_van_elteren_sees_ranks_within_tasks(pair):
    """No task's scale, offset or constant score in a further task makes a difference."""
    x, y = pair
    z, _ = van_elteren(x, y)
    scale, offset = 2.0 ** np.arange(x.shape[1]), 100 * np.arange(x.shape[1])
    assert van_elteren(scale * x + offset, scale * y + offset)[0] == pytest.approx(z, abs=1e-12)
    tied = [np.column_stack([scores, np.full(len(scores), 0.5)]) for scores in (x, y)]
    assert van_elteren(*tied)[0] == pytest.approx(z, abs=1e-12)


@pytest.mark.filterwarnings("ignore:Precision loss")  # One arm may be constant.
@given(score_pairs(min_runs=2), st.integers(1, 16).map(lambda value: value / 8))
def test_one_task_is_the_larger_of_two_welch_tests(pair, margin):
    x, y = (scores[:, 0] for scores in pair)
    if np.ptp(x) == 0 == np.ptp(y):
        assert equivalence(x, y, margin) == float(abs(x[0] - y[0]) >= margin)
        return
    welch: Any = partial(scipy_stats.ttest_ind, equal_var=False)
    above = welch(x + margin, y, alternative="greater").pvalue
    below = welch(x - margin, y, alternative="less").pvalue
    assert equivalence(x, y, margin) == pytest.approx(max(above, below), abs=1e-9)


def test_equivalence_over_tasks_by_hand():
    x, y = [[0, 1], [2, 3]], [[1, 1], [1, 3], [1, 2]]
    # Both means 3/2; v = 1/4, 1/4, 0, 1/12 after division by n H^2, so s^2 = 7/12 and
    # nu = (49 / 144) / (1/16 + 1/16 + 1/288) = 98 / 37.
    expected = scipy_stats.t.cdf(-1 / math.sqrt(7 / 12), 98 / 37)
    assert equivalence(x, y, margin=1) == pytest.approx(expected)
    shifted = np.add(x, 0.75)
    expected = scipy_stats.t.cdf(-0.25 / math.sqrt(7 / 12), 98 / 37)
    assert equivalence(shifted, y, margin=1) == pytest.approx(expected)
    assert equivalence(y, shifted, margin=1) == pytest.approx(expected)


def test_equivalence_without_variance():
    ones = np.ones((3, 2))
    assert equivalence(ones, ones, margin=0.1) == 0
    assert equivalence(ones, ones + 0.5, margin=0.1) == 1
    assert equivalence(ones, ones + 0.5, margin=0.5) == 1


def test_bonferroni():
    assert bonferroni([0.01, 0.2, 0.5]) == pytest.approx([0.03, 0.6, 1])
    assert bonferroni([0.04]) == [0.04]
    assert bonferroni([]) == []


def test_area_by_hand():
    # 1 for 10 steps, 2 on average for 10, 3 for 20.
    assert area_under_curve([10, 20], [1, 3], budget=40) == pytest.approx(90 / 40)
    assert area_under_curve([0, 10], [0, 10], budget=5) == pytest.approx(2.5)
    assert area_under_curve([30], [7], budget=20) == 7


def test_area_leaves_rows_without_an_episode_out():
    values = [None, 1, math.nan, 3]
    assert area_under_curve([5, 10, 15, 20], values, budget=40) == pytest.approx(90 / 40)


@given(st.lists(EIGHTHS, min_size=1, max_size=8), st.integers(1, 100))
def test_area_lies_within_the_curve(values, budget):
    area = area_under_curve(range(0, 10 * len(values), 10), values, budget)
    assert min(values) - 1e-12 <= area <= max(values) + 1e-12


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: iqm([]), "no scores"),
        (lambda: iqm(3.0), "no scores"),
        (lambda: iqm(np.zeros((0, 3))), "no scores"),
        (lambda: iqm([0.1, math.nan]), "1 of 2 scores"),
        (lambda: van_elteren([1, math.inf], [1, 2]), "1 of 2 scores"),
        (lambda: bootstrap_ci([0.1, math.nan]), "1 of 2 scores"),
        (lambda: bootstrap_ci([1, 2], reps=0), "reps 0"),
        (lambda: bootstrap_ci([1, 2], level=95), "level 95"),
        (lambda: bootstrap_difference(np.ones((2, 3)), np.ones((2, 2))), "x has 3 tasks, y has 2"),
        (lambda: probability_of_improvement(np.ones((2, 3)), [1]), "x has 3 tasks, y has 1"),
        (lambda: paired_differences([1, 2], [1]), "2 runs of x, 1 of y"),
        (lambda: equivalence([1, 2], [1, 2], margin=0), "margin"),
        (lambda: equivalence([1, 2], [1], margin=1), "two runs"),
        (lambda: area_under_curve([1, 2], [1], 10), "2 steps for 1 values"),
        (lambda: area_under_curve([1, 2], [None, math.nan], 10), "no episode ended"),
        (lambda: area_under_curve([2, 1], [1, 1], 10), "must increase"),
        (lambda: area_under_curve([1, 2], [1, 1], 0), "budget"),
    ],
)
def test_what_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("name", RLIABLE)
def test_rliable_says_the_same(name):
    case = RLIABLE[name]
    x, y = np.array(case["x"]), np.array(case["y"])
    assert iqm(x) == pytest.approx(case["iqm"], abs=1e-12)
    assert optimality_gap(x) == pytest.approx(case["optimality_gap"], abs=1e-12)
    profile = performance_profile(x, case["thresholds"])
    assert profile.tolist() == pytest.approx(case["profile"], abs=1e-12)
    improvement = probability_of_improvement(x, y)
    assert improvement == pytest.approx(case["probability_of_improvement"], abs=1e-12)


@pytest.mark.parametrize("name", RLIABLE)
def test_rliables_intervals_are_the_same(name):
    case = RLIABLE[name]
    x, y = np.array(case["x"]), np.array(case["y"])
    reps = 20_000
    # A 2.5% quantile of a normal with deviation s has the standard error 2.67 s / sqrt(reps), so
    # two independent ones differ by less than 5 sqrt(2) of those, of a width of 3.92 s.
    within = 5 * math.sqrt(2) * 2.67 / math.sqrt(reps) / 3.92
    for ours, theirs in [
        (bootstrap_ci(x, reps=reps), case["iqm_interval"]),
        (bootstrap_pair_ci(x, y, reps=reps), case["improvement_interval"]),
    ]:
        assert ours == pytest.approx(theirs, abs=within * (theirs[1] - theirs[0]))


SIMULATIONS = 600


def rate(outcomes):
    """Return the fraction of True and four binomial standard errors of it (at least of 5%)."""
    share = float(np.mean(list(outcomes)))
    return share, 4 * math.sqrt(max(share * (1 - share), 0.05 * 0.95) / SIMULATIONS)


@pytest.mark.parametrize(("runs", "tasks"), [(5, 1), (20, 1), (10, 5)])
def test_coverage_of_a_mean(runs, tasks):
    """The bootstrap's deviation of a mean lacks the factor sqrt(n / (n - 1)), and Student's tails.

    So its 95% interval covers as often as |T| < 1.96 sqrt((n - 1) / n), T with H (n - 1) degrees.
    """
    random = np.random.default_rng(0)
    samples = random.normal(size=(SIMULATIONS, runs, tasks))
    intervals = [bootstrap_ci(scores, mean, 500, seed=n) for n, scores in enumerate(samples)]
    share, tolerance = rate(low <= 0 <= high for low, high in intervals)
    reach = 1.96 * math.sqrt((runs - 1) / runs)
    expected = 1 - 2 * scipy_stats.t.sf(reach, tasks * (runs - 1))
    assert share == pytest.approx(expected, abs=tolerance)


@pytest.mark.parametrize(("runs", "tasks"), [(20, 1), (10, 5)])
def test_coverage_of_iqm(runs, tasks):
    random = np.random.default_rng(1)
    samples = random.normal(size=(SIMULATIONS, runs, tasks))
    intervals = [bootstrap_ci(scores, reps=500, seed=n) for n, scores in enumerate(samples)]
    share, tolerance = rate(low <= 0 <= high for low, high in intervals)
    assert 0.91 - tolerance < share < 0.95 + tolerance


def normals(random, shift):
    """Return x and y of 10 runs on tasks of different spread, x better by `shift` deviations."""
    spread = np.array([1.0, 3.0])
    x, y = random.normal(size=(2, 10, 2))
    return spread * (x + shift), spread * y


def test_size_and_power_of_van_elteren():
    random = np.random.default_rng(2)
    false, tolerance = rate(van_elteren(*normals(random, 0))[1] < 0.05 for _ in range(SIMULATIONS))
    assert false == pytest.approx(0.05, abs=tolerance)
    found, _ = rate(van_elteren(*normals(random, 1))[1] < 0.05 for _ in range(SIMULATIONS))
    # One deviation between 20 runs and 20 is about 3.1 standard errors: found 0.87 of the times.
    assert 0.75 < found < 0.95


def test_size_and_power_of_equivalence():
    random = np.random.default_rng(3)
    # The spreads 1 and 3 average to 2: a shift of one deviation is a difference of 2.
    false, tolerance = rate(
        equivalence(*normals(random, 1), margin=2) < 0.05 for _ in range(SIMULATIONS)
    )
    assert false == pytest.approx(0.05, abs=tolerance)
    found, _ = rate(equivalence(*normals(random, 0), margin=2) < 0.05 for _ in range(SIMULATIONS))
    # The margin is 2.8 standard errors, so both sides pass where |difference| is below 1.1 of
    # them: 0.74 of the times.
    assert 0.6 < found < 0.85
