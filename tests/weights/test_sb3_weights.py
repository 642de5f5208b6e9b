"""Policies of Stable-Baselines3 as runs and back: the same actions, parameters and values."""

import json
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from sb3_models import MAKERS, Saved, answers
from stable_baselines3 import A2C, PPO, SAC
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecNormalize

import isobatch
from isobatch import UserError, weights
from isobatch.cli import main
from isobatch.run.reading import read_checkpoint
from isobatch.state import TrainState

CLOSE = {"rtol": 1e-5, "atol": 1e-5}


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
        np.testing.assert_allclose(mine, theirs, **CLOSE)


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
    for name in ("gamma", "gae_lambda", "n_steps", "n_envs", "ent_coef", "vf_coef"):
        assert getattr(loaded, name) == getattr(made.model, name), name
    before, after = made.model.policy.optimizer, loaded.policy.optimizer
    assert type(before) is type(after)
    for a, b in zip(*(each.state_dict()["state"].values() for each in (before, after)), strict=True):
        for part in set(a) - {"step"}:
            torch.testing.assert_close(a[part], b[part])


@pytest.mark.parametrize("kind", ["discrete", "images apart", "a2c"])
def test_the_optimiser_remembers_each_weight(sb3, tmp_path, kind):
    made = sb3(kind)
    weights.from_sb3(made.path, made.env, tmp_path / "run")
    tensors = read_checkpoint(tmp_path / "run")
    policy = isobatch.load(tmp_path / "run")
    device = torch.device("cpu")
    state = TrainState.begin(policy.recipe, policy.observation_layout, policy.action_layout, device)
    views = state.parameters.views(tensors["optimizer.square"])
    theirs = {
        name: made.model.policy.optimizer.state[each].get("exp_avg_sq", None)
        for name, each in made.model.policy.named_parameters()
        if made.model.policy.optimizer.state[each].get("exp_avg_sq") is not None
    } or {
        name: made.model.policy.optimizer.state[each]["square_avg"]
        for name, each in made.model.policy.named_parameters()
    }
    rename = weights.names.renamed(weights.names.SB3)
    assert {rename(name) for name in views} == theirs.keys()
    for name, view in views.items():
        torch.testing.assert_close(view, theirs[rename(name)])


def test_the_recipe_is_the_models(sb3, tmp_path):
    made = sb3("discrete")
    landed = weights.from_sb3(made.path, made.env, tmp_path / "run")
    recipe = landed.run.recipe
    assert recipe.batch == isobatch.Batch(n_envs=2, n_steps=32, n_minibatches=2, n_epochs=1)
    assert (recipe.objective.clip_range, recipe.optimizer.learning_rate) == (0.2, 3e-4)
    assert recipe.objective.vf_coef == 1.0  # The half is in the loss here.
    assert recipe.gamma if hasattr(recipe, "gamma") else recipe.values["gamma"] == 0.98
    assert (recipe.model.hidden_sizes, recipe.model.activation) == ((32, 16), "relu")
    assert recipe.total_timesteps == 128
    assert landed.notes == ()
