"""rl_games: its YAML, {params: {algo, model, network, config}}, as in its examples and Isaac Lab.

minibatch_size counts transitions of all environments, out of horizon_length x num_actors; the value
loss has a half (a2c_continuous.py, a2c_discrete.py); minibatches are slices of the environments'
trajectories (common/datasets.py). Flat keys leave out `params.`; those of `network.mlp` are dotted,
other tables below a section are one value.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from isobatch.batch import positive
from isobatch.errors import UserError, shown
from isobatch.exchange import rl_games_networks as networks
from isobatch.exchange.rl_games_networks import dictionary
from isobatch.exchange.table import OURS, REQUIRED, Format, Key, Table, left_to_us
from isobatch.exchange.values import anything, choice, flag, number, optional, whole
from isobatch.recipe import Optimizer, Recipe

PARTS = ("env", "algo", "model", "network", "config")
ALGORITHMS = ("a2c_continuous", "a2c_discrete", "a2c_multi_discrete")
MODELS = ("continuous_a2c_logstd", "continuous_a2c", "discrete_a2c", "multi_discrete_a2c")
CONTINUOUS = {
    "algo": {"name": "a2c_continuous"},
    "model": {"name": "continuous_a2c_logstd"},
    "network": {"name": "actor_critic", "space": networks.SPACE},
    "config": {"grad_norm": 1.0, "clip_actions": False},
}  # fmt: skip
"""What a recipe does not decide and rl_games needs; for continuous actions."""
FIXED = {
    "algo": "ppo", "objective": "clip", "clip_range_schedule": "constant", "optimizer": "adam",
    "adam_eps": 1e-8, "adam_beta1": 0.9, "adam_beta2": 0.999, "minibatches_by": "envs",
    "normalize_rewards": False, "layer_norm": False,
}  # fmt: skip
BOOKS = (
    "name", "env_name", "env_config", "player", "device", "device_name", "score_to_win",
    "save_best_after", "save_frequency", "print_stats", "games_to_track", "use_diagnostics",
    "full_experiment_name", "train_dir", "vecenv_type", "algo_observer", "seq_length", "seq_len",
    "bptt_length", "ppo", "ignore_dead_batches", "zero_rnn_on_done", "use_experimental_cv",
    "torch_compile", "is_train", "log_path", "network_path", "features",
    "bound_loss_type", "adv_rms_momentum",
)  # fmt: skip
"""Keys that touch nothing that is learned, or are said with the key they belong to."""


def _weight(value: Any) -> float | None:
    """Read a coefficient; none and 0 are the same."""
    return optional(number)(value) or None


def _schedule(value: Any) -> str:
    """Read lr_schedule: whatever is neither adaptive nor linear keeps the learning rate."""
    read = str(value).lower()
    return read if read in ("adaptive", "linear") else "none"


def _shaper(value: Any) -> dict[str, Any]:
    """Read how rewards are changed."""
    return {name: each for name, each in dictionary(value).items() if name != "is_torch"}


RUNNER: Table = {
    "seed": Key(optional(whole), None, "seed", left_to_us("seed")),
    **dict.fromkeys(("load_checkpoint", "load_path", "torch_threads", "player"), Key(anything)),
    "pbt": Key(anything, lacks="population-based training"),
    "env.clip_observations": Key(optional(number), lacks="clips the observations"),
    "env.clip_actions": Key(optional(number), lacks="clips the actions"),
    "env.obs_groups": Key(anything, lacks="observations of actor and critic"),
    "env.concate_obs_groups": Key(anything),
    "algo.name": Key(choice(*ALGORITHMS), ALGORITHMS[0]),
    "model.name": Key(choice(*MODELS), MODELS[0]),
}
CONFIG: Table = {
    "config.num_actors": Key(whole, REQUIRED, "n_envs"),
    "config.horizon_length": Key(whole, REQUIRED, "n_steps"),
    "config.minibatch_size": Key(optional(whole), None),
    "config.minibatch_size_per_env": Key(optional(whole), None),
    "config.mini_epochs": Key(whole, REQUIRED, "n_epochs"),
    "config.max_epochs": Key(optional(whole), None),
    "config.max_frames": Key(optional(whole), None),
    "config.learning_rate": Key(number, REQUIRED, "learning_rate"),
    "config.lr_schedule": Key(_schedule, REQUIRED),
    "config.kl_threshold": Key(optional(number), None),
    "config.schedule_type": Key(anything, "per_minibatch"),
    "config.min_lr": Key(number, 1e-6),
    "config.max_lr": Key(number, 1e-2),
    "config.lr_multiplier": Key(
        number, 1.5, lacks="the factor by which the learning rate moves; 1.5 in Isobatch"
    ),
    "config.gamma": Key(number, REQUIRED, "gamma"),
    "config.tau": Key(number, REQUIRED, "gae_lambda"),
    "config.e_clip": Key(number, REQUIRED, "clip_range"),
    "config.entropy_coef": Key(number, REQUIRED, "ent_coef"),
    "config.critic_coef": Key(number, REQUIRED, "vf_coef"),
    "config.clip_value": Key(flag, REQUIRED),
    "config.normalize_advantage": Key(flag, REQUIRED),
    "config.normalize_input": Key(flag, REQUIRED, "normalize_observations"),
    "config.normalize_value": Key(
        flag, False, lacks="normalises the value function's targets by their running mean and "
        "variance, so that its loss has the same size whatever the rewards'"
    ),
    "config.normalize_rms_advantage": Key(
        flag, False, lacks="normalises advantages by moving averages; here each rollout's own"
    ),
    "config.value_bootstrap": Key(
        flag, True, lacks="a time limit counts as the end of the episode; here the value function "
        "estimates what would follow"
    ),
    "config.reward_shaper": Key(_shaper, REQUIRED),
    "config.truncate_grads": Key(flag, False),
    "config.grad_norm": Key(number, REQUIRED),
    "config.bounds_loss_coef": Key(
        _weight, None, lacks="penalises the square of mean actions beyond 1.1, or with "
        "bound_loss_type regularisation of all mean actions"
    ),
    "config.use_smooth_clamp": Key(flag, False, lacks="clips the ratio by a smooth function"),
    "config.weight_decay": Key(_weight, None, lacks="an L2 penalty on the weights"),
    "config.clip_actions": Key(flag, True),
    "config.mixed_precision": Key(flag, False, lacks="bfloat16 in the forward pass"),
    "config.multi_gpu": Key(
        flag, False, lacks="the batch is this one times the number of processes"
    ),
    "config.schedule_entropy": Key(flag, False, lacks="entropy_coef falls with the learning rate"),
    "config.use_action_masks": Key(flag, False, lacks="masks actions that are not allowed"),
    "config.central_value_config": Key(
        optional(anything), lacks="a value function with observations and a network of its own"
    ),
    "config.self_play_config": Key(optional(anything), lacks="self-play"),
    "config.self_play": Key(anything),
    "config.rnd_config": Key(optional(anything), lacks="random network distillation (RND)"),
    **{f"config.{name}": Key(anything) for name in BOOKS},
}  # fmt: skip


class RlGames(Format):
    """The runner's parameters; num_actors must be a number."""

    name = "rl_games"
    summary = "rl_games: its YAML, params with algo, model, network and config"
    budget = "config.max_epochs"
    always = ("config.num_actors", "config.horizon_length", "config.minibatch_size",
              "config.max_epochs")  # fmt: skip
    synonyms = MappingProxyType({"minibatch_size": "config.minibatch_size"})
    has_env = False

    def flatten(self, given: Mapping[str, Any], env: str | None = None) -> dict[str, Any]:
        """Return `section.name`; a bare name finds its section."""
        flat: dict[str, Any] = {}
        for level in (_mapping(given.get("params", {}), "params"), given):
            for name, value in level.items():
                bare = str(name).removeprefix("agent.").removeprefix("params.")
                if bare in PARTS and isinstance(value, Mapping):
                    flat |= _below(bare, value)
                elif bare != "params":
                    flat[bare] = value
        full = {_full(name): value for name, value in flat.items()}
        algorithm = full.get("algo.name")
        if algorithm is not None and algorithm not in ALGORITHMS:
            raise UserError(
                f"rl_games: algo.name must be {', '.join(ALGORITHMS[:-1])} or {ALGORITHMS[-1]}, "
                f"got {shown(algorithm)}"
            )
        return full

    def restore(
        self, flat: dict[str, Any], given: Mapping[str, Any] | None, env: str
    ) -> dict[str, Any]:
        """Put each key into its section below `params`."""
        known = CONTINUOUS if given is None else _mapping(given.get("params", {}), "params")
        layout: dict[str, Any] = copy.deepcopy(dict(known))
        for key, value in flat.items():
            *sections, last = key.split(".")
            home = layout
            for section in sections:
                home = home.setdefault(section, {})
            home[last] = value
        return {"params": layout}

    def table(self, flat: Mapping[str, Any]) -> Table:
        """All keys; a budget in frames is one."""
        table = {**RUNNER, **networks.NETWORK, **CONFIG}
        if flat.get("config.max_frames") is not None:
            table["config.max_epochs"] = Key(optional(whole), -1)
        return table

    def fields(self, values: dict[str, Any], lost: list[str]) -> dict[str, Any]:
        """Read the batch, the budget, the networks and what moves the learning rate."""
        if values["config.num_actors"] == -1:
            raise UserError("config.num_actors is -1, the environments' number: add num_actors=N")
        for name in ("config.num_actors", "config.horizon_length"):
            positive(name, values[name])
        rows = values["config.num_actors"] * values["config.horizon_length"]
        bound = values["config.grad_norm"]
        if values["algo.name"] == "a2c_continuous" and values["config.clip_actions"]:
            lost.append(
                "config.clip_actions True: actions in [-1, 1] are scaled to the environment's "
                "bounds; in Isobatch they are clipped to the bounds"
            )
        _shaped(values["config.reward_shaper"], lost)
        return FIXED | {
            "total_timesteps": _budget(values, rows),
            "n_minibatches": _minibatches(values, rows),
            "clip_range_vf": values["config.e_clip"] if values["config.clip_value"] else None,
            "clip_vf_loss": "max",
            **_learning_rate(values, lost),
            "max_grad_norm": bound if values["config.truncate_grads"] else None,
            "advantage_normalization": (
                "batch" if values["config.normalize_advantage"] else "none"
            ),
            **networks.read(values, lost),
        }

    def values(self, recipe: Recipe, like: Mapping[str, Any]) -> dict[str, Any]:
        """Say the batch, the budget and the networks, in the keys there were."""
        batch, objective, bound = recipe.batch, recipe.objective, recipe.optimizer.max_grad_norm
        values = {
            "config.clip_value": objective.clip_range_vf is not None,
            **_said_rate(recipe.optimizer),
            "config.normalize_advantage": objective.advantage_normalization != "none",
            "config.truncate_grads": bound is not None,
            **({} if bound is None else {"config.grad_norm": bound}),
            "config.reward_shaper": {"scale_value": 1},
            **networks.write(recipe, like),
        }
        per_env = "config.minibatch_size_per_env"
        if like.get("config.minibatch_size") is None and like.get(per_env) is not None and (
            batch.minibatch_size % batch.n_envs == 0
        ):  # fmt: skip
            values[per_env] = batch.minibatch_size // batch.n_envs
        else:
            values["config.minibatch_size"] = batch.minibatch_size
        epochs, rest = divmod(recipe.total_timesteps, batch.rollout_size)
        in_frames = like.get("config.max_frames") is not None
        if in_frames or (rest and like.get("config.max_epochs") is None):
            values["config.max_frames"] = recipe.total_timesteps
        if not in_frames and "config.max_frames" not in values:
            values["config.max_epochs"] = max(1, epochs)
        return values

    def text(self, flat: dict[str, Any], given: dict[str, Any], env: str) -> str:
        """Return the parameters as YAML."""
        import yaml

        return yaml.safe_dump(_plain(given), sort_keys=False, default_flow_style=None).rstrip()


