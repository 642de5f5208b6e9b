"""Policies of Stable-Baselines3 as runs and back: the same actions, parameters and values."""

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from sb3_models import MAKERS, Saved, answers
from stable_baselines3 import A2C, PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecNormalize
from torch import nn

import isobatch
from isobatch import exchange, weights
from isobatch.cli import main
from isobatch.models import ActorCritic
from isobatch.run.reading import read_checkpoint
from isobatch.state import TrainState
from isobatch.weights.names import SB3, names

CLOSE = 1e-5


def ours(run: Path, observations):
    """Return (deterministic actions, distribution parameters, values) of a run's policy."""
    policy = isobatch.load(run)
    with torch.no_grad():
        parts = policy.observation_layout.encode(observations)
        params, _ = policy.model.act(policy.normalizer(parts))
        if policy.action_layout.kind == "categorical":  # Logits up to a constant.
            split = params.split(policy.action_layout.counts, 1)
            params = torch.cat([each.log_softmax(1) for each in split], 1)
    actions = policy.predict(observations, deterministic=True)
    return actions, params.numpy(), policy.values(observations)


def agree(one, other):
    for mine, theirs in zip(one, other, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=CLOSE, atol=CLOSE)


@pytest.mark.parametrize("kind", MAKERS)
def test_the_same_policy_there_and_back(sb3, tmp_path, kind):
    made: Saved = sb3(kind)
    run, back = tmp_path / "run", tmp_path / "back" / "model.zip"
    weights.from_sb3(made.path, made.env, run)
    observations = made.observations()
    theirs = answers(made.model, observations, made.normalizer)
    agree(ours(run, observations), theirs)

    exported = weights.to_sb3(run, back)
    loaded = {"PPO": PPO, "A2C": A2C}[exported.algorithm].load(back)
    normalizer = None
    if exported.normalizer is not None:
        env = make_vec_env(made.env, 1)
        normalizer = VecNormalize.load(str(exported.normalizer), env)
    agree(answers(loaded, observations, normalizer), theirs)
    assert exported.missing == []
    for name in ("gamma", "gae_lambda", "n_steps", "n_envs", "ent_coef", "vf_coef"):
        assert getattr(loaded, name) == getattr(made.model, name), name
    before, after = made.model.policy.optimizer, loaded.policy.optimizer
    assert type(before) is type(after)
    for a, b in zip(
        *(each.state_dict()["state"].values() for each in (before, after)), strict=True
    ):
        for part in set(a) - {"step"}:
            torch.testing.assert_close(a[part], b[part])


@pytest.mark.parametrize(("kind", "part"), [("discrete", "exp_avg_sq"), ("a2c", "square_avg")])
def test_the_optimiser_remembers_each_weight(sb3, tmp_path, kind, part):
    """Looked at on the way, since a mistake made twice would cancel out there and back."""
    made = sb3(kind)
    weights.from_sb3(made.path, made.env, tmp_path / "run")
    tensors, policy = read_checkpoint(tmp_path / "run"), isobatch.load(tmp_path / "run")
    assert tensors is not None
    layouts = policy.observation_layout, policy.action_layout
    state = TrainState.begin(policy.recipe, *layouts, torch.device("cpu"))
    views = state.parameters.views(tensors["optimizer.square"])
    theirs = {
        name: made.model.policy.optimizer.state[each][part]
        for name, each in made.model.policy.named_parameters()
    }
    assert isinstance(state.model, ActorCritic)
    known = names(SB3, state.model)
    assert {known[name] for name in views} == theirs.keys()
    for name, view in views.items():
        torch.testing.assert_close(view, theirs[known[name]])


def test_the_recipe_is_the_models(sb3, tmp_path):
    made = sb3("discrete")
    landed = weights.from_sb3(made.path, made.env, tmp_path / "run")
    given = {
        "n_envs": 2, "n_steps": 32, "batch_size": 32, "n_epochs": 1, "gamma": 0.98, "seed": 3,
        "total_timesteps": 128, "policy_kwargs": "dict(net_arch=[32, 16], activation_fn=nn.ReLU)",
    }  # fmt: skip
    assert landed.run.recipe == exchange.read("sb3", given, "CartPole-v1").recipe
    assert landed.notes == ()


def test_a_schedule_that_is_code_is_said_and_can_be_given(sb3, tmp_path):
    made = sb3("continuous")
    landed = weights.from_sb3(made.path, made.env, tmp_path / "said")
    assert [note.partition(":")[0] for note in landed.notes] == ["learning_rate"]
    given = {"learning_rate": "lin_0.001"}
    landed = weights.from_sb3(made.path, made.env, tmp_path / "given", settings=given)
    assert landed.notes == ()
    optimizer = landed.run.recipe.optimizer
    assert (optimizer.learning_rate, optimizer.learning_rate_schedule) == (1e-3, "linear")


