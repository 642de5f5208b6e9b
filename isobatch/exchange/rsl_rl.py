"""rsl_rl: its runner's dictionary, in the layouts from legged_gym's to the newest.

    {runner: {...}, algorithm: {...}, policy: {...}}             legged_gym
    {num_steps_per_env: ..., algorithm: {...}, policy: {...}}    rsl_rl 2 and 3, Isaac Lab
    {num_steps_per_env: ..., algorithm: {...}, actor: {...}, critic: {...}}   rsl_rl 4 and newer

and any of them inside `runner`. Flat keys are the runner's own and `table.name`.
"""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from isobatch.batch import positive
from isobatch.errors import UserError, shown
from isobatch.exchange import isaac, networks
from isobatch.exchange.rsl_rl_keys import (
    ALGORITHM,
    MODELS,
    OPTIMIZERS,
    POLICY,
    RUNNER,
    VERSIONED,
)
from isobatch.exchange.table import OURS, Format, Table
from isobatch.exchange.wrappers import BY_STEP
from isobatch.recipe import Recipe

PARTS = ("algorithm", "policy", "actor", "critic")
OUTSIDE = ("num_envs", "seed", "runner_class_name")
"""Keys that stand beside `runner`, not in it."""
ACTIVATIONS = {
    "tanh": "tanh", "relu": "relu", "elu": "elu", "gelu": "gelu", "swish": "silu",
    "lrelu": "leaky_relu",
}  # fmt: skip
"""By their names; crelu is the ReLU of some versions and the CELU of others."""
FIXED = {
    "algo": "ppo", "objective": "clip", "clip_range_schedule": "constant", "encoder": "auto",
    "min_learning_rate": 1e-5, "max_learning_rate": 1e-2, "architecture": "dual", "adam_eps": 1e-8,
    "adam_beta1": 0.9, "adam_beta2": 0.999, "minibatches_by": "samples", "rms_decay": 0.99,
    "momentum": 0.0, "init": "torch",
}  # fmt: skip
NORMALIZED = {"observation_clip": 0.0, "normalize_epsilon": 1e-4, **BY_STEP}
"""Its EmpiricalNormalization: (x - mean) / (std + 0.01), which is x / sqrt(Var + 0.01^2) to within
a factor of sqrt 2, and far from std 0.01 the same; nothing is clipped."""


