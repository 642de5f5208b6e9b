from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode
from probe_envs import Counter, Signs, TensorCounter, vector_of

import isobatch
from isobatch import UserError, scaling
from isobatch.batch import Batch
from isobatch.noise.averages import Averages, Measured
from isobatch.noise.estimators import squared_gradient, variance
from isobatch.noise.online import GroupSums
from isobatch.presets import preset
from isobatch.run.store import read_sealed
from isobatch.scaling.adaptive import PROBES_PER_MOVE, decide

RECIPE = preset("CartPole-v1", n_envs=8, n_steps=128, n_minibatches=4, batch_schedule="adaptive")
OWN = RECIPE.batch


def averages(probes=PROBES_PER_MOVE, noise_scale: float | None = 512.0, **values: Any) -> Averages:
    """Return averages of probes that all found the same."""
    known: dict[str, Any] = {
        "variance": 1.0, "half_variance": 2.0, "bias": 0.0, "bias_along": 0.0
    } | values  # fmt: skip
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


def test_noise_that_hides_the_signal_leaves_the_batch_as_it_is():
    decision = decide(RECIPE, OWN, averages(noise_scale=None, half_variance=1.0))
    assert decision is not None
    assert decision.batch == OWN
    assert decision.why == (
        "undecided: the squared gradient, -1 +- 0, is not significantly different from zero; the "
        "batch stays"
    )
    assert decide(RECIPE, OWN, averages(PROBES_PER_MOVE - 1, noise_scale=None)) is None


def of_noise(generator, signal=0.0, n_groups=8, rows=128, size=50) -> Measured:
    """Return a probe of groups' gradients drawn at random around `signal` in each coordinate."""
    groups = signal + torch.randn(n_groups, size, generator=generator)
    total, shift, halves = (GroupSums(torch.zeros(size)) for _ in range(3))
    for group in groups:
        total.add(rows * group, rows)
        shift.add(rows * 0.1 * torch.randn(size, generator=generator), rows)
        halves.add(rows * 1.3 * torch.randn(size, generator=generator), rows)
    return Measured(
        n_groups * rows, squared_gradient(total), float(rows * size), variance(total),
        variance(halves), squared_gradient(shift), 0.0,
    )  # fmt: skip


def test_pure_noise_moves_nothing_however_long_it_lasts():
    """Its |G|^2 is above zero about every other time, which is no gradient."""
    moves = above = 0
    for seed in range(20):
        generator, measured = torch.Generator().manual_seed(seed), Averages()
        for _ in range(200):
            measured.update(of_noise(generator))
            decision = decide(RECIPE, OWN, measured)
            above += measured.noise_scale is not None
            if decision is not None:
                moves += decision.batch != OWN
                assert decision.batch != OWN or decision.why.startswith("undecided")
    assert above > 1000
    assert moves <= 4, "one in a thousand of 4,000, by averages that overlap"


def test_a_gradient_in_as_much_noise_is_found():
    generator, measured = torch.Generator().manual_seed(0), Averages()
    for _ in range(12):
        measured.update(of_noise(generator, signal=0.4))
    assert measured.has_signal
    assert moved(measured) is not None


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
        (1.0, 1.2, 0.1, None),  # And the other way round.
        (1.0, 2.0, -0.5, None),
    ],
)
def test_environments_are_traded_for_steps_where_the_error_lessens(variance, half, bias, shape):
    measured = averages(variance=variance, half_variance=half, bias=bias)
    assert moved(measured) == (shape and shaped(*shape))


def cosine_law(whole, step, more, variance):
    """Return bias^2 and variance of G(T) + more d against G(T) - d, from the vectors themselves."""
    own, reference = whole + more * step, whole - step
    scale = reference @ reference / (own @ reference)
    wrong = scale * own - reference
    unit = reference @ reference
    return pytest.approx((wrong @ wrong / unit, scale**2 * variance / unit))


@pytest.mark.parametrize("step", [(0.0, 0.3), (-0.2, 0.1), (0.3, 0.0), (0.0, 0.0)])
def test_the_predicted_errors_are_those_of_vectors_rescaled_to_be_right_along_the_gradient(step):
    whole, step = np.array([1.0, 0.0]), np.array(step)
    measured = averages(
        variance=1.0, half_variance=1.5, bias=float(step @ step), bias_along=float(step @ whole)
    )
    assert measured.errors is not None
    for factor, more, spread in ((0.5, 1.0, 0.75), (1.0, 0.0, 1.0), (2.0, -0.5, 1.25)):
        assert measured.errors[factor] == cosine_law(whole, step, more, spread)


def test_a_gradient_that_short_rollouts_only_shrink_has_no_bias():
    """A step size makes up for it: compared plainly, it would count for 0.16 |G|^2."""
    errors = averages(bias=0.04, bias_along=-0.2).errors
    assert errors is not None
    assert [error.bias2 for error in errors.values()] == pytest.approx([0, 0, 0], abs=1e-9)


