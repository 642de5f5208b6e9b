import pytest
from round_trip import comes_back

from isobatch import exchange
from isobatch.batch import Batch
from isobatch.errors import UserError
from isobatch.presets import family_preset

# The defaults of train_fn, those that the PPG repository's README varies, and PPO-EWMA.
DEFAULTS = {
    "env_name": "coinrun", "distribution_mode": "hard", "arch": "dual",
    "interacts_total": 100_000_000, "num_envs": 64, "nstep": 256, "n_epoch_pi": 1,
    "n_epoch_vf": 1, "gamma": 0.999, "lambda_": 0.95, "aux_lr": 5e-4, "aux_beta1": 0.9,
    "aux_beta2": 0.999, "lr": 5e-4, "beta1": 0.9, "beta2": 0.999, "nminibatch": 8,
    "aux_mbsize": 4, "clip_param": 0.2, "kl_penalty": 0.0, "kl_ewma_decay": None,
    "n_aux_epochs": 6, "n_pi": 32, "beta_clone": 1.0, "vf_true_weight": 1.0,
    "adv_ewma_decay": 0.0, "log_new_eps": False, "comm": None, "staleness": 0,
    "staleness_loss": "decoupled", "imp_samp_max": 100.0,
}  # fmt: skip
CONFIGURATIONS = [
    {},
    DEFAULTS,
    {"n_epoch_pi": 3, "n_epoch_vf": 3, "n_pi": 0, "arch": "shared"},
    {"n_epoch_pi": 2},
    {"clip_param": 0, "kl_penalty": 1},
    {"arch": "detach", "n_pi": 8},
    {"n_epoch_pi": 3, "n_epoch_vf": 3, "n_pi": 0, "arch": "shared", "kl_ewma_decay": 0.889,
     "adv_ewma_decay": 0.5, "imp_samp_max": 0, "staleness": 4, "env_name": "starpilot"},
]  # fmt: skip


@pytest.mark.parametrize("given", CONFIGURATIONS)
def test_configurations_come_back(given):
    assert comes_back("ppo-ewma", given).unknown == []


def test_defaults_are_ppg():
    recipe = exchange.read("ppo-ewma", {}).recipe
    assert recipe == exchange.read("ppo-ewma", DEFAULTS).recipe
    assert recipe.algo == "ppg"
    assert recipe.env == "CoinrunHard-v0"
    assert recipe.batch == Batch(64, 256, 8, 1)
    assert recipe.objective.n_value_epochs == 0
    assert (recipe.phasic.n_policy_iterations, recipe.phasic.n_aux_epochs) == (32, 6)
    assert recipe.phasic.aux_segments == 4
    assert recipe.normalize.normalize_rewards
    assert recipe.normalize.reward_gamma == 0.99
    assert recipe.optimizer.adam_eps == 1e-8
    assert recipe.optimizer.max_grad_norm is None
    assert (recipe.model.encoder, recipe.model.init) == ("impala", "reference")
    assert recipe.objective.minibatches_by == "envs"


def test_the_value_loss_has_its_half_here():
    # vfcoef 0.5 weighs the whole squared error there.
    assert exchange.read("ppo-ewma", {}).recipe.objective.vf_coef == 1.0


@pytest.mark.parametrize(
    ("given", "algo"),
    [
        ({"n_pi": 0}, "ppo"), ({"n_aux_epochs": 0}, "ppo"), ({}, "ppg"),
        ({"n_pi": 0, "kl_ewma_decay": 0.9}, "ppo-ewma"), ({"kl_ewma_decay": 0.9}, "ppg-ewma"),
    ],
)  # fmt: skip
def test_which_algorithm_it_is(given, algo):
    assert exchange.read("ppo-ewma", given).recipe.algo == algo


def test_epochs_of_the_value_function_alone():
    recipe = exchange.read("ppo-ewma", {"n_epoch_pi": 2, "n_epoch_vf": 5}).recipe
    assert (recipe.batch.n_epochs, recipe.objective.n_value_epochs) == (2, 5)


@pytest.mark.parametrize(
    ("given", "objective"),
    [
        ({}, ("clip", 0.2, 1.0)),
        ({"clip_param": 0, "kl_penalty": 2}, ("kl", 0.2, 2.0)),
        ({"clip_param": 0}, ("kl", 0.2, 0.0)),
    ],
)
def test_clipping_penalty_or_neither(given, objective):
    settings = exchange.read("ppo-ewma", given).recipe.objective
    assert (settings.objective, settings.clip_range, settings.kl_coef) == objective


def test_workers_multiply_the_environments_and_keep_their_number():
    given = {"workers": 4}
    recipe = exchange.read("ppo-ewma", given).recipe
    assert recipe.batch.n_envs == 256
    assert recipe.phasic.aux_segments == 16
    wider = exchange.write("ppo-ewma", recipe.replace(n_envs=512), given)
    assert wider.given == {"workers": 4, "num_envs": 128}
    assert "mpiexec -np 4" in wider.text
    with pytest.raises(UserError, match="n_envs 66 is not divisible by 4 workers"):
        exchange.write("ppo-ewma", recipe.replace(n_envs=66), given)


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"kl_penalty": 1}, "kl_penalty 1: a KL penalty and clipping"),
        ({"vf_true_weight": 0.5}, "vf_true_weight 0.5"),
        ({"aux_beta1": 0.5}, "aux_beta1, aux_beta2 (0.5, 0.999): Isobatch uses beta1 and beta2"),
        ({"aux_mbsize": 0.5}, "aux_mbsize 0.5"),
    ],
)
def test_what_has_no_counterpart_is_said(given, line):
    unknown = exchange.read("ppo-ewma", given).unknown
    assert len(unknown) == 1
    assert unknown[0].startswith(line)


def test_other_environments_cannot_be_said():
    missing = exchange.write("ppo-ewma", family_preset("classic", "CartPole-v1")).missing
    assert "env CartPole-v1: ppo-ewma has CoinrunHard-v0" in missing


def test_the_text_is_python_and_names_what_train_fn_does_not_take():
    recipe = exchange.read("ppo-ewma", {"entcoef": 0.02}).recipe
    text = exchange.write("ppo-ewma", recipe).text
    compile(text, "text", "exec")
    assert "# train_fn does not take entcoef=0.02: add it to its ppo_hps" in text
    assert "\n    entcoef" not in text
