"""Python files of other libraries, read by their syntax."""

from pathlib import Path

import pytest

from isobatch import exchange
from isobatch.batch import Batch
from isobatch.errors import UserError

# In the manner of Isaac Lab's agents.
ISAAC = '''
"""A docstring."""
from dataclasses import MISSING
from isaaclab.utils import configclass
from isaaclab_rl.rsl_rl import RslRlMLPModelCfg, RslRlOnPolicyRunnerCfg, RslRlPpoAlgorithmCfg
from isaaclab_rl.rsl_rl import RslRlRNNModelCfg, RslRlSymmetryCfg
from somewhere import mirror

WIDTHS = [512, 256, 128]


@configclass
class RoughCfg(RslRlOnPolicyRunnerCfg):
    """Settings."""

    num_steps_per_env = 24
    max_iterations: int = 1500
    clip_actions: float | None = None
    experiment_name = MISSING
    obs_groups = {"actor": ["policy"], "critic": ["policy"]}
    actor = RslRlMLPModelCfg(
        hidden_dims=WIDTHS, activation="elu",
        distribution_cfg=RslRlMLPModelCfg.GaussianDistributionCfg(init_std=0.5),
    )
    critic = RslRlMLPModelCfg(hidden_dims=[512, 256, 128], activation="elu")
    algorithm = RslRlPpoAlgorithmCfg(
        num_learning_epochs=5, num_mini_batches=4, learning_rate=1.0e-3, schedule="fixed",
        gamma=0.99, entropy_coef=0.005, value_loss_coef=1.0, use_clipped_value_loss=True,
    )


@configclass
class FlatCfg(RoughCfg):
    def __post_init__(self):
        super().__post_init__()

        self.max_iterations = 300
        self.actor.hidden_dims = [128, 128]
        self.critic.hidden_dims = [128, 128]


class FlatterCfg(FlatCfg):
    def __post_init__(self):
        super().__post_init__()
        self.algorithm.gamma = 0.9


class RecurrentCfg(FlatCfg):
    actor = RslRlRNNModelCfg(hidden_dims=[64], activation="elu", rnn_type="lstm")


class SymmetricCfg(RoughCfg):
    algorithm = RslRlPpoAlgorithmCfg(
        num_learning_epochs=5, num_mini_batches=4, schedule="fixed", gamma=0.99, entropy_coef=0.0,
        symmetry_cfg=RslRlSymmetryCfg(data_augmentation_func=mirror.states),
    )
'''
LEGGED = """
from legged_gym.envs.base.legged_robot_config import LeggedRobotCfg, LeggedRobotCfgPPO

class A1Cfg(LeggedRobotCfg):
    class init_state(LeggedRobotCfg.init_state):
        pos = [0.0, 0.0, 0.42]

class A1CfgPPO(LeggedRobotCfgPPO):
    class algorithm(LeggedRobotCfgPPO.algorithm):
        entropy_coef = 0.01
        gamma = 0.99
        num_learning_epochs = 5
        num_mini_batches = 4
        schedule = "fixed"
    class runner(LeggedRobotCfgPPO.runner):
        num_steps_per_env = 24
        max_iterations = 10
"""


@pytest.fixture
def read(tmp_path):
    """Return a function from a Python file's text to what is imported from it."""

    def run(text, *words):
        path = tmp_path / "rsl_rl_ppo_cfg.py"
        path.write_text(text)
        return exchange.read("rsl_rl", exchange.arguments("rsl_rl", [str(path), *words]), "Ant-v4")

    return run


def test_a_class_is_read_as_the_runners_dictionary(read):
    imported = read(ISAAC, "num_envs=8", "class=RoughCfg")
    recipe = imported.recipe
    assert imported.unknown == []
    assert recipe.batch == Batch(n_envs=8, n_steps=24, n_minibatches=4, n_epochs=5)
    assert recipe.total_timesteps == 1500 * 8 * 24
    assert recipe.model.hidden_sizes == (512, 256, 128)
    assert recipe.objective.vf_coef == 2.0
    assert recipe.seed == 42  # Isaac Lab's default.


def test_what_is_inherited_and_assigned_afterwards_holds(read):
    flat = read(ISAAC, "num_envs=8", "class=FlatCfg").recipe
    assert flat.total_timesteps == 300 * 8 * 24
    assert flat.model.hidden_sizes == (128, 128)
    assert flat.objective.gamma == 0.99
    flatter = read(ISAAC, "num_envs=8", "class=FlatterCfg").recipe
    assert flatter == flat.replace(gamma=0.9)
    # The class it inherits from is as it was.
    assert read(ISAAC, "num_envs=8", "class=RoughCfg").recipe.model.hidden_sizes[0] == 512


def test_what_no_recipe_has_is_said(read):
    recurrent = read(ISAAC, "num_envs=8", "class=RecurrentCfg").unknown
    assert any(line.startswith("actor.class_name RNNModel") for line in recurrent)
    assert any("actor.rnn_type lstm: a recurrent network; here it has no" in x for x in recurrent)
    (symmetric,) = read(ISAAC, "num_envs=8", "class=SymmetricCfg").unknown
    assert "mirror.states" in symmetric


