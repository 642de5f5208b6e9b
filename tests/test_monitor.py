"""Diagnostics while training: what is measured, when, and that nothing learned depends on it."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from hand_made import PLAIN, begin, experience

import isobatch
from isobatch import diagnostics
from isobatch.diagnostics.seen import HELD_BYTES, HELD_ROWS, Seen
from isobatch.envs.spaces import ObservationLayout
from isobatch.models.encoders import make_encoder
from isobatch.presets import preset
from isobatch.recipe import Model
from isobatch.run.monitor import NORM_ROWS, Monitor, gradient_norms, interval, parts, spread_rows
from isobatch.run.reading import read_checkpoint
from isobatch.run.seeds import seed_paths, train_seeds
from isobatch.run.store import CLOCK_COLUMNS

TINY: dict[str, Any] = {"n_envs": 2, "n_steps": 16, "n_minibatches": 2, "n_epochs": 1}
BOTH = ("weight_norm", "gradient_kurtosis", "feature_rank", "dormant_fraction")
ONCE = ("policy_variance", "importance_ess", "state_coverage")
DUAL = {"weight_norm", *ONCE, *(f"{name}_{of}" for name in BOTH for of in ("actor", "critic"))}
MORE = ("srank", "effective_rank", "gradient_norm_kurtosis")
FULL = {"visited_entropy"} | {f"{name}_{of}" for name in MORE for of in ("actor", "critic")}


def learned(run):
    """Return what a run's rows say of learning alone."""
    free = {*CLOCK_COLUMNS, *DUAL, *FULL}
    return [{k: v for k, v in row.items() if k not in free} for row in run.metrics]


def trained(out, **changes):
    settings = TINY | {"total_timesteps": 512, "quiet": True} | changes
    return isobatch.train("CartPole-v1", **settings, out=out)


def test_no_diagnostic_changes_what_is_learned(tmp_path):
    runs = {
        level: trained(tmp_path / level, diagnostics=level) for level in ("off", "cheap", "full")
    }
    assert learned(runs["off"]) == learned(runs["cheap"]) == learned(runs["full"])
    assert not DUAL & runs["off"].metrics[0].keys()
    assert runs["cheap"].metrics[0].keys() >= DUAL
    assert runs["full"].metrics[0].keys() >= DUAL | FULL


def test_measured_every_few_iterations_and_null_between(tmp_path):
    every = interval(preset("CartPole-v1").replace(**TINY))
    rows = trained(tmp_path / "run", total_timesteps=32 * (every + 2)).metrics
    measured = [k for k, row in enumerate(rows) if row["importance_ess"] is not None]
    assert measured == [0, every]
    assert all((row["weight_norm"] is None) == (k % every > 0) for k, row in enumerate(rows))


@pytest.mark.parametrize(("rollout", "wanted"), [((8, 128), 10), ((64, 64), 4), ((256, 256), 1)])
def test_large_rollouts_are_measured_more_often(rollout, wanted):
    recipe = preset("CartPole-v1").replace(n_envs=rollout[0], n_steps=rollout[1])
    assert interval(recipe) == wanted


def test_columns_are_what_the_functions_say(tmp_path):
    """Of the last policy, which the last row was measured on."""
    run = trained(tmp_path / "run", diagnostics="full", total_timesteps=256)
    row, model = run.metrics[-1], isobatch.load(run.path).model
    actor, critic = parts(model)
    assert row["weight_norm"] == pytest.approx(diagnostics.weight_norm(model), rel=1e-5)
    own = [float(each.detach().norm()) for each in model.get_submodule("actor").parameters()]
    assert row["weight_norm_actor"] == pytest.approx(math.hypot(*own), rel=1e-5)
    rest = row["weight_norm"] ** 2 - row["weight_norm_actor"] ** 2
    assert row["weight_norm_critic"] == pytest.approx(math.sqrt(rest), rel=1e-5)
    saved = read_checkpoint(run.path)
    assert saved is not None
    held = {"vector": saved["seen.held.vector"]}
    for part in (actor, critic):
        with torch.no_grad():
            layers = part.encoder.activations(held)
        assert row[f"feature_rank{part.suffix}"] == diagnostics.feature_rank(layers[-1])
        assert row[f"srank{part.suffix}"] == diagnostics.srank(layers[-1])
        assert row[f"dormant_fraction{part.suffix}"] == diagnostics.dormant_fraction(layers)
    assert 0 < row["importance_ess"] <= 1
    assert 0 < row["state_coverage"] <= 1


def test_one_network_has_columns_without_a_suffix(tmp_path):
    shared = trained(tmp_path / "shared", architecture="shared").metrics[0]
    assert {*BOTH, *ONCE} <= shared.keys()
    assert not any(name.endswith(("_actor", "_critic")) for name in shared)
    values = trained(tmp_path / "pqn", algo="pqn", n_epochs=1).metrics[0]
    assert {*BOTH, "state_coverage"} <= values.keys()
    assert "importance_ess" not in values, "action values are no probabilities"


