from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from isobatch.envs.seeds import (
    ENVIRONMENTS,
    EVALUATION,
    EVALUATIONS,
    RUNS,
    env_seeds,
    evaluation_seeds,
)

run_seeds = st.integers(0, RUNS - 1)
any_seeds = st.integers(0, 2**63)


@st.composite
def stretches(draw):
    """Draw (count, first) of environments within one run's share."""
    first = draw(st.integers(0, ENVIRONMENTS - 1))
    return draw(st.integers(1, min(256, ENVIRONMENTS - first))), first


@given(run_seeds, run_seeds, stretches(), stretches())
def test_two_runs_never_share_an_environment(one, other, mine, yours):
    if one != other:
        assert not set(env_seeds(one, *mine)) & set(env_seeds(other, *yours))


@given(any_seeds, stretches(), stretches())
def test_stretches_of_one_run_share_only_the_numbers_they_share(run_seed, mine, yours):
    numbers = [set(range(first, first + count)) for count, first in (mine, yours)]
    seeds = [set(env_seeds(run_seed, *stretch)) for stretch in (mine, yours)]
    assert len(seeds[0] & seeds[1]) == len(numbers[0] & numbers[1])


@given(any_seeds, stretches())
def test_the_environments_of_a_run_get_a_seed_each(run_seed, stretch):
    seeds = env_seeds(run_seed, *stretch)
    assert len(set(seeds)) == len(seeds) == stretch[0]


@given(any_seeds, stretches())
def test_seeds_are_the_same_each_time_and_fit_every_maker(run_seed, stretch):
    seeds = env_seeds(run_seed, *stretch)
    assert seeds == env_seeds(run_seed, *stretch)
    assert all(type(seed) is int and 0 <= seed < 2**31 for seed in seeds)


@given(run_seeds, run_seeds, stretches(), st.integers(1, 4096), any_seeds)
def test_no_evaluation_shares_an_environment_with_training(one, other, stretch, count, seed):
    n_envs, first = stretch
    trained = env_seeds(one, n_envs, first % (EVALUATION - n_envs))
    evaluated = evaluation_seeds(other, count, seed)
    assert len(set(evaluated)) == count
    assert not set(trained) & set(evaluated)


@given(run_seeds, st.integers(0, EVALUATIONS - 1), st.integers(0, EVALUATIONS - 1))
def test_evaluations_with_other_seeds_play_in_other_environments(run_seed, one, other):
    if one != other:
        played = [set(evaluation_seeds(run_seed, 16, seed)) for seed in (one, other)]
        assert not played[0] & played[1]


def test_neighbouring_runs_are_not_given_neighbouring_seeds():
    first, second = (sorted(env_seeds(seed, 64)) for seed in (0, 1))
    gaps = [b - a for seeds in (first, second) for a, b in pairwise(seeds)]
    assert min(gaps) > 1
