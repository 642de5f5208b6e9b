from dataclasses import replace
from typing import Any

import pytest
from gymnasium.vector import AutoresetMode
from probe_envs import Counter, TensorCounter, vector_of

import isobatch
from isobatch import UserError, scaling
from isobatch.batch import Batch
from isobatch.noise.online import Averages, Measured
from isobatch.presets import preset
from isobatch.run.sinks import readings
from isobatch.run.store import read_sealed
from isobatch.scaling.adaptive import PROBES_PER_MOVE, decide, predicted

RECIPE = preset("CartPole-v1", n_envs=8, n_steps=128, n_minibatches=4, batch_schedule="adaptive")
OWN = RECIPE.batch


def averages(probes=PROBES_PER_MOVE, noise_scale: float | None = 512.0, **values: Any) -> Averages:
    """Return averages of probes that all found the same."""
    known: dict[str, Any] = {"variance": 1.0, "half_variance": 2.0, "bias": 0.0} | values
    signal = -1.0 if noise_scale is None else 1.0
    found = Averages()
    for _ in range(probes):
        found.update(Measured(1024, signal, noise_scale or 100.0, **known))
    return found


def moved(measured: Averages, batch=OWN, recipe=RECIPE):
    decision = decide(recipe, batch, measured)
    return None if decision is None else decision.batch


def cut(n_minibatches, batch=OWN) -> Batch:
    return replace(batch, n_minibatches=n_minibatches)


def shaped(n_envs, n_steps) -> Batch:
    return replace(OWN, n_envs=n_envs, n_steps=n_steps)


@pytest.mark.parametrize(
    ("noise_scale", "count"),
    [(512, None), (900, None), (1100, 2), (50_000, 2), (300, None), (260, None), (250, 8), (9, 8)],
)
def test_minibatches_follow_half_the_noise_scale_by_a_factor_of_two(noise_scale, count):
    assert moved(averages(noise_scale=noise_scale)) == (count and cut(count))


def test_the_sentence_has_the_numbers_behind_a_decision():
    decision = decide(RECIPE, OWN, averages(noise_scale=1812.0))
    assert decision is not None
    assert decision.why == "noise scale 1,812 against minibatches of 256: 2 instead of 4"


def test_a_move_is_not_taken_back_at_the_next_measurement():
    for noise_scale in (700, 1024, 1500):
        measured = averages(noise_scale=noise_scale)
        after = moved(measured)
        if after is not None:
            assert moved(averages(noise_scale=noise_scale), after) is None


def test_noise_that_hides_the_signal_has_a_scale_beyond_any_minibatch():
    decision = decide(RECIPE, OWN, averages(noise_scale=None))
    assert decision is not None
    assert decision.batch == cut(2)
    assert decision.why.startswith("noise scale beyond measure against minibatches of 256")


@pytest.mark.parametrize(
    ("noise_scale", "count"), [(1e9, 1), (1.0, 64), (1.0, 32)], ids=["whole", "16 rows", "8-fold"]
)
def test_minibatches_stay_within_bounds(noise_scale, count):
    recipe = RECIPE
    if count == 64:
        recipe = RECIPE.replace(n_minibatches=16)  # Minibatches of 64 reach 16 rows at 64 of them.
    assert moved(averages(noise_scale=noise_scale), cut(count), recipe) is None


def test_minibatches_are_whole_numbers_of_whole_rows():
    assert moved(averages(noise_scale=1e6), cut(3)) is None
    odd = Batch(n_envs=5, n_steps=25, n_minibatches=5)
    assert moved(averages(noise_scale=1.0), odd, RECIPE.replace(batch=odd)) is None
    # The smallest may be smaller where the recipe's own is, and then only grow.
    tiny = Batch(n_envs=4, n_steps=8, n_minibatches=8)
    recipe = RECIPE.replace(batch=tiny)
    assert moved(averages(noise_scale=1.0), tiny, recipe) is None
    assert moved(averages(noise_scale=1e6), tiny, recipe) == cut(4, tiny)


