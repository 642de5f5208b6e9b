"""The decomposition's total against the variance of many batches, on a real environment.

python benchmarks/probe_batches.py runs/cartpole --shape 8x32 --batches 200 --each 5

Of 200 independent batches the variance of their gradients is measured as it is; then every five of
them are taken apart as `isobatch probe` would, and it is counted how often the interval of their
total holds that variance.
"""

import argparse
import json
from pathlib import Path

import torch

import isobatch
from isobatch.noise.clusters import Clusters
from isobatch.noise.samples import output_of
from isobatch.noise.variance import decompose_clusters
from isobatch.probe.collection import collect
from isobatch.probe.gradients import directions
from isobatch.probe.plan import gae_lambda


def main() -> None:
    """Print and write what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--shape", default="8x32")
    parser.add_argument("--batches", type=int, default=200)
    parser.add_argument("--each", type=int, default=5)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    n_envs, n_steps = (int(side) for side in args.shape.split("x"))
    policy = isobatch.load(args.run)
    recipe = policy.recipe
    total = args.batches * n_envs
    experience = collect(policy, total, n_steps, n_steps, seed=1)
    rollout = experience.rollout
    found = directions(
        output_of(policy.model, "policy"), policy.normalizer(rollout.observations), rollout.actions
    )
    scales = experience.advantages(n_steps, n_steps, recipe.objective.gamma, gae_lambda(recipe)).T
    parts = (scales, found.vectors.transpose(0, 1), found.squares.T, rollout.valid.T)
    weights = torch.where(parts[3], scales, 0)
    sums = torch.einsum("ct,ctp->cp", weights, parts[1]).unflatten(0, (args.batches, n_envs)).sum(1)
    rows = parts[3].sum(1).unflatten(0, (args.batches, n_envs)).sum(1)
    means = sums.double() / rows[:, None]
    measured = float((means - means.mean(0)).square().sum() / (args.batches - 1))
    # The error of a variance of independent batches, from how their squared deviations scatter.
    deviations = (means - means.mean(0)).square().sum(1)
    error = float(deviations.std() / args.batches**0.5)
    print(f"variance of {args.batches} batches' gradients {measured:.4g} +- {error:.2g}")
    held, totals = 0, []
    size = args.each * n_envs
    for begin in range(0, total - size + 1, size):
        group = slice(begin, begin + size)
        scale, vectors, squares, valid = (part[group] for part in parts)
        terms = decompose_clusters(Clusters.scaled(scale, vectors, squares, valid), n_envs, n_steps)
        totals.append(terms.total.value)
        held += terms.total.low <= measured <= terms.total.high
    everything = decompose_clusters(
        Clusters.scaled(parts[0], parts[1], parts[2], parts[3]), n_envs, n_steps
    )
    result = {
        "run": args.run.name,
        "env": recipe.env,
        "shape": args.shape,
        "batches": args.batches,
        "variance_across_batches": measured,
        "error": error,
        "total_of_all": everything.total.json,
        "individual_of_all": everything.individual.json,
        "covariance_of_all": everything.covariance.json,
        "groups": len(totals),
        "batches_each": args.each,
        "mean_total": sum(totals) / len(totals),
        "held": int(held),
    }
    print(
        f"decomposition of all: total {everything.total.value:.4g} "
        f"[{everything.total.low:.4g}, {everything.total.high:.4g}]\n"
        f"of {len(totals)} groups of {args.each} batches: mean total {result['mean_total']:.4g}, "
        f"{held} intervals hold the variance measured"
    )
    if args.out is not None:
        args.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
