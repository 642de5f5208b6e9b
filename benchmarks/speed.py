"""Compare the training speed and the peak memory of Isobatch and Stable-Baselines3.

The two train with the same network, rollout, minibatches and epochs, by turns in one run, each
time in a fresh process; which goes first alternates. A rate counts whole iterations, rollout and
update, without imports and construction. Ratios are taken within a repeat, and their median is
reported: a machine that slows down half-way slows both sides down.
"""

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from stable_baselines3 import PPO

# The libraries are imported by the workers only. A small parent also keeps the memory figures
# right: on Linux a process inherits, as the least its peak can be, what its parent held.

SEED = 1


@dataclass(frozen=True)
class Case:
    """One training problem, the same for both libraries."""

    env_id: str
    network: str
    """The network in words, for the table."""
    encoder: str
    architecture: str
    n_envs: int
    n_steps: int
    n_minibatches: int
    n_epochs: int
    coefficients: dict[str, Any]
    """Hyperparameters that have one name in both libraries."""
    warm_up: int
    """Iterations before the clock starts."""
    iterations: int
    """Iterations timed."""
    repeats: int
    sb3_threads: int | None
    """PyTorch threads for Stable-Baselines3, whichever number is faster; None is the default."""
    compile: str = "auto"
    """Isobatch's setting: auto compiles the update of long runs only, which these are not."""

    @property
    def rollout_size(self) -> int:
        """Environment steps in one iteration."""
        return self.n_envs * self.n_steps

    @property
    def title(self) -> str:
        """The case in one line."""
        sizes = f"{self.n_envs}x{self.n_steps}, M {self.n_minibatches}, E {self.n_epochs}"
        return f"{self.env_id} {sizes}, {self.network}"


CASES = {
    "cartpole": Case(
        env_id="CartPole-v1",
        network="MLP 64-64 twice",
        encoder="mlp",
        architecture="dual",
        n_envs=8,
        n_steps=128,
        n_minibatches=4,
        n_epochs=4,
        coefficients={
            "learning_rate": 3e-4,
            "gamma": 0.99,
            "gae_lambda": 0.95,
            "clip_range": 0.2,
            "ent_coef": 0.0,
            "vf_coef": 0.5,
            "max_grad_norm": 0.5,
        },
        warm_up=1,
        iterations=20,
        repeats=5,
        sb3_threads=1,
    ),
    "procgen": Case(
        env_id="StarpilotHard-v0",
        network="IMPALA shared",
        encoder="impala",
        architecture="shared",
        n_envs=64,
        n_steps=256,
        n_minibatches=8,
        n_epochs=3,
        coefficients={
            "learning_rate": 5e-4,
            "gamma": 0.999,
            "gae_lambda": 0.95,
            "clip_range": 0.2,
            "ent_coef": 0.01,
            "vf_coef": 0.5,
            "max_grad_norm": 0.5,
        },
        warm_up=0,
        iterations=1,
        repeats=3,
        sb3_threads=None,
    ),
}
CASES["cartpole-long"] = replace(
    CASES["cartpole"], network="MLP 64-64 twice, update compiled as in long runs", compile="on"
)


@dataclass(frozen=True)
class Measurement:
    """What one worker process found."""

    steps_per_second: float
    peak_rss_mb: float
    env_steps: int
    seconds: float

    @classmethod
    def of_this_process(cls, env_steps: int, seconds: float) -> Self:
        """Return the rate with this process's peak memory, which Linux counts in KiB."""
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        return cls(env_steps / seconds, peak, env_steps, seconds)


def make_sb3_agent(case: Case) -> "PPO":
    """Return a Stable-Baselines3 PPO agent on its usual path for the kind of environment."""
    from stable_baselines3 import PPO
    from stable_baselines3.common.env_util import make_vec_env

    if case.encoder == "impala":
        from sb3_envpool import EnvPoolVecEnv, ImpalaFeatures

        env = EnvPoolVecEnv(case.env_id, case.n_envs, SEED)
        policy = "CnnPolicy"
        policy_kwargs = {"features_extractor_class": ImpalaFeatures, "net_arch": []}
    else:
        env = make_vec_env(case.env_id, n_envs=case.n_envs, seed=SEED)
        policy = "MlpPolicy"
        policy_kwargs = {"net_arch": {"pi": [64, 64], "vf": [64, 64]}}
    return PPO(
        policy,
        env,
        n_steps=case.n_steps,
        batch_size=case.rollout_size // case.n_minibatches,
        n_epochs=case.n_epochs,
        policy_kwargs=policy_kwargs,
        seed=SEED,
        device="cpu",
        **case.coefficients,
    )


def measure_sb3(case: Case) -> Measurement:
    """Train with Stable-Baselines3 in this process."""
    import torch

    if case.sb3_threads is not None:
        torch.set_num_threads(case.sb3_threads)
    agent = make_sb3_agent(case)
    agent.learn(case.warm_up * case.rollout_size)
    env_steps = case.iterations * case.rollout_size
    start = time.perf_counter()
    agent.learn(env_steps, reset_num_timesteps=False)
    return Measurement.of_this_process(env_steps, time.perf_counter() - start)