def _learning_rate(values: Mapping[str, Any], lost: list[str]) -> dict[str, Any]:
    """Read what moves the learning rate."""
    schedule = values["config.lr_schedule"]
    if schedule != "adaptive":
        return {"learning_rate_schedule": "linear" if schedule == "linear" else "constant"}
    if values["config.kl_threshold"] is None:
        raise UserError("config.kl_threshold must be given with lr_schedule adaptive")
    if values["config.schedule_type"] == "standard":
        lost.append(
            "config.schedule_type standard: the learning rate moves once an epoch; in Isobatch "
            "before every gradient step"
        )
    return {
        "learning_rate_schedule": "kl-adaptive",
        "desired_kl": values["config.kl_threshold"],
        "min_learning_rate": values["config.min_lr"],
        "max_learning_rate": values["config.max_lr"],
    }


def _said_rate(settings: Optimizer) -> dict[str, Any]:
    """Say what moves the learning rate."""
    if settings.learning_rate_schedule != "kl-adaptive":
        linear = settings.learning_rate_schedule == "linear"
        return {"config.lr_schedule": "linear" if linear else "None"}
    return {
        "config.lr_schedule": "adaptive",
        "config.kl_threshold": settings.desired_kl,
        "config.min_lr": settings.min_learning_rate,
        "config.max_lr": settings.max_learning_rate,
    }


