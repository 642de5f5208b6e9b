import json

import pytest
from hypothesis import given as drawn
from hypothesis import settings
from hypothesis import strategies as st

from isobatch import exchange
from isobatch.batch import Batch
from isobatch.errors import UserError
from isobatch.presets import PRESETS, family_preset
from isobatch.recipe import Recipe

RSL_RL = {
    "num_envs": 8, "num_steps_per_env": 24,
    "algorithm": {
        "num_learning_epochs": 5, "num_mini_batches": 4, "gamma": 0.99, "entropy_coef": 0.01,
        "schedule": "fixed",
    },
}  # fmt: skip
RL_GAMES = {
    "params": {
        "network": {
            "mlp": {"units": [64], "activation": "elu", "initializer": {"name": "default"}},
        },
        "config": {
            "num_actors": 8, "horizon_length": 16, "minibatch_size": 64, "mini_epochs": 2,
            "learning_rate": 1e-3, "lr_schedule": "none", "gamma": 0.99, "tau": 0.95, "e_clip": 0.2,
            "entropy_coef": 0.0, "critic_coef": 1, "clip_value": False, "grad_norm": 1.0,
            "normalize_advantage": True, "normalize_input": True, "reward_shaper": {},
        },
    }
}  # fmt: skip
LEAST = {
    "sb3": {}, "zoo": {}, "cleanrl": {}, "rsl_rl": RSL_RL, "rl_games": RL_GAMES, "ppo-ewma": {},
}  # fmt: skip


def test_formats_are_named_with_what_they_hold():
    assert list(exchange.formats()) == list(LEAST)
    assert all(exchange.formats().values())


@pytest.mark.parametrize("call", [exchange.arguments, exchange.read])
def test_unknown_format_lists_those_there_are(call):
    with pytest.raises(UserError, match=r"unknown format 'sb2'; there are sb3, .*mean sb3"):
        call("sb2", {})
    with pytest.raises(UserError, match="unknown format"):
        exchange.write("rllib", Recipe(env="CartPole-v1"))


