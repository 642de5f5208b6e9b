import inspect
import math

import pytest
import stable_baselines3
from round_trip import comes_back

from isobatch import exchange
from isobatch.batch import Batch
from isobatch.exchange.sb3 import A2C, PPO
from isobatch.exchange.values import Scheduled
from isobatch.recipe import Recipe

OURS = {"algo", "n_envs", "total_timesteps"}
# SB3's defaults, examples of its documentation with a few arguments more, the zoo's Atari numbers.
DOCUMENTED = [
    {},
    {"policy": "MlpPolicy", "env": "CartPole-v1", "n_envs": 4, "verbose": 1,
     "total_timesteps": 25_000},
    {"policy": "CnnPolicy", "env": "BreakoutNoFrameskip-v4", "n_envs": 8, "n_steps": 128,
     "n_epochs": 4, "batch_size": 256, "learning_rate": "lin_2.5e-4", "clip_range": "lin_0.1",
     "vf_coef": 0.5, "ent_coef": 0.01},
    {"policy": "MlpPolicy", "policy_kwargs": "dict(activation_fn=th.nn.ReLU, "
     "net_arch=dict(pi=[32, 32], vf=[32, 32]))", "target_kl": 0.03, "normalize_advantage": False},
    {"algo": "a2c"},
    {"algo": "a2c", "env": "CartPole-v1", "n_envs": 4, "ent_coef": 0.01, "vf_coef": 0.25,
     "use_rms_prop": False, "normalize_advantage": True},
]  # fmt: skip


@pytest.mark.parametrize("given", DOCUMENTED)
def test_documented_configurations_come_back(given):
    imported = comes_back("sb3", given)
    assert imported.unknown == []


def test_defaults_are_sb3s_not_ours():
    recipe = exchange.read("sb3", {}).recipe
    assert recipe.batch == Batch(n_envs=1, n_steps=2048, n_minibatches=32, n_epochs=10)
    assert recipe.optimizer.learning_rate == 3e-4
    assert recipe.optimizer.max_grad_norm == 0.5
    assert recipe.optimizer.adam_eps == 1e-5
    assert recipe.objective.advantage_normalization == "minibatch"
    assert recipe.objective.gae_lambda == 0.95
    assert recipe.model.hidden_sizes == (64, 64)
    assert (recipe.model.activation, recipe.model.architecture) == ("tanh", "dual")


def test_the_value_loss_has_its_half_here():
    assert exchange.read("sb3", {}).recipe.objective.vf_coef == 1.0
    assert exchange.read("sb3", {"algo": "a2c", "vf_coef": 0.25}).recipe.objective.vf_coef == 0.5
    assert exchange.write("sb3", Recipe(env="a").replace(vf_coef=0.5)).given["vf_coef"] == 0.25


def test_a2c_is_one_step_of_rmsprop():
    recipe = exchange.read("sb3", {"algo": "a2c", "n_envs": 16}).recipe
    assert recipe.algo == "a2c"
    assert recipe.batch == Batch(16, 5, 1, 1)
    assert recipe.objective.objective == "pg"
    assert recipe.objective.gae_lambda == 1.0
    assert recipe.objective.advantage_normalization == "none"
    optimizer = recipe.optimizer
    assert (optimizer.optimizer, optimizer.rms_decay, optimizer.adam_eps) == ("rmsprop", 0.99, 1e-5)
    adam = exchange.read("sb3", {"algo": "a2c", "use_rms_prop": False}).recipe.optimizer
    assert (adam.optimizer, adam.adam_eps, adam.learning_rate) == ("adam", 1e-5, 7e-4)


def test_images_share_their_encoder():
    image = {"policy": "CnnPolicy"}
    model = exchange.read("sb3", image).recipe.model
    assert (model.encoder, model.architecture) == ("nature", "shared")
    apart = image | {"policy_kwargs": "dict(share_features_extractor=False)"}
    assert exchange.read("sb3", apart).recipe.model.architecture == "dual"
    assert comes_back("sb3", apart).unknown == []


def test_classes_and_dictionaries_are_read_like_their_text():
    class ReLU:
        pass

    kwargs = {"net_arch": [{"pi": [32], "vf": [32]}], "activation_fn": ReLU}
    model = exchange.read("sb3", {"policy_kwargs": kwargs}).recipe.model
    assert (model.hidden_sizes, model.activation) == ((32,), "relu")


