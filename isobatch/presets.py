"""A recipe for every environment family: the field's usual numbers, ready to run."""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import Any

from isobatch import registry
from isobatch.recipe import Recipe

IMAGES = {"encoder": "nature", "architecture": "shared"}
GENERIC = {
    "n_envs": 8, "n_steps": 128, "n_minibatches": 4, "n_epochs": 4,
    "learning_rate": 3e-4, "max_grad_norm": 0.5, "total_timesteps": 1_000_000,
}  # fmt: skip
PROCGEN = {
    # Hilton et al. 2021 (arXiv 2110.00641), appendix B; Cobbe et al. 2020: four workers of 64
    # environments. A smaller batch is this one rescaled: preset(...).rescale(n_envs=64).
    "n_envs": 256, "n_steps": 256, "n_minibatches": 8, "n_epochs": 3,
    "learning_rate": 5e-4, "adam_eps": 1e-8, "gamma": 0.999, "gae_lambda": 0.95,
    # Their vf_coef is 0.5 without the half in the loss.
    "clip_range": 0.2, "ent_coef": 0.01, "vf_coef": 1.0, "normalize_rewards": True,
    "encoder": "impala", "architecture": "shared", "init": "reference",
    "minibatches_by": "envs",
}  # fmt: skip
CONTINUOUS = {
    # SB3 on MuJoCo; vf_coef 1 here is its 0.5, without the half in its loss.
    "n_envs": 1, "n_steps": 2048, "n_minibatches": 32, "n_epochs": 10,
    "learning_rate": 3e-4, "gamma": 0.99, "gae_lambda": 0.95, "clip_range": 0.2,
    "ent_coef": 0.0, "vf_coef": 1.0, "max_grad_norm": 0.5,
    "normalize_observations": True, "normalize_rewards": True,
    "advantage_normalization": "minibatch", "total_timesteps": 1_000_000,
}  # fmt: skip

PRESETS: dict[str, dict[str, Any]] = {
    "classic": {
        # One EnvPool thread: physics this small is over before a second one wakes.
        "env_threads": 1, "n_envs": 8, "n_steps": 128, "n_minibatches": 4, "n_epochs": 10,
        "learning_rate": 1e-3, "learning_rate_schedule": "linear", "gamma": 0.98,
        "gae_lambda": 0.9, "clip_range": 0.2, "max_grad_norm": 0.5, "total_timesteps": 100_000,
    },
    "box2d": {
        # Chosen on LunarLander-v3, seeds 1 and 3: docs/results/learning.md.
        "n_envs": 16, "n_steps": 256, "n_minibatches": 32, "n_epochs": 6,
        "learning_rate": 5e-4, "learning_rate_schedule": "linear", "gamma": 0.99,
        "gae_lambda": 0.95, "ent_coef": 0.01, "vf_coef": 1.0, "max_grad_norm": 0.5,
        "normalize_rewards": True, "advantage_normalization": "minibatch",
        "total_timesteps": 1_000_000,
    },
    "toy-text": {
        "env_threads": 1, "n_envs": 16, "n_steps": 64, "n_minibatches": 4, "n_epochs": 4,
        "learning_rate": 1e-3, "ent_coef": 0.01, "max_grad_norm": 0.5,
        "total_timesteps": 300_000,
    },
    "atari": {
        # CleanRL's ppo_atari.
        "n_envs": 8, "n_steps": 128, "n_minibatches": 4, "n_epochs": 4,
        "learning_rate": 2.5e-4, "learning_rate_schedule": "linear", "gamma": 0.99,
        "gae_lambda": 0.95, "clip_range": 0.1, "ent_coef": 0.01, "vf_coef": 0.5,
        "max_grad_norm": 0.5, "advantage_normalization": "minibatch",
        "episodic_life": True, "sign_rewards": True, "total_timesteps": 10_000_000, **IMAGES,
    },
    "procgen-easy": {**PROCGEN, "total_timesteps": 25_000_000},
    "procgen-hard": {**PROCGEN, "total_timesteps": 100_000_000},
    "mujoco": CONTINUOUS,
    "dmc": {
        **CONTINUOUS, "n_envs": 8, "n_steps": 512, "n_minibatches": 32,
        "total_timesteps": 2_000_000,
    },
    "playground": {
        **CONTINUOUS, "n_envs": 256, "n_steps": 20, "n_minibatches": 8, "n_epochs": 4,
        "gamma": 0.97, "ent_coef": 0.005, "hidden_sizes": (256, 128), "activation": "elu",
        "total_timesteps": 20_000_000,
    },
    "minigrid": {
        "n_envs": 64, "n_steps": 32, "n_minibatches": 8, "n_epochs": 4,
        "learning_rate": 3e-4, "ent_coef": 0.01, "max_grad_norm": 0.5,
        "normalize_observations": True, "total_timesteps": 500_000,
    },
    "tensor": {
        "n_envs": 1024, "n_steps": 32, "n_minibatches": 8, "n_epochs": 4,
        "learning_rate": 3e-3, "gamma": 0.98, "gae_lambda": 0.9, "max_grad_norm": 0.5,
        "total_timesteps": 2_000_000,
    },
    "robotics": {**CONTINUOUS, "n_envs": 8, "n_steps": 256},
    "metaworld": {**CONTINUOUS, "n_envs": 8, "n_steps": 500, "total_timesteps": 5_000_000},
    "myosuite": {**CONTINUOUS, "n_envs": 8, "n_steps": 256, "total_timesteps": 5_000_000},
    "vizdoom": {**GENERIC, "ent_coef": 0.01, **IMAGES},
}  # fmt: skip


def preset(env: str, algo: str = "ppo", **overrides: Any) -> Recipe:
    """Return the preset recipe for an environment id; `overrides` replace recipe fields."""
    # It takes seconds: PyTorch and EnvPool are imported.
    from isobatch.envs.catalog import resolve

    return family_preset(resolve(env).family, env, algo, **overrides)


def family_preset(family: str, env: str, algo: str = "ppo", **overrides: Any) -> Recipe:
    """Return the recipe of a family for `env`; families without their own get a generic one."""
    fields = PRESETS.get(family, GENERIC)
    algorithm = registry.find(algo)
    own = {**algorithm.presets(family, fields), **algorithm.fixes}
    recipe = Recipe(env=env).replace(**{**fields, **own}, algo=algo)
    if recipe.averages_policy:
        # The paper's: advantages normalised over iterations, and a proximal policy whose centre of
        # mass lies 8 gradient steps back, a third of its PPO's 8 x 3 and all of its PPG's 8 x 1.
        age = recipe.batch.grad_steps_per_iteration / min(3, recipe.batch.n_epochs)
        recipe = recipe.replace(advantage_normalization="ewma", proximal_decay=age / (age + 1))
    return recipe.replace(**overrides)


def quick_preset(env: str, algo: str = "ppo") -> Recipe:
    """As `preset`, at once where the environment is one of those there usually are."""
    family = listed_family(env)
    return preset(env, algo) if family is None else family_preset(family, env, algo)


def listed_family(env: str) -> str | None:
    """Return an environment's family by the list of those there usually are, at once."""
    return _listed().get(env)


@cache
def _listed() -> dict[str, str]:
    listed = (resources.files("isobatch") / "families.txt").read_text("utf-8")
    return {env: family for family, *ids in map(str.split, listed.splitlines()) for env in ids}


def preset_name(family: str) -> str:
    """Return the name of the preset a family gets."""
    return family if family in PRESETS else "generic"
