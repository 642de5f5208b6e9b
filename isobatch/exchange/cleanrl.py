"""CleanRL: the arguments of its ppo scripts, from args.json or the command line."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any, NamedTuple

from isobatch.batch import Batch
from isobatch.errors import UserError
from isobatch.exchange import procgen
from isobatch.exchange.table import SAME, UNBOUNDED, Conversion, Format, Key, Table
from isobatch.exchange.values import anything, flag, number, optional, text, whole
from isobatch.recipe import Recipe

KL_SLACK = 1.5
"""Updates stop here past so many times target_kl, there past target_kl itself."""
TARGET_KL = Conversion(
    lambda there: None if there is None else there / KL_SLACK,
    # Twelve digits undo the division's rounding.
    lambda here: None if here is None else float(f"{here * KL_SLACK:.12g}"),
)
MLP = {
    "encoder": "auto", "architecture": "dual", "normalize_observations": False,
    "normalize_rewards": False, "episodic_life": False, "sign_rewards": False,
    "init": "orthogonal", "log_std_init": 0.0,
}  # fmt: skip
FIXED = {
    "algo": "ppo", "objective": "clip", "clip_range_schedule": "constant", "optimizer": "adam",
    "adam_eps": 1e-5, "adam_beta1": 0.9, "adam_beta2": 0.999,
    "hidden_sizes": (64, 64), "activation": "tanh", "minibatches_by": "samples",
}  # fmt: skip


class Script(NamedTuple):
    """One of CleanRL's files: where its defaults differ from ppo.py's, and what it fixes."""

    defaults: dict[str, Any]
    fixed: dict[str, Any]


SCRIPTS = {
    "ppo": Script({}, MLP),
    "ppo_atari": Script(
        {
            "env_id": "BreakoutNoFrameskip-v4", "total_timesteps": 10_000_000, "num_envs": 8,
            "clip_coef": 0.1,
        },
        MLP | {
            "encoder": "nature", "architecture": "shared", "episodic_life": True,
            "sign_rewards": True,
        },
    ),
    "ppo_continuous_action": Script(
        {
            "env_id": "HalfCheetah-v4", "total_timesteps": 1_000_000, "learning_rate": 3e-4,
            "num_envs": 1, "num_steps": 2048, "num_minibatches": 32, "update_epochs": 10,
            "ent_coef": 0.0,
        },
        MLP | {"normalize_observations": True, "normalize_rewards": True},
    ),
    "ppo_procgen": Script(
        {
            "env_id": "starpilot", "total_timesteps": 25_000_000, "learning_rate": 5e-4,
            "num_envs": 64, "num_steps": 256, "anneal_lr": False, "gamma": 0.999,
            "num_minibatches": 8, "update_epochs": 3,
        },
        # layer_init is for its heads alone.
        MLP | {
            "encoder": "impala", "architecture": "shared", "normalize_rewards": True,
            "init": "torch-encoder",
        },
    ),
}  # fmt: skip
KEYS: Table = {
    "script": Key(optional(text)),
    "exp_name": Key(optional(text)),
    "env_id": Key(text, "CartPole-v1"),
    "total_timesteps": Key(whole, 500_000, "total_timesteps"),
    "num_envs": Key(whole, 4, "n_envs"),
    "num_steps": Key(whole, 128, "n_steps"),
    "num_minibatches": Key(whole, 4, "n_minibatches"),
    "update_epochs": Key(whole, 4, "n_epochs"),
    "learning_rate": Key(number, 2.5e-4, "learning_rate"),
    "anneal_lr": Key(flag, True),
    "gamma": Key(number, 0.99, "gamma"),
    "gae_lambda": Key(number, 0.95, "gae_lambda"),
    "norm_adv": Key(flag, True),
    "clip_coef": Key(number, 0.2, "clip_range"),
    "clip_vloss": Key(flag, True),
    "ent_coef": Key(number, 0.01, "ent_coef"),
    "vf_coef": Key(number, 0.5, "vf_coef", SAME),
    "max_grad_norm": Key(number, 0.5, "max_grad_norm", UNBOUNDED),
    "target_kl": Key(optional(number), None, "target_kl", TARGET_KL),
    "seed": Key(whole, 1, "seed"),
    "cuda": Key(flag, True),
    "batch_size": Key(whole, 0),
    "minibatch_size": Key(whole, 0),
    "num_iterations": Key(whole, 0),
    **dict.fromkeys(
        (
            "torch_deterministic", "track", "wandb_project_name", "wandb_entity", "capture_video",
            "save_model", "upload_model", "hf_entity",
        ),
        Key(anything),
    ),
}  # fmt: skip


class CleanRl(Format):
    """The Args of ppo.py, ppo_atari.py, ppo_continuous_action.py and ppo_procgen.py.

    The script, whose defaults and networks hold, is `script` or else `exp_name`.
    """

    name = "cleanrl"
    summary = f"CleanRL: arguments of {', '.join(SCRIPTS)}"
    budget = "total_timesteps"
    always = ("exp_name", "env_id", "total_timesteps", "num_envs", "num_steps", "num_minibatches",
              "update_epochs", "learning_rate")  # fmt: skip
    derived = ("batch_size", "minibatch_size", "num_iterations")
    script = "script"

    def table(self, flat: Mapping[str, Any]) -> Table:
        """The arguments, with the script's defaults."""
        defaults = SCRIPTS[_script(flat)].defaults
        return {
            name: key._replace(default=defaults.get(name, key.default))
            for name, key in KEYS.items()
        }

    def fields(self, values: dict[str, Any], lost: list[str]) -> dict[str, Any]:
        """Read what the script fixes, and check what it works out itself."""
        script = _script(values)
        named = values["script"] or values["exp_name"]
        if named is not None and named not in SCRIPTS:
            lost.append(
                f"script {named}: unknown; ppo.py's defaults and networks are used "
                f"(script= may be {', '.join(SCRIPTS)})"
            )
        _check(values)
        if values["target_kl"] is not None:
            lost.append(
                "target_kl: checked after each epoch; in Isobatch before each gradient step"
            )
        fixed = FIXED | SCRIPTS[script].fixed
        if fixed["normalize_rewards"]:
            fixed |= {"reward_gamma": values["gamma"], "reward_clip": 10.0}
        env = values["env_id"]
        return fixed | {
            "env": procgen.env_id(env, "easy") if script == "ppo_procgen" else env,
            "learning_rate_schedule": "linear" if values["anneal_lr"] else "constant",
            "clip_range_vf": values["clip_coef"] if values["clip_vloss"] else None,
            "advantage_normalization": "minibatch" if values["norm_adv"] else "none",
            "device": "auto" if values["cuda"] else "cpu",
        }

    def values(self, recipe: Recipe, like: Mapping[str, Any]) -> dict[str, Any]:
        """Say the script that fixes most of the recipe, and the switches."""
        script = _script(like) if like else _closest(recipe)
        env = recipe.env
        if script == "ppo_procgen":
            env = (procgen.parts(env) or (env,))[0]
        return ({} if env.startswith("python:") else {"env_id": env}) | {
            "exp_name": script,
            "anneal_lr": recipe.optimizer.learning_rate_schedule == "linear",
            "clip_vloss": recipe.objective.clip_range_vf is not None,
            "norm_adv": recipe.objective.advantage_normalization != "none",
            "cuda": recipe.machine.device != "cpu",
        }

    def text(self, flat: dict[str, Any], given: dict[str, Any], env: str) -> str:
        """Return the command that runs the script."""
        script = _script(flat)
        words = ["python", f"cleanrl/{script}.py"]
        for name, value in flat.items():
            dashed = name.replace("_", "-")
            if isinstance(value, bool):
                words.append(f"--{dashed}" if value else f"--no-{dashed}")
            elif value not in (None, "", script) and name != "script":
                words += [f"--{dashed}", shlex.quote(str(value))]
        return " ".join(words)


