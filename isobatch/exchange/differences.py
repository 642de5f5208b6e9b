"""What of a recipe a format could not say: the fields that came back otherwise."""

from __future__ import annotations

import math
from typing import Any

from isobatch.exchange import networks
from isobatch.recipe import Recipe

AROUND = (
    "normalize_observations", "normalize_rewards", "observation_clip", "episodic_life",
    "sign_rewards", "frame_stack", "wrappers", "env_options",
)  # fmt: skip
"""What other libraries do by wrapping the environment."""
WHY = {
    **dict.fromkeys(AROUND, "not in {target}'s configuration; wrap the environment"),
    "update_statistics": "there they are updated at every {back}",
    "algo": "{target} has {back}",
    "env": "{target} has {back}",
    "seed": "not in {target}'s configuration",
}

LAYERS = {"architecture", "hidden_sizes", "policy_hidden_sizes", "value_hidden_sizes"}
"""Fields that can say the same networks in several ways."""
MACHINE = {
    "vectorization", "env_threads", "phase_memory", "device", "threads", "chunk_size", "compile",
    "checkpoint_seconds", "exact_resume", "keep_policies", "probe_every", "diagnostics",
    "env_timeout", "on_divergence",
}  # fmt: skip
"""Fields that change how fast a run is or what is kept of it, not what it learns."""


def differences(target: str, recipe: Recipe, back: Recipe) -> list[str]:
    """Return a line for each field in use that the format could not say."""
    here, there = recipe.values, back.values
    idle = _idle(recipe) | MACHINE
    if recipe.averages_policy and not back.averages_policy:
        idle.add("proximal_decay")
    if _moments(recipe) == _moments(back):
        idle |= {"advantage_normalization", "advantage_decay"}
    if here["env"].startswith("python:") or there["env"].startswith("python:"):
        idle.add("env")
    if {here["encoder"], there["encoder"]} <= {"auto", "mlp"}:
        idle.add("encoder")
        if _layers(recipe) == _layers(back):
            idle |= LAYERS
    lines = []
    for name, value in here.items():
        if name in idle or _alike(value, there[name]):
            continue
        why = WHY.get(name, "reads back from {target} as {back}")
        lines.append(
            f"{name} {_shown(value)}: {why.format(target=target, back=_shown(there[name]))}"
        )
    if recipe.averages_policy and not back.averages_policy:
        lines.append(
            f"proximal_decay {recipe.objective.proximal_decay}: {target}'s proximal policy is the "
            "behaviour policy, not an average"
        )
    return lines


def _layers(recipe: Recipe) -> tuple[Any, ...]:
    """Return the widths of MLPs: of the part that is shared, and how, the policy's, the value's."""
    model = recipe.model
    if model.architecture == "dual" or not model.hidden_sizes:
        return "dual", (), *networks.widths(recipe)
    own = model.policy_hidden_sizes, model.value_hidden_sizes
    return model.architecture, model.hidden_sizes, *own


def _moments(recipe: Recipe) -> tuple[str, float]:
    """Return how advantages are normalised; an average without memory is the rollout alone."""
    objective = recipe.objective
    if objective.advantage_normalization != "ewma":
        return objective.advantage_normalization, 0.0
    decay = objective.advantage_decay
    return ("ewma" if decay else "batch"), decay


def _idle(recipe: Recipe) -> set[str]:
    """Return the fields that this recipe's algorithm, objective and optimiser do not read."""
    objective, optimizer = recipe.objective, recipe.optimizer
    normalizes = recipe.normalize.normalize_observations or recipe.normalize.normalize_rewards
    unused = {
        "clip_range": objective.objective == "clip",
        "clip_range_schedule": objective.objective == "clip",
        "clip_vf_loss": objective.clip_range_vf is not None,
        "kl_coef": objective.objective == "kl",
        "kl_estimator": objective.objective == "kl",
        "advantage_decay": objective.advantage_normalization == "ewma",
        "staleness_loss": objective.staleness > 0,
        "baseline": recipe.algorithm.whole_returns,
        "adam_beta1": optimizer.optimizer in ("adam", "radam"),
        "adam_beta2": optimizer.optimizer in ("adam", "radam"),
        "adam_eps": optimizer.optimizer != "sgd",
        "rms_decay": optimizer.optimizer == "rmsprop",
        "momentum": optimizer.optimizer == "sgd",
        "sde_sample_freq": recipe.model.use_sde,
        "desired_kl": recipe.adapts_rate,
        "min_learning_rate": recipe.adapts_rate,
        "max_learning_rate": recipe.adapts_rate,
        "observation_clip": recipe.normalize.normalize_observations,
        "normalize_epsilon": normalizes,
        "update_statistics": normalizes,
        "reward_gamma": recipe.normalize.normalize_rewards,
        "reward_clip": recipe.normalize.normalize_rewards,
        "hidden_sizes": not networks.is_image(recipe.model),
        "activation": any(networks.widths(recipe)),
        "proximal_decay": recipe.averages_policy,
        "n_value_epochs": recipe.trains_value_apart,
    }
    phasic = ("n_policy_iterations", "n_aux_epochs", "clone_coef")
    unused |= dict.fromkeys(phasic, recipe.is_phasic)
    unused |= {
        "aux_learning_rate": recipe.is_phasic and recipe.phasic.aux_learning_rate > 0,
        "aux_segments": recipe.is_phasic and recipe.phasic.aux_segments > 0,
    }
    exploration = ("epsilon_start", "epsilon_end", "epsilon_fraction")
    unused |= dict.fromkeys(exploration, recipe.algorithm.explores)
    return {name for name, used in unused.items() if not used}


def _alike(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-9)
    return one == other


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        return "-".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) or value is None else str(value)
