"""isobatch import, and isobatch train --from: another library's settings as they are."""

import shlex
from collections import OrderedDict

import pytest
import yaml

from isobatch import exchange
from isobatch.cli import main
from isobatch.recipe import Recipe
from isobatch.run.result import Run
from isobatch.text import WIDTH

PPO = """
HalfCheetah-v4:
  normalize: true
  n_envs: 1
  n_timesteps: !!float 1e6
  policy: 'MlpPolicy'
  batch_size: 64
  n_steps: 512
  gamma: 0.98
  n_epochs: 20
  callback: my.Callback
CartPole-v1:
  n_envs: 8
  n_timesteps: !!float 1e5
  policy: 'MlpPolicy'
  n_steps: 32
  batch_size: 256
  n_epochs: 20
  learning_rate: lin_0.001
AntBulletEnv-v0:
  n_timesteps: !!float 2e6
  policy: 'MlpPolicy'
"""


@pytest.fixture
def command(tmp_path, monkeypatch, capsys):
    """Return a function that runs a command in a folder with ppo.yml: -> (code, output, error)."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ppo.yml").write_text(PPO)

    def run(words):
        capsys.readouterr()
        return main(shlex.split(words)), *capsys.readouterr()

    return run


def refused(result, *fragments):
    code, _, complaint = result
    assert code == 2
    assert complaint.count("\n") == 1, complaint
    for each in fragments:
        assert each in complaint


def test_an_import_says_what_it_read_and_left_out_and_what_to_type(command, tmp_path):
    code, said, _ = command("import zoo ppo.yml HalfCheetah-v4 --write half.toml")
    assert code == 0
    assert max(map(len, said.splitlines())) <= WIDTH
    first, left_out, rest = said.split("\n\n")
    assert " ".join(first.split()) == (
        "Read ppo.yml of rl-baselines3-zoo: ppo on HalfCheetah-v4, 1 environment x 512 steps, "
        "8 minibatches of 64, 20 epochs, learning rate 0.0003, 1,000,000 environment steps."
    )
    assert left_out.startswith(
        "Left out or different here (1), and what that does:\n! callback my.Callback"
    )
    assert rest == "saved to half.toml; train with:\nisobatch train --recipe half.toml\n"
    given = exchange.arguments("zoo", ["ppo.yml"])
    assert Recipe.load("half.toml") == exchange.read("zoo", given, "HalfCheetah-v4").recipe


def test_without_a_file_to_write_it_shows_the_differences_and_the_command(command):
    _, said, _ = command("import zoo ppo.yml CartPole-v1 n_envs=16")
    assert "Nothing is left out." in said
    rows = [line.split() for line in said.splitlines()]
    assert ["n_steps", "128", "32"] in rows
    assert ["n_envs", "8", "16"] in rows
    assert not any(row[:1] == ["gamma"] and row[1] == row[2] for row in rows)
    assert said.endswith("Train with:\nisobatch train CartPole-v1 --from zoo ppo.yml n_envs=16\n")


def test_flags_of_a_library_are_read_and_said_again_as_pairs(command):
    _, said, _ = command("import cleanrl python cleanrl/ppo.py --num-envs 8 --no-anneal-lr")
    assert "isobatch train --from cleanrl script=ppo num_envs=8 anneal_lr=False" in said


def test_an_environment_that_does_not_run_here_is_said(command, tmp_path):
    code, said, _ = command("import zoo ppo.yml AntBulletEnv-v0 --write ant.toml")
    assert code == 0
    assert "! AntBulletEnv-v0, PyBullet's, does not run here: give --env ID" in said
    assert said.endswith("saved to ant.toml\n")
    _, said, _ = command("import sb3 n_envs=4")
    assert "no environment is named" in said
    assert "isobatch train" not in said


def test_a_run_of_the_zoo_is_read_with_the_arguments_beside_it(command, tmp_path):
    config = OrderedDict(
        batch_size=256, n_envs=8, n_steps=32, n_timesteps=100000.0, policy="MlpPolicy",
        env_wrapper=None, learning_rate="lin_0.001",
    )  # fmt: skip
    (tmp_path / "config.yml").write_text(yaml.dump(config))
    assert "!!python" in (tmp_path / "config.yml").read_text()
    _, said, _ = command("import zoo config.yml CartPole-v1")
    assert "8 environments x 32 steps, 1 minibatch of 256" in " ".join(said.split())
    arguments = OrderedDict(algo="ppo", env="CartPole-v1", n_timesteps=5000, seed=3, uuid=False)
    (tmp_path / "args.yml").write_text(yaml.dump(arguments))
    given = exchange.arguments("zoo", ["config.yml"])
    recipe = exchange.read("zoo", given).recipe
    assert (recipe.env, recipe.total_timesteps) == ("CartPole-v1", 5000)
    (tmp_path / "args.yml").write_text(yaml.dump(arguments | {"algo": "a2c"}))
    refused(command("import zoo config.yml"), "zoo has no batch_size")


def test_training_takes_the_settings_and_its_flags_override_them(command, tmp_path):
    code, said, _ = command(
        "train CartPole-v1 --from zoo ppo.yml n_timesteps=64 batch_size=32 --n-steps 8 --out run"
    )
    assert code == 0
    assert said.startswith("Read ppo.yml of rl-baselines3-zoo: ppo on CartPole-v1, 8 environments")
    assert "Nothing is left out." in said
    read = exchange.read("zoo", exchange.arguments("zoo", ["ppo.yml"]), "CartPole-v1").recipe
    assert Run("run").recipe == read.replace(total_timesteps=64, n_minibatches=8, n_steps=8)


@pytest.mark.parametrize(
    ("words", "fragments"),
    [
        ("import", ["FORMAT"]),
        ("import rllib x=1", ["unknown format 'rllib'"]),
        ("import zoo absent.yml", ["cannot read absent.yml"]),
        ("import zoo ppo.yml CartPole-v1 Acrobot-v1", ["cannot read 'Acrobot-v1'"]),
        ("import zoo ppo.yml CartPole-v1 --env Acrobot-v1", ["give one environment"]),
        ("import sb3 settings.py", ["sb3 has no settings in Python files"]),
        ("train --from", ["--from needs a format (sb3"]),
        ("train --from=zoo ppo.yml", ["--from FORMAT FILE"]),
        ("train --from sb3 n_envs=2", ["which environment? isobatch train ENV --from sb3"]),
        ("train CartPole-v1 --from zoo ppo.yml --recipe x.toml", ["give one of them"]),
        ("train --from sb3 env=os:Evil-v0", ["imports a module", "--env os:Evil-v0"]),
    ],
)
def test_what_cannot_be_is_one_line(command, words, fragments):
    refused(command(words), *fragments)


@pytest.mark.parametrize(
    ("name", "content", "fragment"),
    [
        ("empty.yml", b"", "empty.yml is empty"),
        ("comments.yml", b"# nothing\n", "does not contain a dictionary"),
        ("binary.yml", bytes(range(256)), "it is not UTF-8"),
        ("nul.yml", b"a: \x00", "not valid YAML"),
        ("tags.yml", b"a: !!python/object/apply:os.system [ls]", "the tag 'python/object/apply"),
        ("name.yml", b"a: !!python/name:os.system ''", "the tag 'python/name:os.system'"),
        ("pairs.yml", b"!!python/object/apply:collections.OrderedDict\n- 3", "one list of pairs"),
    ],
)  # fmt: skip
def test_files_that_hold_no_settings_are_one_line(command, tmp_path, name, content, fragment):
    (tmp_path / name).write_bytes(content)
    refused(command(f"import zoo {name} CartPole-v1"), fragment)
