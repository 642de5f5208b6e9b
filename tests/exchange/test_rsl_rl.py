import copy
import json
import math

import pytest
from round_trip import comes_back

from isobatch import exchange
from isobatch.batch import Batch
from isobatch.errors import UserError

ALGORITHM = {
    "value_loss_coef": 1.0, "use_clipped_value_loss": True, "clip_param": 0.2,
    "entropy_coef": 0.01, "num_learning_epochs": 5, "num_mini_batches": 4, "learning_rate": 1e-3,
    "schedule": "adaptive", "gamma": 0.99, "lam": 0.95, "desired_kl": 0.01, "max_grad_norm": 1.0,
}  # fmt: skip
# legged_gym's base configuration.
LEGGED_GYM = {
    "seed": 1,
    "runner_class_name": "OnPolicyRunner",
    "policy": {
        "init_noise_std": 1.0, "actor_hidden_dims": [512, 256, 128],
        "critic_hidden_dims": [512, 256, 128], "activation": "elu",
    },
    "algorithm": ALGORITHM,
    "runner": {
        "policy_class_name": "ActorCritic", "algorithm_class_name": "PPO",
        "num_steps_per_env": 24, "max_iterations": 1500, "save_interval": 50,
        "experiment_name": "test", "run_name": "", "resume": False, "load_run": -1,
        "checkpoint": -1, "resume_path": None,
    },
}  # fmt: skip
# rsl_rl's own example, without its symmetry and RND.
EXAMPLE = {
    "runner": {
        "class_name": "OnPolicyRunner", "num_steps_per_env": 24, "max_iterations": 1500, "seed": 1,
        "save_interval": 50, "experiment_name": "walking_experiment", "run_name": "",
        "logger": "tensorboard", "neptune_project": "legged_gym", "wandb_project": "legged_gym",
        "policy": {
            "class_name": "ActorCritic", "activation": "elu", "actor_obs_normalization": False,
            "critic_obs_normalization": False, "actor_hidden_dims": [256, 256, 256],
            "critic_hidden_dims": [256, 256, 256], "init_noise_std": 1.0,
            "noise_std_type": "scalar", "state_dependent_std": False,
        },
        "algorithm": {
            "class_name": "PPO", **ALGORITHM, "normalize_advantage_per_mini_batch": False,
        },
    },
}  # fmt: skip
# An Isaac Lab task's, as its runner gets it.
ISAAC_LAB = {
    "num_steps_per_env": 64, "max_iterations": 250, "save_interval": 50,
    "experiment_name": "reach", "empirical_normalization": False, "device": "cuda:0", "seed": 42,
    "policy": {
        "class_name": "ActorCritic", "init_noise_std": 1.0, "actor_hidden_dims": [256, 128, 64],
        "critic_hidden_dims": [256, 128, 64], "activation": "elu",
    },
    "algorithm": ALGORITHM | {"num_learning_epochs": 8, "num_mini_batches": 64,
                              "learning_rate": 3e-4},
}  # fmt: skip
# The documentation's smallest, of rsl_rl 4 and newer.
NEWEST = {
    "runner": {
        "num_steps_per_env": 24,
        "obs_groups": {"actor": ["policy"], "critic": ["policy", "privileged"]},
        "save_interval": 100,
        "algorithm": {"class_name": "PPO"},
        "actor": {
            "class_name": "MLPModel",
            "distribution_cfg": {"class_name": "GaussianDistribution"},
        },
        "critic": {"class_name": "MLPModel"},
    },
}
CONFIGURATIONS = [LEGGED_GYM, EXAMPLE, ISAAC_LAB, NEWEST]


@pytest.mark.parametrize("given", CONFIGURATIONS)
def test_configurations_come_back(given):
    imported = comes_back("rsl_rl", {"num_envs": 4096, **given})
    told = [line.split(" ", 1)[0] for line in imported.unknown]
    obs = ["obs_groups"] if given is NEWEST else []
    assert told == obs
    objective = imported.recipe.objective
    assert (objective.clip_range_vf, objective.clip_vf_loss) == (0.2, "max")


