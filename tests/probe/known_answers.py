"""Estimates and intervals of the laboratory against what is computed on paper.

python tests/probe/known_answers.py --replications 1000 [--out docs/results/probe-known.json]
"""

import argparse
import json
import math
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from known_gradients import CASES, SIGNAL, correlated, on_paper

from isobatch.probe import decompose, noise_scale

NAMES = ("total", "individual", "covariance", "icc", "design_effect", "noise_scale")


def truths(n_envs: int, n_steps: int, size: int, phi: float, effect: float) -> list[float]:
    """Return what the estimates should be."""
    total, individual, covariance = on_paper(n_envs, n_steps, size, phi, effect)
    ratio = total / individual
    scale = total * n_envs * n_steps / (size * SIGNAL**2)
    return [total, individual, covariance, (ratio - 1) / (n_steps - 1), ratio, scale]


def replicate(case: tuple, replications: int) -> dict[str, dict[str, float]]:
    """Return, for each estimate, its truth, mean, error of that mean, and intervals' coverage."""
    n_envs, n_steps, size, phi, effect = case
    generator = torch.Generator().manual_seed(1)
    truth = truths(*case)
    values, held = [], torch.zeros(len(NAMES))
    for _ in range(replications):
        gradients = correlated(generator, (n_envs, n_steps, size), phi, effect)
        terms = decompose(gradients)
        scale = noise_scale(gradients)["per-environment"].noise_scale
        found = [getattr(terms, name) for name in NAMES[:-1]] + [scale]
        values.append([each.value for each in found])
        held += torch.tensor(
            [each.low <= wanted <= each.high for each, wanted in zip(found, truth, strict=True)]
        )
    table = torch.tensor(values, dtype=torch.float64)
    # A noise scale is infinite where a replication has lost its signal: it has a median only.
    table = torch.where(torch.isfinite(table).all(0), table, table.clamp(max=1e9))
    return {
        name: {
            "truth": truth[k],
            "mean": float(table[:, k].mean()),
            "error_of_mean": float(table[:, k].std() / math.sqrt(replications)),
            "median": float(table[:, k].median()),
            "coverage": float(held[k] / replications),
        }
        for k, name in enumerate(NAMES)
    }


def main() -> None:
    """Print a line for each case and estimate."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--replications", type=int, default=1000)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    results = {}
    for name, case in CASES.items():
        results[name] = replicate(case, args.replications)
        for estimate, row in results[name].items():
            print(
                f"{name:18} {estimate:14} truth {row['truth']:9.4g} mean {row['mean']:9.4g} "
                f"+- {row['error_of_mean']:.2g} median {row['median']:9.4g} "
                f"covered {row['coverage']:.1%}",
                flush=True,
            )
    if args.out is not None:
        args.out.write_text(json.dumps(results, indent=1, allow_nan=False) + "\n")


if __name__ == "__main__":
    main()
