import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isobatch.batch import Batch
from isobatch.errors import UserError
from isobatch.presets import PRESETS, family_preset
from isobatch.recipe import Recipe, check_budget
from isobatch.registry import ALGORITHMS

RECIPE = Recipe(env="CartPole-v1")


def test_replace_reaches_every_table_by_flat_names():
    recipe = RECIPE.replace(
        n_envs=32, gamma=0.9, learning_rate=1e-3, architecture="shared", seed=7,
        normalize_rewards=True, sign_rewards=True, threads=2, hidden_sizes=[32, 16],
    )  # fmt: skip
    assert recipe.batch.n_envs == 32
    assert recipe.objective.gamma == 0.9
    assert recipe.optimizer.learning_rate == 1e-3
    assert recipe.model.architecture == "shared"
    assert recipe.model.hidden_sizes == (32, 16)
    assert recipe.normalize.normalize_rewards
    assert recipe.environment.sign_rewards
    assert recipe.machine.threads == 2
    assert recipe.seed == 7
    assert recipe.batch.n_steps == RECIPE.batch.n_steps


def test_recipe_is_frozen_and_replace_leaves_it_alone():
    RECIPE.replace(seed=9)
    assert RECIPE.seed == 1
    with pytest.raises(dataclasses.FrozenInstanceError):
        RECIPE.seed = 2  # pyright: ignore[reportAttributeAccessIssue]


def test_field_names_are_unique_so_flat_overrides_are_unambiguous():
    names = [
        leaf.name
        for table in dataclasses.fields(Recipe)
        if dataclasses.is_dataclass(getattr(RECIPE, table.name))
        for leaf in dataclasses.fields(getattr(RECIPE, table.name))
    ]
    assert len(names) == len(set(names))
    assert set(names) - {"coefficients"} <= set(RECIPE.values)


def test_minibatch_size_stands_for_n_minibatches():
    assert RECIPE.replace(minibatch_size=64).batch.n_minibatches == 1024 // 64
    recipe = RECIPE.replace(n_envs=4, n_steps=64, minibatch_size=32)
    assert recipe.batch == Batch(n_envs=4, n_steps=64, n_minibatches=8, n_epochs=4)


def test_minibatch_size_that_does_not_divide_names_those_that_do():
    with pytest.raises(UserError, match="64 and 128"):
        RECIPE.replace(minibatch_size=100)


def test_minibatch_size_and_n_minibatches_together_are_refused():
    with pytest.raises(UserError, match="n_minibatches or minibatch_size"):
        RECIPE.replace(minibatch_size=64, n_minibatches=16)


@pytest.mark.parametrize(
    "overrides",
    [
        {"minibatch_size": "64"},
        {"minibatch_size": True},
        {"minibatch_size": 64, "n_envs": "8"},
        {"minibatch_size": 64, "n_steps": None},
    ],
)
def test_bad_types_beside_minibatch_size_are_the_users_errors(overrides):
    with pytest.raises(UserError, match=r"minibatch|n_envs|n_steps"):
        RECIPE.replace(**overrides)


def test_batch_size_is_refused_with_both_meanings():
    with pytest.raises(UserError, match=r"Stable-Baselines3.*minibatch_size.*CleanRL.*rollout"):
        RECIPE.replace(batch_size=64)


@pytest.mark.parametrize("text", ["batch_size = 64\n", "[batch]\nbatch_size = 64\n"])
def test_batch_size_in_a_file_is_refused_with_both_meanings(text):
    with pytest.raises(UserError, match=r"Stable-Baselines3.*minibatch_size.*CleanRL.*rollout"):
        Recipe.from_toml('env = "CartPole-v1"\n' + text)


def test_unknown_field_suggests_the_nearest():
    with pytest.raises(UserError, match=r"'learning_rat'.*learning_rate"):
        RECIPE.replace(learning_rat=1e-3)


BAD = [
    ("gamma", 2.0), ("gamma", -0.1), ("gamma", float("nan")), ("gamma", "0.99"), ("gamma", True),
    ("gae_lambda", 1.01), ("reward_gamma", -1.0), ("clip_range", 0.0), ("clip_range", -0.2),
    ("clip_range", float("inf")), ("kl_coef", -1.0), ("max_ratio", 0.5), ("ent_coef", -0.01),
    ("vf_coef", -0.5), ("target_kl", 0.0), ("advantage_decay", 1.0), ("proximal_decay", 1.0),
    ("proximal_decay", -0.1), ("learning_rate", 0.0), ("learning_rate", -1e-3),
    ("adam_beta1", 1.0), ("adam_beta2", 1.5), ("adam_eps", 0.0), ("momentum", 1.0),
    ("max_grad_norm", 0.0), ("max_grad_norm", -1), ("reward_clip", 0.0), ("threads", -1),
    ("env_threads", -1), ("chunk_size", -1), ("seed", -1), ("seed", 1.5), ("total_timesteps", 0),
    ("total_timesteps", 1e6), ("policy_hidden_sizes", (-1,)), ("hidden_sizes", (64, 0)),
    ("hidden_sizes", (64, 2.5)), ("hidden_sizes", 64), ("hidden_sizes", "64"),
    ("env_options", ("num_levels",)), ("env_options", "a=1"), ("objective", 3),
    ("optimizer", "lion"), ("encoder", "resnet"), ("architecture", "twin"), ("init", "zeros"),
    ("activation", "mish"), ("log_std_init", 21.0), ("log_std_init", float("nan")),
    ("advantage_normalization", "always"), ("minibatches_by", "rows"),
    ("learning_rate_schedule", "cosine"), ("device", "tpu"), ("vectorization", "threads"),
    ("kl_estimator", "exactly"), ("normalize_rewards", "yes"), ("env", 3),
    ("n_envs", 0), ("n_steps", 2.0), ("n_minibatches", 0), ("n_epochs", -1),
]  # fmt: skip


