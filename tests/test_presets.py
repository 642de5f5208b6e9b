import pytest

from isobatch.batch import Batch
from isobatch.errors import UserError
from isobatch.presets import PRESETS, family_preset, preset, preset_name
from isobatch.recipe import check_budget
from isobatch.registry import ALGORITHMS


def assert_has(recipe, **expected):
    assert {name: recipe.values[name] for name in expected} == expected


@pytest.mark.parametrize("env", ["CoinrunHard-v0", "StarpilotEasy-v0"])
def test_procgen_has_the_papers_numbers(env):
    assert_has(
        preset(env),
        n_steps=256, n_minibatches=8, n_epochs=3, learning_rate=5e-4, gamma=0.999,
        gae_lambda=0.95, clip_range=0.2, ent_coef=0.01, vf_coef=1.0, encoder="impala",
        architecture="shared", normalize_rewards=True, reward_gamma=0.99, max_grad_norm=None,
        minibatches_by="envs",
    )  # fmt: skip


@pytest.mark.parametrize("algo", ["ppo-ewma", "ppg-ewma"])
def test_procgen_ewma_averages_over_an_iterations_minibatches(algo):
    recipe = preset("CoinrunHard-v0", algo)
    decay = recipe.objective.proximal_decay
    assert 1 / (1 - decay) - 1 == pytest.approx(recipe.batch.n_minibatches, rel=0.01)
    assert_has(recipe, algo=algo, advantage_normalization="ewma", advantage_decay=0.0)


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