def test_without_an_update_the_policy_is_the_one_that_acted(tmp_path):
    row = trained(tmp_path / "run", learning_rate=1e-30).metrics[0]
    assert row["importance_ess"] == pytest.approx(1, abs=1e-9)


def test_runs_together_measure_what_each_measures_alone(tmp_path):
    recipe = preset("CartPole-v1").replace(**TINY, total_timesteps=256)
    together = train_seeds(seed_paths(recipe, 3, tmp_path / "together"), width=3, quiet=True)
    for outcome in together:
        first = outcome.run.metrics[0]
        run = outcome.run
        out = tmp_path / f"alone-{run.recipe.seed}"
        alone = isobatch.train(recipe=run.recipe, out=out, quiet=True).metrics[0]
        for name in DUAL:
            assert first[name] == pytest.approx(alone[name], rel=1e-3, abs=1e-4), name


def moved_to_zero(architecture, **changes):
    """Return a state whose weights are all 0, and a rollout of rows that all end, acted before."""
    recipe = PLAIN.replace(architecture=architecture, diagnostics="full", **changes)
    state = begin(recipe)
    rollout = experience(state)
    state.parameters.vector.detach().zero_()
    return state, replace(rollout, terminated=torch.ones_like(rollout.terminated))


def test_norms_of_single_rows_gradients_by_hand():
    """All weights are 0, so that only the outputs' biases have gradients.

    Of three actions of probability 1 / 3: |grad log pi| = |e_a - 1 / 3| = sqrt(2 / 3). And v = 0,
    |grad v| = 1. A row that ends its episode has the target r and the advantage r - v_before.
    """
    state, rollout = moved_to_zero("dual", advantage_normalization="none")
    rows = spread_rows(rollout, NORM_ROWS)
    assert len(rows) == rollout.n_valid < rollout.valid.numel()
    rewards, before = rollout.rewards.flatten()[rows], rollout.values[:-1].flatten()[rows]
    actor, critic = parts(state.model)
    ratio = 1 / 3 / rollout.logp.flatten()[rows].exp()
    policy = ratio * (rewards - before).abs() * math.sqrt(2 / 3)
    torch.testing.assert_close(gradient_norms(actor, state, rollout, rows), policy)
    torch.testing.assert_close(gradient_norms(critic, state, rollout, rows), rewards.abs())
    row = Monitor(state)(state, rollout)
    assert row["gradient_norm_kurtosis_actor"] == pytest.approx(diagnostics.kurtosis(policy), 1e-4)
    found = row["gradient_norm_kurtosis_critic"]
    assert found == pytest.approx(diagnostics.kurtosis(rewards.abs()), 1e-4)


def test_advantages_are_centred_where_training_normalises_them():
    state, rollout = moved_to_zero("shared", advantage_normalization="batch")
    rows = spread_rows(rollout, NORM_ROWS)
    advantages = (rollout.rewards - rollout.values[:-1]).flatten()[rows]
    (only,) = parts(state.model)
    ratio = 1 / 3 / rollout.logp.flatten()[rows].exp()
    expected = ratio * (advantages - advantages.mean()).abs() * math.sqrt(2 / 3)
    torch.testing.assert_close(gradient_norms(only, state, rollout, rows), expected)
    assert "gradient_norm_kurtosis" in Monitor(state).columns


def test_norms_are_those_of_single_backward_passes():
    """Of a network that has moved: the surrogate's ratio is not 1."""
    state = begin(PLAIN.replace(advantage_normalization="none"), "continuous")
    rollout = experience(state)
    rollout = replace(rollout, terminated=torch.ones_like(rollout.terminated))
    state.parameters.vector.detach().mul_(1.3)
    rows = spread_rows(rollout, 5)
    assert len(rows) <= 5
    found = [gradient_norms(part, state, rollout, rows) for part in parts(state.model)]
    for k, row in enumerate(rows.tolist()):
        t, n = divmod(row, rollout.n_envs)
        params, value = state.model({"vector": rollout.observations["vector"][t, n : n + 1]})
        logp = state.model.distribution.log_prob(params, rollout.actions[t, n : n + 1])
        advantage = rollout.rewards[t, n] - rollout.values[t, n]
        surrogate = ((logp - rollout.logp[t, n]).exp() * advantage).sum()
        fit = ((value - rollout.rewards[t, n]) ** 2 / 2).sum()
        for own, loss in zip(found, (surrogate, fit), strict=True):
            slopes = torch.autograd.grad(
                loss, list(state.model.parameters()), retain_graph=True, allow_unused=True
            )
            norm = math.hypot(*[float(each.norm()) for each in slopes if each is not None])
            assert float(own[k]) == pytest.approx(norm, rel=1e-4)


