import copy

import pytest
import yaml
from round_trip import comes_back

from isobatch import exchange
from isobatch.batch import Batch
from isobatch.errors import UserError

SPACE = {
    "continuous": {
        "mu_activation": "None", "sigma_activation": "None", "mu_init": {"name": "default"},
        "sigma_init": {"name": "const_initializer", "val": 0}, "fixed_sigma": True,
    }
}  # fmt: skip
# rl_games/configs/mujoco/ant_envpool.yaml, without its books.
ANT = {
    "params": {
        "seed": 5,
        "algo": {"name": "a2c_continuous"},
        "model": {"name": "continuous_a2c_logstd"},
        "network": {
            "name": "actor_critic", "separate": False, "space": SPACE,
            "mlp": {"units": [256, 128, 64], "activation": "elu",
                    "initializer": {"name": "default"}},
        },
        "config": {
            "name": "Ant-v5_envpool", "env_name": "envpool", "normalize_input": True,
            "normalize_value": True, "value_bootstrap": True, "normalize_advantage": True,
            "reward_shaper": {"scale_value": 1}, "gamma": 0.99, "tau": 0.95, "learning_rate": 3e-4,
            "lr_schedule": "adaptive", "kl_threshold": 0.008, "grad_norm": 1.0,
            "entropy_coef": 0.0, "truncate_grads": True, "e_clip": 0.2, "clip_value": True,
            "use_smooth_clamp": True, "bound_loss_type": "regularisation",
            "bounds_loss_coef": 0.0, "max_epochs": 2000, "num_actors": 64, "horizon_length": 64,
            "minibatch_size": 2048, "mini_epochs": 4, "critic_coef": 2,
            "env_config": {"env_name": "Ant-v5"}, "player": {"render": False},
        },
    }
}  # fmt: skip
CONVS = [
    {"filters": f, "kernel_size": k, "strides": s, "padding": 0}
    for f, k, s in ((32, 8, 4), (64, 4, 2), (64, 3, 1))
]
ORTHOGONAL = {"name": "orthogonal_initializer", "gain": 1.41421356237}


def changed(given, **config):
    given = copy.deepcopy(given)
    given["params"]["config"] |= config
    return given


# As rl_games/configs/atari/ppo_breakout_envpool.yaml.
BREAKOUT = changed(
    ANT, lr_schedule="None", clip_value=False, normalize_value=False, normalize_input=False,
    num_actors=64, horizon_length=128, minibatch_size=1024, mini_epochs=2, critic_coef=1,
    use_smooth_clamp=False, entropy_coef=0.01, gamma=0.999, max_epochs=1500,
)  # fmt: skip
BREAKOUT["params"] |= {
    "algo": {"name": "a2c_discrete"},
    "model": {"name": "discrete_a2c"},
    "network": {
        "name": "actor_critic", "separate": False, "space": {"discrete": None},
        "cnn": {"permute_input": False, "type": "conv2d", "activation": "relu",
                "initializer": ORTHOGONAL, "convs": CONVS},
        "mlp": {"units": [512], "activation": "relu", "initializer": ORTHOGONAL},
    },
}  # fmt: skip


def test_numbers_keep_their_meaning():
    recipe = exchange.read("rl_games", ANT).recipe
    # 64 x 64 = 4096 transitions in minibatches of 2048; 2000 iterations.
    assert recipe.batch == Batch(n_envs=64, n_steps=64, n_minibatches=2, n_epochs=4)
    assert recipe.total_timesteps == 2000 * 4096
    # Its loss is 0.5 critic_coef (v - target)^2, as here.
    assert recipe.objective.vf_coef == 2
    assert recipe.objective.gae_lambda == 0.95
    assert recipe.objective.advantage_normalization == "batch"
    assert recipe.objective.minibatches_by == "envs"
    assert recipe.optimizer.max_grad_norm == 1.0
    assert recipe.optimizer.adam_eps == 1e-8
    assert (recipe.model.architecture, recipe.model.activation) == ("shared", "elu")
    assert recipe.normalize.normalize_observations


@pytest.mark.parametrize("given", [ANT, BREAKOUT])
def test_configurations_come_back(given):
    comes_back("rl_games", given)