class RslRl(Format):
    """The dictionary given to OnPolicyRunner, and num_envs, which its environment knows."""

    name = "rsl_rl"
    summary = "rsl_rl: the runner's dictionary, and num_envs"
    budget = "max_iterations"
    always = ("num_envs", "num_steps_per_env", "max_iterations", "seed",
              "algorithm.learning_rate", "algorithm.class_name")  # fmt: skip
    has_env = False
    derived = ("unread",)
    hints = MappingProxyType({"num_envs": "the environment's own: 4096 in most of Isaac Lab"})

    def load(self, path: Path, said: dict[str, Any]) -> dict[str, Any]:
        """Read a dictionary, or a class of Isaac Lab's or legged_gym's in a Python file."""
        if path.suffix == ".py":
            return isaac.load(path, said.pop("class", None))
        return super().load(path, said)

    def flatten(self, given: Mapping[str, Any], env: str | None = None) -> dict[str, Any]:
        """Return the runner's keys and `table.name`; a bare name finds its table."""
        inner = _dictionary(given.get("runner", {}), "runner")
        flat: dict[str, Any] = {}
        for level in (inner, given):
            for name, value in level.items():
                if name in PARTS:
                    flat |= {f"{name}.{k}": v for k, v in _dictionary(value, name).items()}
                elif name != "runner":
                    flat[name] = value
        table = self.table(flat)
        return {_full(name, table): value for name, value in flat.items()}

    def restore(
        self, flat: dict[str, Any], given: Mapping[str, Any] | None, env: str
    ) -> dict[str, Any]:
        """Put each key into its table, wherever `given` has that."""
        layout: dict[str, Any] = {}
        if given is not None:
            known = {*RUNNER, "runner", *PARTS}
            known -= set(self.derived)
            layout = {k: copy.deepcopy(v) for k, v in given.items() if k in known}
        inner = layout.get("runner", layout)
        for key, value in flat.items():
            name, dot, below = key.partition(".")
            if dot:
                home = inner if name in inner else layout
                home.setdefault(name, {})[below] = value
            else:
                beside = key not in inner and (key in layout or key in OUTSIDE)
                (layout if beside else inner)[key] = value
        return layout

    def table(self, flat: Mapping[str, Any]) -> Table:
        """The keys of the layout in use, and its defaults."""
        newest = any(name.startswith(("actor.", "critic.")) for name in flat)
        algorithm = {
            name: key._replace(default=VERSIONED[name]) if newest and name in VERSIONED else key
            for name, key in ALGORITHM.items()
        }
        return {**RUNNER, **algorithm, **(MODELS if newest else POLICY)}

    def fields(self, values: dict[str, Any], lost: list[str]) -> dict[str, Any]:
        """Read the budget, the networks and what moves the learning rate."""
        rows = values["num_envs"] * values["num_steps_per_env"]
        _check(values, rows)
        iterations = values["max_iterations"]
        if iterations is None:
            iterations = max(1, OURS["total_timesteps"] // rows)
        fields = FIXED | {
            "total_timesteps": iterations * rows,
            "advantage_normalization": "minibatch"
            if values["algorithm.normalize_advantage_per_mini_batch"]
            else "batch",
            "clip_range_vf": values["algorithm.clip_param"]
            if values["algorithm.use_clipped_value_loss"]
            else None,
            "optimizer": values["algorithm.optimizer"],
            "learning_rate_schedule": _schedule(values),
            **_networks(values, lost),
        }
        if fields["optimizer"] == "adamw":
            lost.append(
                "algorithm.optimizer adamw: weight decay; Isobatch uses Adam without it, so that "
                "weights may grow"
            )
            fields["optimizer"] = "adam"
        rnd = values["algorithm.rnd_cfg"]
        if rnd and (not isinstance(rnd, Mapping) or rnd.get("weight")):
            lost.append(
                "algorithm.rnd_cfg: random network distillation (RND); without its bonus, rare "
                "rewards may not be found"
            )
        device = str(values["device"] or "auto").partition(":")[0]
        return fields | {"device": device if device in ("cpu", "cuda") else "auto"}

    def values(self, recipe: Recipe, like: Mapping[str, Any]) -> dict[str, Any]:
        """Say the budget and the networks, in the layout there was."""
        model, normalize = recipe.model, recipe.normalize.normalize_observations
        optimizer = recipe.optimizer.optimizer
        values = {
            "algorithm.class_name": "PPO",
            "algorithm.schedule": "adaptive" if recipe.adapts_rate else "fixed",
            "algorithm.use_clipped_value_loss": recipe.objective.clip_range_vf is not None,
            "algorithm.normalize_advantage_per_mini_batch": (
                recipe.objective.advantage_normalization == "minibatch"
            ),
            "algorithm.optimizer": optimizer if optimizer in OPTIMIZERS else "adam",
        }
        if not like or "max_iterations" in like:
            values["max_iterations"] = max(1, recipe.total_timesteps // recipe.batch.rollout_size)
        if recipe.machine.device != "auto":
            values["device"] = recipe.machine.device
        actor, critic = (list(sizes) for sizes in networks.widths(recipe))
        deviation = _exponential(model.log_std_init)
        activation = next(name for name, ours in ACTIVATIONS.items() if ours == model.activation)
        if any(name.startswith(("actor.", "critic.")) for name in like):
            for name, sizes in (("actor", actor), ("critic", critic)):
                values |= {
                    f"{name}.hidden_dims": sizes,
                    f"{name}.activation": activation,
                    f"{name}.obs_normalization": normalize,
                }
            cfg = like.get("actor.distribution_cfg")
            if isinstance(cfg, Mapping):
                return values | {"actor.distribution_cfg": {**cfg, "init_std": deviation}}
            return values | {"actor.init_noise_std": deviation}
        values |= {
            "policy.init_noise_std": deviation,
            "policy.actor_hidden_dims": actor,
            "policy.critic_hidden_dims": critic,
            "policy.activation": activation,
        }
        if "empirical_normalization" in like:
            return values | {"empirical_normalization": normalize}
        return values | {
            "policy.actor_obs_normalization": normalize,
            "policy.critic_obs_normalization": normalize,
        }

    def text(self, flat: dict[str, Any], given: dict[str, Any], env: str) -> str:
        """Return the dictionary as JSON."""
        return json.dumps(given, indent=2)


def _dictionary(value: Any, name: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise UserError(f"rsl_rl: {name} must be a dictionary, got {shown(value)}")
    return {str(key): each for key, each in value.items()}


def _full(name: str, table: Table) -> str:
    """Return the key a bare name stands for, where only one table has it."""
    if name in table or "." in name:
        return name
    homes = [f"{part}.{name}" for part in PARTS if f"{part}.{name}" in table]
    return homes[0] if len(homes) == 1 else name


def _schedule(values: dict[str, Any]) -> str:
    """Read what moves the learning rate; without a KL to reach, nothing does."""
    adaptive = values["algorithm.schedule"] == "adaptive"
    return "kl-adaptive" if adaptive and values["algorithm.desired_kl"] is not None else "constant"


def _check(values: dict[str, Any], rows: int) -> None:
    for name in ("num_envs", "num_steps_per_env"):
        positive(name, values[name])
    parts = values["algorithm.num_mini_batches"]
    if parts < 1 or rows % parts:
        raise UserError(
            f"algorithm.num_mini_batches {parts} does not divide the {rows} rows of a rollout "
            f"(num_envs {values['num_envs']} x num_steps_per_env {values['num_steps_per_env']})"
        )


def _networks(values: dict[str, Any], lost: list[str]) -> dict[str, Any]:
    """Read the two MLPs."""
    newest = "actor.hidden_dims" in values
    names = (
        ("actor.hidden_dims", "critic.hidden_dims") if newest
        else ("policy.actor_hidden_dims", "policy.critic_hidden_dims")
    )  # fmt: skip
    shapes = ("actor.activation", "critic.activation") if newest else ("policy.activation",)
    activation = values[shapes[0]]
    if activation not in ACTIVATIONS:
        known = ", ".join(ACTIVATIONS)
        lost.append(f"{shapes[0]} {activation}: Isobatch has {known}; elu is used")
        activation = "elu"
    if values[shapes[-1]] not in (activation, values[shapes[0]]):
        lost.append(f"{shapes[-1]} {values[shapes[-1]]}: Isobatch uses the actor's, {activation}")
    flags = (
        ("actor.obs_normalization", "critic.obs_normalization") if newest
        else ("policy.actor_obs_normalization", "policy.critic_obs_normalization")
    )  # fmt: skip
    seen, judged = (values[name] or values["empirical_normalization"] for name in flags)
    if seen != judged:
        lost.append(f"{flags[1]} {judged}: Isobatch uses the actor's, {seen}")
    return {
        **networks.apart(*(values[name] for name in names)),
        "activation": ACTIVATIONS[activation],
        "log_std_init": math.log(_initial_deviation(values, lost)),
        "normalize_observations": seen,
        **(NORMALIZED if seen else {}),
    }


def _initial_deviation(values: dict[str, Any], lost: list[str]) -> float:
    """Return the actions' standard deviation at the start, wherever the layout has it."""
    if "policy.init_noise_std" in values:
        return values["policy.init_noise_std"]
    given = values["actor.distribution_cfg"]
    if given is not None and not isinstance(given, float | int):
        lost.append(f"actor.distribution_cfg {given}: the policy's distribution; here a Gaussian")
    return given if isinstance(given, float | int) else values["actor.init_noise_std"]


def _exponential(log_std: float) -> float:
    """Return e^x, to the twelve digits that undo the logarithm's rounding."""
    return float(f"{math.exp(log_std):.12g}")