@pytest.mark.parametrize(
    ("policy", "net_arch", "layers"),
    [
        ("MlpPolicy", "[8]", ("dual", (8,), (), ())),
        ("MlpPolicy", "[]", ("dual", (), (), ())),
        ("MlpPolicy", "dict(pi=[8], vf=[9, 8])", ("dual", (), (8,), (9, 8))),
        ("MlpPolicy", "dict(vf=[9])", ("dual", (), (), (9,))),
        ("CnnPolicy", "[8]", ("shared", (64, 64), (8,), (8,))),
        ("CnnPolicy", "dict(pi=[8], vf=[9])", ("shared", (64, 64), (8,), (9,))),
        ("CnnPolicy", "[]", ("shared", (64, 64), (), ())),
    ],
)
def test_layers_are_read_and_written(policy, net_arch, layers):
    given = {"policy": policy, "policy_kwargs": f"dict(net_arch={net_arch})"}
    imported = comes_back("sb3", given)
    assert imported.unknown == []
    model = imported.recipe.model
    found = (model.architecture, model.hidden_sizes, model.policy_hidden_sizes,
             model.value_hidden_sizes)  # fmt: skip
    assert found == layers


def test_layers_that_were_shared_before_sb3_1_8():
    given = {"policy_kwargs": "dict(net_arch=[64, dict(pi=[32], vf=[16])])"}
    imported = exchange.read("sb3", given)
    assert imported.unknown == []
    model = imported.recipe.model
    assert (model.architecture, model.hidden_sizes) == ("shared", (64,))
    assert (model.policy_hidden_sizes, model.value_hidden_sizes) == ((32,), (16,))
    # The SB3 of today has no such networks.
    assert any("architecture shared" in line for line in exchange.write("sb3", imported.recipe)[1])


def test_networks_that_are_the_same_are_not_missing():
    recipe = Recipe(env="CartPole-v1").replace(
        hidden_sizes=(8,), policy_hidden_sizes=(4,), value_hidden_sizes=(2,),
        advantage_normalization="minibatch",
    )  # fmt: skip
    exported = exchange.write("sb3", recipe)
    assert exported.missing == []
    assert exported.given["policy_kwargs"] == "dict(net_arch=dict(pi=[8, 4], vf=[8, 2]))"


@pytest.mark.parametrize("bound", [0.3, "lin_0.3"])
def test_clipped_values_are_read(bound):
    given = {"clip_range": "lin_0.2" if bound == "lin_0.3" else 0.2, "clip_range_vf": bound}
    imported = comes_back("sb3", given)
    assert imported.unknown == []
    objective = imported.recipe.objective
    assert (objective.clip_range_vf, objective.clip_vf_loss) == (0.3, "clipped")
    larger = exchange.write("sb3", imported.recipe.replace(clip_vf_loss="max"))
    assert larger.missing == ["clip_vf_loss max: reads back from sb3 as clipped"]


def test_the_beginning_is_read():
    given = {"policy_kwargs": "dict(ortho_init=False, log_std_init=-2, activation_fn=nn.GELU)"}
    imported = comes_back("sb3", given)
    assert imported.unknown == []
    model = imported.recipe.model
    assert (model.init, model.log_std_init, model.activation) == ("torch", -2.0, "gelu")


@pytest.mark.parametrize("algo", ["ppo", "a2c"])
@pytest.mark.parametrize(("given", "frequency"), [(-1, -1), (4, 4), (0, -1)])
def test_state_dependent_exploration_is_read(algo, given, frequency):
    keys = {"algo": algo, "use_sde": True, "sde_sample_freq": given}
    imported = exchange.read("sb3", keys) if given == 0 else comes_back("sb3", keys)
    assert imported.unknown == []
    model = imported.recipe.model
    assert (model.use_sde, model.sde_sample_freq) == (True, frequency)


def test_adams_own_settings_pass_through():
    given = {"policy_kwargs": "dict(optimizer_kwargs=dict(betas=(0.8, 0.99)))"}
    optimizer = exchange.read("sb3", given).recipe.optimizer
    # Once optimizer_kwargs are given, SB3 no longer sets its epsilon.
    assert (optimizer.adam_beta1, optimizer.adam_beta2, optimizer.adam_eps) == (0.8, 0.99, 1e-8)
    assert comes_back("sb3", {"policy_kwargs": {"optimizer_kwargs": {"eps": 1e-7}}}).unknown == []


def test_what_moves_in_policy_kwargs_leaves_the_rest():
    given = {"policy_kwargs": "dict(full_std=Off, activation_fn=nn.ReLU, net_arch=[8, 8])"}
    recipe = exchange.read("sb3", given).recipe.replace(adam_beta1=0.8, activation="tanh")
    exported = exchange.write("sb3", recipe, given)
    assert exported.missing == []
    assert exported.given["policy_kwargs"] == (
        "dict(full_std=Off, net_arch=[8, 8], optimizer_kwargs=dict(eps=1e-05, betas=(0.8, 0.999)))"
    )


