from typing import Any

import pytest
import torch
from hand_made import PLAIN, begin
from probe_envs import Counter

import isobatch
from isobatch import UserError, scaling
from isobatch.batch import Shape, Stage, parse_schedule
from isobatch.presets import preset
from isobatch.run.store import CLOCK_COLUMNS, read_policy, read_sealed

SMALL: dict[str, Any] = {
    "n_envs": 4, "n_steps": 16, "n_minibatches": 2, "n_epochs": 2, "quiet": True,
    "total_timesteps": 512, "seed": 3, "compile": "off",
}  # fmt: skip


def rows(run):
    return [{k: v for k, v in row.items() if k not in CLOCK_COLUMNS} for row in run.metrics]


def test_a_schedule_reads_as_people_write_it():
    assert parse_schedule("adaptive", 1) == ()
    assert parse_schedule("0%:8x128, 33.3%:32x32, 900:64x16", 1000) == (
        Stage(0, Shape(8, 128)),
        Stage(333, Shape(32, 32)),
        Stage(900, Shape(64, 16)),
    )
    assert parse_schedule("", 1) == ()
    assert parse_schedule("0:8x128, 100k:32x128x8,1.5M: 128x32", 1) == (
        Stage(0, Shape(8, 128)),
        Stage(100_000, Shape(32, 128), 8),
        Stage(1_500_000, Shape(128, 32)),
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("100:8x16, 50:16x16", "out of order: 50 comes after 100"),
        ("0:8x16, 0:16x16", "out of order"),
        ("8x128", "must read like '0:8x128, 100k:32x128'"),
        ("0:8", "must read like"),
        ("0:0x8", "must read like"),
        ("soon:8x16", "must read like"),
        ("adaptively", "or be adaptive"),
        ("200:8x16, 10%:16x16", "out of order: 51 comes after 200"),
        ("0:3x5", "15 rows do not divide into 2 minibatches"),
        ("0:1x1x4", "n_minibatches 4 exceeds the transitions of a rollout, 1 "),
    ],
)
def test_a_schedule_that_cannot_be_is_refused_before_anything_starts(text, words, tmp_path):
    with pytest.raises(UserError, match=words):
        isobatch.train("CartPole-v1", batch_schedule=text, out=tmp_path / "run", **SMALL)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("algo", ["ppo-ewma", "ppg", "reinforce", "pqn"])
def test_a_schedule_that_changes_nothing_is_none_to_the_bit(algo, tmp_path):
    settings: dict[str, Any] = SMALL | {"algo": algo}
    if algo == "reinforce":
        settings |= {"n_minibatches": 1, "n_epochs": 1}
    schedule = "0:4x16, 100:4x16, 300:4x16x" + str(settings["n_minibatches"])
    plain = isobatch.train("CartPole-v1", out=tmp_path / "plain", **settings)
    scheduled = isobatch.train(
        "CartPole-v1", out=tmp_path / "scheduled", batch_schedule=schedule, **settings
    )
    assert rows(plain) == rows(scheduled)
    one, two = (read_policy(run.path)[0] for run in (plain, scheduled))
    assert all(torch.equal(one[name], two[name]) for name in one)


SCHEDULE = "0:4x16, 200:16x16, 400:16x4"


@pytest.mark.parametrize("algo", ["ppo", "ppo-ewma", "ppg-ewma", "pqn"])
def test_the_batch_moves_and_the_hyperparameters_with_it(algo, tmp_path):
    settings: dict[str, Any] = {**SMALL, "algo": algo, "total_timesteps": 800}
    settings["learning_rate_schedule"] = "constant"
    run = isobatch.train("CartPole-v1", out=tmp_path / "run", batch_schedule=SCHEDULE, **settings)
    shapes = [(row["n_envs"], row["n_steps"]) for row in run.metrics]
    assert list(dict.fromkeys(shapes)) == [(4, 16), (16, 16), (16, 4)]
    moves = [row for row in run.metrics if "reshaped" in row]
    assert [(row["n_envs"], row["n_steps"]) for row in moves] == [(16, 16), (16, 4)]
    assert moves[0]["reshaped"].startswith("n_envs 4 -> 16")
    assert "learning_rate" in moves[0]["reshaped"]
    assert ("proximal_decay" in moves[0]["reshaped"]) == algo.endswith("ewma")
    assert "n_steps 16 -> 4" in moves[1]["reshaped"]
    rates = {shape: row["learning_rate"] for shape, row in zip(shapes, run.metrics, strict=True)}
    base = rates[4, 16]
    assert rates[16, 16] == pytest.approx(2 * base)
    assert rates[16, 4] == pytest.approx(base)
    assert [row["iterations"] for row in run.metrics] == [*range(1, len(run.metrics) + 1)]
    assert run.metrics[-1]["env_steps"] > 800 - 16


def test_stale_data_of_environments_that_are_gone_is_left(tmp_path):
    settings: dict[str, Any] = {**SMALL, "total_timesteps": 700, "staleness": 1}
    schedule = "0:4x16, 200:8x16, 500:8x8"
    run = isobatch.train(
        "CartPole-v1", out=tmp_path / "run", batch_schedule=schedule, normalize_rewards=True,
        **settings,
    )  # fmt: skip
    ages: dict[tuple[int, int], list] = {}
    for row in run.metrics:
        ages.setdefault((row["n_envs"], row["n_steps"]), []).append(row["age_iterations"])
    assert [shape_ages[0] for shape_ages in ages.values()] == [None, None, 1]
    assert {age for each in ages.values() for age in each[1:]} == {1}