def measure_isobatch(case: Case) -> Measurement:
    """Train with Isobatch in this process.

    What the budget has left after the timed iterations is not counted: the rows that EnvPool
    spends on resets are no environment steps, so a short iteration may follow.
    """
    import isobatch

    end = case.warm_up + case.iterations
    with tempfile.TemporaryDirectory() as directory:
        run = isobatch.train(
            case.env_id,
            algo="ppo",
            n_envs=case.n_envs,
            n_steps=case.n_steps,
            n_minibatches=case.n_minibatches,
            n_epochs=case.n_epochs,
            encoder=case.encoder,
            architecture=case.architecture,
            total_timesteps=end * case.rollout_size,
            seed=SEED,
            out=Path(directory) / "run",
            quiet=True,
            compile=case.compile,
            **case.coefficients,
        )
        rows = [{"env_steps": 0, "seconds": 0.0}, *run.metrics]
    first, last = rows[case.warm_up], rows[end]
    return Measurement.of_this_process(
        last["env_steps"] - first["env_steps"], last["seconds"] - first["seconds"]
    )


WORKERS: dict[str, Callable[[Case], Measurement]] = {
    "sb3": measure_sb3,
    "isobatch": measure_isobatch,
}


def measure_in_child(side: str, name: str) -> Measurement:
    """Run one worker in a fresh process and return what its last line of output says."""
    command = [sys.executable, __file__, "--worker", side, name]
    output = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    found = Measurement(**json.loads(output.splitlines()[-1]))
    print(
        f"{name} {side}: {found.steps_per_second:,.0f} steps/s, {found.peak_rss_mb:,.0f} MB",
        file=sys.stderr,
    )
    return found


def compare(name: str, repeats: int) -> list[dict[str, Measurement]]:
    """Measure both sides of a case by turns; each repeat starts with the other side."""
    pairs = []
    for repeat in range(repeats):
        sides = list(WORKERS) if repeat % 2 == 0 else list(reversed(WORKERS))
        pairs.append({side: measure_in_child(side, name) for side in sides})
    return pairs


def spread(values: list[float]) -> dict[str, float]:
    """Return the median and the range."""
    return {"median": statistics.median(values), "low": min(values), "high": max(values)}


def summarize(pairs: list[dict[str, Measurement]]) -> dict[str, Any]:
    """Return, for speed and for memory, each side's spread and that of Isobatch / SB3."""
    summary = {}
    for field in ("steps_per_second", "peak_rss_mb"):
        values = [{side: getattr(pair[side], field) for side in WORKERS} for pair in pairs]
        summary[field] = {side: spread([value[side] for value in values]) for side in WORKERS}
        summary[field]["ratio"] = spread([value["isobatch"] / value["sb3"] for value in values])
    return summary


def ratio_text(ratio: dict[str, float]) -> str:
    """Return a median ratio with its range."""
    return f"**{ratio['median']:.2f}** ({ratio['low']:.2f} to {ratio['high']:.2f})"


def markdown_table(summaries: dict[str, dict[str, Any]]) -> str:
    """Return the table for the README, one row for each case."""
    lines = [
        "| case | SB3 steps/s | Isobatch steps/s | speed ratio | SB3 peak MB | Isobatch peak MB "
        "| memory ratio |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, summary in summaries.items():
        cells = [CASES[name].title]
        for field in ("steps_per_second", "peak_rss_mb"):
            cells += [f"{summary[field][side]['median']:,.0f}" for side in WORKERS]
            cells.append(ratio_text(summary[field]["ratio"]))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def machine() -> dict[str, Any]:
    """Return what the numbers depend on beside the code."""
    packages = ("isobatch", "stable-baselines3", "torch", "envpool", "gymnasium")
    return {
        "python": platform.python_version(),
        "cores": len(os.sched_getaffinity(0)),
        "versions": {package: version(package) for package in packages},
    }


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--case", action="append", choices=CASES, help="default: all of them")
    parser.add_argument("--repeats", type=int, help="default: the case's own")
    parser.add_argument("--out", type=Path, help="write all measurements to this JSON file")
    parser.add_argument("--worker", nargs=2, metavar=("SIDE", "CASE"), help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    """Be a worker, or run the comparison and print its table."""
    args = parse_arguments()
    if args.worker:
        side, name = args.worker
        print(json.dumps(asdict(WORKERS[side](CASES[name]))))
        return
    names = args.case or list(CASES)
    runs = {name: compare(name, args.repeats or CASES[name].repeats) for name in names}
    summaries = {name: summarize(pairs) for name, pairs in runs.items()}
    print(markdown_table(summaries))
    if args.out:
        report = {
            "machine": machine(),
            "cases": {name: asdict(CASES[name]) for name in names},
            "runs": {
                name: [{side: asdict(found) for side, found in pair.items()} for pair in pairs]
                for name, pairs in runs.items()
            },
            "summaries": summaries,
        }
        args.out.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