def test_training_and_the_laboratory_compare_errors_by_one_function(monkeypatch):
    """Both follow it when it changes."""
    from isobatch.noise import errors
    from isobatch.probe import curve

    assert curve.gradient_error is errors.gradient_error
    answer = errors.GradientError(torch.tensor(3.0), torch.tensor(4.0))
    monkeypatch.setattr(errors, "gradient_error", lambda *_: answer)
    assert averages().errors == dict.fromkeys((0.5, 1.0, 2.0), (3, 4))


def test_the_sentence_of_a_shape_has_both_errors():
    decision = decide(RECIPE, OWN, averages(half_variance=1.0, bias=0.01))
    assert decision is not None
    assert decision.why == (
        "gradient error 0.556 (bias^2 0.0408, variance 0.515) predicted for 16 x 64 against 1.02 "
        "(bias^2 0.01, variance 1.01) of 8 x 128"
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
CLEAR: dict[str, Any] = SMALL | {"n_minibatches": 1, "learning_rate": 1e-5, "make_env": Signs}
"""A gradient that stands out of its noise and stays, and minibatches that are too large for it."""
SIZES = ("n_envs", "n_steps", "n_minibatches")


def sizes(row) -> tuple[int, ...]:
    return tuple(row[name] for name in SIZES)


def test_a_run_adapts_says_so_and_goes_on_as_it_was_when_resumed(tmp_path):
    out = tmp_path / "run"
    first = isobatch.train(total_timesteps=1200, out=out, **CLEAR).metrics
    run = isobatch.resume(out, total_timesteps=3000, quiet=True, make_env=Signs)
    assert run.metrics[: len(first)] == first
    decided = [row for row in run.metrics if "reshaped" in row]
    for row in run.metrics:
        if "decision" in row and "reshaped" not in row:
            assert row["decision"].startswith("undecided: the squared gradient, ")
    assert {row["iterations"] <= len(first) for row in decided} == {True, False}
    at, waited = {}, 0
    for before, row in zip([run.metrics[0], *run.metrics], run.metrics, strict=False):
        assert ("reshaped" in row) == (sizes(row) != sizes(before))
        assert "decision" in row or "reshaped" not in row
        if "reshaped" in row:
            assert waited >= PROBES_PER_MOVE, "a resume does not shorten the wait"
            waited = 0
            assert row["reshaped"].split(" ", 1)[0] in SIZES
            numbers = (f"{value:,}" for value in (before["n_minibatches"], before["n_steps"]))
            assert any(each in row["decision"] for each in numbers)
        waited += row["gradient_trace"] is not None
        assert row["n_envs"] * row["n_steps"] == 128
        at[row["n_minibatches"]] = row["learning_rate"] or at[row["n_minibatches"]]
    own = at[1]
    assert len(at) > 1
    assert at == {count: pytest.approx(own / count**0.5) for count in at}
    newest = max((out / "checkpoints").glob("*.safetensors"))
    saved = read_sealed(newest)[1]["batch"]
    assert tuple(saved[name] for name in SIZES) == sizes(run.metrics[-1])


@pytest.mark.parametrize("algo", ["ppo-ewma", "ppg-ewma", "a2c"])
def test_the_other_algorithms_adapt_too(algo, tmp_path):
    settings = CLEAR | {"algo": algo, "n_policy_iterations": 4, "n_aux_epochs": 1}
    run = isobatch.train(total_timesteps=3000, out=tmp_path / "run", **settings)
    assert any("reshaped" in row for row in run.metrics)
    assert algo != "a2c" or {row["n_minibatches"] for row in run.metrics} == {1}
    assert 3000 - 32 < run.metrics[-1]["env_steps"] <= 3000


class Chance(Counter):
    """A counter whose rewards no action has any part in."""

    def reward(self):
        return float(self.np_random.normal())


def test_a_run_without_a_gradient_keeps_its_batch_and_says_why(tmp_path):
    settings: dict[str, Any] = SMALL | {"gamma": 0.9}
    run = isobatch.train(
        make_env=lambda: Chance(length=20), total_timesteps=8000, out=tmp_path / "run", **settings
    )
    assert {sizes(row) for row in run.metrics} == {(8, 16, 8)}
    said = [row["decision"] for row in run.metrics if "decision" in row]
    assert len(said) > 40
    assert all(each.startswith("undecided: the squared gradient, ") for each in said)


@pytest.mark.parametrize(
    "make_env",
    [vector_of(AutoresetMode.SAME_STEP, *[Counter] * 8), lambda: TensorCounter(8)],
    ids=["vector", "tensor"],
)
def test_a_vector_of_the_users_own_cannot_change_its_width(make_env, tmp_path):
    with pytest.raises(UserError, match="must return one environment, not a vector"):
        isobatch.train(make_env=make_env, total_timesteps=256, out=tmp_path / "run", **SMALL)
    assert not (tmp_path / "run").exists()