def test_a_base_in_another_file_is_said(read):
    text = ISAAC.replace("(RslRlOnPolicyRunnerCfg)", "(mirror.TheirCfg)")
    (line,) = read(text, "num_envs=8", "class=RoughCfg").unknown
    assert line.startswith("unread ['mirror.TheirCfg']: classes in other files, which were not")


def test_nested_classes_are_legged_gyms(read):
    imported = read(LEGGED, "num_envs=8")
    assert imported.recipe.batch == Batch(8, 24, 4, 5)
    assert imported.unknown[0].startswith("unread ['LeggedRobotCfgPPO'")


def test_the_written_settings_do_not_name_what_was_not_read(tmp_path):
    path = tmp_path / "cfg.py"
    path.write_text(LEGGED)
    given = exchange.arguments("rsl_rl", [str(path), "num_envs=8"])
    recipe = exchange.read("rsl_rl", given).recipe
    written = exchange.write("rsl_rl", recipe.replace(n_envs=16), given).given
    assert "unread" not in written
    assert written["num_envs"] == 16


def test_the_zoos_entries_may_be_python(tmp_path):
    path = tmp_path / "settings.py"
    path.write_text(
        "import torch\n"
        "hyperparams = {'CartPole-v1': dict(n_envs=4, n_timesteps=1e4, policy='MlpPolicy',\n"
        "    policy_kwargs=dict(activation_fn=torch.nn.ReLU))}\n"
    )
    recipe = exchange.read("zoo", exchange.arguments("zoo", [str(path)])).recipe
    assert (recipe.env, recipe.batch.n_envs) == ("CartPole-v1", 4)
    assert recipe.model.activation == "relu"
    path.write_text("settings = {}\n")
    with pytest.raises(UserError, match="has no hyperparams"):
        exchange.arguments("zoo", [str(path)])


HEAD = "from x import A, R\nclass C(R):\n    algorithm = A()\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import os\nos.system('true')\n", r"line 2: .os\.system.* is no literal: settings are"),
        ("x = open('f')\n", r"line 1: .*open.* is no literal"),
        ("x = 1 - 0.01\n", r"line 1: '1 - 0\.01' is no literal"),
        ("x = f'{1}'\n", "line 1: .* is no literal"),
        ("x = [y for y in (1, 2)]\n", "line 1: .* is no literal"),
        ("x = lambda: 1\n", "line 1: .* is no literal"),
        ("x = unknown\n", "line 1: 'unknown' is no literal"),
        ("x = {**{}}\n", "line 1: .* is no literal"),
        ("for x in y:\n    pass\n", "line 1: .* is no literal"),
        ("def f():\n    pass\n", "line 1: .* is no literal"),
        ("class C(metaclass=M):\n    pass\n", "line 1: .* is a class with keywords"),
        (HEAD + "    def f(self):\n        pass\n", "line 4: .* is no literal"),
        (HEAD + "    other = A(1)\n", r"line 4: 'A\(1\)' is no literal"),
        (HEAD + "    other = A(**{})\n", "line 4: .* is no literal"),
        (
            HEAD + "    def __post_init__(self):\n        self.x = len('x')\n",
            "line 5: .* is no literal",
        ),
        (HEAD + "    def __post_init__(self):\n        x = 1\n", "line 5: 'x = 1' is no literal"),
        (
            HEAD + "    def __post_init__(self):\n        self.policy.x = 1\n",
            r"policy\.x is assigned, but not there",
        ),
        ("class C(:\n", "line 1: not valid Python"),
        ("x = 1\0\n", "not valid Python"),
        ("", "is empty"),
        ("x = 1\n", "it has no class with the settings of a runner"),
        (HEAD + "class D(C):\n    pass\n", "which class. Add class=NAME: C, D"),
        ("x = " + "[" * 90 + "]" * 90, "nested too deep"),
        ("x = " + "-" * 50_000 + "1", "not valid Python"),
        ("x = " + "9" * 30, "'x' is a number of more than 64 bits"),
        ("a = [1, 1]\n" + "a = [a, a]\n" * 20, "expands to more than 20,000 values"),
        ("# nothing\n" * 20_000, "more than the 131,072"),
        (
            "from x import RslRlDistillationRunnerCfg\n"
            "class C(RslRlDistillationRunnerCfg):\n    algorithm = {}\n",
            "C distils a policy from a teacher: Isobatch imports PPO",
        ),
    ],
)
def test_what_is_no_data_is_refused_with_its_line(read, text, message):
    with pytest.raises(UserError, match=message) as caught:
        read(text, "num_envs=8")
    assert "\n" not in str(caught.value)


def test_nothing_of_a_file_is_run(read, tmp_path):
    trace = tmp_path / "trace"
    text = (
        f"from pathlib import Path\n@Path({str(trace)!r}).touch\nclass C(Path({str(trace)!r})):\n"
        "    algorithm = {}\n"
    )
    with pytest.raises(UserError):
        read(text, "num_envs=8")
    assert not Path(trace).exists()


def test_how_many_environments_must_be_said(read):
    with pytest.raises(UserError, match=r"num_envs must be given .the environment's own: 4096"):
        read(ISAAC, "class=RoughCfg")
    with pytest.raises(UserError, match=r"no class Rough\. Did you mean RoughCfg"):
        read(ISAAC, "class=Rough", "num_envs=8")
