"""What rules look at."""

import pytest

from isobatch.advice import Actions, History
from isobatch.batch import Batch
from isobatch.presets import family_preset

CARTPOLE = family_preset("classic", "CartPole-v1")


def history(rows, **settings):
    return History(CARTPOLE, rows, **settings)


def test_what_is_no_number_is_not_there():
    rows = [{"x": None}, {"x": "1"}, {"x": True}, {}, {"x": 2}, {"x": float("nan")}, {"x": 3.5}]
    assert history(rows).values("x") == [2, 3.5]
    assert history(rows).values("y") == []


def test_recent_is_the_last_rows_and_the_last_few_numbers_where_they_are_sparse():
    rows = [{"dense": k, "sparse": k if k % 10 == 0 else None} for k in range(100)]
    run = history(rows)
    assert run.recent("dense") == list(range(80, 100))
    assert run.recent("sparse") == [50, 60, 70, 80, 90]
    assert run.recent("sparse", 1) == [80, 90]
    assert run.median("dense") == 89.5
    assert run.early("dense") == 2
    assert run.early("sparse") == 5
    assert run.median("nothing") is None
    assert run.early("nothing") is None


def test_the_past_is_what_was_known_then():
    rows = [{"env_steps": 1000 * (k + 1), "episode_return": float(k)} for k in range(100)]
    run = history(rows)
    assert run.until(10).values("episode_return") == list(range(10))
    assert run.until_part(0.25).env_steps == 25_000
    assert run.until_part(0).rows == 0
    assert run.part == 1


def test_the_batch_in_force_is_the_last_rows():
    assert history([]).batch == CARTPOLE.batch
    assert history([{"n_envs": 64, "n_steps": 16}]).batch == Batch(64, 16, 4, 10)
    assert history([{"n_envs": 0}]).batch == CARTPOLE.batch


@pytest.mark.parametrize(
    ("first", "last", "gain"),
    [(20.0, 60.0, 2.0), (-500.0, -100.0, 0.8), (-200.0, -200.0, 0.0), (0.0, 0.0, 0.0)],
)
def test_gain_is_in_parts_of_the_first_return(first, last, gain):
    rows = [{"episode_return": first}] * 10 + [{"episode_return": last}] * 20
    run = history(rows)
    assert run.gain == pytest.approx(gain)
    assert run.has_progressed is (gain > 0.1)


def test_progress_is_on_the_scale_of_the_environment():
    def run(env, first, last):
        rows = [{"episode_return": first}] * 10 + [{"episode_return": last}] * 20
        return History(CARTPOLE.replace(env=env), rows)

    assert not run("CartPole-v1", 20.0, 40.0).has_progressed, "of 500"
    assert run("Unknown-v0", 20.0, 40.0).has_progressed
    assert run("CartPole-v1", 480.0, 490.0).has_progressed, "it was nearly solved, and is"
    assert not run("CartPole-v1", 20.0, 40.0).learns
    assert run("Unknown-v0", 20.0, 40.0).learns


def test_any_reward_is_a_gain_where_there_was_none():
    rows = [{"episode_return": 0.0}] * 10 + [{"episode_return": 0.5}] * 20
    assert History(CARTPOLE.replace(env="Unknown-v0"), rows).learns


def test_evaluations_count_once_they_are_reached():
    played = [{"mark": mark, "seconds": 1.0} for mark in (0, 500, 1000, "x")]
    run = history([{"env_steps": 600}], evaluations=played, actions=Actions(2, 0.7))
    assert [row["mark"] for row in run.evaluations] == [0, 500]