def _script(flat: Mapping[str, Any]) -> str:
    """Return the script whose defaults hold."""
    named = flat.get("script") or flat.get("exp_name")
    return named if isinstance(named, str) and named in SCRIPTS else "ppo"


def _closest(recipe: Recipe) -> str:
    here = recipe.values

    def agreement(name: str) -> int:
        return sum(here[field] == value for field, value in SCRIPTS[name].fixed.items())

    return max(SCRIPTS, key=agreement)


def _check(values: dict[str, Any]) -> None:
    """Refuse what cannot be: parts that do not divide, and sums that are not the script's."""
    batch = Batch.from_cleanrl(
        num_envs=values["num_envs"],
        num_steps=values["num_steps"],
        num_minibatches=values["num_minibatches"],
        update_epochs=values["update_epochs"],
    )
    if batch.rollout_size % batch.n_minibatches:
        raise UserError(
            f"num_minibatches {batch.n_minibatches} does not divide the {batch.rollout_size} rows "
            f"of a rollout (num_envs {batch.n_envs} x num_steps {batch.n_steps})"
        )
    due = {
        "batch_size": batch.rollout_size,
        "minibatch_size": batch.minibatch_size,
        "num_iterations": values["total_timesteps"] // batch.rollout_size,
    }
    for name, value in due.items():
        if values[name] not in (0, value):
            raise UserError(
                f"{name} {values[name]} does not agree with the other arguments, "
                f"which make it {value}"
            )
