"""When observation statistics are taken in: the evidence in docs/results/learning.md.

HalfCheetah-v4 with rl-baselines3-zoo's PPO settings (without log_std_init and ortho_init), one
EnvPool environment, three ways:

  rollout   Isobatch's way: after each rollout; the first is seen as it is
  step      at every step, as Stable-Baselines3's VecNormalize does
  warmup    Isobatch's way after 512 random steps, whose statistics the first rollout has

One CSV row per seed and way: the mean training return of episodes 80 to 100.
"""

import argparse
import csv
import tempfile
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium.wrappers import NormalizeObservation, TransformObservation

import isobatch

SETTINGS = {
    "n_envs": 1, "n_steps": 512, "n_minibatches": 8, "n_epochs": 20, "total_timesteps": 102_400,
    "learning_rate": 2.0633e-05, "learning_rate_schedule": "constant", "gamma": 0.98,
    "reward_gamma": 0.98, "gae_lambda": 0.92, "clip_range": 0.1, "ent_coef": 0.000401762,
    "vf_coef": 2 * 0.58096, "max_grad_norm": 0.8, "hidden_sizes": (256, 256), "activation": "relu",
    "normalize_rewards": True, "threads": 1,
}  # fmt: skip
WAYS = ("rollout", "step", "warmup")
WARMUP = 512
CLIP = 10.0


class HalfCheetah(gymnasium.Env):
    """One environment of EnvPool's, which remembers the returns of its episodes."""

    def __init__(self) -> None:
        import envpool

        self._make = lambda seed: envpool.make_gymnasium("HalfCheetah-v4", num_envs=1, seed=seed)
        space = self._make(0)
        self.observation_space, self.action_space = space.observation_space, space.action_space
        self.returns: list[float] = []
        self._return = 0.0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict]:
        """Begin an episode; a seed makes the environment anew."""
        if seed is not None:
            self._pool = self._make(seed % 2**31)
        self._return = 0.0
        return self._pool.reset()[0][0], {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict]:
        """Take one step."""
        observation, reward, terminated, truncated, _ = self._pool.step(action[None])
        self._return += float(reward[0])
        if terminated[0] or truncated[0]:
            self.returns.append(self._return)
        return observation[0], float(reward[0]), bool(terminated[0]), bool(truncated[0]), {}


def warmed(env: HalfCheetah, seed: int) -> gymnasium.Env:
    """Return the environment seen through the statistics of random steps."""
    rng = np.random.default_rng(seed)
    rows = [env.reset(seed=seed)[0]]
    for _ in range(WARMUP):
        rows.append(env.step(rng.uniform(-1, 1, env.action_space.shape).astype(np.float32))[0])
    mean, deviation = np.mean(rows, 0), np.std(rows, 0) + 1e-4
    return TransformObservation(env, lambda x: (x - mean) / deviation, env.observation_space)


def clipped(env: gymnasium.Env) -> gymnasium.Env:
    """Return the environment normalised at every step, clipped as `VecNormalize` clips."""
    normal = NormalizeObservation(env)
    return TransformObservation(normal, lambda x: x.clip(-CLIP, CLIP), env.observation_space)


def train(way: str, seed: int, budget: int) -> list[float]:
    """Return the returns of the training episodes, in order."""
    env = HalfCheetah()
    seen = warmed(env, seed) if way == "warmup" else clipped(env) if way == "step" else env
    env.returns.clear()  # the warm-up's
    settings = SETTINGS | {"normalize_observations": way != "step", "total_timesteps": budget}
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        isobatch.train(make_env=lambda: seen, seed=seed, out=run, quiet=True, **settings)
    return env.returns


def main() -> None:
    """Train every seed in every way; rows already in the file are not made twice."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=range(1, 11))
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS)
    parser.add_argument("--budget", type=int, default=SETTINGS["total_timesteps"])
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    done = set()
    if args.out.exists():
        with args.out.open() as file:
            done = {(row[0], row[1]) for row in csv.reader(file)}
    for seed in args.seeds:
        for way in args.ways:
            if (way, str(seed)) in done:
                continue
            returns = train(way, seed, args.budget)
            with args.out.open("a", newline="") as file:
                csv.writer(file).writerow([way, seed, round(float(np.mean(returns[80:100])), 1)])


if __name__ == "__main__":
    main()
