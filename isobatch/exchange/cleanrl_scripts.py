"""CleanRL's scripts: the arguments of each, its defaults, and what it fixes in its code."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from isobatch.exchange.others import OFF_POLICY
from isobatch.exchange.table import SAME, UNBOUNDED, Conversion, Key, Table
from isobatch.exchange.values import anything, flag, number, optional, text, whole
from isobatch.exchange.wrappers import BY_STEP

KL_SLACK = 1.5
"""Updates stop here past so many times target_kl, there past target_kl itself."""
TARGET_KL = Conversion(
    lambda there: None if there is None else there / KL_SLACK,
    # Twelve digits undo the division's rounding.
    lambda here: None if here is None else float(f"{here * KL_SLACK:.12g}"),
)
WITHOUT_HALF = Conversion(
    lambda bound: None if (found := UNBOUNDED.here(bound)) is None else found / 2,
    lambda bound: UNBOUNDED.there(None if bound is None else bound * 2),
)
"""A bound on the gradient of a squared error that there lacks the half it has here."""

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
"""Those of ppo.py."""


def _without(*names: str) -> dict[str, Key]:
    return {name: key for name, key in KEYS.items() if name not in names}


PPG = _without("update_epochs", "norm_adv") | {
    "adv_norm_fullbatch": Key(flag, True),
    "n_iteration": Key(whole, 32, "n_policy_iterations"),
    "e_policy": Key(whole, 1, "n_epochs"),
    "v_value": Key(whole, 1),
    "e_auxiliary": Key(whole, 6, "n_aux_epochs"),
    "beta_clone": Key(number, 1.0, "clone_coef"),
    "num_aux_rollouts": Key(whole, 4),
    "n_aux_grad_accum": Key(whole, 1),
    "num_phases": Key(whole, 0),
    "aux_batch_rollouts": Key(whole, 0),
}
PQN = _without(
    "gae_lambda", "norm_adv", "clip_coef", "clip_vloss", "ent_coef", "vf_coef", "target_kl"
) | {
    "max_grad_norm": Key(number, 10.0, "max_grad_norm", WITHOUT_HALF),
    "start_e": Key(number, 1.0, "epsilon_start"),
    "end_e": Key(number, 0.05, "epsilon_end"),
    "exploration_fraction": Key(number, 0.5, "epsilon_fraction"),
    "q_lambda": Key(number, 0.65, "gae_lambda"),
}
MULTIGPU = {**KEYS} | {
    "local_num_envs": Key(whole, 8),
    "num_envs": Key(whole, 0),
    "world_size": Key(whole, 0),
    "local_batch_size": Key(whole, 0),
    "local_minibatch_size": Key(whole, 0),
    "device_ids": Key(anything),
    "backend": Key(anything, "gloo"),
}
RPO = {**KEYS} | {
    "rpo_alpha": Key(
        number, 0.5, off=0.0,
        lacks="random shifts of the actions' mean in every update (RPO); without them this is "
        "PPO, whose policy may become narrow sooner",
    ),
}  # fmt: skip
ISAAC = {**KEYS, "reward_scaler": Key(anything, 1), "record_video_step_frequency": Key(anything)}


class Script(NamedTuple):
    """One of CleanRL's files: where its defaults differ from ppo.py's, and what it fixes."""

    defaults: dict[str, Any]
    fixed: dict[str, Any]
    keys: Table = KEYS
    maker: Literal["gymnasium", "envpool", "procgen"] = "gymnasium"
    """Whose ids its env_id is one of."""
    unread: tuple[str, ...] = ()
    """Arguments that it has and does not use."""
    differs: tuple[str, ...] = ()
    """What it does otherwise than Isobatch, whatever its arguments are."""
    written: bool = False
    """Whether recipes are written as its arguments."""


FIXED = {
    "algo": "ppo", "objective": "clip", "clip_range_schedule": "constant", "optimizer": "adam",
    "adam_eps": 1e-5, "adam_beta1": 0.9, "adam_beta2": 0.999,
    "hidden_sizes": (64, 64), "activation": "tanh", "minibatches_by": "samples",
}  # fmt: skip
"""What all scripts fix that do not say otherwise."""
MLP = {
    "encoder": "auto", "architecture": "dual", "normalize_observations": False,
    "normalize_rewards": False, "episodic_life": False, "sign_rewards": False,
    "init": "orthogonal", "log_std_init": 0.0,
}  # fmt: skip
NORMALIZED = {"normalize_observations": True, "normalize_rewards": True, **BY_STEP}
GAMES = {
    "encoder": "nature", "architecture": "shared", "episodic_life": True, "sign_rewards": True
}  # fmt: skip
ATARI = {
    "env_id": "BreakoutNoFrameskip-v4", "total_timesteps": 10_000_000, "num_envs": 8,
    "clip_coef": 0.1,
}  # fmt: skip
CONTINUOUS = {
    "env_id": "HalfCheetah-v4", "total_timesteps": 1_000_000, "learning_rate": 3e-4,
    "num_envs": 1, "num_steps": 2048, "num_minibatches": 32, "update_epochs": 10, "ent_coef": 0.0,
}  # fmt: skip
PROCGEN = {
    "env_id": "starpilot", "total_timesteps": 25_000_000, "learning_rate": 5e-4, "num_envs": 64,
    "num_steps": 256, "anneal_lr": False, "gamma": 0.999, "num_minibatches": 8,
}  # fmt: skip
QLEARNING = {
    # mse_loss has no half: its gradients are twice those here, and epsilon goes with them.
    "algo": "pqn", "optimizer": "radam", "adam_eps": 5e-9, "layer_norm": True,
    "activation": "relu", "hidden_sizes": (120, 84),
}  # fmt: skip
LAST_LAYER = (
    "the last layer starts with gain sqrt 2 there and 1 here: the first action values are 0.7 "
    "times as large"
)
JAX = Script(
    ATARI | {"env_id": "Breakout-v5"},
    MLP | GAMES,
    maker="envpool",
    unread=("clip_vloss", "target_kl"),
)
SCRIPTS = {
    "ppo": Script({}, MLP, written=True),
    "ppo_atari": Script(ATARI, MLP | GAMES, written=True),
    "ppo_continuous_action": Script(
        CONTINUOUS, MLP | NORMALIZED, written=True
    ),
    "ppo_procgen": Script(
        PROCGEN | {"update_epochs": 3},
        # layer_init is for its heads alone.
        MLP | {
            "encoder": "impala", "architecture": "shared", "normalize_rewards": True, **BY_STEP,
            "init": "torch-encoder",
        },
        maker="procgen", written=True,
    ),
    "ppg_procgen": Script(
        PROCGEN,
        MLP | {
            "algo": "ppg", "encoder": "impala", "architecture": "detach", "init": "reference",
            "normalize_rewards": True, **BY_STEP, "adam_eps": 1e-8, "n_value_epochs": 0,
            "aux_learning_rate": 0.0,
        },
        PPG, "procgen", written=True,
        differs=(
            "both phases share one Adam there; here the auxiliary phase has its own, so that its "
            "first steps follow its own gradients",
        ),
    ),
    "pqn": Script({}, MLP | QLEARNING, PQN, differs=(LAST_LAYER,), written=True),
    "pqn_atari_envpool": Script(
        {
            "env_id": "Breakout-v5", "total_timesteps": 10_000_000, "num_envs": 8,
            "end_e": 0.01, "exploration_fraction": 0.1,
        },
        MLP | GAMES | QLEARNING,
        PQN, "envpool", written=True,
        differs=(
            LAST_LAYER,
            "layer normalisation after convolutions has a weight for each place there, for each "
            "channel here",
        ),
    ),
    "ppo_atari_envpool": Script(ATARI | {"env_id": "Breakout-v5"}, MLP | GAMES, maker="envpool"),
    "ppo_atari_envpool_xla_jax": JAX,
    "ppo_atari_envpool_xla_jax_scan": JAX,
    "ppo_atari_multigpu": Script(ATARI | {"num_envs": 0}, MLP | GAMES, MULTIGPU),
    "rpo_continuous_action": Script(
        CONTINUOUS | {"total_timesteps": 8_000_000},
        MLP | NORMALIZED,
        RPO,
    ),
    "ppo_continuous_action_isaacgym": Script(
        {
            "env_id": "Ant", "total_timesteps": 30_000_000, "learning_rate": 0.0026,
            "num_envs": 4096, "num_steps": 16, "anneal_lr": False, "num_minibatches": 2,
            "clip_vloss": False, "ent_coef": 0.0, "vf_coef": 2.0, "max_grad_norm": 1.0,
        },
        MLP | {"hidden_sizes": (256, 256)},
        ISAAC, unread=("reward_scaler",),
    ),
}  # fmt: skip
ABSENT = {
    "ppo_rnd_envpool": "rewards novelty (RND), which no recipe can say",
    "ppo_atari_lstm": "needs a recurrent network",
    "pqn_atari_envpool_lstm": "needs a recurrent network",
    "ppo_trxl": "needs a network with memory (Transformer-XL)",
    "ppo_pettingzoo_ma_atari": "trains several agents at once",
}
"""Scripts that are refused, and why; those of other algorithms are refused by these names."""
ELSEWHERE = ("c51", "ddpg", "dqn", "qdagger", "rainbow", "sac", "td3")


def absent(name: str) -> str:
    """Return why a script of CleanRL's is not read, '' where it is not known to be one."""
    if name.split("_")[0] in ELSEWHERE:
        return OFF_POLICY
    return ABSENT.get(name, "")
