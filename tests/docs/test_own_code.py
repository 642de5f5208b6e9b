"""Code of one's own in every command: who needs the module, and what is said without it."""

import shlex

import pytest

MODULE = '''
import gymnasium
import numpy as np
from gymnasium import spaces
from torch import nn

import isobatch
from isobatch.algos.ppo import Ppo
from isobatch.models import ActorCritic


@isobatch.objective("my-objective")
def objective(current, samples, settings):
    return -samples.advantages * current.logp


def model(recipe, observations, actions, encoder=None):
    return ActorCritic(observations, actions, recipe.model, encoder)


@isobatch.algorithm("my-algorithm", model=model)
class Algorithm(Ppo):
    """PPO by another name."""


@isobatch.encoder("my-encoder")
def encoder(layout):
    return nn.Sequential(nn.Linear(layout.vector, 8), nn.Tanh())


@isobatch.environment("my-environment")
class Environment(gymnasium.Env):
    """Four steps, of which action 1 earns each."""

    observation_space = spaces.Box(0.0, 1.0, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, reward=1.0):
        self.reward = reward

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = int(self.np_random.integers(4))
        return self._observation(), {}

    def step(self, action):
        self.time += 1
        return self._observation(), self.reward * action, self.time >= 8, False, {}

    def _observation(self):
        return np.array([self.time / 8], np.float32)
'''
OWN = {
    "objective": "CartPole-v1 --objective my-objective",
    "algorithm": "CartPole-v1 --algo my-algorithm",
    "encoder": "CartPole-v1 --encoder my-encoder",
    "environment": "python:my-environment --env-options reward=2",
}
# Gamma keeps the probe's look ahead, and with it the test, short.
TINY = "--n-envs 2 --n-steps 16 --total-timesteps 128 --gamma 0.5 --quiet"
TRAINS = {"resume": "RUN --total-timesteps 192 --quiet", "verify": "RUN --iterations 2 --quiet"}
ACTS = {
    "eval": "RUN --episodes 2",
    "probe": "RUN --shapes 2x2 --batches 2 --no-speed --json p.json --page p.html",
}
READS = {
    "advise": "RUN",
    "check": "RUN",
    "report": "RUN",
    "rescale": "RUN --n-envs 4",
    "show": "RUN",
    "query": "'select env from runs' --runs RUN",
}
PASS_IT = "--import MODULE"


def words(command, options, run):
    return ["isobatch", command, *shlex.split(options.replace("RUN", run))]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("own")
    (folder / "my_code.py").write_text(MODULE)
    return folder


@pytest.mark.parametrize("kind", OWN)
def test_every_command_works_with_the_module_and_says_where_it_is_missing(kind, folder, launch):
    run = f"runs/{kind}"
    train = words("train", f"{OWN[kind]} {TINY} --out {run}", run)
    imported = ["--import", "my_code"]

    def refused(command):
        said = launch(folder, command, code=2)
        assert PASS_IT in said, said
        assert f"my-{kind}" in said, said
        assert said.count("\n") == 1, said

    refused(train)
    assert not (folder / run).exists()
    launch(folder, [*train, *imported])
    for command, options in READS.items():
        launch(folder, words(command, options, run))
    before = (folder / run / "metrics.jsonl").read_bytes()
    for command, options in (ACTS if kind != "objective" else {}).items():
        refused(words(command, options, run))
    needs = imported if kind != "objective" else []
    launch(folder, [*words("eval", ACTS["eval"], run), *needs])
    for command in reversed(TRAINS):  # A run that was resumed has less to verify.
        asked = words(command, TRAINS[command], run)
        refused(asked)
        assert (folder / run / "metrics.jsonl").read_bytes() == before
        launch(folder, [*asked, *imported])
    assert (folder / run / "metrics.jsonl").read_bytes() != before


def test_a_probe_of_all_of_them_at_once(folder, launch):
    """One for all kinds: it takes seconds. Of an objective alone it needs no module."""
    every = "--objective my-objective --algo my-algorithm --encoder my-encoder"
    imported = "--import my_code"
    train = f"{OWN['environment']} {every} {TINY} --out runs/all {imported}"
    launch(folder, words("train", train, "runs/all"))
    asked = words("probe", f"{ACTS['probe']} {imported}", "runs/all")
    printed = launch(folder, asked, tiny=True)
    assert "python:my-environment, my-algorithm" in printed


