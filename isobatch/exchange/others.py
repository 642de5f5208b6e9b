"""Algorithms of other libraries that are not here, by name and by what only they have."""

from __future__ import annotations

from typing import Any

from isobatch.errors import UserError

OFF_POLICY = "learns off-policy, from a replay buffer"
ALGORITHMS = {
    "sac": ("SAC", OFF_POLICY), "td3": ("TD3", OFF_POLICY), "ddpg": ("DDPG", OFF_POLICY),
    "dqn": ("DQN", OFF_POLICY), "qrdqn": ("QR-DQN", OFF_POLICY), "tqc": ("TQC", OFF_POLICY),
    "crossq": ("CrossQ", OFF_POLICY), "her": ("HER", OFF_POLICY),
    "c51": ("C51", OFF_POLICY), "rainbow": ("Rainbow", OFF_POLICY),
    "qdagger": ("QDagger", OFF_POLICY),
    "trpo": ("TRPO", "takes trust-region steps by conjugate gradients"),
    "ars": ("ARS", "searches the weights at random, without gradients"),
    "ppo_lstm": ("recurrent PPO", "needs a recurrent network"),
}  # fmt: skip
"""By the name of their files: the name they go by, and why they are not here."""
KEYS = {
    **dict.fromkeys(
        (
            "buffer_size", "learning_starts", "tau", "train_freq", "gradient_steps",
            "action_noise", "noise_type", "noise_std", "replay_buffer_class",
            "replay_buffer_kwargs", "optimize_memory_usage", "target_update_interval",
            "target_entropy", "use_sde_at_warmup", "policy_delay", "target_policy_noise",
            "target_noise_clip", "exploration_initial_eps", "exploration_final_eps",
            "exploration_fraction", "top_quantiles_to_drop_per_net",
        ),
        "off-policy algorithms such as SAC, TD3 and DQN",
    ),
    **dict.fromkeys(
        ("model_class", "goal_selection_strategy", "n_sampled_goal", "online_sampling",
         "max_episode_length"), "HER",
    ),
    **dict.fromkeys(
        ("cg_max_steps", "cg_damping", "line_search_shrinking_factor", "line_search_max_iter",
         "n_critic_updates", "sub_sampling_factor"), "TRPO",
    ),
    **dict.fromkeys(
        ("n_delta", "n_top", "delta_std", "zero_policy", "alive_bonus_offset"), "ARS",
    ),
}  # fmt: skip
"""Arguments in Stable-Baselines3 and its zoo that neither PPO nor A2C has, and who has them."""


def refuse_algorithm(name: Any, place: str) -> None:
    """Refuse the name of an algorithm that is not here; `place` is where it stands."""
    key = name.lower() if isinstance(name, str) else ""
    if key in ALGORITHMS:
        title, why = ALGORITHMS[key]
        raise UserError(f"{place} is for {title}, which {why}: Isobatch imports PPO and A2C")


def refuse_key(name: str, format: str) -> None:
    """Refuse a key that only algorithms have which are not here."""
    if name in KEYS:
        raise UserError(
            f"{format}: {name} is an argument of {KEYS[name]}: Isobatch imports PPO and A2C"
        )