def test_measuring_leaves_the_state_and_its_gradient_as_they_were():
    state = begin(PLAIN.replace(normalize_rewards=True, diagnostics="full"))
    rollout = experience(state)
    state.reward_normalizer(rollout.rewards, rollout.first, rollout.valid)
    monitor, before = Monitor(state), {k: v.clone() for k, v in state.tensors().items()}
    gradient, numbers = state.parameters.gradient.clone(), state.numbers()
    assert monitor(state, rollout)["gradient_norm_kurtosis_actor"] is not None
    after = state.tensors()
    assert all(torch.equal(each, after[k]) for k, each in before.items() if "seen" not in k)
    assert torch.equal(gradient, state.parameters.gradient)
    assert numbers == state.numbers()


def test_gradients_of_single_rows_are_taken_every_few_iterations_in_full(tmp_path):
    every = interval(preset("CartPole-v1").replace(**TINY))
    rows = trained(
        tmp_path / "run",
        diagnostics="full",
        total_timesteps=32 * (every + 2),
        architecture="shared",
    ).metrics
    measured = [k for k, row in enumerate(rows) if row["gradient_norm_kurtosis"] is not None]
    assert measured == [0, every]
    assert all(row["srank"] is not None for row in rows)


LAYOUTS = {
    "nature": ObservationLayout((), (4, 84, 84), "uint8", None),
    "impala": ObservationLayout((), (3, 64, 64), "uint8", None),
    "mlp": ObservationLayout((), None, "uint8", 5),
}


@pytest.mark.parametrize("layer_norm", [False, True])
@pytest.mark.parametrize("kind", LAYOUTS)
def test_the_last_activations_are_the_features(kind, layer_norm):
    layout = LAYOUTS[kind]
    encoder = make_encoder(layout, Model(encoder=kind, layer_norm=layer_norm), None)
    rows = {
        part: torch.randint(0, 255, (3, *shape), dtype=torch.uint8)
        if part == "image"
        else torch.randn(3, *shape)
        for part, shape in layout.shapes.items()
    }
    with torch.no_grad():
        layers, features = encoder.activations(rows), encoder(rows)
    torch.testing.assert_close(layers[-1], features)
    assert len(layers) >= 2
    if kind != "mlp":
        assert all(bool((layer >= 0).all()) for layer in layers)


def test_own_layers_are_measured_and_observations_are_not(tmp_path):
    own = {"hidden_sizes": (), "value_hidden_sizes": (6,), "diagnostics": "full"}
    run = trained(tmp_path / "own", **own)
    row = next(row for row in run.metrics if row["feature_rank_critic"] is not None)
    # The policy has no hidden layer: its features are CartPole's four numbers, and no unit sleeps.
    assert row["feature_rank_actor"] <= 4
    assert row["dormant_fraction_actor"] is None
    assert 1 <= row["feature_rank_critic"] <= 6
    assert row["dormant_fraction_critic"] is not None


def test_held_out_observations_are_the_first_ones_and_bounded():
    seen = Seen()
    first = torch.arange(2000.0)[:, None]
    seen.update({"vector": first})
    seen.update({"vector": first + 5000})
    assert len(seen.held["vector"]) == HELD_ROWS
    assert float(seen.held["vector"].max()) == 1999
    assert seen.coverage.steps == 4000
    images = Seen()
    images.update({"image": torch.zeros(400, 4, 84, 84, dtype=torch.uint8)})
    assert images.held["image"].nbytes <= HELD_BYTES


def test_what_was_seen_is_in_the_checkpoint():
    seen, again = Seen(), Seen()
    seen.update({"vector": torch.randn(100, 3)}, count_visits=True)
    again.load_state_dict(seen.state_dict())
    torch.testing.assert_close(again.held, seen.held)
    assert again.coverage.coverage == seen.coverage.coverage
    assert again.visits.entropy == seen.visits.entropy > 0
    again.load_state_dict({})
    assert not again.held


def test_counts_of_other_bins_begin_anew_and_those_of_images_go_on():
    """Checkpoints had a scale [D] of the first rollout, empty where nothing was float."""
    vectors, images = Seen(), Seen()
    vectors.update({"vector": torch.randn(100, 3)}, count_visits=True)
    images.update({"image": torch.randint(0, 255, (50, 3, 8, 8), dtype=torch.uint8)})
    again = Seen()
    again.load_state_dict(vectors.state_dict() | {"coverage.scale": torch.ones(3)})
    assert len(again.held["vector"]) == 100
    assert again.coverage.steps == 0
    assert math.isnan(again.visits.entropy)
    again = Seen()
    again.load_state_dict(images.state_dict() | {"coverage.scale": torch.zeros(0)})
    assert again.coverage.steps == 50
    assert again.coverage.distinct == images.coverage.distinct