@pytest.mark.parametrize(
    ("source", "key", "message"),
    [
        ("sb3", "learning_rat", r"sb3 has no learning_rat\. Did you mean learning_rate"),
        ("zoo", "normalise", r"zoo has no normalise\. Did you mean normalize"),
        ("cleanrl", "num_env", r"cleanrl has no num_env\. Did you mean num_envs"),
        ("rsl_rl", "gama", r"rsl_rl has no gama\. Did you mean .*gamma"),
        ("ppo-ewma", "nsteps", r"ppo-ewma has no nsteps\. Did you mean nstep"),
    ],
)
def test_unknown_key_names_the_nearest(source, key, message):
    with pytest.raises(UserError, match=message) as caught:
        exchange.read(source, LEAST[source] | {key: 1})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("source", "given", "message"),
    [
        ("sb3", {"n_steps": "many"}, "sb3: n_steps must be a whole number, got 'many'"),
        ("sb3", {"n_steps": 2.5}, "sb3: n_steps must be a whole number, got 2.5"),
        ("sb3", {"n_steps": True}, "sb3: n_steps must be a whole number, got True"),
        ("sb3", {"n_envs": 0}, "sb3: n_envs must be at least 1, got 0"),
        ("sb3", {"gamma": "high"}, "sb3: gamma must be a number, got 'high'"),
        ("sb3", {"gamma": 1.5}, r"sb3: gamma must lie in \[0, 1\], got 1.5"),
        ("sb3", {"gamma": "nan"}, "sb3: gamma must be a number"),
        ("sb3", {"learning_rate": "cos_1"}, "sb3: learning_rate must be a number, or lin_X"),
        ("sb3", {"learning_rate": 0}, "sb3: learning_rate must be positive"),
        ("sb3", {"normalize_advantage": "maybe"}, "normalize_advantage must be true or false"),
        ("sb3", {"policy": "MlpLstmPolicy"}, "policy must be MlpPolicy, CnnPolicy or Multi"),
        ("sb3", {"batch_size": 100}, "of 100 do not divide .* 2048 transitions.*64 and 128"),
        ("sb3", {"algo": "a2c", "batch_size": 64}, "sb3 has no batch_size"),
        ("sb3", {"n_timesteps": 1, "total_timesteps": 2}, "are the same; give one"),
        ("sb3", {"policy_kwargs": "dict(net_arch="}, "policy_kwargs must be a dictionary"),
        ("sb3", {"policy_kwargs": "dict(net_arch=['a'])"}, "net_arch must be a list of widths"),
        ("sb3", {"policy_kwargs": "dict(net_arch=dict(qf=[8]))"}, "net_arch must be a list of wid"),
        ("sb3", {"policy_kwargs": "dict(net_arch=[0])"}, "sb3: hidden_sizes must be positive"),
        ("sb3", {"policy_kwargs": "dict(ortho_init=2)"}, "ortho_init must be true or false, got 2"),
        ("sb3", {"policy_kwargs": "dict(log_std_init='x')"}, "log_std_init must be a number"),
        ("sb3", {"policy_kwargs": "dict(optimizer_kwargs=dict(betas=1))"}, "optimizer_kwargs must"),
        ("zoo", {"normalize": "dict(norm_obs='x')"}, "zoo: norm_obs must be true or false"),
        ("cleanrl", {"clip_coef": 0}, "cleanrl: clip_coef must be positive"),
        ("cleanrl", {"num_minibatches": 3}, "num_minibatches 3 does not divide the 512 rows"),
        ("cleanrl", {"batch_size": 64}, "batch_size 64 does not agree .* make it 512"),
        ("cleanrl", {"minibatch_size": 64}, "minibatch_size 64 does not agree .* make it 128"),
        ("cleanrl", {"num_iterations": 9}, "num_iterations 9 does not agree .* make it 976"),
        ("ppo-ewma", {"arch": "twin"}, "arch must be dual, shared or detach, got 'twin'"),
        ("ppo-ewma", {"kl_ewma_decay": 1.0}, r"proximal_decay must lie in \[0, 1\)"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_one_line(source, given, message):
    with pytest.raises(UserError, match=message) as caught:
        exchange.read(source, given)
    assert "\n" not in str(caught.value)


def test_env_is_the_formats_own_the_callers_or_the_users():
    assert exchange.read("cleanrl", {}).recipe.env == "CartPole-v1"
    assert exchange.read("sb3", {"env": "Acrobot-v1"}).recipe.env == "Acrobot-v1"
    assert exchange.read("sb3", {}).recipe.env == "python:make_env"
    assert exchange.read("sb3", {}, env="Acrobot-v1").recipe.env == "Acrobot-v1"
    assert exchange.read("rsl_rl", RSL_RL, env="Ant-v4").recipe.env == "Ant-v4"


def test_words_are_flags_pairs_or_both():
    words = ["--num-envs", "8", "--learning-rate=2.5e-4", "--no-anneal-lr", "--norm-adv", "seed=3"]
    assert exchange.arguments("cleanrl", words) == {
        "num_envs": "8", "learning_rate": "2.5e-4", "anneal_lr": False, "norm_adv": True,
        "seed": "3",
    }  # fmt: skip
    recipe = exchange.read("cleanrl", exchange.arguments("cleanrl", words)).recipe
    assert recipe.batch.n_envs == 8
    assert recipe.optimizer.learning_rate == 2.5e-4
    assert recipe.optimizer.learning_rate_schedule == "constant"
    assert recipe.seed == 3


def test_words_read_numbers_as_people_write_them():
    words = ["total_timesteps=1e6", "target_kl=None", "learning_rate=3e-4", "use_sde=False"]
    imported = exchange.read("sb3", exchange.arguments("sb3", words))
    assert imported.recipe.total_timesteps == 1_000_000
    assert imported.recipe.objective.target_kl is None
    assert imported.unknown == []


def test_words_beside_a_file_replace_what_it_says(tmp_path):
    path = tmp_path / "args.json"
    path.write_text(json.dumps({"num_envs": 8, "gamma": 0.9}))
    assert exchange.arguments("cleanrl", [str(path), "--num-envs", "16"]) == {
        "num_envs": "16", "gamma": 0.9
    }  # fmt: skip


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["gamma"], "cannot read 'gamma': give key=value, --key value or one file"),
        (["gamma=1", "gamma=2"], "gamma is given twice"),
        (["absent.json"], r"cannot read absent\.json"),
        (["absent.yml"], r"cannot read absent\.yml"),
    ],
)
def test_words_that_say_nothing(words, message):
    with pytest.raises(UserError, match=message):
        exchange.arguments("sb3", words)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.json", "{", "not valid JSON"),
        ("a.json", "[1]", "does not contain a dictionary"),
        ("a.yml", "a: [", "not valid YAML"),
        ("a.yaml", "- 1", "does not contain a dictionary"),
        ("a.yml", "a: !!python/object/apply:os.getcwd []", "not valid YAML"),
    ],
)
def test_files_that_cannot_be_read(tmp_path, name, text, message):
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(UserError, match=message) as caught:
        exchange.arguments("zoo", [str(path)])
    assert "\n" not in str(caught.value)


