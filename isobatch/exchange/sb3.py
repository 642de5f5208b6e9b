"""Stable-Baselines3: the keyword arguments of PPO and A2C, and the number of environments."""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from isobatch.batch import Batch
from isobatch.errors import UserError
from isobatch.exchange import atari, networks, others
from isobatch.exchange.table import (
    HALVED,
    UNBOUNDED,
    Conversion,
    Format,
    Key,
    Table,
    left_to_us,
)
from isobatch.exchange.values import (
    Scheduled,
    anything,
    choice,
    flag,
    number,
    optional,
    options,
    schedule,
    whole,
)
from isobatch.recipe import Recipe
from isobatch.registry import ONE_STEP

ALIASES = {"n_timesteps": "total_timesteps"}
DEVICES = ("auto", "cpu", "cuda")
FIXED = {"objective": "clip", "optimizer": "adam", "minibatches_by": "samples"}
ONCE_PER_ROLLOUT = Conversion(
    lambda steps: steps if steps > 0 else -1, lambda steps: steps
)  # fmt: skip
"""SB3 draws new matrices once per rollout if the number is 0 or negative."""

FIRST: Table = {
    "algo": Key(choice("ppo", "a2c"), "ppo"),
    "policy": Key(choice("MlpPolicy", "CnnPolicy", "MultiInputPolicy"), "MlpPolicy"),
    "env": Key(anything),
    "n_envs": Key(whole, 1, "n_envs"),
    "total_timesteps": Key(optional(whole), None, "total_timesteps", left_to_us("total_timesteps")),
}
REST: Table = {
    "gamma": Key(number, 0.99, "gamma"),
    "ent_coef": Key(number, 0.0, "ent_coef"),
    "vf_coef": Key(number, 0.5, "vf_coef", HALVED),
    "max_grad_norm": Key(number, 0.5, "max_grad_norm", UNBOUNDED),
    "use_sde": Key(flag, False, "use_sde"),
    "sde_sample_freq": Key(whole, -1, "sde_sample_freq", ONCE_PER_ROLLOUT),
    "rollout_buffer_class": Key(
        optional(anything), lacks="another rollout buffer class; here all that is collected is used"
    ),
    "rollout_buffer_kwargs": Key(
        optional(anything), lacks="arguments of the rollout buffer, which is not used here"
    ),
    "policy_kwargs": Key(optional(options), None),
    "seed": Key(optional(whole), None, "seed", left_to_us("seed")),
    "device": Key(anything, "auto"),
    "stats_window_size": Key(anything, 100),
    "tensorboard_log": Key(anything),
    "verbose": Key(anything, 0),
    "_init_setup_model": Key(anything, True),
}
PPO: Table = {
    **FIRST,
    "learning_rate": Key(schedule, Scheduled(3e-4)),
    "n_steps": Key(whole, 2048, "n_steps"),
    "batch_size": Key(whole, 64),
    "n_epochs": Key(whole, 10, "n_epochs"),
    "gae_lambda": Key(number, 0.95, "gae_lambda"),
    "clip_range": Key(schedule, Scheduled(0.2)),
    "clip_range_vf": Key(optional(schedule), None),
    "normalize_advantage": Key(flag, True),
    "target_kl": Key(optional(number), None, "target_kl"),
    **REST,
}
A2C: Table = {
    **FIRST,
    "learning_rate": Key(schedule, Scheduled(7e-4)),
    "n_steps": Key(whole, 5, "n_steps"),
    "gae_lambda": Key(number, 1.0, "gae_lambda"),
    "normalize_advantage": Key(flag, False),
    "use_rms_prop": Key(flag, True),
    "rms_prop_eps": Key(number, 1e-5),
    **REST,
}