@pytest.mark.parametrize(("field", "value"), BAD)
def test_bad_value_names_the_field(field, value):
    with pytest.raises(UserError, match=f"^{field} ") as caught:
        RECIPE.replace(**{field: value})
    assert caught.value.field == field


def test_an_unknown_algorithm_is_refused_with_those_there_are():
    with pytest.raises(
        UserError, match=r"algorithm 'pppo' is not registered.*Did you mean ppo"
    ) as caught:
        RECIPE.replace(algo="pppo")
    assert caught.value.field == "algo"


GOOD = [
    ("gamma", 0), ("gamma", 1.0), ("gae_lambda", 0.0), ("proximal_decay", 0.0),
    ("advantage_decay", 0.97), ("max_grad_norm", None), ("target_kl", None), ("kl_coef", 0.0),
    ("clip_range", 3.0), ("max_ratio", 1.0), ("momentum", 0.0), ("seed", 0),
]  # fmt: skip


@pytest.mark.parametrize(("field", "value"), GOOD)
def test_bounds_are_allowed(field, value):
    assert RECIPE.replace(**{field: value}).values[field] == value


def test_constructor_checks_as_replace_does():
    with pytest.raises(UserError, match=r"^seed "):
        Recipe(env="CartPole-v1", seed=-1)


def test_budget_must_hold_one_rollout():
    check_budget(RECIPE.replace(total_timesteps=1024))
    with pytest.raises(UserError, match=r"total_timesteps 1023 .* 1024 .*n_envs 8 x n_steps 128"):
        check_budget(RECIPE.replace(total_timesteps=1023))


def test_env_options_are_read_as_literals():
    options = ("num_levels=200", "mode=easy", "ratio=0.5", "flag=True", "expr=a=b")
    recipe = RECIPE.replace(env_options=options)
    assert recipe.environment.options == {
        "num_levels": 200, "mode": "easy", "ratio": 0.5, "flag": True, "expr": "a=b",
    }  # fmt: skip


@pytest.mark.parametrize("algo", ALGORITHMS)
@pytest.mark.parametrize("family", [*PRESETS, "generic"])
def test_toml_round_trip_of_every_preset(family, algo):
    recipe = family_preset(family, "Some-v1", algo)
    assert Recipe.from_toml(recipe.to_toml()) == recipe


@given(
    gamma=st.floats(0, 1),
    learning_rate=st.floats(1e-12, 100),
    target_kl=st.none() | st.floats(1e-6, 10),
    hidden_sizes=st.lists(st.integers(1, 4096), max_size=4),
    env=st.text(),
    seed=st.integers(0, 2**63 - 1),
    sign_rewards=st.booleans(),
)
def test_toml_round_trip_of_any_value(**overrides):
    recipe = RECIPE.replace(**overrides)
    assert Recipe.from_toml(recipe.to_toml()) == recipe


def test_absent_fields_take_their_defaults():
    assert Recipe.from_toml('env = "CartPole-v1"') == RECIPE


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('env = "a"\nseed = = 1\n', "line 2"),
        ('env = "a"\n[batch\nn_envs = 4\n', "line 2"),
        ('env = "a"\nsead = 1\n', "line 2: unknown field 'sead'.*seed"),
        ('env = "a"\n\n[objective]\ngama = 0.9\n', "line 4: unknown field 'gama'.*gamma"),
        ('env = "a"\n\n[objetive]\ngamma = 0.9\n', "line 3: unknown field 'objetive'.*objective"),
        ('env = "a"\n[objective]\nclip_range = 0.1\ngamma = "high"\n', "line 4: gamma must be"),
        ('env = "a"\n[batch]\nn_envs = 8.0\n', "line 3: n_envs must be a whole number, got 8.0"),
        ('env = "a"\n[model]\n\nhidden_sizes = 64\n', "line 4: hidden_sizes must be a list"),
        ('env = "a"\n[objective]\n# gamma = 1\ngamma = 2\n', "line 4: gamma must lie in"),
        ('env = "a"\n[batch]\nn_steps = 8\nn_envs = 0\n', "line 4: n_envs must be at least 1"),
        ('env = "a"\n[batch]\nn_steps = 1\nn_minibatches = 99\n', "line 4: n_minibatches 99"),
        ('env = "a"\nbatch = 64\n', r"line 2: batch must be a table \[batch\]"),
        ('env = "a"\n\nobjective.gamma = 2\n', "line 3: gamma must lie in"),
        ('env = "a"\n\nobjective = { gamma = 2 }\n', "line 3: gamma must lie in"),
        ('seed = 1\n', "env is missing"),
    ],
)  # fmt: skip
def test_mistake_in_a_file_names_its_line_and_field(text, message):
    with pytest.raises(UserError, match=f"my.toml.*{message}") as caught:
        Recipe.from_toml(text, source="my.toml")
    assert "\n" not in str(caught.value)


def test_load_reads_a_file_and_names_one_it_cannot_read(tmp_path):
    path = tmp_path / "recipe.toml"
    path.write_text(RECIPE.replace(gamma=0.9).to_toml(), encoding="utf-8")
    assert Recipe.load(path) == RECIPE.replace(gamma=0.9)
    with pytest.raises(UserError, match=r"absent\.toml"):
        Recipe.load(tmp_path / "absent.toml")
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match=r"recipe\.toml"):
        Recipe.load(path)