def test_layers_that_sb3_shared_up_to_1_7(sb3, tmp_path):
    made = sb3("discrete")
    torch.manual_seed(0)
    trunk, policy = nn.Linear(4, 8), nn.Linear(8, 6)
    action, value = nn.Linear(6, 2), nn.Linear(8, 1)
    parts = {
        "mlp_extractor.shared_net.0": trunk, "mlp_extractor.policy_net.0": policy,
        "action_net": action, "value_net": value,
    }  # fmt: skip
    state = {
        f"{name}.{key}": x for name, each in parts.items() for key, x in each.state_dict().items()
    }
    content, path = io.BytesIO(), tmp_path / "old.zip"
    torch.save(state, content)
    with zipfile.ZipFile(made.path) as old, zipfile.ZipFile(path, "w") as new:
        new.writestr("data", old.read("data"))
        new.writestr("policy.pth", content.getvalue())
    landed = weights.from_sb3(path, made.env, tmp_path / "run")
    assert any("optimiser" in note for note in landed.notes)
    observations = made.observations()
    with torch.no_grad():
        shared = trunk(torch.from_numpy(observations)).relu()
        logits, values = action(policy(shared).relu()), value(shared).flatten()
    expected = logits.argmax(1).numpy(), logits.log_softmax(1).numpy(), values.numpy()
    agree(ours(tmp_path / "run", observations), expected)


def test_statistics_of_rewards_come_along(sb3, tmp_path):
    made = sb3("continuous")
    weights.from_sb3(made.path, made.env, tmp_path / "run")
    policy = isobatch.load(tmp_path / "run")
    settings, moments = policy.recipe.normalize, policy.reward_moments
    assert (settings.reward_gamma, settings.reward_clip) == (0.97, 5.0)
    assert made.normalizer is not None
    assert moments is not None
    for name in ("mean", "var", "count"):
        assert float(moments[name]) == float(getattr(made.normalizer.ret_rms, name))


def test_a_zip_is_evaluated_trained_on_and_given_back(sb3, tmp_path, capsys):
    made, run = sb3("discrete"), str(tmp_path / "run")
    assert main(["import", "sb3", str(made.path), made.env, "--out", run]) == 0
    said = capsys.readouterr().out
    assert "Carried over: weights, the optimiser's averages." in said
    assert main(["eval", run, "--episodes", "2", "--deterministic"]) == 0
    assert main(["check", run]) == 0
    assert main(["advise", run]) == 0
    assert "imported from model.zip (Stable-Baselines3 2." in capsys.readouterr().out
    assert main(["report", run]) == 0
    assert "imported from model.zip" in (tmp_path / "run" / "report.html").read_text()
    assert main(["resume", run, "--total-timesteps", "256"]) == 0
    rows = isobatch.Run(run).metrics
    assert rows[0]["resumed"]
    assert 128 < rows[0]["env_steps"] <= 192
    assert main(["check", run]) == 0
    capsys.readouterr()

    assert main(["export", run, "--to", "sb3"]) == 0
    path = tmp_path / "run" / "sb3" / "model.zip"
    assert f"PPO.load({str(path)!r})" in capsys.readouterr().out
    env = make_vec_env("CartPole-v1", 2)
    loaded = PPO.load(path, env=env)  # Refused where the spaces are not the same.
    assert loaded.num_timesteps == rows[-1]["env_steps"]
    loaded.learn(64, reset_num_timesteps=False)
    assert main(["export", run, "--to", "sb3"]) == 2
    assert "exists" in capsys.readouterr().err


@pytest.mark.parametrize("architecture", ["shared", "dual", "detach"])
def test_a_run_trained_here_acts_alike_there(tmp_path, architecture):
    run = tmp_path / "run"
    isobatch.train(
        "Pendulum-v1", out=run, quiet=True, total_timesteps=128, n_envs=4, n_steps=16,
        n_minibatches=2, n_epochs=1, architecture=architecture, hidden_sizes=(16, 8),
        learning_rate_schedule="linear", normalize_observations=True, normalize_rewards=True,
    )  # fmt: skip
    exported = weights.to_sb3(run, tmp_path / "back.zip")
    assert exported.normalizer is not None
    env = VecNormalize.load(str(exported.normalizer), make_vec_env("Pendulum-v1", 1))
    observations = np.random.default_rng(0).normal(0, 3, (1000, 3)).astype(np.float32)
    loaded = PPO.load(exported.path, env=env)
    agree(answers(loaded, observations, env), ours(run, observations))
    assert loaded.lr_schedule(0.5) == isobatch.Run(run).recipe.optimizer.learning_rate / 2
    told = {line.partition(" ")[0] for line in exported.missing}
    assert "update_statistics" in told
    assert ("architecture" in told) == (architecture != "dual")
