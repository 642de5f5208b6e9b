"""openai/ppo-ewma: the arguments of its `train_fn`, and those of `ppo.learn` it leaves alone."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from isobatch.errors import UserError
from isobatch.exchange import procgen
from isobatch.exchange.table import HALVED, Conversion, Format, Key, Table
from isobatch.exchange.values import anything, choice, flag, number, optional, text, whole
from isobatch.recipe import Recipe

UNCAPPED = 1e30
"""The ratio that stands here for no cap, which is 0 there."""
RATIO = Conversion(
    lambda cap: cap if cap > 0 else UNCAPPED, lambda cap: 0.0 if cap >= UNCAPPED else cap
)
FIXED = {
    "encoder": "impala", "init": "reference", "minibatches_by": "envs", "optimizer": "adam",
    "adam_eps": 1e-8, "max_grad_norm": None, "learning_rate_schedule": "constant",
    "clip_range_schedule": "constant", "advantage_normalization": "ewma", "kl_estimator": "squared",
}  # fmt: skip
PHASE = {
    "n_policy_iterations": "n_pi", "n_aux_epochs": "n_aux_epochs", "clone_coef": "beta_clone",
    "aux_learning_rate": "aux_lr",
}  # fmt: skip
BEYOND = ("entcoef", "vfcoef", "rnorm")
"""Arguments of ppo.learn that train_fn does not pass on."""
KEYS: Table = {
    "workers": Key(whole, 1),
    "env_name": Key(text, "coinrun"),
    "distribution_mode": Key(text, "hard"),
    "arch": Key(choice("dual", "shared", "detach"), "dual", "architecture"),
    "interacts_total": Key(whole, 100_000_000, "total_timesteps"),
    "num_envs": Key(whole, 64),
    "nstep": Key(whole, 256, "n_steps"),
    "n_epoch_pi": Key(whole, 1, "n_epochs"),
    "n_epoch_vf": Key(whole, 1),
    "nminibatch": Key(whole, 8, "n_minibatches"),
    "gamma": Key(number, 0.999, "gamma"),
    "lambda_": Key(number, 0.95, "gae_lambda"),
    "lr": Key(number, 5e-4, "learning_rate"),
    "beta1": Key(number, 0.9, "adam_beta1"),
    "beta2": Key(number, 0.999, "adam_beta2"),
    "clip_param": Key(number, 0.2),
    "kl_penalty": Key(number, 0.0),
    "kl_ewma_decay": Key(optional(number), None),
    "adv_ewma_decay": Key(number, 0.0, "advantage_decay"),
    "n_pi": Key(whole, 32),
    "n_aux_epochs": Key(whole, 6),
    "beta_clone": Key(number, 1.0),
    "aux_lr": Key(number, 5e-4),
    "aux_mbsize": Key(number, 4),
    "aux_beta1": Key(number, 0.9),
    "aux_beta2": Key(number, 0.999),
    "vf_true_weight": Key(
        number,
        1.0,
        lacks="coefficient of the value loss in the auxiliary phase; 1 in Isobatch, "
        "which moves the value function faster or slower there",
    ),
    "staleness": Key(whole, 0, "staleness"),
    "staleness_loss": Key(
        choice("decoupled", "behavior", "proximal"), "decoupled", "staleness_loss"
    ),
    "imp_samp_max": Key(number, 100.0, "max_ratio", RATIO),
    "entcoef": Key(number, 0.01, "ent_coef"),
    "vfcoef": Key(number, 0.5, "vf_coef", HALVED),
    "rnorm": Key(flag, True, "normalize_rewards"),
    "log_dir": Key(anything),
    "log_new_eps": Key(anything, False),
    "comm": Key(anything),
}


class PpoEwma(Format):
    """train_fn's arguments; num_envs is each worker's, and `workers` how many there are."""

    name = "ppo-ewma"
    summary = "openai/ppo-ewma: arguments of train_fn, and workers= for those of mpiexec -np"
    budget = "interacts_total"
    always = ("env_name", "distribution_mode", "num_envs", "nstep", "nminibatch", "n_epoch_pi",
              "n_epoch_vf", "lr", "n_pi", "interacts_total")  # fmt: skip

    def table(self, flat: Mapping[str, Any]) -> Table:
        """The arguments."""
        return KEYS

    def fields(self, values: dict[str, Any], lost: list[str]) -> dict[str, Any]:
        """Read which of the four algorithms it is, its objective and its phases."""
        phasic = values["n_pi"] != 0 and values["n_aux_epochs"] != 0
        averaged = values["kl_ewma_decay"] is not None
        fields = FIXED | {
            "env": procgen.env_id(values["env_name"], values["distribution_mode"]),
            "algo": ("ppg" if phasic else "ppo") + ("-ewma" if averaged else ""),
            "n_envs": values["num_envs"] * values["workers"],
            "n_value_epochs": 0,
            **_objective(values, lost),
        }
        if averaged:
            fields["proximal_decay"] = values["kl_ewma_decay"]
        if values["n_epoch_vf"] != values["n_epoch_pi"]:
            fields["n_value_epochs"] = values["n_epoch_vf"]
        if values["rnorm"]:
            fields |= {"reward_gamma": 0.99, "reward_clip": 10.0}
        if phasic:
            fields |= {field: values[name] for field, name in PHASE.items()}
            fields["aux_segments"] = _segments(values, lost)
            betas, own = ((values[f"{a}beta1"], values[f"{a}beta2"]) for a in ("", "aux_"))
            if own != betas:
                lost.append(
                    f"aux_beta1, aux_beta2 {own}: Isobatch uses beta1 and beta2, {betas}, in "
                    "the auxiliary phase too, whose steps are smoothed otherwise"
                )
        return fields

    def values(self, recipe: Recipe, like: Mapping[str, Any]) -> dict[str, Any]:
        """Say the algorithm, its objective and its phases, for as many workers as there were."""
        workers = KEYS["workers"].read(like.get("workers", 1))
        objective, phasic, batch = recipe.objective, recipe.phasic, recipe.batch
        values = {
            "workers": workers,
            "num_envs": _shared(batch.n_envs, workers, "n_envs"),
            "n_epoch_vf": objective.n_value_epochs or batch.n_epochs,
            "clip_param": objective.clip_range if objective.objective == "clip" else 0.0,
            "kl_penalty": objective.kl_coef if objective.objective == "kl" else 0.0,
            "kl_ewma_decay": objective.proximal_decay if recipe.averages_policy else None,
            "adv_ewma_decay": objective.advantage_decay
            if objective.advantage_normalization == "ewma"
            else 0.0,
            "n_pi": 0,
        }
        if (named := procgen.parts(recipe.env)) is not None:
            values["env_name"], values["distribution_mode"] = named
        if recipe.is_phasic:
            values |= {name: recipe.values[field] for field, name in PHASE.items()}
            values |= {
                "aux_lr": phasic.aux_learning_rate or recipe.optimizer.learning_rate,
                "aux_mbsize": _shared(phasic.segments(batch.n_envs), workers, "aux_segments"),
                "aux_beta1": recipe.optimizer.adam_beta1,
                "aux_beta2": recipe.optimizer.adam_beta2,
            }
        return values

    def text(self, flat: dict[str, Any], given: dict[str, Any], env: str) -> str:
        """Return the call of train_fn, whose command line knows only a few of its arguments."""
        apart = ("workers", *BEYOND)
        lines = [f"    {name}={value!r}," for name, value in flat.items() if name not in apart]
        beyond = [name for name in BEYOND if name in flat]
        if beyond:
            shown = ", ".join(f"{name}={flat[name]!r}" for name in beyond)
            lines.append(f"    # train_fn does not take {shown}: add it to its ppo_hps")
        head = ["from ppo_ewma.train import train_fn", ""]
        if flat.get("workers", 1) != 1:
            head.append(f"# run with mpiexec -np {flat['workers']}; num_envs is each worker's")
        return "\n".join([*head, "train_fn(", *lines, ")"])


def _objective(values: dict[str, Any], lost: list[str]) -> dict[str, Any]:
    """Read clipping and the KL penalty, of which there both may be on and here one is."""
    clip, penalty = values["clip_param"], values["kl_penalty"]
    if clip > 0:
        if penalty:
            lost.append(
                f"kl_penalty {penalty}: a KL penalty and clipping; here clipping alone, which lets "
                "the policy move further"
            )
        return {"objective": "clip", "clip_range": clip}
    # Without either the ratio is free, which a penalty of weight 0 says.
    return {"objective": "kl", "kl_coef": penalty}


def _segments(values: dict[str, Any], lost: list[str]) -> int:
    size = values["aux_mbsize"]
    if math.isinf(size):
        raise UserError(f"aux_mbsize must be a finite number, got {size}")
    if size < 1 or size != int(size):
        lost.append(
            f"aux_mbsize {size}: not whole segments; Isobatch uses one or more, so that "
            "auxiliary gradients have less noise and there are fewer of them"
        )
    return max(1, int(size)) * values["workers"]


def _shared(count: int, workers: int, name: str) -> int:
    """Return a worker's share of a number that must divide."""
    if workers < 1 or count % workers:
        raise UserError(f"{name} {count} is not divisible by {workers} workers")
    return count // workers
