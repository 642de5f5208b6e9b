"""Train Isobatch's presets over several seeds: the evidence in docs/results/learning.md.

One CSV row per seed, the columns of `sb3_learning.py`: environment, seed, budget, the mean return
of the last 100 training episodes, seconds. Runs are kept under --runs and are not made twice.
"""

import argparse
import csv
from pathlib import Path

import isobatch

OVERRIDES = ("total_timesteps", "n_envs", "n_steps", "n_minibatches", "threads", "env_threads")


def train(env_id: str, seed: int, runs: Path, overrides: dict) -> tuple[int, float, float]:
    """Return (environment steps, mean return of the last 100 episodes, seconds)."""
    path = runs / f"{env_id}-{seed}"
    if path.exists():
        run = isobatch.resume(path, quiet=True)
    else:
        run = isobatch.train(env_id, seed=seed, out=path, quiet=True, **overrides)
    last = run.metrics[-1]
    return run.recipe.total_timesteps, last["episode_return"], last["seconds"]


def main() -> None:
    """Train every seed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("env_id")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    for name in OVERRIDES:
        flag = "--" + name.replace("_", "-")
        parser.add_argument(flag, type=int, help="default: the preset's")
    parser.add_argument("--runs", type=Path, default=Path("runs/learning"))
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    overrides = {name: value for name in OVERRIDES if (value := getattr(args, name)) is not None}
    with args.out.open("a", newline="") as file:
        writer = csv.writer(file)
        for seed in args.seeds:
            steps, score, seconds = train(args.env_id, seed, args.runs, overrides)
            writer.writerow([args.env_id, seed, steps, round(score, 2), round(seconds, 1)])
            file.flush()
            print(f"{args.env_id} seed {seed}: {score:.1f} in {seconds:.0f} s", flush=True)


if __name__ == "__main__":
    main()