def test_one_file_at_a_time(tmp_path):
    path = tmp_path / "a.json"
    path.write_text('{"n_envs": 1}')
    with pytest.raises(UserError, match="only one file"):
        exchange.arguments("zoo", [str(path), str(path)])


@pytest.mark.parametrize("algo", ["reinforce", "pqn"])
def test_algorithms_no_format_has_are_refused(algo):
    with pytest.raises(UserError, match=f"sb3 has no {algo}"):
        exchange.write("sb3", family_preset("classic", "CartPole-v1", algo))


@pytest.mark.parametrize("target", exchange.FORMATS)
@pytest.mark.parametrize("algo", ["ppo", "ppo-ewma", "ppg", "ppg-ewma", "a2c"])
@pytest.mark.parametrize("family", PRESETS)
def test_every_preset_is_written_and_what_is_lost_is_said(family, algo, target):
    recipe = family_preset(family, "CoinrunEasy-v0", algo)
    exported = exchange.write(target, recipe)
    back = exchange.read(target, exported.given, recipe.env).recipe
    assert back.batch == recipe.batch
    assert all("\n" not in line for line in exported.missing)
    said = {line.split(" ", 1)[0] for line in exported.missing}
    if recipe.averages_policy:
        assert (target == "ppo-ewma") == (not {"algo", "proximal_decay"} & said)
    again = exchange.write(target, back)
    assert again.given == exported.given
    assert again.missing == []


def test_what_stale_data_and_averages_are_is_lost_in_sb3():
    recipe = Recipe(env="CartPole-v1", algo="ppo-ewma").replace(
        staleness=2, advantage_normalization="ewma", advantage_decay=0.9, proximal_decay=0.8
    )
    missing = "\n".join(exchange.write("sb3", recipe).missing)
    for text in (
        "algo ppo-ewma: sb3 has ppo", "staleness 2", "advantage_normalization ewma",
        "advantage_decay 0.9", "proximal_decay 0.8: sb3's proximal policy is the behaviour policy",
    ):  # fmt: skip
        assert text in missing
    assert missing.count("proximal_decay") == 1


positive = st.floats(1e-6, 1e3)
unit = st.floats(0, 1)
COMMON = {
    "gamma": unit, "gae_lambda": unit, "clip_range": st.floats(0.01, 0.9), "ent_coef": unit,
    "vf_coef": st.just(0.0) | st.floats(1e-9, 100), "learning_rate": st.floats(1e-6, 100),
    "seed": st.integers(0, 2**63 - 1),
    "max_grad_norm": st.none() | positive,
}  # fmt: skip
SCHEDULE = st.sampled_from(["constant", "linear"])
BATCHES = st.builds(
    lambda envs, width, parts, epochs: Batch(envs, width * parts, parts, epochs),
    st.integers(1, 64), st.integers(1, 64), st.integers(1, 16), st.integers(1, 20),
)  # fmt: skip
WIDTHS = st.lists(st.integers(1, 512), max_size=4).map(tuple)
ACTIVATIONS = st.sampled_from(["tanh", "relu", "elu", "gelu", "silu", "leaky_relu"])
LOG_STD = st.just(0.0) | st.floats(-5, -1e-3)
ADVANTAGES = st.sampled_from(["minibatch", "none"])
BETAS = {"adam_beta1": st.floats(0, 0.999), "adam_beta2": st.floats(0, 0.999)}
TARGET = {"target_kl": st.none() | st.sampled_from([0.01, 0.015, 0.2])}
SB3 = COMMON | TARGET | BETAS | {
    "total_timesteps": st.integers(1, 10**9), "learning_rate_schedule": SCHEDULE,
    "clip_range_schedule": SCHEDULE, "advantage_normalization": ADVANTAGES, "adam_eps": positive,
    "hidden_sizes": WIDTHS, "activation": ACTIVATIONS, "log_std_init": LOG_STD,
    "init": st.sampled_from(["orthogonal", "torch"]), "clip_vf_loss": st.just("clipped"),
    "clip_range_vf": positive,
}  # fmt: skip
SAYABLE = {
    "sb3": SB3,
    "zoo": SB3 | {
        "normalize_observations": st.booleans(), "episodic_life": st.booleans(),
        "seed": st.just(1), "sign_rewards": st.booleans(),
    },
    "cleanrl": COMMON | TARGET | {
        "total_timesteps": st.integers(1, 10**9), "learning_rate_schedule": SCHEDULE,
        "advantage_normalization": ADVANTAGES,
    },
    "rsl_rl": COMMON | {
        "advantage_normalization": st.sampled_from(["minibatch", "batch"]),
        "hidden_sizes": WIDTHS, "activation": ACTIVATIONS, "adam_eps": st.just(1e-8),
        "normalize_observations": st.booleans(), "optimizer": st.sampled_from(["adam", "sgd"]),
        "init": st.just("torch"), "log_std_init": LOG_STD,
    },
    "rl_games": COMMON | {
        "total_timesteps": st.integers(1, 10**9), "learning_rate_schedule": SCHEDULE,
        "advantage_normalization": st.sampled_from(["batch", "none"]),
        "hidden_sizes": WIDTHS.filter(bool), "log_std_init": LOG_STD,
        "activation": st.sampled_from(["tanh", "relu", "elu", "gelu", "silu"]),
        "adam_eps": st.just(1e-8), "minibatches_by": st.just("envs"),
        "normalize_observations": st.booleans(),
        "architecture": st.sampled_from(["dual", "shared"]),
    },
    "ppo-ewma": COMMON | BETAS | {
        "total_timesteps": st.integers(1, 10**9), "max_grad_norm": st.none(), "seed": st.just(1),
        "advantage_normalization": st.just("ewma"), "advantage_decay": st.floats(0, 0.99),
        "algo": st.sampled_from(["ppo", "ppo-ewma", "ppg", "ppg-ewma"]),
        "proximal_decay": st.floats(0, 0.99), "architecture": st.sampled_from(["dual", "detach"]),
        "n_policy_iterations": st.integers(1, 64), "n_aux_epochs": st.integers(1, 9),
        "aux_learning_rate": st.floats(1e-6, 100), "aux_segments": st.integers(1, 64),
        "clone_coef": positive,
        "staleness": st.integers(0, 8), "max_ratio": st.floats(1, 1e3), "adam_eps": st.just(1e-8),
        "encoder": st.just("impala"), "init": st.just("reference"),
        "minibatches_by": st.just("envs"), "normalize_rewards": st.booleans(),
    },
}  # fmt: skip