def test_a_study_of_all_of_them(folder, launch):
    arms = {"algorithm": 'algo = "my-algorithm"', "encoder": 'encoder = "my-encoder"'}
    arms["objective"] = 'objective = "my-objective"'
    base = "n_envs = 2\nn_steps = 16\n"

    def study(env, chosen):
        lines = "\n".join(f"{arm} = {{ {arms.get(arm, '')} }}" for arm in chosen)
        head = f'[study]\nenvs = ["{env}"]\nbudget = 128\nseeds = 1\nevaluate = 2\n'
        (folder / "mine.toml").write_text(f"{head}[base]\n{base}[arms]\n{lines}\n")
        return ["isobatch", "study", "mine.toml", "--quiet", "--jobs", "1"]

    for kind in OWN:
        env = "python:my-environment" if kind == "environment" else "CartPole-v1"
        said = launch(folder, [*study(env, ["plain", kind]), "--dry-run"], code=2)
        assert PASS_IT in said
        assert f"my-{kind}" in said
    every = study("python:my-environment", ["plain", *arms])
    assert "4 of 4 runs" in launch(folder, [*every, "--import", "my_code"])
    assert "4 of 4 runs" in launch(folder, ["isobatch", "report", "studies/mine"])
    assert "intact" in launch(folder, ["isobatch", "check", "studies/mine"])


NAMELESS = """
import isobatch
from my_code import Environment, encoder

isobatch.train(
    make_env=lambda: Environment(), encoder=lambda layout: encoder(layout), n_envs=2, n_steps=16,
    total_timesteps=128, out="runs/nameless", quiet=True,
)
run = isobatch.train(make_env=Environment, encoder=encoder, n_envs=2, n_steps=16,
    total_timesteps=128, out="runs/named", quiet=True)
print(run.recipe.env, run.recipe.model.encoder)
"""
NAMED_LATER = """
import isobatch
from my_code import Environment, encoder

isobatch.environment("make_env")(Environment)
isobatch.encoder("custom")(encoder)
"""


def test_what_was_given_in_python_without_a_name_can_be_named_later(folder, launch):
    (folder / "in_python.py").write_text(NAMELESS)
    (folder / "named_later.py").write_text(NAMED_LATER)
    printed = launch(folder, ["python", "in_python.py"])
    assert printed.split() == ["python:my-environment", "my-encoder"]
    evaluate = ["isobatch", "eval", "runs/nameless", "--episodes", "2"]
    said = launch(folder, evaluate, code=2)
    assert '@isobatch.encoder("custom")' in said
    launch(folder, words("rescale", "RUN --n-envs 4", "runs/nameless"))
    said = launch(folder, ["isobatch", "verify", "runs/nameless"], code=2)
    assert '@isobatch.environment("make_env")' in said
    assert "2 episodes" in launch(folder, [*evaluate, "--import", "named_later"])
    assert "bit for bit" in launch(
        folder, ["isobatch", "verify", "runs/nameless", "--quiet", "--import", "named_later"]
    )


def test_a_module_that_a_file_names_is_imported_by_command_line_words_only(folder, launch):
    (folder / "my_ids.py").write_text(
        "import gymnasium\nfrom my_code import Environment\n"
        "print('imported')\ngymnasium.register('Mine-v0', Environment)\n"
    )
    train = words("train", f"my_ids:Mine-v0 {TINY} --out runs/id --import my_ids", "")
    assert "imported" in launch(folder, train)
    evaluate = ["isobatch", "eval", "runs/id", "--episodes", "2"]
    said = launch(folder, evaluate, code=2)
    assert "--import my_ids" in said
    assert "imported" not in said.splitlines()
    assert "2 episodes" in launch(folder, [*evaluate, "--import", "my_ids"])


def test_the_working_directory_comes_last_and_only_when_a_module_is_named(folder, launch):
    (folder / "colorsys.py").write_text("raise SystemExit('the file here, not the library')\n")
    (folder / "where.py").write_text("import os, sys\nprint(sys.path.index(os.getcwd()) + 1)\n")
    (folder / "count.py").write_text(
        "import os, sys\nsys.path.remove(os.getcwd())\nfrom isobatch.cli import main\n"
        "main(['show', 'CartPole-v1', '--import', 'colorsys', '--import', 'where'])\n"
        "print(len(sys.path))\nsys.path.remove(os.getcwd())\n"
        "main(['show', 'CartPole-v1'])\nassert os.getcwd() not in sys.path\n"
    )
    lines = launch(folder, ["python", "count.py"]).splitlines()
    numbers = [line for line in lines if line.isdigit()]
    assert len(numbers) == 2
    assert numbers[0] == numbers[1]