def test_a_minibatch_larger_than_the_rollout_is_the_rollout():
    imported = exchange.read("sb3", {"n_steps": 8, "batch_size": 256})
    assert imported.recipe.batch.n_minibatches == 1
    assert imported.unknown == [
        "batch_size 256: more than the 8 rows of a rollout; the rollout is one minibatch"
    ]


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"clip_range_vf": "lin_0.2"}, "clip_range_vf lin_0.2: a linear schedule; in Isobatch"),
        ({"use_sde": True, "policy_kwargs": "dict(full_std=False)"},
         "policy_kwargs full_std False: one standard deviation of gSDE per feature"),
        ({"use_sde": True, "policy_kwargs": "dict(use_expln=True)"},
         "policy_kwargs use_expln True: another function"),
        ({"policy_kwargs": "dict(use_sde=True)"}, "policy_kwargs use_sde True: an argument of PPO"),
        ({"device": "cuda:1"}, "device cuda:1: Isobatch has"),
        ({"rollout_buffer_kwargs": {"a": 1}}, "rollout_buffer_kwargs"),
        ({"policy": "MultiInputPolicy"}, "policy MultiInputPolicy"),
        ({"policy_kwargs": "dict(activation_fn=nn.Mish)"}, "policy_kwargs activation_fn nn.Mish"),
        ({"policy_kwargs": "dict(features_extractor_class=os.system)"},
         "policy_kwargs features_extractor_class os.system"),
        ({"policy_kwargs": "dict(optimizer_class=th.optim.SGD)"}, "policy_kwargs optimizer_class"),
        ({"policy_kwargs": "dict(optimizer_kwargs=dict(eps=1e-5, weight_decay=1))"},
         "policy_kwargs optimizer_kwargs weight_decay 1"),
        ({"policy": "CnnPolicy", "policy_kwargs": "dict(net_arch=[8, dict(pi=[4], vf=[2])])"},
         "policy_kwargs net_arch [8]: layers that policy and value share"),
        ({"algo": "a2c", "policy_kwargs": "dict(optimizer_kwargs=dict(eps=1e-5))"},
         "policy_kwargs optimizer_kwargs"),
    ],
)  # fmt: skip
def test_what_has_no_counterpart_is_said(given, line):
    unknown = exchange.read("sb3", given).unknown
    assert len(unknown) == 1
    assert unknown[0].startswith(line)


@pytest.mark.parametrize(
    "given",
    [
        {"clip_range_vf": None, "use_sde": False, "sde_sample_freq": -1, "verbose": 2},
        {"policy_kwargs": "dict(ortho_init=True, log_std_init=0.0)"},
        {"policy_kwargs": None, "tensorboard_log": "logs", "stats_window_size": 7},
    ],
)
def test_what_does_nothing_is_not(given):
    assert exchange.read("sb3", given).unknown == []


@pytest.mark.parametrize(("name", "table"), [("PPO", PPO), ("A2C", A2C)])
def test_names_and_defaults_are_the_librarys(name, table):
    signature = inspect.signature(getattr(stable_baselines3, name).__init__)
    theirs = {k: v.default for k, v in signature.parameters.items() if k != "self"}
    assert set(theirs) == set(table) - OURS
    for key, default in theirs.items():
        if default is not inspect.Parameter.empty:
            ours = table[key].default
            assert (ours.start if isinstance(ours, Scheduled) else ours) == default, key


RECIPES = [
    Recipe(env="CartPole-v1"),
    Recipe(env="CartPole-v1").replace(
        hidden_sizes=(32, 16), activation="relu", learning_rate_schedule="linear",
        clip_range_schedule="linear", max_grad_norm=None, adam_beta2=0.98, target_kl=0.02,
        n_envs=2, n_steps=32,
    ),
    Recipe(env="CartPole-v1").replace(
        algo="a2c", objective="pg", n_minibatches=1, n_epochs=1, optimizer="rmsprop", vf_coef=1.0,
        advantage_normalization="none",
    ),
]  # fmt: skip


@pytest.mark.parametrize("recipe", RECIPES)
def test_the_text_builds_the_model_in_sb3(recipe):
    text = exchange.write("sb3", recipe.replace(device="cpu")).text
    building, learning = text.rsplit("\n", 1)
    assert learning == "model.learn(total_timesteps=100000)"
    names: dict = {}
    exec(building, names)
    model = names["model"]
    assert model.n_envs == recipe.batch.n_envs
    assert model.n_steps == recipe.batch.n_steps
    assert model.vf_coef == recipe.objective.vf_coef / 2
    assert model.lr_schedule(1.0) == recipe.optimizer.learning_rate
    linear = recipe.optimizer.learning_rate_schedule == "linear"
    assert model.lr_schedule(0.5) == recipe.optimizer.learning_rate * (0.5 if linear else 1)
    assert model.max_grad_norm == (recipe.optimizer.max_grad_norm or math.inf)
    if recipe.algo == "ppo":
        assert model.batch_size == recipe.batch.minibatch_size
        group = model.policy.optimizer.param_groups[0]
        betas = (recipe.optimizer.adam_beta1, recipe.optimizer.adam_beta2)
        assert tuple(group["betas"]) == betas
        assert group["eps"] == recipe.optimizer.adam_eps
    widths = [layer.out_features for layer in model.policy.mlp_extractor.policy_net[::2]]
    assert tuple(widths) == recipe.model.hidden_sizes