NORMALIZERS = {
    "zoo": {"update_statistics": "step"},
    "rsl_rl": {"update_statistics": "step", "observation_clip": 0.0, "normalize_epsilon": 1e-4},
}
"""What their normalisation of observations fixes."""


@pytest.mark.parametrize("target", SAYABLE)
@settings(deadline=None, max_examples=60)
@drawn(data=st.data())
def test_recipe_to_format_and_back_is_the_same_recipe(target, data):
    fields = data.draw(st.fixed_dictionaries(SAYABLE[target]))
    batch = data.draw(BATCHES)
    recipe = Recipe(env="CoinrunHard-v0").replace(batch=batch, **fields)
    if target == "rsl_rl":
        recipe = recipe.replace(total_timesteps=batch.rollout_size * data.draw(st.integers(1, 99)))
    if recipe.normalize.normalize_observations:
        recipe = recipe.replace(**NORMALIZERS.get(target, {}))
    exported = exchange.write(target, recipe)
    assert exported.missing == []
    through_json = json.loads(json.dumps(exported.given))
    imported = exchange.read(target, through_json, recipe.env)
    unused = {}
    if target == "ppo-ewma":
        if not recipe.averages_policy:
            unused["proximal_decay"] = recipe.objective.proximal_decay
        if not recipe.is_phasic:
            names = ("n_policy_iterations", "n_aux_epochs", "aux_learning_rate", "aux_segments",
                     "clone_coef")  # fmt: skip
            unused |= {name: recipe.values[name] for name in names}
    back = imported.recipe.replace(**unused).values
    for name, value in recipe.values.items():
        # CleanRL's target_kl is another multiple, rsl_rl's deviation has no logarithm.
        rounded = name in ("target_kl", "log_std_init")
        assert back[name] == (pytest.approx(value) if rounded else value), name
    assert [line for line in imported.unknown if not line.startswith("target_kl")] == []
    assert exchange.write(target, recipe, exported.given).given == exported.given


@pytest.mark.parametrize("target", exchange.FORMATS)
def test_writing_into_what_was_given_changes_only_what_moved(target):
    given = LEAST[target]
    imported = exchange.read(target, given)
    assert exchange.write(target, imported.recipe, given).given == given
    moved = imported.recipe.replace(learning_rate=0.125)
    changed = exchange.write(target, moved, given)
    assert exchange.read(target, changed.given).recipe == moved
    # rl_games has no default of it, so it was there.
    assert len(_leaves(changed.given)) == len(_leaves(given)) + (target != "rl_games")


def _leaves(tables):
    return [
        leaf
        for name, value in tables.items()
        for leaf in (_leaves(value) if isinstance(value, dict) else [name])
    ]
