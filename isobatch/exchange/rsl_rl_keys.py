"""rsl_rl's keys, each with its default and the recipe's field it means, in all its layouts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from isobatch.exchange.table import HALVED, REQUIRED, UNBOUNDED, Key, Table, left_to_us
from isobatch.exchange.values import anything, choice, flag, number, optional, text, whole, widths

WIDTHS = (256, 256, 256)
OPTIMIZERS = ("adam", "adamw", "sgd", "rmsprop")
RECURRENT = "a recurrent network; here it has no memory, and tasks that need one are not learned"
MODEL_LACKS = {
    "class_name": "networks other than two MLPs; here they are two MLPs",
    "state_dependent_std": "a state-dependent standard deviation; here one for all states, so "
    "that exploration does not depend on them",
    **dict.fromkeys(("rnn_type", "rnn_hidden_dim", "rnn_hidden_size", "rnn_num_layers"), RECURRENT),
    "cnn_cfg": "convolutional layers; here images have DQN's",
    "distribution_cfg": "the policy's distribution; here a Gaussian",
    "stochastic": "whether the network's output is sampled; here the policy's is",
}
BOOKS = (
    "save_interval", "experiment_name", "run_name", "logger", "neptune_project", "wandb_project",
    "wandb_kwargs", "resume", "load_run", "load_checkpoint", "checkpoint", "resume_path",
    "class_name", "policy_class_name", "algorithm_class_name", "runner_class_name",
    "check_for_nan", "torch_compile_mode", "store_code_state", "upload_model", "log_interval",
)  # fmt: skip
"""Keys that touch nothing that is learned."""
VERSIONED = {
    "algorithm.num_learning_epochs": 5, "algorithm.num_mini_batches": 4,
    "algorithm.gamma": 0.99, "algorithm.entropy_coef": 0.01, "algorithm.schedule": "adaptive",
}  # fmt: skip
"""Defaults of rsl_rl 4 and newer; before, they were others, and so must be given."""


def _deviation(value: Any) -> float:
    """Read a standard deviation."""
    if number(value) <= 0:
        raise ValueError("must be positive")
    return number(value)


def _groups(value: Any) -> Any:
    """Read the observations of actor and critic, None where they are the same."""
    value = anything(value)
    if isinstance(value, Mapping):
        first, *others = value.values() or [None]
        return None if all(each == first for each in others) else value
    return value


def _distribution(value: Any) -> Any:
    """Read the policy's distribution: the deviation of a Gaussian like that here, else as it is."""
    value = anything(value)
    if not isinstance(value, Mapping):
        return value
    plain = {"class_name": "GaussianDistribution", "learn_std": True}
    if any(value.get(name, each) != each for name, each in plain.items()):
        return value
    try:
        return _deviation(value.get("init_std", 1.0))
    except ValueError as error:
        raise ValueError(f"init_std {error}") from None


def _model(name: str) -> Table:
    """Return the keys of a network that have no counterpart."""
    idle = {
        "class_name": "ActorCritic" if name == "policy" else "MLPModel",
        "state_dependent_std": False, "stochastic": name == "actor",
    }  # fmt: skip
    lacking = {key: Key(anything, idle.get(key), lacks=does) for key, does in MODEL_LACKS.items()}
    if name == "actor":
        lacking["distribution_cfg"] = Key(_distribution, None)
    lacking |= {"init_noise_std": Key(_deviation, 1.0), "noise_std_type": Key(anything, "scalar")}
    return {f"{name}.{key}": value for key, value in lacking.items()}


RUNNER: Table = {
    "num_envs": Key(whole, REQUIRED, "n_envs"),
    "num_steps_per_env": Key(whole, REQUIRED, "n_steps"),
    "max_iterations": Key(optional(whole), None),
    "seed": Key(optional(whole), None, "seed", left_to_us("seed")),
    "device": Key(anything, None),
    "empirical_normalization": Key(flag, False),
    "obs_groups": Key(
        _groups,
        lacks="which observations actor and critic see; here both see all, and what the critic "
        "alone should see helps the actor",
    ),
    "unread": Key(
        optional(anything),
        lacks="classes in other files, which were not read: what they set has its default here",
    ),
    "clip_actions": Key(
        optional(number), lacks="clips the actions; here to their bounds alone, if they have any"
    ),
    **dict.fromkeys(BOOKS, Key(anything)),
}
ALGORITHM: Table = {
    "algorithm.num_learning_epochs": Key(whole, REQUIRED, "n_epochs"),
    "algorithm.num_mini_batches": Key(whole, REQUIRED, "n_minibatches"),
    "algorithm.learning_rate": Key(number, 1e-3, "learning_rate"),
    "algorithm.schedule": Key(choice("adaptive", "fixed"), REQUIRED),
    "algorithm.desired_kl": Key(optional(number), 0.01, "desired_kl", left_to_us("desired_kl")),
    "algorithm.gamma": Key(number, REQUIRED, "gamma"),
    "algorithm.lam": Key(number, 0.95, "gae_lambda"),
    "algorithm.clip_param": Key(number, 0.2, "clip_range"),
    "algorithm.entropy_coef": Key(number, REQUIRED, "ent_coef"),
    "algorithm.value_loss_coef": Key(number, 1.0, "vf_coef", HALVED),
    "algorithm.use_clipped_value_loss": Key(flag, True),
    "algorithm.max_grad_norm": Key(number, 1.0, "max_grad_norm", UNBOUNDED),
    "algorithm.normalize_advantage_per_mini_batch": Key(flag, False),
    "algorithm.optimizer": Key(choice(*OPTIMIZERS), "adam"),
    "algorithm.class_name": Key(choice("PPO", "ppo"), "PPO"),
    "algorithm.rnd_cfg": Key(optional(anything)),
    "algorithm.symmetry_cfg": Key(
        optional(anything),
        lacks="symmetry: data augmentation or a mirror loss; without it, more data are needed, and "
        "gaits may come out lopsided",
    ),
    "algorithm.share_cnn_encoders": Key(
        flag, False, lacks="one encoder for actor and critic; here one each, which learn apart"
    ),
    "algorithm.use_mixed_precision": Key(
        flag, False, lacks="mixed precision (bfloat16); here float32, slower and more exact"
    ),
    "algorithm.grad_reduce_bucket_mb": Key(anything),
}
POLICY: Table = {
    "policy.actor_hidden_dims": Key(widths, WIDTHS),
    "policy.critic_hidden_dims": Key(widths, WIDTHS),
    "policy.activation": Key(text, "elu"),
    "policy.actor_obs_normalization": Key(flag, False),
    "policy.critic_obs_normalization": Key(flag, False),
    **_model("policy"),
}
MODELS: Table = {
    **{
        f"{name}.{key}": each
        for name in ("actor", "critic")
        for key, each in {
            "hidden_dims": Key(widths, WIDTHS),
            "activation": Key(text, "elu"),
            "obs_normalization": Key(flag, False),
        }.items()
    },
    **_model("actor"),
    **_model("critic"),
}
