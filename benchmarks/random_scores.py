"""Measure what uniformly random actions score: the column `random` of isobatch/scores.csv.

python benchmarks/random_scores.py CartPole-v1 Acrobot-v1
"""

import argparse

import numpy as np
import torch

from isobatch.envs.pool import PoolEnv
from isobatch.envs.seeds import env_seeds
from isobatch.envs.spaces import ActionLayout


def random_actions(layout: ActionLayout, n_envs: int, random: np.random.Generator) -> torch.Tensor:
    """Draw uniformly over the choices, or between the bounds: [N, K]."""
    size = (n_envs, len(layout.counts))
    if layout.kind == "gaussian":
        return torch.from_numpy(random.uniform(layout.low, layout.high, size).astype(np.float32))
    return torch.from_numpy(random.integers(layout.counts, size=size))


def random_returns(env_id: str, n_envs: int, each: int, seed: int) -> np.ndarray:
    """Return the undiscounted returns of the first `each` episodes of every environment.

    As many from each: the first to end overall would be the short ones.
    """
    env = PoolEnv(env_id, env_seeds(seed, n_envs), threads=1)
    random = np.random.default_rng(seed)
    running, returns = np.zeros(n_envs), [[] for _ in range(n_envs)]
    env.reset()
    while min(map(len, returns)) < each:
        step = env.step(random_actions(env.action_layout, n_envs, random))
        running += np.where(step.valid, step.reward, 0.0)
        for n in torch.nonzero(step.terminated | step.truncated).flatten().tolist():
            returns[n].append(running[n])
            running[n] = 0.0
    env.close()
    return np.array([kept[:each] for kept in returns]).ravel()


def main() -> None:
    """Print each environment's mean and its standard error."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("env_ids", nargs="+")
    parser.add_argument("--episodes", type=int, default=1000)
    parser.add_argument("--n-envs", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    for env_id in args.env_ids:
        each = -(-args.episodes // args.n_envs)
        returns = random_returns(env_id, args.n_envs, each, args.seed)
        error = returns.std(ddof=1) / len(returns) ** 0.5
        print(f"{env_id}: {returns.mean():.6g} +- {error:.2g}, {len(returns)} episodes", flush=True)


if __name__ == "__main__":
    main()
