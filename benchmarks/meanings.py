"""What recipes must hold of other libraries' settings: worked out from their code, not Isobatch's.

`policy_layers` and `value_layers` are all layers of a network, wherever the recipe has them.
"""

from collections.abc import Mapping
from typing import Any

NUM_ENVS = 4096
"""Of Isaac Lab's tasks, whose runner does not say it."""
SCHEDULES = {"adaptive": "kl-adaptive", "fixed": "constant"}
"""Of rsl_rl's learning rate."""


def from_sb3(given: Mapping[str, Any]) -> dict[str, Any]:
    """What a recipe must hold of SB3's arguments, by what they mean in its code."""
    rows = int(given["n_envs"] * given["n_steps"])
    rate, falls = _schedule(given["learning_rate"])
    found = {
        "algo": given["algo"],
        "n_envs": given["n_envs"],
        "n_steps": given["n_steps"],
        "learning_rate": rate,
        "learning_rate_schedule": "linear" if falls else "constant",
        "gamma": given["gamma"],
        "gae_lambda": given["gae_lambda"],
        "ent_coef": given["ent_coef"],
        "vf_coef": 2 * given["vf_coef"],  # mse_loss, without the half.
        "max_grad_norm": given["max_grad_norm"],
        "total_timesteps": int(float(given["n_timesteps"])),
        "use_sde": given["use_sde"],
        "sde_sample_freq": given["sde_sample_freq"],
        "normalize_rewards": bool(given.get("normalize")) and "norm_reward=False" not in str(
            given["normalize"]
        ).replace(" ", "").replace("'norm_reward':", "norm_reward="),
    }  # fmt: skip
    if given["algo"] == "a2c":
        return found | {"n_minibatches": 1, "n_epochs": 1}
    clip, narrows = _schedule(given["clip_range"])
    return found | {
        "n_epochs": given["n_epochs"],
        "n_minibatches": max(1, rows // int(given["batch_size"])),
        "clip_range": clip,
        "clip_range_schedule": "linear" if narrows else "constant",
        "target_kl": given["target_kl"],
        "adam_eps": 1e-5,
    }


def _schedule(value: Any) -> tuple[float, bool]:
    falls = isinstance(value, str) and value.startswith("lin_")
    return float(value[4:] if falls else value), falls


def from_cleanrl(given: Mapping[str, Any]) -> dict[str, Any]:
    """What a recipe must hold of a script's Args, by what they mean in its code."""
    learns_values = "q_lambda" in given
    found = {
        "n_envs": given.get("local_num_envs", given["num_envs"]),
        "n_steps": given["num_steps"],
        "n_minibatches": given["num_minibatches"],
        "n_epochs": given.get("update_epochs", given.get("e_policy")),
        "learning_rate": given["learning_rate"],
        "learning_rate_schedule": "linear" if given["anneal_lr"] else "constant",
        "gamma": given["gamma"],
        "gae_lambda": given["q_lambda"] if learns_values else given["gae_lambda"],
        "total_timesteps": given["total_timesteps"],
        "seed": given["seed"],
        # mse_loss of action values has no half, so its gradient is twice as long.
        "max_grad_norm": given["max_grad_norm"] / (2 if learns_values else 1),
    }
    if learns_values:
        return found | {
            "algo": "pqn",
            "epsilon_start": given["start_e"],
            "epsilon_end": given["end_e"],
            "epsilon_fraction": given["exploration_fraction"],
        }
    if "n_iteration" in given:
        found |= {
            "algo": "ppg",
            "n_policy_iterations": given["n_iteration"],
            "n_aux_epochs": given["e_auxiliary"],
            "clone_coef": given["beta_clone"],
            "aux_segments": given["num_aux_rollouts"] * given["n_aux_grad_accum"],
        }
    return found | {
        "clip_range": given["clip_coef"],
        "ent_coef": given["ent_coef"],
        "vf_coef": given["vf_coef"],
        "target_kl": given["target_kl"],
    }


def from_rsl_rl(given: Mapping[str, Any]) -> dict[str, Any]:
    """What a recipe must hold of a runner's dictionary, by what it means in rsl_rl's code."""
    layers = [
        tuple(
            given[name]["hidden_dims"] if name in given else given["policy"][f"{name}_hidden_dims"]
        )
        for name in ("actor", "critic")
    ]
    return {
        "n_envs": NUM_ENVS,
        "n_steps": given["num_steps_per_env"],
        "n_minibatches": given["num_mini_batches"],
        "n_epochs": given["num_learning_epochs"],
        "total_timesteps": given["max_iterations"] * NUM_ENVS * given["num_steps_per_env"],
        "learning_rate": given["learning_rate"],
        "learning_rate_schedule": SCHEDULES[given["schedule"]],
        "desired_kl": given["desired_kl"],
        "gamma": given["gamma"],
        "gae_lambda": given["lam"],
        "clip_range": given["clip_param"],
        "clip_range_vf": given["clip_param"] if given["use_clipped_value_loss"] else None,
        "ent_coef": given["entropy_coef"],
        "vf_coef": 2 * given["value_loss_coef"],  # A squared error without the half.
        "max_grad_norm": given["max_grad_norm"],
        "policy_layers": layers[0],
        "value_layers": layers[1],
        "seed": given.get("seed", 42),
        "adam_eps": 1e-8,
        "init": "torch",
    }