def _mapping(value: Any, name: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise UserError(f"rl_games: {name} must be a dictionary, got {shown(value)}")
    return {str(key): each for key, each in value.items()}


def _below(section: str, content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of a section; network.mlp is dotted, other tables are values."""
    flat: dict[str, Any] = {}
    for name, value in content.items():
        key = f"{section}.{name}"
        if key == "network.mlp":
            flat |= {f"{key}.{k}": each for k, each in _mapping(value, key).items()}
        else:
            flat[key] = value
    return flat


def _full(name: str) -> str:
    """Return the key a bare name stands for: config's, or else the networks'."""
    if "." in name or name in RUNNER:
        return name
    homes = [f"{part}.{name}" for part in ("config", "network", "network.mlp")]
    return next((each for each in homes if each in CONFIG or each in networks.NETWORK), name)


def _minibatches(values: Mapping[str, Any], rows: int) -> int:
    """Return how many minibatches of minibatch_size, or num_actors x that per environment."""
    size, each = values["config.minibatch_size"], values["config.minibatch_size_per_env"]
    if size is None and each is None:
        raise UserError("config.minibatch_size or config.minibatch_size_per_env must be given")
    size = values["config.num_actors"] * each if size is None else size
    if positive("config.minibatch_size", size) > rows or rows % size:
        raise UserError(
            f"config.minibatch_size {size} does not divide the {rows} transitions of a rollout, "
            f"num_actors {values['config.num_actors']} x horizon_length "
            f"{values['config.horizon_length']} (one agent per environment)"
        )
    return rows // size


def _budget(values: Mapping[str, Any], rows: int) -> int:
    """Return the environment steps: iterations x rows, frames, or whichever ends first."""
    epochs, frames = values["config.max_epochs"], values["config.max_frames"]
    limits = [epochs * rows] if epochs is not None and epochs > 0 else []
    limits += [frames] if frames is not None and frames > 0 else []
    return min(limits) if limits else max(1, OURS["total_timesteps"] // rows) * rows


def _shaped(shaper: Mapping[str, Any], lost: list[str]) -> None:
    """Say how rewards are changed."""
    idle = {"scale_value": 1, "shift_value": 0, "log_val": False, "min_val": None, "max_val": None}
    does = {
        "scale_value": "rewards are multiplied by it, and the value loss by its square (unless "
        "normalize_value); normalised advantages do not change",
        "shift_value": "is added to rewards",
        "log_val": "rewards are replaced by their logarithm",
    }
    for name, value in shaper.items():
        if name not in idle:
            raise UserError(f"config.reward_shaper has no {name}")
        if value != idle[name]:
            line = does.get(name, "bounds the rewards")
            lost.append(f"config.reward_shaper {name} {value}: {line}")


def _plain(value: Any) -> Any:
    """Return tables and lists of their own, which YAML writes without references."""
    if isinstance(value, Mapping):
        return {str(name): _plain(each) for name, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value