@pytest.mark.parametrize("given", CONFIGURATIONS)
def test_what_moved_is_written_where_it_stood(given):
    given = {"num_envs": 4096, **given}
    recipe = exchange.read("rsl_rl", given, "Ant-v4").recipe
    before = copy.deepcopy(given)
    exported = exchange.write("rsl_rl", recipe.replace(n_envs=8192, gamma=0.5), given)
    assert given == before
    inner = before.get("runner", before)
    home = inner if "algorithm" in inner else before
    home["algorithm"]["gamma"] = 0.5
    before["num_envs"] = 8192
    if inner.get("max_iterations"):
        inner["max_iterations"] //= 2
    assert exported.given == before
    assert exported.missing == []
    assert json.loads(exported.text).keys() == given.keys()


def test_numbers_keep_their_meaning():
    recipe = exchange.read("rsl_rl", {"num_envs": 4096, **LEGGED_GYM}).recipe
    assert recipe.batch == Batch(n_envs=4096, n_steps=24, n_minibatches=4, n_epochs=5)
    assert recipe.total_timesteps == 1500 * 24 * 4096
    assert recipe.objective.vf_coef == 2.0
    assert recipe.objective.advantage_normalization == "batch"
    assert recipe.optimizer.adam_eps == 1e-8
    assert recipe.optimizer.learning_rate_schedule == "kl-adaptive"
    assert recipe.optimizer.desired_kl == 0.01
    assert recipe.model.hidden_sizes == (512, 256, 128)
    assert recipe.model.activation == "elu"
    assert (recipe.model.init, recipe.model.log_std_init) == ("torch", 0.0)


def test_the_actions_begin_with_their_deviation_in_either_layout():
    given = {"num_envs": 64, **copy.deepcopy(EXAMPLE)}
    given["runner"]["policy"]["init_noise_std"] = 0.8
    recipe = comes_back("rsl_rl", given).recipe
    assert recipe.model.log_std_init == math.log(0.8)
    given = {"num_envs": 64, **copy.deepcopy(NEWEST)}
    cfg = given["runner"]["actor"]["distribution_cfg"]
    cfg["init_std"] = 0.8
    assert comes_back("rsl_rl", given).recipe.model.log_std_init == math.log(0.8)
    moved = exchange.write("rsl_rl", recipe.replace(log_std_init=0.0), given).given
    assert moved["runner"]["actor"]["distribution_cfg"] == {**cfg, "init_std": 1.0}
    cfg["init_std"] = 0
    with pytest.raises(UserError, match="distribution_cfg init_std must be positive"):
        exchange.read("rsl_rl", given)


def test_actor_and_critic_have_their_own_widths():
    given = {"num_envs": 64, **copy.deepcopy(EXAMPLE)}
    given["runner"]["policy"]["critic_hidden_dims"] = [512, 8]
    model = comes_back("rsl_rl", given).recipe.model
    assert model.hidden_sizes == ()
    assert model.policy_hidden_sizes == (256, 256, 256)
    assert model.value_hidden_sizes == (512, 8)


@pytest.mark.parametrize(("theirs", "ours"), [("swish", "silu"), ("lrelu", "leaky_relu")])
def test_activations_have_their_names(theirs, ours):
    given = {"num_envs": 64, **copy.deepcopy(EXAMPLE)}
    given["runner"]["policy"]["activation"] = theirs
    assert comes_back("rsl_rl", given).recipe.model.activation == ours


@pytest.mark.parametrize(
    ("schedule", "desired_kl", "wanted"),
    [
        ("adaptive", 0.02, ("kl-adaptive", 0.02)),
        ("adaptive", None, ("constant", 0.01)),  # rsl_rl then leaves it alone.
        ("fixed", 0.02, ("constant", 0.02)),
    ],
)
def test_the_step_size_follows_the_kl_where_it_does_there(schedule, desired_kl, wanted):
    algorithm = ALGORITHM | {"schedule": schedule, "desired_kl": desired_kl}
    given = {"num_envs": 64, **LEGGED_GYM, "algorithm": algorithm}
    recipe = exchange.read("rsl_rl", given).recipe
    found = recipe.optimizer.learning_rate_schedule, recipe.optimizer.desired_kl
    assert found == wanted
    back = exchange.write("rsl_rl", recipe)
    assert back.missing == []
    assert exchange.read("rsl_rl", back.given).recipe == recipe
    assert exchange.write("rsl_rl", recipe, given).given == given


def test_other_bounds_are_said_when_written():
    recipe = exchange.read("rsl_rl", {"num_envs": 64, **LEGGED_GYM}).recipe
    missing = exchange.write("rsl_rl", recipe.replace(min_learning_rate=1e-6)).missing
    assert missing == ["min_learning_rate 1e-06: reads back from rsl_rl as 1e-05"]