def test_a_decision_waits_for_a_few_probes():
    assert moved(averages(PROBES_PER_MOVE - 1, noise_scale=1e6)) is None
    assert moved(averages(PROBES_PER_MOVE, noise_scale=1e6)) == cut(2)


@pytest.mark.parametrize(
    ("variance", "half", "bias", "shape"),
    [
        (1.0, 2.0, 0.0, None),  # Rows are independent in time: nothing to gain.
        (1.0, 1.9, 0.0, None),  # 5 percent to gain.
        (1.0, 1.7, 0.0, (16, 64)),
        (1.0, 1.7, 0.04, None),  # What variance would gain, bias would lose.
        (1.0, 2.0, 0.5, (4, 256)),
        (1.0, 1.2, 0.5, None),  # And the other way round.
        (1.0, 2.0, -0.5, None),
    ],
)
def test_environments_are_traded_for_steps_where_the_error_lessens(variance, half, bias, shape):
    measured = averages(variance=variance, half_variance=half, bias=bias)
    assert moved(measured) == (shape and shaped(*shape))


def test_the_predicted_errors_are_those_of_the_documented_law():
    errors = predicted(averages(variance=1.0, half_variance=1.5, bias=0.2))
    assert errors is not None
    assert [errors[factor] for factor in (0.5, 1, 2)] == [
        pytest.approx((0.8, 0.75)), pytest.approx((0.2, 1.0)), pytest.approx((0.05, 1.25)),
    ]  # fmt: skip
    decision = decide(RECIPE, OWN, averages(half_variance=1.0, bias=0.01))
    assert decision is not None
    assert decision.why == (
        "gradient error 0.54 (bias 0.04, variance 0.5) predicted for 16 x 64 against 1.01 "
        "(bias 0.01, variance 1) of 8 x 128"
    )


SHORTER: dict[str, Any] = {"half_variance": 1.0}
LONGER: dict[str, Any] = {"bias": 1.0}


@pytest.mark.parametrize(
    ("batch", "wish"),
    [
        (shaped(32, 32), SHORTER),  # Four times as many environments already.
        (shaped(2, 512), LONGER),
        (shaped(8, 127), SHORTER),
        (shaped(9, 128), LONGER),
    ],
)
def test_shapes_stay_within_bounds(batch, wish):
    assert moved(averages(noise_scale=2 * batch.minibatch_size, **wish), batch) is None


def test_rollouts_keep_two_steps_and_two_environments():
    few = Batch(n_envs=512, n_steps=4, n_minibatches=8)
    recipe = RECIPE.replace(batch=few)
    assert moved(averages(**SHORTER), few, recipe) == replace(few, n_envs=1024, n_steps=2)
    fewer = replace(few, n_envs=1024, n_steps=2)
    assert moved(averages(**SHORTER), fewer, recipe) is None
    pair = Batch(n_envs=2, n_steps=512, n_minibatches=4)
    assert moved(averages(**LONGER), pair, RECIPE.replace(batch=pair)) is None


def test_where_groups_are_unknown_only_minibatches_move():
    unknown: dict[str, Any] = {"variance": None, "half_variance": None, "bias": None}
    assert moved(averages(**unknown)) is None
    assert moved(averages(noise_scale=1e6, **unknown)) == cut(2)


def test_a2c_keeps_its_one_minibatch():
    recipe = preset("CartPole-v1", "a2c", batch_schedule="adaptive")
    assert moved(averages(noise_scale=1.0), recipe.batch, recipe) is None
    assert moved(averages(noise_scale=1e9, **SHORTER), recipe.batch, recipe) == replace(
        recipe.batch, n_envs=2 * recipe.batch.n_envs, n_steps=recipe.batch.n_steps // 2
    )


