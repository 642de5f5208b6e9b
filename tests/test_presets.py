import pytest

from isobatch.batch import Batch
from isobatch.errors import UserError
from isobatch.presets import PRESETS, family_preset, preset, preset_name
from isobatch.recipe import check_budget
from isobatch.registry import ALGORITHMS
from isobatch.scaling.factors import center_of_mass


def assert_has(recipe, **expected):
    assert {name: recipe.values[name] for name in expected} == expected


@pytest.mark.parametrize("env", ["CoinrunHard-v0", "StarpilotEasy-v0"])
def test_procgen_has_the_papers_numbers(env):
    assert_has(
        preset(env),
        n_envs=256, n_steps=256, n_minibatches=8, n_epochs=3, learning_rate=5e-4, gamma=0.999,
        gae_lambda=0.95, clip_range=0.2, ent_coef=0.01, vf_coef=1.0, encoder="impala",
        architecture="shared", normalize_rewards=True, reward_gamma=0.99, max_grad_norm=None,
        minibatches_by="envs",
    )  # fmt: skip


@pytest.mark.parametrize("algo", ["ppo-ewma", "ppg-ewma"])
def test_procgen_ewma_averages_over_an_iterations_minibatches(algo):
    recipe = preset("CoinrunHard-v0", algo)
    assert_has(
        recipe,
        algo=algo, proximal_decay=8 / 9, advantage_normalization="ewma", advantage_decay=0.0,
    )  # fmt: skip
    assert center_of_mass(8 / 9) == pytest.approx(recipe.batch.n_minibatches)


def test_procgen_ppg_ewma_has_the_objective_of_figure_2():
    recipe = preset("StarpilotHard-v0", "ppg-ewma")
    assert_has(
        recipe,
        n_envs=256, n_steps=256, n_minibatches=8, n_epochs=1, learning_rate=5e-4,
        n_policy_iterations=32, n_aux_epochs=6, clone_coef=1.0, architecture="dual",
        objective="kl", kl_coef=1.0, kl_estimator="squared",
    )  # fmt: skip
    assert recipe.phasic.segments(256) == 16
    assert_has(preset("StarpilotHard-v0", "ppg"), n_epochs=1, objective="clip", clip_range=0.2)


def test_procgen_at_64_environments_is_the_256_of_the_paper_rescaled():
    paper = preset("StarpilotHard-v0", "ppg-ewma")
    assert_has(paper, n_envs=256, learning_rate=5e-4, advantage_decay=0.0, n_policy_iterations=32)
    small = paper.rescale(n_envs=64).recipe
    assert_has(small, n_envs=64, n_policy_iterations=128, aux_learning_rate=0.0)
    assert small.optimizer.learning_rate == pytest.approx(2.5e-4)
    assert small.objective.proximal_decay == pytest.approx(32 / 33)
    assert small.objective.advantage_decay == pytest.approx(0.6)
    assert (small.batch.rollout_size, small.batch.minibatch_size) == (16_384, 2_048)
    moved = {name for name, value in paper.values.items() if small.values[name] != value}
    assert moved == {
        "n_envs", "learning_rate", "proximal_decay", "advantage_decay", "n_policy_iterations",
    }  # fmt: skip


def test_atari_has_cleanrls_numbers():
    recipe = preset("Pong-v5")
    assert recipe.batch == Batch(n_envs=8, n_steps=128, n_minibatches=4, n_epochs=4)
    assert_has(
        recipe,
        encoder="nature", learning_rate=2.5e-4, learning_rate_schedule="linear", gamma=0.99,
        gae_lambda=0.95, clip_range=0.1, ent_coef=0.01, vf_coef=0.5, max_grad_norm=0.5,
        episodic_life=True, sign_rewards=True,
    )  # fmt: skip


def test_mujoco_has_the_fields_numbers():
    recipe = preset("HalfCheetah-v4")
    assert recipe.batch == Batch(n_envs=1, n_steps=2048, n_minibatches=32, n_epochs=10)
    assert_has(
        recipe,
        learning_rate=3e-4, gamma=0.99, gae_lambda=0.95, hidden_sizes=(64, 64), activation="tanh",
        normalize_observations=True, normalize_rewards=True,
    )  # fmt: skip


@pytest.mark.parametrize("env", ["CartPole-v1", "gymnasium:CartPole-v1"])
def test_classic_control(env):
    recipe = preset(env)
    assert recipe.env == env
    assert recipe.batch == Batch(n_envs=8, n_steps=128, n_minibatches=4, n_epochs=10)
    assert_has(recipe, learning_rate=1e-3, gamma=0.98, gae_lambda=0.9, total_timesteps=100_000)


def test_tensor_environments_come_by_the_thousand():
    assert preset("tensor:CartPole-v1").batch.n_envs == 1024


def test_overrides_win_over_the_preset():
    recipe = preset("CartPole-v1", n_envs=2, minibatch_size=64, gamma=0.5)
    assert recipe.batch == Batch(n_envs=2, n_steps=128, n_minibatches=4, n_epochs=10)
    assert recipe.objective.gamma == 0.5
    assert preset("CartPole-v1", "ppo-ewma", advantage_decay=0.6).objective.advantage_decay == 0.6


@pytest.mark.parametrize("algo", ALGORITHMS)
@pytest.mark.parametrize("family", [*PRESETS, "generic"])
def test_every_preset_can_run_with_equal_minibatches(family, algo):
    recipe = family_preset(family, "Some-v1", algo)
    check_budget(recipe)
    assert recipe.algo == algo
    assert recipe.batch.rollout_size % recipe.batch.n_minibatches == 0


def test_family_without_a_preset_gets_the_generic_one():
    assert preset_name("jumanji") == "generic"
    assert preset_name("atari") == "atari"
    recipe = family_preset("jumanji", "Some-v1")
    assert recipe.batch == Batch(n_envs=8, n_steps=128, n_minibatches=4, n_epochs=4)


def test_unknown_algorithm_names_those_there_are():
    with pytest.raises(UserError, match=r"'ppo-ewm'.*ppo, ppo-ewma.*mean ppo-ewma"):
        preset("CartPole-v1", "ppo-ewm")


def test_unknown_environment_suggests_the_nearest():
    with pytest.raises(UserError, match="CartPole-v1"):
        preset("CartPol-v1")