def test_its_normalisation_is_by_step_and_clips_nothing():
    given = {"num_envs": 64, **copy.deepcopy(EXAMPLE)}
    given["runner"]["policy"] |= dict.fromkeys(
        ("actor_obs_normalization", "critic_obs_normalization"), True
    )
    recipe = exchange.read("rsl_rl", given).recipe
    settings = recipe.normalize
    assert (settings.normalize_observations, settings.update_statistics) == (True, "step")
    # (x - mean) / (std + 0.01), without a bound.
    assert (settings.observation_clip, settings.normalize_epsilon) == (0, 1e-4)
    assert exchange.write("rsl_rl", recipe).missing == []


def test_words_find_their_table():
    given = {"num_envs": 64, **EXAMPLE} | exchange.arguments(
        "rsl_rl", ["gamma=0.9", "--algorithm.lam", "0.8", "activation=relu"]
    )
    recipe = exchange.read("rsl_rl", given).recipe
    assert (recipe.objective.gamma, recipe.objective.gae_lambda) == (0.9, 0.8)
    assert recipe.model.activation == "relu"
    written = exchange.write("rsl_rl", recipe, given).given
    assert written["runner"]["algorithm"]["gamma"] == 0.9
    assert "gamma" not in written


def test_what_the_environment_knows_must_be_given():
    with pytest.raises(UserError, match="rsl_rl: num_envs must be given"):
        exchange.read("rsl_rl", EXAMPLE)


def test_defaults_that_changed_between_versions_must_be_given():
    given = {"num_envs": 8, "num_steps_per_env": 24, "algorithm": {}}
    with pytest.raises(UserError, match=r"num_learning_epochs and .* must be given"):
        exchange.read("rsl_rl", given)
    newest = exchange.read("rsl_rl", {"num_envs": 8, **NEWEST}).recipe
    assert (newest.batch.n_epochs, newest.batch.n_minibatches) == (5, 4)


@pytest.mark.parametrize(
    ("table", "key", "value", "line"),
    [
        ("algorithm", "symmetry_cfg", {"use_data_augmentation": True}, "algorithm.symmetry_cfg"),
        ("algorithm", "rnd_cfg", {"weight": 0.5}, "algorithm.rnd_cfg: random network distillation"),
        ("algorithm", "optimizer", "adamw", "algorithm.optimizer adamw"),
        ("algorithm", "use_mixed_precision", True, "algorithm.use_mixed_precision True"),
        ("policy", "activation", "selu", "policy.activation selu"),
        ("policy", "class_name", "ActorCriticRecurrent", "policy.class_name"),
        ("policy", "critic_obs_normalization", True, "policy.critic_obs_normalization True"),
    ],
)
def test_what_has_no_counterpart_is_said(table, key, value, line):
    given = {"num_envs": 64, **copy.deepcopy(EXAMPLE)}
    common = exchange.read("rsl_rl", given).unknown
    given["runner"][table][key] = value
    unknown = [each for each in exchange.read("rsl_rl", given).unknown if each not in common]
    assert len(unknown) == 1
    assert unknown[0].startswith(line)


def test_rnd_without_weight_does_nothing():
    given = {"num_envs": 64, **copy.deepcopy(EXAMPLE)}
    given["runner"]["algorithm"]["rnd_cfg"] = {"weight": 0.0}
    assert not any("rnd" in line for line in exchange.read("rsl_rl", given).unknown)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"algorithm": 3}, "algorithm must be a dictionary, got 3"),
        ({"algorithm": ALGORITHM | {"class_name": "Distillation"}}, "class_name must be PPO"),
        ({"algorithm": ALGORITHM | {"num_mini_batches": 7}}, "num_mini_batches 7 does not divide"),
        ({"algorithm": ALGORITHM | {"gama": 1}}, r"no algorithm.gama\. .*algorithm.gamma"),
        ({"policy": {"actor_hidden_dims": "wide"}}, "actor_hidden_dims must be a list of widths"),
    ],
)
def test_what_cannot_be_is_one_line(change, message):
    given = {"num_envs": 64, **LEGGED_GYM, **change}
    with pytest.raises(UserError, match=message):
        exchange.read("rsl_rl", given)
