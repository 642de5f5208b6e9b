"""What the averaged proximal policy costs: seconds per iteration with it and without, by turns.

python benchmarks/ewma_cost.py [--env StarpilotHard-v0] [--repeats 5] [--out FILE]

PPO beside PPO-EWMA, and PPG beside PPG-EWMA over whole phases, auxiliary epochs included. The
paper counts +30% and +2.3% of computation, environments apart (Hilton et al. 2021, section 5.3).
"""

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

import torch

from isobatch import envs, machine
from isobatch.algos import Context, make_learner
from isobatch.envs.seeds import env_seeds
from isobatch.experience import Collector
from isobatch.presets import preset
from isobatch.recipe import Recipe
from isobatch.state import TrainState
from isobatch.update import chunk_rows

PAPER = {"ppo": 0.30, "ppg": 0.023}


class Trial:
    """One algorithm, stepped an iteration (for PPG a whole phase) at a time."""

    def __init__(self, recipe: Recipe, scratch: Path) -> None:
        self.recipe = recipe
        self.env = envs.make(recipe, env_seeds(1, recipe.batch.n_envs))
        layouts = self.env.observation_layout, self.env.action_layout
        self.state = TrainState.begin(recipe, *layouts, torch.device("cpu"))
        chunk_size = chunk_rows(self.env.observation_layout.image, recipe.model.encoder)
        self.collector = Collector(self.env, torch.device("cpu"), chunk_size)
        self.learner = make_learner(Context(self.state, chunk_size, scratch))

    def iterate(self, count: int) -> tuple[float, float]:
        """Return (seconds, seconds of them learning) of `count` iterations."""
        began, learning = time.perf_counter(), 0.0
        for _ in range(count):
            rollout = self.collector.collect(
                self.state.model,
                self.state.observation_normalizer,
                self.state.action_generator,
                self.recipe.batch.n_steps,
            )
            collected = time.perf_counter()
            learned = self.learner.learn(rollout)
            if learned.phase_iterations is not None:
                self.state.counters.phase_iterations = learned.phase_iterations
            learning += time.perf_counter() - collected
        return time.perf_counter() - began, learning


def main() -> None:
    """Time both pairs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--env", default="StarpilotHard-v0")
    parser.add_argument("--n-envs", type=int, default=16)
    parser.add_argument("--n-steps", type=int, default=64)
    parser.add_argument("--n-policy-iterations", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    machine.keep_freed_memory()
    rows = []
    with tempfile.TemporaryDirectory() as scratch, machine.torch_threads(args.threads, True):
        for base in ("ppo", "ppg"):
            count = args.n_policy_iterations if base == "ppg" else 1
            trials = {
                algo: Trial(_recipe(args, algo), Path(scratch)) for algo in (base, f"{base}-ewma")
            }
            for trial in trials.values():
                trial.iterate(1 if base == "ppo" else 0)  # The first one allocates.
            times = {algo: [] for algo in trials}
            for _ in range(args.repeats):
                for algo, trial in trials.items():
                    times[algo].append(trial.iterate(count))
            rows.append(_row(base, times, count))
            print(rows[-1]["text"], flush=True)
    if args.out:
        args.out.write_text(json.dumps(vars(args) | {"out": "", "rows": rows}, indent=1) + "\n")


def _recipe(args: argparse.Namespace, algo: str) -> Recipe:
    return preset(
        args.env,
        algo,
        n_envs=args.n_envs,
        n_steps=args.n_steps,
        n_policy_iterations=args.n_policy_iterations,
        env_threads=1,
        threads=args.threads,
    )


def _row(base: str, times: dict[str, list[tuple[float, float]]], count: int) -> dict:
    """Return the medians of the ratios, turn by turn."""
    plain, averaged = times.values()
    extra = {
        name: [b[place] / a[place] - 1 for a, b in zip(plain, averaged, strict=True)]
        for place, name in enumerate(("iteration", "learning"))
    }
    middle = {name: statistics.median(values) for name, values in extra.items()}
    seconds = statistics.median(a[0] for a in plain) / count
    text = (
        f"{base}-ewma over {base}: {middle['iteration']:+.1%} of an iteration "
        f"({min(extra['iteration']):+.1%} to {max(extra['iteration']):+.1%}; {seconds:.2f} s "
        f"without), {middle['learning']:+.1%} of the learning; the paper's {PAPER[base]:+.1%}"
    )
    return {"pair": base, "extra": extra, "seconds": seconds, "text": text}


if __name__ == "__main__":
    main()