def test_hyperparameters_come_from_the_recipes_own_batch():
    assert scaling.at_batch(RECIPE, OWN) == RECIPE
    twice = scaling.at_batch(RECIPE, cut(2))
    assert twice == RECIPE.rescale(n_minibatches=2).recipe
    assert twice.optimizer.learning_rate == pytest.approx(2**0.5 * RECIPE.optimizer.learning_rate)
    held = scaling.at_batch(RECIPE.replace(rescale=False), cut(2))
    assert held.optimizer == RECIPE.optimizer


SMALL: dict[str, Any] = {
    "n_envs": 8, "n_steps": 16, "n_minibatches": 8, "n_epochs": 1, "quiet": True, "seed": 1,
    "batch_schedule": "adaptive", "probe_every": 1, "compile": "off",
    "learning_rate_schedule": "constant", "keep_policies": 0,
}  # fmt: skip
SIZES = ("n_envs", "n_steps", "n_minibatches")


def sizes(row) -> tuple[int, ...]:
    return tuple(row[name] for name in SIZES)


def test_a_run_adapts_says_so_and_goes_on_as_it_was_when_resumed(tmp_path):
    out = tmp_path / "run"
    first = isobatch.train("CartPole-v1", total_timesteps=2000, out=out, **SMALL).metrics
    run = isobatch.resume(out, total_timesteps=4000, quiet=True)
    assert run.metrics[: len(first)] == first
    decided = [row for row in run.metrics if "decision" in row]
    assert {row["iterations"] <= len(first) for row in decided} == {True, False}
    at, waited = {}, 0
    for before, row in zip([run.metrics[0], *run.metrics], run.metrics, strict=False):
        assert ("decision" in row) == ("reshaped" in row) == (sizes(row) != sizes(before))
        if "decision" in row:
            assert waited >= PROBES_PER_MOVE, "a resume does not shorten the wait"
            waited = 0
            assert row["reshaped"].split(" ", 1)[0] in SIZES
            assert row["decision"] in readings(row)
            numbers = (f"{value:,}" for value in (before["n_minibatches"], before["n_steps"]))
            assert any(each in row["decision"] for each in numbers)
        waited += row["gradient_trace"] is not None
        assert row["n_envs"] * row["n_steps"] == 128
        at[row["n_minibatches"]] = row["learning_rate"] or at[row["n_minibatches"]]
    own = at[8]
    assert len(at) > 1
    assert at == {count: pytest.approx(own * (8 / count) ** 0.5) for count in at}
    newest = max((out / "checkpoints").glob("*.safetensors"))
    saved = read_sealed(newest)[1]["batch"]
    assert tuple(saved[name] for name in SIZES) == sizes(run.metrics[-1])


@pytest.mark.parametrize("algo", ["ppo-ewma", "ppg-ewma", "a2c"])
def test_the_other_algorithms_adapt_too(algo, tmp_path):
    settings = SMALL | {"algo": algo, "n_policy_iterations": 4, "n_aux_epochs": 1}
    if algo == "a2c":
        settings |= {"n_minibatches": 1}
    run = isobatch.train("CartPole-v1", total_timesteps=3000, out=tmp_path / "run", **settings)
    assert any("decision" in row for row in run.metrics)
    assert algo != "a2c" or {row["n_minibatches"] for row in run.metrics} == {1}
    assert 3000 - 32 < run.metrics[-1]["env_steps"] <= 3000


@pytest.mark.parametrize(
    "make_env",
    [vector_of(AutoresetMode.SAME_STEP, *[Counter] * 8), lambda: TensorCounter(8)],
    ids=["vector", "tensor"],
)
def test_a_vector_of_the_users_own_cannot_change_its_width(make_env, tmp_path):
    with pytest.raises(UserError, match="must return one environment, not a vector"):
        isobatch.train(make_env=make_env, total_timesteps=256, out=tmp_path / "run", **SMALL)
    assert not (tmp_path / "run").exists()
