"""Train Stable-Baselines3 PPO as the yardstick for docs/results/learning.md.

The hyperparameters are those of Isobatch's own presets for the two environments, written in SB3's
names, on SB3's usual path: Gymnasium environments, DummyVecEnv, VecNormalize. One CSV row per
seed: the mean return of the last 100 training episodes.
"""

import argparse
import csv
import time
from pathlib import Path

import numpy as np
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecNormalize

SETTINGS = {
    "LunarLander-v3": {
        "n_envs": 16,
        "normalize": {"norm_obs": False},
        "ppo": {
            "n_steps": 256,
            "batch_size": 128,
            "n_epochs": 6,
            "gamma": 0.99,
            "gae_lambda": 0.95,
            "ent_coef": 0.01,
            "learning_rate": lambda left: 5e-4 * left,
        },
    },
    "HalfCheetah-v4": {
        "n_envs": 1,
        "normalize": {"norm_obs": True},
        "ppo": {
            "n_steps": 2048,
            "batch_size": 64,
            "n_epochs": 10,
            "gamma": 0.99,
            "gae_lambda": 0.95,
        },
    },
}


def train(env_id: str, seed: int, total_timesteps: int) -> tuple[float, float]:
    """Return (mean return of the last 100 episodes, seconds taken)."""
    settings = SETTINGS[env_id]
    env = make_vec_env(env_id, n_envs=settings["n_envs"], seed=seed)
    env = VecNormalize(env, gamma=settings["ppo"]["gamma"], **settings["normalize"])
    agent = PPO("MlpPolicy", env, seed=seed, device="cpu", **settings["ppo"])
    start = time.perf_counter()
    agent.learn(total_timesteps)
    seconds = time.perf_counter() - start
    returns = [episode["r"] for episode in agent.ep_info_buffer or []]
    env.close()
    return float(np.mean(returns)), seconds


def main() -> None:
    """Train every seed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("env_id", choices=sorted(SETTINGS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--total-timesteps", type=int, default=1_000_000)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    torch.set_num_threads(1)
    with args.out.open("a", newline="") as file:
        writer = csv.writer(file)
        for seed in args.seeds:
            score, seconds = train(args.env_id, seed, args.total_timesteps)
            writer.writerow(
                [args.env_id, seed, args.total_timesteps, round(score, 2), round(seconds, 1)]
            )
            file.flush()
            print(f"{args.env_id} seed {seed}: {score:.1f} in {seconds:.0f} s", flush=True)


if __name__ == "__main__":
    main()