def test_hyperparameters_may_be_held(tmp_path):
    run = isobatch.train(
        "CartPole-v1", out=tmp_path / "run", batch_schedule=SCHEDULE, rescale=False,
        learning_rate_schedule="constant", **SMALL,
    )  # fmt: skip
    assert len({row["learning_rate"] for row in run.metrics if row["learning_rate"]}) == 1
    moved = next(row["reshaped"] for row in run.metrics if "reshaped" in row)
    assert moved == "n_envs 4 -> 16"


def test_stages_are_rescaled_from_the_recipes_own_batch():
    recipe = preset("CartPole-v1", "ppo-ewma", batch_schedule="0:32x128, 1k:128x128")
    assert scaling.at(recipe, 0) == recipe.rescale(n_envs=32).recipe
    assert scaling.at(recipe, 5_000) == recipe.rescale(n_envs=128).recipe
    late = recipe.replace(batch_schedule="1k:32x128")
    assert scaling.at(late, 999) == late


def test_moments_and_counters_carry_over_and_seeds_are_fresh(tmp_path):
    seeds = []

    class Seeded(Counter):
        def reset(self, *, seed=None, options=None):
            if seed is not None:
                seeds.append(seed)
            return super().reset(seed=seed, options=options)

    settings: dict[str, Any] = {**SMALL, "algo": "ppo-ewma", "total_timesteps": 400}
    settings["normalize_rewards"] = True
    schedule = "0:4x16, 200:2x32, 300:2x16"
    run = isobatch.train(make_env=Seeded, out=tmp_path / "run", batch_schedule=schedule, **settings)
    tensors, numbers = newest(run.path)
    steps = run.metrics[-1]["grad_steps"]
    assert int(tensors["optimizer.count"]) == steps == numbers["counters"]["grad_steps"]
    assert float(tensors["reward.count"]) == pytest.approx(run.metrics[-1]["env_steps"], abs=1)
    # Four, then two others; none are made anew when only the number of steps changes.
    assert numbers["counters"]["environments"] == 6
    assert len(set(seeds)) == 6
    assert all(row["episode_length"] == 3 for row in run.metrics)


def newest(path):
    return read_sealed(max((path / "checkpoints").glob("*.safetensors")))


def test_a_stage_that_begins_where_a_run_was_stopped_is_said_when_it_resumes(tmp_path):
    settings: dict[str, Any] = {**SMALL, "total_timesteps": 250}
    isobatch.train(
        "CartPole-v1", out=tmp_path / "run", batch_schedule="0:4x16, 246:8x16", **settings
    )
    run = isobatch.resume(tmp_path / "run", total_timesteps=500, quiet=True)
    first = next(row for row in run.metrics if "resumed" in row)
    assert first["reshaped"].startswith("n_envs 4 -> 8")
    assert first["n_envs"] == 8


def test_a_run_resumes_in_the_stage_it_was_in(tmp_path):
    settings: dict[str, Any] = {**SMALL, "total_timesteps": 300}
    isobatch.train("CartPole-v1", out=tmp_path / "run", batch_schedule=SCHEDULE, **settings)
    run = isobatch.resume(tmp_path / "run", total_timesteps=700, quiet=True)
    later = [row for row in run.metrics if row["env_steps"] > 300]
    assert (later[0]["n_envs"], later[0]["n_steps"]) == (16, 16)
    assert later[0]["resumed"]
    assert (later[-1]["n_envs"], later[-1]["n_steps"]) == (16, 4)


def test_what_is_averaged_is_worth_what_it_was_at_the_new_batch():
    recipe = PLAIN.replace(
        algo="ppg-ewma", optimizer="adam", n_envs=4, n_steps=16, n_minibatches=4,
        n_policy_iterations=8, n_value_epochs=2, aux_segments=1,
    )  # fmt: skip
    state = begin(recipe)
    for each in (state.optimizer, state.value_optimizer, state.auxiliary_optimizer):
        each.square.fill_(1.0)
        each.mean.fill_(1.0)
    state.counters.phase_iterations = 4
    state.proximal.weight = 5.0
    larger = recipe.rescale(n_envs=16).recipe  # Minibatches of 4 times the rows.
    state.move(larger)
    for each in (state.optimizer, state.value_optimizer):
        assert (float(each.square.mean()), float(each.mean.mean())) == (0.25, 1.0)
    assert float(state.auxiliary_optimizer.square.mean()) == 1.0  # Of one segment, as before.
    assert state.proximal.weight == pytest.approx(1 + 4 / 4)
    assert larger.phasic.n_policy_iterations == 2
    assert state.counters.phase_iterations == 1  # Half a phase, as before.
    state.move(recipe)
    assert float(state.optimizer.square.mean()) == 1.0
    assert state.proximal.weight == pytest.approx(5.0)
    assert state.counters.phase_iterations == 4


def test_held_hyperparameters_hold_the_moments_too():
    recipe = PLAIN.replace(optimizer="adam", rescale=False)
    state = begin(recipe)
    state.optimizer.square.fill_(1.0)
    state.move(recipe.replace(n_envs=8))
    assert float(state.optimizer.square.mean()) == 1.0
