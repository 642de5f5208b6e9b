import dataclasses

import pytest

from isobatch.batch import Batch, minibatch_count
from isobatch.errors import UserError

SB3 = {"n_envs": 8, "n_steps": 128, "batch_size": 64, "n_epochs": 4}


def test_derived_sizes():
    batch = Batch(n_envs=8, n_steps=128, n_minibatches=4, n_epochs=10)
    assert batch.rollout_size == 1024
    assert batch.minibatch_size == 256
    assert batch.grad_steps_per_iteration == 40


def test_uneven_minibatch_size_is_rounded_down():
    assert Batch(n_envs=3, n_steps=5, n_minibatches=4).minibatch_size == 3


def test_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Batch().n_envs = 16  # pyright: ignore[reportAttributeAccessIssue]


def test_equal_by_value():
    assert Batch(8, 128, 4, 4) == Batch(n_envs=8, n_steps=128, n_minibatches=4, n_epochs=4)
    assert len({Batch(8, 128, 4, 4), Batch(8, 128, 4, 4), Batch(16, 128, 4, 4)}) == 2


def test_from_sb3_reads_batch_size_as_the_minibatch():
    assert Batch.from_sb3(**SB3) == Batch(8, 128, 16, 4)


def test_from_cleanrl():
    batch = Batch.from_cleanrl(num_envs=4, num_steps=128, num_minibatches=4, update_epochs=3)
    assert batch == Batch(n_envs=4, n_steps=128, n_minibatches=4, n_epochs=3)


@pytest.mark.parametrize("field", ["n_envs", "n_steps", "n_minibatches", "n_epochs"])
@pytest.mark.parametrize("value", [0, -1, 2.5, 8.0, "8", True, None])
def test_bad_value_names_the_field(field, value):
    with pytest.raises(UserError, match=f"^{field} must be"):
        Batch(**{field: value})


def test_more_minibatches_than_rows():
    with pytest.raises(UserError, match=r"n_minibatches 9 .* 8 .*n_envs 2 x n_steps 4"):
        Batch(n_envs=2, n_steps=4, n_minibatches=9)
    assert Batch(n_envs=2, n_steps=4, n_minibatches=8).minibatch_size == 1


@pytest.mark.parametrize("field", ["n_envs", "n_steps", "n_epochs"])
@pytest.mark.parametrize("value", [0, -1, "8", None])
def test_from_sb3_bad_value_names_the_field(field, value):
    with pytest.raises(UserError, match=field):
        Batch.from_sb3(**SB3 | {field: value})


@pytest.mark.parametrize("value", [0, -64, 2048, 100, 64.0, "64", True, None])
def test_from_sb3_bad_batch_size_speaks_of_the_minibatch(value):
    with pytest.raises(UserError, match=r"minibatch|batch_size"):
        Batch.from_sb3(**SB3 | {"batch_size": value})


def test_minibatch_count():
    assert minibatch_count(1024, 256) == 4
    assert minibatch_count(1024, 1024) == 1
    assert minibatch_count(1024, 1) == 1024


@pytest.mark.parametrize(
    ("size", "message"),
    [
        (0, "minibatch_size must be at least 1, got 0"),
        (2000, "2000 exceeds the transitions of a rollout, 1024"),
        (100, "100 do not divide a rollout of 1024 transitions; the nearest that do: 64 and 128"),
    ],
)
def test_minibatch_count_says_what_is_wrong(size, message):
    with pytest.raises(UserError, match=message):
        minibatch_count(1024, size)


@pytest.mark.parametrize(
    ("n_steps", "count"), [(128, 4), (64, 2), (60, 2), (40, 1), (16, 0), (1, 0)]
)
def test_short_rollout_keeps_the_minibatch_size(n_steps, count):
    assert Batch(n_envs=8, n_steps=128, n_minibatches=4).minibatches_for(n_steps) == count


def test_full_rollout_that_divides_unevenly_keeps_its_minibatches():
    assert Batch(n_envs=1, n_steps=7, n_minibatches=4).minibatches_for(7) == 4