def test_what_has_no_counterpart_is_told():
    told = [line.split(":")[0] for line in exchange.read("rl_games", ANT).unknown]
    assert told == [
        "config.clip_actions True", "network.mlp.initializer default",
        "config.normalize_value True", "config.use_smooth_clamp True",
    ]  # fmt: skip
    assert exchange.read("rl_games", BREAKOUT).unknown == []
    assert exchange.read("rl_games", BREAKOUT).recipe.model.encoder == "nature"


@pytest.mark.parametrize(("given", "init"), [(ANT, "torch"), (BREAKOUT, "orthogonal")])
def test_weights_begin_as_there(given, init):
    recipe = exchange.read("rl_games", given).recipe
    assert recipe.model.init == init
    written = exchange.write("rl_games", recipe).given["params"]["network"]["mlp"]["initializer"]
    assert written["name"] == given["params"]["network"]["mlp"]["initializer"]["name"]


def test_a_minibatch_per_environment_is_times_num_actors():
    given = changed(ANT, minibatch_size_per_env=32)
    del given["params"]["config"]["minibatch_size"]
    recipe = exchange.read("rl_games", given).recipe
    assert recipe.batch.minibatch_size == 64 * 32
    written = exchange.write("rl_games", recipe.replace(n_envs=128), given).given
    config = written["params"]["config"]
    assert (config["num_actors"], config["minibatch_size_per_env"]) == (128, 32)
    assert "minibatch_size" not in config


def test_gradients_are_clipped_only_if_truncated():
    given = changed(ANT, truncate_grads=False, grad_norm=0.5)
    assert exchange.read("rl_games", given).recipe.optimizer.max_grad_norm is None


def test_a_budget_in_frames():
    given = changed(ANT, max_frames=1_000_000)
    del given["params"]["config"]["max_epochs"]
    assert exchange.missing_budget("rl_games", given) == ""
    recipe = comes_back("rl_games", given).recipe
    assert recipe.total_timesteps == 1_000_000


def test_words_find_their_section():
    words = ["num_actors=128", "config.tau=0.9", "agent.params.config.gamma=0.5", "units=[32, 32]"]
    given = changed(ANT, num_actors=-1) | exchange.arguments("rl_games", words)
    recipe = exchange.read("rl_games", given).recipe
    assert (recipe.batch.n_envs, recipe.objective.gae_lambda) == (128, 0.9)
    assert (recipe.objective.gamma, recipe.model.hidden_sizes) == (0.5, (32, 32))


def test_only_what_moved_is_written():
    recipe = exchange.read("rl_games", ANT).recipe
    rescaled = recipe.rescale(n_envs=256).recipe
    exported = exchange.write("rl_games", rescaled, ANT)
    # Four times the rows in as many minibatches: a quarter of the iterations. The step size follows
    # the KL by itself.
    assert exported.given == changed(ANT, num_actors=256, minibatch_size=8192, max_epochs=500)
    assert yaml.safe_load(exported.text) == exported.given


def test_a_recipe_from_elsewhere_is_whole():
    recipe = exchange.read("sb3", {"n_envs": 8, "n_steps": 128, "batch_size": 256}).recipe
    params = exchange.write("rl_games", recipe).given["params"]
    assert params["network"]["space"]["continuous"]["fixed_sigma"]
    assert (params["config"]["minibatch_size"], params["config"]["num_actors"]) == (256, 8)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (changed(ANT, num_actors=-1), r"num_actors is -1, .*: add num_actors=N"),
        (changed(ANT, minibatch_size=3000), "3000 does not divide the 4096 transitions"),
        (changed(ANT, gama=0.9), r"rl_games has no config.gama. Did you mean"),
        (changed(ANT, reward_shaper={"scale": 2}), "reward_shaper has no scale"),
        (changed(ANT, e_clip="wide"), "config.e_clip must be a number"),
        ({"params": {"algo": {"name": "sac"}, "config": {"tau": 5e-3}}}, "algo.name must be"),
        ({"params": 4}, "params must be a dictionary"),
        ({}, "must be given"),
    ],
)
def test_what_cannot_be_read_is_one_line(given, said):
    with pytest.raises(UserError, match=said):
        exchange.read("rl_games", given)


def test_recurrent_networks_are_refused_by_name():
    given = copy.deepcopy(ANT)
    given["params"]["network"]["rnn"] = {"name": "lstm", "units": 128, "layers": 1}
    with pytest.raises(UserError, match=r"network\.rnn 'lstm': recurrent networks"):
        exchange.read("rl_games", given)
