from typing import Any

import gymnasium
import pytest
import torch

import isobatch
from isobatch import UserError
from isobatch.experience import Several
from isobatch.experience.stagger import stagger_together
from isobatch.presets import preset
from isobatch.run.cohort import Pool
from isobatch.run.environments import Environments, warm_up_actor
from isobatch.run.store import CLOCK_COLUMNS, read_evaluations
from isobatch.run.training import _begin
from isobatch.state import TrainState
from isobatch.turns import at_once

ENVS = 16


def first_ends(env, stagger, steps=200):
    """Return the step at which each environment ends its first episode that counts."""
    recipe = preset(env, n_envs=ENVS, n_steps=steps, stagger=stagger)
    environments = Environments(recipe, None, torch.device("cpu"))
    state = _begin(environments, None)
    try:
        taken = at_once(environments.warm_up(state))
        assert (taken > 0) == stagger
        assert at_once(environments.warm_up(state)) == 0  # Once for the same environments.
        rollout = environments.collect(state)
        state.episodes.update(rollout)
        assert bool(rollout.over.any(0).all())
        return rollout.over.int().argmax(0).tolist(), state.episodes
    finally:
        environments.close()


@pytest.mark.parametrize("env", ["Pendulum-v1", "gymnasium:Pendulum-v1"])
def test_environments_of_equal_episodes_are_out_of_step(env):
    ends, episodes = first_ends(env, stagger=False)
    assert set(ends) == {199}
    assert episodes.finished == ENVS
    ends, episodes = first_ends(env, stagger=True, steps=201)
    assert len(set(ends)) > ENVS / 2
    assert max(ends) - min(ends) > 100
    # Episodes whose beginning did not count have no score.
    assert episodes.finished == 0


@pytest.mark.parametrize("env", ["Pendulum-v1", "gymnasium:Pendulum-v1"])
def test_the_environments_of_several_policies_are_each_out_of_step(env):
    """Of a length that all episodes have, ends are then spread evenly over an episode."""
    n_envs = 64
    recipes = [preset(env, n_envs=n_envs, stagger=True, seed=seed) for seed in (1, 2)]
    pool = Pool(recipes, [0, 0], torch.device("cpu"))
    layouts = pool.env.observation_layout, pool.env.action_layout
    states = [TrainState.begin(each, *layouts, torch.device("cpu")) for each in recipes]
    try:
        actors = [warm_up_actor(each, n_envs) for each in states]
        taken = stagger_together(pool.collector, actors)
        rollout = pool.collector.collect(Several([each.actor for each in states]), 201)
    finally:
        pool.env.close()
    ends = rollout.over.int().argmax(0).view(2, n_envs)
    assert not torch.equal(*ends)
    for own, steps in zip(ends, taken, strict=True):
        assert steps == pytest.approx((256 + 200) * n_envs, rel=0.02)
        assert len(set(own.tolist())) > n_envs / 2
        quarters = torch.histc(own.float(), 4, 0, 200)
        assert quarters.min() >= 6  # Of 16 expected.


def test_only_whole_episodes_are_scored(tmp_path):
    run = isobatch.train(
        "Pendulum-v1", n_envs=4, n_steps=100, n_minibatches=4, total_timesteps=2400, stagger=True,
        out=tmp_path / "run", quiet=True,
    )  # fmt: skip
    assert run.metrics[-1]["episodes"] in range(8, 13)
    assert {row["episode_length"] for row in run.metrics} <= {None, 200}


SMALL: dict[str, Any] = {
    "n_envs": 4, "n_steps": 32, "total_timesteps": 3000, "quiet": True, "eval_marks": 10,
    "eval_episodes": 2, "stagger": True,
}  # fmt: skip


def rows(run):
    return [{k: v for k, v in row.items() if k not in CLOCK_COLUMNS} for row in run.metrics]


def test_warm_up_is_reported_apart_or_counted(tmp_path):
    runs = [
        isobatch.train("CartPole-v1", out=tmp_path / name, count_warmup=counted, **SMALL)
        for name, counted in (("apart", False), ("again", False), ("counted", True))
    ]
    apart, again, counted = runs
    assert rows(apart) == rows(again)
    warmup = apart.metrics[0]["warmup_steps"]
    assert warmup == counted.metrics[0]["warmup_steps"] > 300  # A tenth of the budget.
    assert "warmup_steps" not in apart.metrics[1]
    assert apart.metrics[0]["env_steps"] <= 128
    assert counted.metrics[0]["env_steps"] == warmup + counted.metrics[0]["rows"]
    for run in runs:
        assert run.metrics[-1]["env_steps"] > 3000 - 4
        played = read_evaluations(run.path)
        assert [row["mark"] for row in played] == list(range(0, 3001, 300))
    # Its first marks fall into the warm-up, of a policy that has learned nothing.
    early = [row for row in read_evaluations(counted.path) if row["mark"] <= warmup]
    assert len(early) > 1
    assert {row["iterations"] for row in early} == {0}


def test_a_budget_that_the_warm_up_uses_up_is_refused(tmp_path):
    settings: dict[str, Any] = {**SMALL, "count_warmup": True, "total_timesteps": 130}
    with pytest.raises(UserError, match="more than the budget still holds"):
        isobatch.train("CartPole-v1", out=tmp_path / "run", **settings)
    assert not (tmp_path / "run").exists()


def test_vectors_that_only_start_all_at_once_are_refused(tmp_path):
    settings: dict[str, Any] = {**SMALL, "eval_marks": 0}
    with pytest.raises(UserError, match="a TensorEnv cannot") as caught:
        isobatch.train("tensor:CartPole-v1", out=tmp_path / "run", **settings)
    assert caught.value.field == "stagger"

    def vector():
        return gymnasium.make_vec("CartPole-v1", 4, vectorization_mode="vector_entry_point")

    with pytest.raises(UserError, match="only Gymnasium's own vectors"):
        isobatch.train(make_env=vector, out=tmp_path / "run", **settings)


def test_a_resumed_run_spreads_its_new_environments(tmp_path):
    isobatch.train("CartPole-v1", out=tmp_path / "run", **SMALL)
    run = isobatch.resume(tmp_path / "run", total_timesteps=4000, quiet=True)
    assert [index for index, row in enumerate(run.metrics) if "warmup_steps" in row] == [
        0, next(index for index, row in enumerate(run.metrics) if "resumed" in row)
    ]  # fmt: skip
