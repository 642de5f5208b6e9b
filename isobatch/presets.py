"""A recipe for every environment family: the field's usual numbers, ready to run."""

from __future__ import annotations

from typing import Any

from isobatch.envs.catalog import resolve
from isobatch.errors import UserError, nearest
from isobatch.recipe import ALGORITHMS, ONE_STEP, Recipe

IMAGES = {"encoder": "nature", "architecture": "shared"}
GENERIC = {
    "n_envs": 8, "n_steps": 128, "n_minibatches": 4, "n_epochs": 4,
    "learning_rate": 3e-4, "max_grad_norm": 0.5, "total_timesteps": 1_000_000,
}  # fmt: skip
PROCGEN = {
    # Hilton et al. 2021, appendix B; Cobbe et al. 2020.
    "n_envs": 64, "n_steps": 256, "n_minibatches": 8, "n_epochs": 3,
    "learning_rate": 5e-4, "adam_eps": 1e-8, "gamma": 0.999, "gae_lambda": 0.95,
    # Their vf_coef is 0.5 without the half in the loss.
    "clip_range": 0.2, "ent_coef": 0.01, "vf_coef": 1.0, "normalize_rewards": True,
    "encoder": "impala", "architecture": "shared", "init": "reference",
    "minibatches_by": "envs",
}  # fmt: skip
CONTINUOUS = {
    # SB3 and CleanRL on MuJoCo; vf_coef 1 here is their 0.5 without the half in the loss.
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


A2C = {
    # SB3's A2C on Atari, RMSprop and all; its vf_coef 0.5 is 1 with the half in the loss.
    **ONE_STEP, "n_envs": 16, "n_steps": 8, "optimizer": "rmsprop", "learning_rate": 7e-4,
    "gae_lambda": 1.0, "vf_coef": 1.0, "advantage_normalization": "none", "max_grad_norm": 0.5,
}  # fmt: skip
REINFORCE = {
    **ONE_STEP, "n_steps": 128, "learning_rate": 3e-4, "normalize_rewards": True,
    "advantage_normalization": "none", "max_grad_norm": 0.5,
}  # fmt: skip
PQN = {
    # Gallici et al. 2024.
    "n_envs": 32, "n_steps": 64, "n_minibatches": 16, "n_epochs": 4, "optimizer": "radam",
    "learning_rate": 1e-4, "learning_rate_schedule": "linear", "gae_lambda": 0.95,
    "max_grad_norm": 10.0, "layer_norm": True, "activation": "relu", "hidden_sizes": (128, 128),
    "epsilon_start": 1.0, "epsilon_end": 0.2, "epsilon_fraction": 0.2,
}  # fmt: skip
PQN_IMAGES = {
    **PQN, "n_envs": 128, "n_steps": 32, "n_minibatches": 32, "n_epochs": 2,
    "learning_rate": 2.5e-4, "gae_lambda": 0.65, "epsilon_end": 0.001, "epsilon_fraction": 0.1,
}  # fmt: skip
PPG = {
    # Cobbe et al. 2020. The auxiliary loss weighs values against the clone's KL: both near one.
    "architecture": "dual", "n_policy_iterations": 32, "n_aux_epochs": 6,
    "normalize_rewards": True,
}  # fmt: skip

# Chosen on CartPole-v1, seeds 1, 2 and 11 to 13: docs/results/algorithms.md.
CLASSIC = {
    "a2c": {"n_envs": 8, "n_steps": 32, "optimizer": "adam", "learning_rate": 3e-3},
    "reinforce": {"learning_rate": 3e-3},
    "pqn": {"learning_rate": 5e-4, "epsilon_end": 0.05},
}


def preset(env: str, algo: str = "ppo", **overrides: Any) -> Recipe:
    """Return the recipe for an environment id, with any fields overridden by their flat names."""
    return family_preset(resolve(env).family, env, algo, **overrides)


def family_preset(family: str, env: str, algo: str = "ppo", **overrides: Any) -> Recipe:
    """Return the recipe of a family for `env`; families without their own get a generic one."""
    if algo not in ALGORITHMS:
        hint = nearest(algo, list(ALGORITHMS))
        raise UserError(f"unknown algorithm {algo!r}; there are {', '.join(ALGORITHMS)}.{hint}")
    fields = PRESETS.get(family, GENERIC)
    recipe = Recipe(env=env).replace(**fields | _algorithm_fields(algo, family, fields), algo=algo)
    if recipe.averages_policy:
        # The paper's: advantages normalised over iterations, and a proximal policy whose centre of
        # mass lies 8 gradient steps back, a third of its PPO's 8 x 3 and all of its PPG's 8 x 1.
        age = recipe.batch.grad_steps_per_iteration / min(3, recipe.batch.n_epochs)
        recipe = recipe.replace(
            advantage_normalization="ewma", proximal_decay=round(age / (age + 1), 3)
        )
    return recipe.replace(**overrides)


def _algorithm_fields(algo: str, family: str, fields: dict[str, Any]) -> dict[str, Any]:
    """Return what an algorithm sets differently from PPO in a family."""
    images = "encoder" in fields
    general: dict[str, dict[str, Any]] = {
        "a2c": A2C,
        "reinforce": REINFORCE | {"n_envs": max(8, fields["n_envs"])},
        "pqn": PQN_IMAGES if images else PQN,
        "ppg": PPG | ({"n_epochs": 1} if images else {}),
    }
    own = CLASSIC if family in ("classic", "toy-text") else {}
    name = algo.removesuffix("-ewma")
    return general.get(name, {}) | own.get(name, {})


def preset_name(family: str) -> str:
    """Return the name of the preset a family gets."""
    return family if family in PRESETS else "generic"