class Sb3(Format):
    """PPO's or A2C's keyword arguments, with `algo`, `n_envs`, `env` and `total_timesteps`."""

    name = "sb3"
    summary = "Stable-Baselines3: keyword arguments of PPO or, with algo=a2c, A2C, and n_envs"
    budget = "total_timesteps"
    always = ("n_envs", "n_steps", "batch_size", "n_epochs", "learning_rate", "total_timesteps")
    aliases = ALIASES
    synonyms = MappingProxyType({"minibatch_size": "batch_size", "learning_rate": "learning_rate"})

    def flatten(self, given: Mapping[str, Any], env: str | None = None) -> dict[str, Any]:
        """Take the budget by either of its names, and refuse other algorithms."""
        for name, alias in self.aliases.items():
            if name in given and alias in given:
                raise UserError(f"{self.name}: {name} and {alias} are the same; give one")
        others.refuse_algorithm(given.get("algo"), f"{self.name}: algo {given.get('algo')}")
        for name in given:
            others.refuse_key(name, self.name)
            if name in A2C and name not in PPO and given.get("algo") != "a2c":
                raise UserError(f"{self.name}: {name} is an argument of A2C: add algo=a2c")
        return {self.aliases.get(name, name): value for name, value in given.items()}

    def table(self, flat: Mapping[str, Any]) -> Table:
        """PPO's keys, or A2C's where it is asked for."""
        return A2C if flat.get("algo") == "a2c" else PPO

    def fields(self, values: dict[str, Any], lost: list[str]) -> dict[str, Any]:
        """Read batch, schedules, optimiser and networks."""
        rate = values["learning_rate"]
        fields = {
            **FIXED,
            "algo": values["algo"],
            "learning_rate": rate.start,
            "learning_rate_schedule": rate.schedule,
            **networks.read(values["policy"], values["policy_kwargs"], lost),
        }
        if isinstance(values["env"], str):
            fields["env"] = values["env"]
        device = values.get("device", "auto")
        if device in DEVICES:
            fields["device"] = device
        else:
            lost.append(f"device {device}: Isobatch has {', '.join(DEVICES)}")
        return fields | (_a2c if values["algo"] == "a2c" else _ppo)(values, lost)

    def values(self, recipe: Recipe, like: Mapping[str, Any]) -> dict[str, Any]:
        """Say batch, schedules, optimiser and networks."""
        objective, optimizer = recipe.objective, recipe.optimizer
        a2c = recipe.algo == "a2c"
        policy, kwargs = networks.write(recipe)
        values = {
            "algo": "a2c" if a2c else "ppo",
            "policy": policy,
            "policy_kwargs": kwargs,
            "device": recipe.machine.device,
            "learning_rate": _said(
                Scheduled(
                    optimizer.learning_rate, optimizer.learning_rate_schedule == "linear"
                )
            ),
            "normalize_advantage": objective.advantage_normalization != "none",
        }  # fmt: skip
        if not recipe.env.startswith("python:"):
            values["env"] = atari.there(recipe)
        if a2c:
            rms = optimizer.optimizer == "rmsprop"
            return values | {
                "use_rms_prop": rms,
                "rms_prop_eps": optimizer.adam_eps if rms else 1e-5,
            }
        linear, values_by = objective.clip_range_schedule == "linear", objective.clip_range_vf
        return values | {
            "batch_size": recipe.batch.minibatch_size,
            "clip_range": _said(Scheduled(objective.clip_range, linear)),
            "clip_range_vf": None if values_by is None else _said(Scheduled(values_by, linear)),
        }

    def patch(self, name: str, given: Any, old: Any, new: Any) -> Any:
        """Change in policy_kwargs only what moved."""
        if name != "policy_kwargs" or given is None:
            return new
        before, after = (options(each or {}) for each in (old, new))
        kept = {k: v for k, v in options(given).items() if k in after or k not in before}
        moved = {k: v for k, v in after.items() if v != before.get(k)}
        return networks.as_text(kept | moved)

    def text(self, flat: dict[str, Any], given: dict[str, Any], env: str) -> str:
        """Return Python that builds the model and trains it."""
        maker = (
            "make_env" if env.startswith("python:") else json.dumps(env.removeprefix("gymnasium:"))
        )
        algo = flat.get("algo", "ppo").upper()
        apart = ("algo", "policy", "env", "n_envs", "total_timesteps")
        lines = [
            f"model = {algo}(",
            f"    {json.dumps(flat.get('policy', 'MlpPolicy'))},",
            f"    make_vec_env({maker}, n_envs={flat.get('n_envs', 1)}),",
            *(
                f"    {name}={_python(name, value)},"
                for name, value in flat.items()
                if name not in apart
            ),
            ")",
        ]
        if "total_timesteps" in flat:
            lines.append(f"model.learn(total_timesteps={flat['total_timesteps']})")
        imports = [
            f"from stable_baselines3 import {algo}",
            "from stable_baselines3.common.env_util import make_vec_env",
        ]
        if "nn." in str(flat.get("policy_kwargs")):
            imports.append("from torch import nn")
        return "\n".join([*imports, "", *lines])


def _ppo(values: dict[str, Any], lost: list[str]) -> dict[str, Any]:
    batch_size, rows = values["batch_size"], values["n_envs"] * values["n_steps"]
    if batch_size > rows > 0:
        lost.append(
            f"batch_size {batch_size}: more than the {rows} rows of a rollout; the rollout is one "
            "minibatch"
        )
        batch_size = rows
    batch = Batch.from_sb3(
        n_envs=values["n_envs"],
        n_steps=values["n_steps"],
        batch_size=batch_size,
        n_epochs=values["n_epochs"],
    )
    clip = values["clip_range"]
    return {
        "n_minibatches": batch.n_minibatches,
        "clip_range": clip.start,
        "clip_range_schedule": clip.schedule,
        **_value_clipping(values["clip_range_vf"], clip, lost),
        "advantage_normalization": "minibatch" if values["normalize_advantage"] else "none",
        **networks.adam(values["policy_kwargs"], lost),
    }


def _value_clipping(own: Scheduled | None, clip: Scheduled, lost: list[str]) -> dict[str, Any]:
    """Read clip_range_vf, which follows clip_range's schedule here."""
    if own is None:
        return {}
    if own.linear != clip.linear:
        lost.append(
            f"clip_range_vf {_said(own)}: a {own.schedule} schedule; in Isobatch it follows "
            f"clip_range's, {clip.schedule}"
        )
    return {"clip_range_vf": own.start, "clip_vf_loss": "clipped"}


def _a2c(values: dict[str, Any], lost: list[str]) -> dict[str, Any]:
    fields = {
        **ONE_STEP,
        "advantage_normalization": "batch" if values["normalize_advantage"] else "none",
    }
    if not values["use_rms_prop"]:
        return fields | networks.adam(values["policy_kwargs"], lost)
    kwargs = values["policy_kwargs"] or {}
    if "optimizer_kwargs" in kwargs:
        lost.append(
            f"policy_kwargs optimizer_kwargs {kwargs['optimizer_kwargs']}: arguments of the "
            "optimiser"
        )
    return fields | {
        "optimizer": "rmsprop", "rms_decay": 0.99, "adam_eps": values["rms_prop_eps"]
    }  # fmt: skip


def _said(value: Scheduled) -> Any:
    """Return a number, or the zoo's lin_X."""
    return f"lin_{value.start!r}" if value.linear else value.start


def _python(name: str, value: Any) -> str:
    if name == "policy_kwargs" and value is not None:
        return value if isinstance(value, str) else networks.as_text(options(value))
    if isinstance(value, str) and value.startswith("lin_"):
        return f"lambda remaining: remaining * {value[4:]}"
    return 'float("inf")' if value == float("inf") else repr(value)
