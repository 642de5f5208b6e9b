"""Environments made anew a quarter at a time: when, with which seeds, and what of it is a row."""

from typing import Any

import gymnasium
import pytest
import torch
from probe_envs import Counter, Journal

import isobatch
from isobatch import UserError
from isobatch.envs.gym import from_factory
from isobatch.envs.remade import Part, RemadeEnv, shares
from isobatch.run.store import CLOCK_COLUMNS

SMALL: dict[str, Any] = {
    "n_envs": 4, "n_steps": 16, "n_minibatches": 2, "n_epochs": 1, "hidden_sizes": (8,),
    "compile": "off", "threads": 1, "total_timesteps": 640, "keep_policies": 0, "quiet": True,
}  # fmt: skip


def remade(n_envs, every, length, made=None):
    """Return counters made anew, and the seeds they were given."""
    journal = Journal()
    numbers = iter(range(1000, 2000))

    def make(count, first=None, made_at=0):
        seeds = [next(numbers) for _ in range(count)]
        env = from_factory(lambda: Counter(length, journal=journal), "C", seeds, "sync", 1.0)
        return Part(env, seeds[0], made_at)

    parts = [make(size) for size in shares(n_envs)]
    for part, made_at in zip(parts, made or [0] * len(parts), strict=True):
        part.made_at = made_at
    return RemadeEnv(parts, every, make), journal


def steps(env, count) -> Any:
    env.reset()
    return [env.step(torch.zeros(env.n_envs, 1, dtype=torch.int64)) for _ in range(count)]


def test_a_quarter_is_made_anew_at_a_time():
    env, journal = remade(8, every=60, length=3)
    taken = steps(env, 130)
    dropped = {t: step.dropped.nonzero()[:, 0].tolist() for t, step in enumerate(taken)}
    assert {t: rows for t, rows in dropped.items() if rows} == {
        60: [0, 1], 76: [2, 3], 92: [4, 5], 108: [6, 7], 124: [0, 1],
    }  # fmt: skip
    row = taken[60]
    assert row.valid.tolist()[:2] == [False, False]
    assert row.reward.tolist()[:2] == [0, 0]
    assert row.observation["vector"][:2, 0].tolist() == [0, 0]
    assert taken[61].observation["vector"][:2, 0].tolist() == [1, 1]
    assert len(set(journal.seeds)) == len(journal.seeds) == 8 + 10
    assert env.remade == 10


def test_long_episodes_are_waited_for():
    env, _ = remade(4, every=60, length=30)
    taken = steps(env, 640)
    assert next(t for t, step in enumerate(taken) if bool(step.dropped.any())) >= 600
    env, _ = remade(4, every=60, length=10_000)
    assert not any(bool(step.dropped.any()) for step in steps(env, 300))
    assert env.delayed == float("inf")


def test_parts_wait_for_the_step_they_were_made_at():
    env, _ = remade(4, every=60, length=3, made=[61, 77, 93, 45])
    taken = steps(env, 60)
    assert env.steps == 45 + 60
    assert [int(step.valid.sum()) for step in taken[:2]] == [1, 1]
    assert taken[15].valid.tolist() == [False, False, False, False]  # The fourth resets.
    assert taken[16].valid.tolist() == [True, False, False, True]
    assert not bool(taken[47].valid[2])
    assert bool(taken[48].valid[2])


def test_until_then_the_run_is_the_same(tmp_path):
    cases: dict[str, dict[str, Any]] = {"plain": {}, "remade": {"remake_steps": 10_000}}
    free = {*CLOCK_COLUMNS, "envs_remade"}
    rows = [
        [
            {name: value for name, value in row.items() if name not in free}
            for row in isobatch.train("CartPole-v1", **SMALL, **more, out=tmp_path / name).metrics
        ]
        for name, more in cases.items()
    ]
    assert rows[0] == rows[1]


def test_a_run_says_what_was_made_anew_and_counts_whole_episodes_only(tmp_path):
    journal = Journal()
    settings: dict[str, Any] = SMALL | {"total_timesteps": 1280, "remake_steps": 60}
    run = isobatch.train(
        make_env=lambda: Counter(3, journal=journal),
        **settings,
        out=tmp_path / "run",
    )
    assert sum(row["envs_remade"] for row in run.metrics) >= 8
    assert run.metrics[-1]["episode_length"] == 3
    assert run.metrics[-1]["episode_return"] == 6
    assert len(set(journal.seeds)) == len(journal.seeds)


def vector():
    return gymnasium.make_vec("CartPole-v1", num_envs=4)


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"env": "CartPole-v1", "remake_steps": 9_999}, "at least 10000, 20 episodes of up to 500"),
        ({"env": "gymnasium:CartPole-v1", "remake_steps": 9_999}, "at least 10000"),
        ({"make_env": lambda: gymnasium.make("CartPole-v1"), "remake_steps": 99}, "at least 10000"),
        ({"make_env": vector, "remake_steps": 10_000}, "not a vector"),
        ({"env": "tensor:CartPole-v1", "remake_steps": 10_000}, "tensor"),
        ({"make_env": Counter, "remake_steps": 99, "vectorization": "supervised"}, "supervised"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_before_anything_is_written(tmp_path, given, match):
    settings: dict[str, Any] = SMALL | given
    with pytest.raises(UserError, match=match) as refused:
        isobatch.train(**settings, out=tmp_path / "run")
    assert refused.value.field == "remake_steps"
    assert not (tmp_path / "run").exists()
