import math
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from probe_envs import (
    MODES,
    Acting,
    Both,
    Counter,
    Faulty,
    Journal,
    Signs,
    TensorCounter,
    vector_of,
)
from torch import nn

import isobatch
from isobatch import UserError
from isobatch.run.store import CLOCK_COLUMNS, RunDirectory, read_policy, read_sealed
from isobatch.run.training import Run, default_path

TINY: dict[str, Any] = {
    "n_envs": 2,
    "n_steps": 8,
    "n_minibatches": 2,
    "n_epochs": 1,
    "quiet": True,
}


def tiny(**changes: Any) -> dict[str, Any]:
    return TINY | changes


@pytest.fixture
def out(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path / "run"


def without_clock(run):
    return [{k: v for k, v in row.items() if k not in CLOCK_COLUMNS} for row in run.metrics]


def checkpoint(path):
    """Return the tensors and numbers of a run's last checkpoint."""
    return read_sealed(max((path / "checkpoints").glob("*.safetensors")))


def assert_same_tensors(one, other):
    assert one.keys() == other.keys()
    assert [name for name in one if not torch.equal(one[name], other[name])] == []


@pytest.mark.parametrize("length", [1, 2, 1000])
@pytest.mark.parametrize(
    ("n_envs", "n_steps", "budget"),
    [(1, 8, 8), (2, 1, 11), (3, 7, 50), (8, 16, 129), (5, 4, 64), (4, 8, 35), (2, 50, 333)],
)
def test_the_budget_is_met_within_n_envs_and_never_passed(out, n_envs, n_steps, budget, length):
    journal = Journal()
    run = isobatch.train(
        make_env=lambda: Counter(length, journal=journal),
        **tiny(n_envs=n_envs, n_steps=n_steps, total_timesteps=budget),
        out=out,
    )
    spent = run.metrics[-1]["env_steps"]
    assert budget - n_envs < spent <= budget
    assert spent == journal.transitions == sum(row["rows"] for row in run.metrics)
    assert not run.interrupted


def counters(mode):
    if mode == "TENSOR":
        return lambda: TensorCounter(2)
    return vector_of(AutoresetMode[mode], Counter, Counter)


@pytest.fixture(scope="module")
def same_step_run(tmp_path_factory):
    return counting_run("SAME_STEP", tmp_path_factory.mktemp("same-step") / "run")


def counting_run(mode, out):
    """Train on six 3-step episodes an iteration, in as many rows as the mode needs for them."""
    return isobatch.train(
        make_env=counters(mode),
        **tiny(n_steps=12 if mode == "NEXT_STEP" else 9),
        total_timesteps=5 * 18,
        normalize_observations=True,
        normalize_rewards=True,
        advantage_normalization="ewma",
        max_grad_norm=None,  # The policy's gradient, of random actions, must not scale the value's.
        out=out,
    )


@pytest.mark.parametrize("mode", ["NEXT_STEP", "DISABLED", "TENSOR"])
def test_every_way_of_resetting_learns_the_same_values(mode, out, same_step_run):
    run = counting_run(mode, out)
    told_apart = ("env_steps", "iterations", "grad_steps", "rows", "episodes", "episode_return")
    learned = ("episode_length", "value_loss", "explained_variance", "advantage_std")
    for row, expected in zip(run.metrics, same_step_run.metrics, strict=True):
        assert {name: row[name] for name in told_apart} == {
            name: expected[name] for name in told_apart
        }
        for name in learned:
            assert row[name] == pytest.approx(expected[name], rel=1e-4, abs=1e-6), name


@pytest.mark.parametrize("mode", ["NEXT_STEP", "DISABLED", "TENSOR"])
def test_every_way_of_resetting_keeps_the_same_moments(mode, out, same_step_run):
    counting_run(mode, out)
    tensors, numbers = checkpoint(out)
    expected, expected_numbers = checkpoint(same_step_run.path)
    for name in expected:
        if name.startswith(("observation.", "reward.")):
            torch.testing.assert_close(tensors[name], expected[name], rtol=1e-9, atol=0)
    assert numbers["advantage_moments"] == pytest.approx(
        expected_numbers["advantage_moments"], rel=1e-4
    )
    assert numbers["advantage_moments"]["weight"] == 18


@pytest.mark.parametrize("mode", [mode.name for mode in MODES])
def test_the_observation_statistics_are_of_what_was_acted_on(mode, out):
    isobatch.train(
        make_env=counters(mode),
        **tiny(n_steps=12),
        total_timesteps=72,
        normalize_observations=True,
        out=out,
    )
    tensors, _ = checkpoint(out)
    # Actions are taken on 0, 1 and 2; the final observation 3 only ends an episode.
    assert float(tensors["observation.count"]) == pytest.approx(72, abs=0.01)
    assert float(tensors["observation.mean"]) == pytest.approx(1, abs=1e-4)
    assert float(tensors["observation.var"]) == pytest.approx(2 / 3, abs=1e-4)


def test_envpools_resets_are_counted_nowhere(out):
    run = isobatch.train(
        "CartPole-v1",
        **tiny(n_steps=12),
        env_options=("max_episode_steps=5",),
        total_timesteps=60,
        normalize_observations=True,
        normalize_rewards=True,
        out=out,
    )
    assert [row["env_steps"] for row in run.metrics] == [20, 40, 60]
    assert [row["episodes"] for row in run.metrics] == [4, 8, 12]
    assert {(row["episode_return"], row["episode_length"]) for row in run.metrics} == {(5, 5)}
    tensors, _ = checkpoint(out)
    assert float(tensors["observation.count"]) == pytest.approx(60, abs=0.01)
    assert float(tensors["reward.count"]) == pytest.approx(60, abs=0.01)


FAMILIES = {
    "classic": ("CartPole-v1", {}),
    "toy-text": ("FrozenLake-v1", {}),
    "box2d": ("LunarLander-v3", {}),
    "procgen": ("FruitbotHard-v0", {"threads": 1}),
    "atari": ("Breakout-v5", {"threads": 1}),
    "mujoco": ("HalfCheetah-v4", {}),
    "minigrid": ("MiniGrid-DoorKey-5x5-v0", {}),
    "gymnasium": ("gymnasium:Acrobot-v1", {}),
    "tensor": ("tensor:CartPole-v1", {"n_envs": 70}),
}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("algo", ["ppo", "ppg-ewma"])
def test_the_same_recipe_twice_gives_the_same_bits(family, algo, tmp_path):
    env, settings = FAMILIES[family]
    settings = TINY | settings
    settings["total_timesteps"] = 3 * settings["n_envs"] * settings["n_steps"]
    paths = [tmp_path / "one", tmp_path / "two"]
    runs = []
    for number, path in enumerate(paths):
        torch.manual_seed(number)  # What the caller's own generators say is none of the run's.
        np.random.seed(number)
        runs.append(isobatch.train(env, algo=algo, seed=3, out=path, **settings))
    one, two = runs
    assert len(one.metrics) >= 3
    assert without_clock(one) == without_clock(two)
    assert_same_tensors(*(read_policy(path)[0] for path in paths))


def test_another_seed_gives_another_run(tmp_path):
    runs = [
        isobatch.train(
            "CartPole-v1", **TINY, total_timesteps=32, seed=seed, out=tmp_path / f"{seed}"
        )
        for seed in (1, 2)
    ]
    assert without_clock(runs[0]) != without_clock(runs[1])


def test_a_run_directory_holds_what_was_asked_for_and_what_came_of_it(out, tmp_path):
    run = isobatch.train("CartPole-v1", **TINY, total_timesteps=64, seed=5, out=out)
    assert run.path == out
    recipe = isobatch.Recipe.load(out / "recipe.toml")
    assert (
        recipe
        == run.recipe
        == isobatch.preset(
            "CartPole-v1",
            **{name: value for name, value in TINY.items() if name != "quiet"},
            total_timesteps=64,
            seed=5,
        )
    )
    assert isobatch.load(out).recipe == recipe
    assert {path.name for path in tmp_path.iterdir()} == {"run"}, "nothing is written outside it"


COLUMNS = {
    *["env_steps", "iterations", "epochs", "grad_steps", "episode_return", "episode_length"],
    *["policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction", "explained_variance"],
    *["steps_per_second", "n_envs", "n_steps", "n_minibatches", "n_epochs"],
    *["rollout_size", "minibatch_size", "updates_per_sample", "age_iterations", "rows"],
}


def test_every_row_has_the_columns_a_reader_needs(out):
    settings = tiny(n_steps=9, n_epochs=3)
    run = isobatch.train(
        make_env=counters("SAME_STEP"), **settings, total_timesteps=3 * 18, out=out
    )
    assert all(row.keys() >= COLUMNS for row in run.metrics)
    assert [row["iterations"] for row in run.metrics] == [1, 2, 3]
    assert [row["env_steps"] for row in run.metrics] == [18, 36, 54]
    assert [row["epochs"] for row in run.metrics] == [3, 6, 9]
    assert [row["grad_steps"] for row in run.metrics] == [6, 12, 18]
    assert {row["updates_per_sample"] for row in run.metrics} == {3}
    assert {(row["rollout_size"], row["minibatch_size"]) for row in run.metrics} == {(18, 9)}
    assert [row["episodes"] for row in run.metrics] == [6, 12, 18]
    assert 0 < run.metrics[0]["entropy"] <= math.log(2) + 1e-6
    assert (run.metrics[0]["n_envs"], run.metrics[0]["n_steps"]) == (2, 9)


TIMES = ("env_seconds", "acting_seconds", "learning_seconds", "other_seconds")


def test_the_parts_of_an_iterations_time_add_up_to_it(out):
    run = isobatch.train("CartPole-v1", **TINY, total_timesteps=256, out=out)
    before = 0.0
    for row in run.metrics:
        assert all(row[part] >= 0 for part in TIMES)
        spent, before = row["seconds"] - before, row["seconds"]
        assert sum(row[part] for part in TIMES) == pytest.approx(spent, abs=2e-6)


def test_a_last_row_too_short_to_learn_from_has_the_same_columns(out):
    run = isobatch.train(make_env=counters("SAME_STEP"), **TINY, total_timesteps=16 + 2, out=out)
    assert [row["rows"] for row in run.metrics] == [16, 2]
    assert all(row.keys() >= COLUMNS for row in run.metrics)


def test_what_runs_write_is_safetensors_and_text(out):
    isobatch.train("CartPole-v1", **TINY, total_timesteps=32, out=out)
    written = {path for path in out.rglob("*") if path.is_file() and path.name != ".lock"}
    sealed = {path for path in written if path.suffix == ".safetensors"}
    assert {path.name for path in written - sealed} == {"recipe.toml", "metrics.jsonl"}
    assert len(sealed) >= 2
    for path in sealed:
        read_sealed(path)


def test_a_whole_recipe_may_be_given_with_fields_overridden(out, tmp_path):
    recipe = isobatch.preset("CartPole-v1", n_envs=2, n_steps=8, total_timesteps=16)
    run = isobatch.train(recipe=recipe, out=out, quiet=True, seed=9, algo="ppo-ewma")
    assert run.recipe == recipe.replace(seed=9, algo="ppo-ewma")
    own = isobatch.train(make_env=Counter, **TINY, total_timesteps=16, out=tmp_path / "own").recipe
    again = isobatch.train(recipe=own, make_env=Counter, out=tmp_path / "again", quiet=True)
    assert again.recipe == own


def test_runs_in_a_row_without_a_name_get_a_directory_each(out):
    runs = [isobatch.train("CartPole-v1", **TINY, total_timesteps=16) for _ in range(3)]
    assert len({run.path for run in runs}) == 3
    assert all(run.path.parent.name == "runs" for run in runs)


def test_a_strange_environment_name_stays_inside_runs():
    path = default_path(isobatch.Recipe("../../etc:Pass/wd-v0"))
    assert path.parts[0] == "runs"
    assert len(path.parts) == 2


def test_a_run_of_another_holder_is_not_touched(out):
    isobatch.train("CartPole-v1", **TINY, total_timesteps=32, out=out)
    holder = RunDirectory.open(out)
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    with pytest.raises(UserError, match="in use"):
        isobatch.resume(out, total_timesteps=64, quiet=True)
    holder.release()
    assert before == {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    "settings",
    [
        {"algo": "ppo"},
        {"algo": "ppo-ewma", "advantage_decay": 0.5},
        {"algo": "ppo", "optimizer": "sgd", "momentum": 0.9, "architecture": "shared"},
        {"algo": "ppo", "n_value_epochs": 5},
        {"algo": "ppg-ewma", "n_policy_iterations": 1, "n_aux_epochs": 2},
        {"algo": "ppo", "probe_every": 2},
        {"algo": "a2c", "n_minibatches": 1, "n_epochs": 1},
        {"algo": "reinforce", "n_minibatches": 1, "n_epochs": 1},
        # Its schedules run over the budget, which the first of two sittings does not know.
        {"algo": "pqn", "epsilon_fraction": 0.0, "learning_rate_schedule": "constant"},
    ],
    ids=["ppo", "ppo-ewma", "sgd", "value apart", "ppg-ewma", "probed", "a2c", "reinforce", "pqn"],
)
def test_a_run_in_two_sittings_learns_bit_for_bit_what_one_sitting_does(tmp_path, settings):
    # The counters' rollouts end with their episodes, so new environments change nothing.
    make_env = vector_of(AutoresetMode.SAME_STEP, Counter, Counter)
    settings = tiny(n_steps=9, normalize_observations=True, normalize_rewards=True) | settings
    at_once, in_two = tmp_path / "at-once", tmp_path / "in-two"
    isobatch.train(make_env=make_env, total_timesteps=180, out=at_once, **settings)
    isobatch.train(make_env=make_env, total_timesteps=90, out=in_two, **settings)
    isobatch.resume(in_two, make_env=make_env, total_timesteps=180, quiet=True)
    one, two = checkpoint(at_once), checkpoint(in_two)
    assert_same_tensors(one[0], two[0])
    counts = [numbers["counters"] for _, numbers in (one, two)]
    for name in ("env_steps", "iterations", "epochs", "grad_steps"):
        assert counts[0][name] == counts[1][name]
    rows = [isobatch.Run(path).metrics for path in (at_once, in_two)]
    for row, again in zip(*rows, strict=True):
        again.pop("resumed", None)
        assert {k: row[k] for k in row if k not in CLOCK_COLUMNS} == {
            k: again[k] for k in again if k not in CLOCK_COLUMNS
        }


def test_saving_and_loading_a_state_changes_no_bit_of_it(out):
    isobatch.train("CartPole-v1", algo="ppo-ewma", **TINY, total_timesteps=64, out=out)
    before, numbers = checkpoint(out)
    isobatch.resume(out, quiet=True)
    after, again = checkpoint(out)
    assert_same_tensors(before, after)
    assert numbers["counters"]["env_steps"] == again["counters"]["env_steps"]


def test_a_resumed_run_goes_on_to_the_longer_budget_and_marks_the_row(out):
    first = isobatch.train("CartPole-v1", **TINY, total_timesteps=64, out=out)
    rows = first.metrics
    second = isobatch.resume(out, total_timesteps=128, quiet=True)
    assert second.metrics[: len(rows)] == rows
    assert [row["iterations"] for row in second.metrics] == list(range(1, len(second.metrics) + 1))
    assert 126 < second.metrics[-1]["env_steps"] <= 128
    marked = [row["iterations"] for row in second.metrics if "resumed" in row]
    assert marked == [len(rows) + 1]
    assert second.recipe.total_timesteps == 128


def test_a_run_that_is_done_stays_as_it_is(out):
    rows = isobatch.train("CartPole-v1", **TINY, total_timesteps=64, out=out).metrics
    assert isobatch.resume(out, quiet=True).metrics == rows


def test_a_budget_already_spent_is_refused(out):
    isobatch.train("CartPole-v1", **TINY, total_timesteps=64, out=out)
    with pytest.raises(UserError, match=r"already has 6[34] environment steps"):
        isobatch.resume(out, total_timesteps=32, quiet=True)
    assert isobatch.Run(out).recipe.total_timesteps == 64


def test_rows_past_the_checkpoint_are_cut_and_made_again(out):
    isobatch.train("CartPole-v1", **TINY, total_timesteps=64, checkpoint_seconds=1e-9, out=out)
    rows = isobatch.Run(out).metrics
    newest = max((out / "checkpoints").glob("*.safetensors"))
    newest.write_bytes(newest.read_bytes()[:-1] + b"?")
    with (out / "metrics.jsonl").open("a") as file:
        file.write('{"iterations": 5, "env_st')
    with pytest.warns(UserWarning, match=r"skipped.*hash does not match|continues from"):
        run = isobatch.resume(out, quiet=True)
    assert [row["iterations"] for row in run.metrics] == list(range(1, len(run.metrics) + 1))
    kept = [row for row in run.metrics if row in rows]
    assert 1 <= len(kept) == len(rows) - 1
    assert run.metrics[len(kept)]["resumed"]
    assert 62 < run.metrics[-1]["env_steps"] <= 64


def test_a_run_without_any_good_checkpoint_begins_again_only_where_asked_to(out):
    rows = isobatch.train("CartPole-v1", **TINY, total_timesteps=64, out=out).metrics
    for file in (out / "checkpoints").iterdir():
        file.write_bytes(b"gone")
    with pytest.raises(UserError, match="no checkpoint to resume from"):
        isobatch.resume(out, quiet=True)
    assert isobatch.Run(out).metrics == rows
    with pytest.warns(UserWarning, match="set-aside-1 has the previous files"):
        run = isobatch.resume(out, from_scratch=True, quiet=True)
    drop = (*CLOCK_COLUMNS, "resumed")
    plain = [[{k: v for k, v in row.items() if k not in drop} for row in each]
             for each in (rows, run.metrics)]  # fmt: skip
    assert plain[0] == plain[1], "the same recipe from the start is the same run"
    assert (out / "set-aside-1" / "metrics.jsonl").exists()


def test_no_sitting_and_no_evaluation_shares_an_environment(out):
    journal = Journal()
    make_env = lambda: Counter(3, journal=journal)  # noqa: E731
    sittings = []
    for budget in (16, 32, 48):
        journal.seeds.clear()
        if budget == 16:
            isobatch.train(make_env=make_env, **TINY, total_timesteps=budget, out=out)
        else:
            isobatch.resume(out, make_env=make_env, total_timesteps=budget, quiet=True)
        sittings.append(set(journal.seeds))
    for seed in (0, 1, 2048, 10**6):
        journal.seeds.clear()
        isobatch.evaluate(out, episodes=16, seed=seed, make_env=make_env)
        sittings.append(set(journal.seeds))
    assert [len(seeds) for seeds in sittings] == [2, 2, 2, 16, 16, 16, 16]
    assert len(set.union(*sittings)) == sum(len(seeds) for seeds in sittings)


def test_a_users_environment_must_come_again_to_resume(out):
    isobatch.train(make_env=Counter, **TINY, total_timesteps=32, out=out)
    with pytest.raises(UserError, match="make_env"):
        isobatch.resume(out, total_timesteps=64, quiet=True)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_run_after_the_iteration_and_it_resumes(out, number):
    class Interrupting(Counter):
        def step(self, action):
            if self.journal.transitions == 20:
                signal.raise_signal(number)
            return super().step(action)

    run = isobatch.train(make_env=Interrupting, **tiny(n_envs=1), total_timesteps=80, out=out)
    assert run.interrupted
    assert run.metrics[-1]["env_steps"] < 40
    again = isobatch.resume(out, make_env=Counter, quiet=True)
    assert not again.interrupted
    assert again.metrics[-1]["env_steps"] == 80
    assert again.metrics[: len(run.metrics)] == run.metrics


def test_a_run_leaves_the_process_as_it_found_it(out):
    def process_state():
        handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
        return (
            handlers,
            torch.get_rng_state().tolist(),
            torch.get_num_threads(),
            torch.is_grad_enabled(),
        )

    before = process_state()
    isobatch.train("CartPole-v1", **TINY, threads=2, total_timesteps=32, out=out)
    assert process_state() == before


def test_runs_work_in_threads_that_cannot_take_signals(out):
    runs = []

    def train():
        runs.append(isobatch.train("CartPole-v1", **TINY, total_timesteps=32, out=out))

    thread = threading.Thread(target=train)
    thread.start()
    thread.join()
    assert runs[0].metrics[-1]["env_steps"] > 30


def test_an_environment_that_fails_in_its_first_rollout_leaves_nothing(out, tmp_path):
    with pytest.raises(UserError, match=r"reward.*environment 0, step 3"):
        isobatch.train(make_env=lambda: Faulty(3, "reward"), **TINY, total_timesteps=64, out=out)
    assert list(tmp_path.iterdir()) == []


def test_an_environment_that_fails_later_leaves_a_run_that_can_be_resumed(out):
    with pytest.raises(UserError, match="step 20") as caught:
        isobatch.train(make_env=lambda: Faulty(20, "reward"), **TINY, total_timesteps=64, out=out)
    run = isobatch.resume(out, make_env=Counter, quiet=True)
    assert caught is not None, "the error is kept, as a debugger or notebook keeps the last one"
    assert [row["iterations"] for row in run.metrics] == list(range(1, len(run.metrics) + 1))
    assert 62 < run.metrics[-1]["env_steps"] <= 64


def test_a_run_that_diverges_is_stopped_and_says_so(out):
    with pytest.raises(UserError, match="diverged"):
        isobatch.train("CartPole-v1", **TINY, vf_coef=1e38, total_timesteps=64, out=out)


EASY = tiny(n_envs=8, n_steps=32, n_epochs=4, learning_rate=5e-3, total_timesteps=6000)
SIGNS = np.array([[-1.0], [1.0]], np.float32)


class Doubled(nn.Module):
    """An encoder no registry knows."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(1, 16)

    def forward(self, vector):
        return torch.tanh(self.layer(2 * vector))


LEARNING = {
    "ppo": {},
    "ppo-ewma": {},
    "ppg": {"n_policy_iterations": 4},
    "ppg-ewma": {"n_policy_iterations": 4},
    "a2c": {"n_minibatches": 1, "n_epochs": 1, "n_steps": 4},
    "reinforce": {"n_minibatches": 1, "n_epochs": 1, "n_steps": 8},
    "pqn": {"epsilon_end": 0.01},
    "stale": {"algo": "ppo", "staleness": 2},
}


@pytest.mark.parametrize("algo", LEARNING)
def test_signs_are_learned(algo, out):
    settings = EASY | {"algo": algo} | LEARNING[algo]
    run = isobatch.train(make_env=lambda: Signs(), out=out, **settings)
    assert next(row["episode_return"] for row in run.metrics if row["episodes"]) < 6
    assert run.metrics[-1]["episode_return"] > 0.95 * Signs.BEST
    policy = isobatch.load(out)
    assert policy.predict(SIGNS, deterministic=True).tolist() == [0, 1]
    assert isobatch.evaluate(out, 20, deterministic=True, make_env=Signs).mean == Signs.BEST


@pytest.mark.parametrize("objective", ["clip", "kl"])
def test_signs_are_learned_through_a_users_own_encoder(objective, out):
    run = isobatch.train(make_env=Signs, encoder=Doubled(), objective=objective, out=out, **EASY)
    assert run.metrics[-1]["episode_return"] > 0.95 * Signs.BEST
    policy = isobatch.load(out, encoder=Doubled())
    assert policy.predict(SIGNS, deterministic=True).tolist() == [0, 1]
    with pytest.raises(UserError, match="encoder="):
        isobatch.load(out)


def test_an_encoder_may_be_a_function_of_the_layout(out):
    def encoder(layout):
        return nn.Sequential(nn.Linear(layout.vector, 8), nn.Tanh())

    isobatch.train(make_env=Signs, encoder=encoder, **TINY, total_timesteps=32, out=out)
    again = isobatch.resume(out, make_env=Signs, encoder=encoder, total_timesteps=64, quiet=True)
    assert again.metrics[-1]["env_steps"] > 62


def test_environments_in_processes_of_their_own_give_the_same_run(tmp_path):
    runs = [
        isobatch.train(
            make_env=lambda: Signs(),
            vectorization=how,
            **TINY,
            total_timesteps=64,
            out=tmp_path / how,
        )
        for how in ("sync", "async")
    ]
    assert without_clock(runs[0]) == without_clock(runs[1])
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize(
    "actions",
    [
        spaces.Discrete(3, start=2),
        spaces.Box(-1, 1, (2, 2)),
        spaces.MultiDiscrete([2, 3]),
        spaces.MultiBinary(3),
    ],
    ids=["Discrete", "Box", "MultiDiscrete", "MultiBinary"],
)
@pytest.mark.parametrize("algo", ["ppo", "ppo-ewma"])
def test_every_action_space_trains(actions, algo, out):
    run = isobatch.train(
        make_env=lambda: Acting(actions), algo=algo, **TINY, total_timesteps=48, out=out
    )
    assert run.metrics[-1]["episode_return"] == 1 + 2 + 3
    assert all(math.isfinite(row["policy_loss"]) for row in run.metrics)


@pytest.mark.parametrize("architecture", ["shared", "dual", "detach"])
def test_images_with_vectors_train(architecture, out):
    run = isobatch.train(
        make_env=Both,
        architecture=architecture,
        normalize_observations=True,
        **TINY,
        total_timesteps=32,
        out=out,
    )
    assert run.metrics[-1]["episode_return"] == 1 + 2 + 3
    assert all(math.isfinite(row["value_loss"]) for row in run.metrics)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({}, "either an environment id or make_env"),
        ({"env": "CartPole-v1", "make_env": Counter}, "either an environment id or make_env"),
        ({"env": "CartPole-v1", "batch_size": 64}, r"batch_size.*minibatch_size.*n_envs x n_steps"),
        ({"env": "CartPole-v1", "n_env": 4}, "unknown recipe field 'n_env'.*n_envs"),
        ({"env": "CartPole-v1", "device": "cuda:7"}, "device must be one of"),
        ({"env": "CartPole-v1", "encoder": "nature"}, "needs images"),
    ],
)
def test_a_request_that_cannot_be_met_is_refused_and_nothing_written(
    arguments, complaint, out, tmp_path
):
    with pytest.raises(UserError, match=complaint):
        isobatch.train(**arguments, out=out, quiet=True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("threads", ["1", "2"])
def test_the_bits_do_not_depend_on_how_many_threads_the_process_could_have(out, threads):
    code = (
        "import sys, isobatch; isobatch.train('CartPole-v1', n_envs=4, n_steps=16, "
        "total_timesteps=128, quiet=True, out=sys.argv[1])"
    )
    command = [sys.executable, "-c", code, str(out)]
    subprocess.run(command, env=os.environ | {"OMP_NUM_THREADS": threads}, check=True)
    here = isobatch.train(
        "CartPole-v1", n_envs=4, n_steps=16, total_timesteps=128, quiet=True, out=out / "here"
    )
    assert without_clock(Run(out)) == without_clock(here)
