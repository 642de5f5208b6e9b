"""Rescale random recipes to random batches: each gives finite hyperparameters or a refusal.

python benchmarks/random_rescales.py [--count 100000]
"""

import argparse
import math
import random
from collections import Counter

from isobatch.errors import UserError
from isobatch.presets import PRESETS, family_preset
from isobatch.recipe import Recipe
from isobatch.registry import ALGORITHMS
from isobatch.scaling import rescale


def draw_recipe(source: random.Random) -> Recipe:
    """Return a preset with its batch and hyperparameters drawn anew, over many decades."""
    algo = source.choice(list(ALGORITHMS))
    recipe = family_preset(source.choice(list(PRESETS)), "Some-v1", algo)
    batch = draw_batch(source)
    if algo in ("a2c", "reinforce"):
        batch |= {"n_minibatches": 1, "n_epochs": 1}
    return recipe.replace(
        **batch,
        learning_rate=10 ** source.uniform(-8, 1),
        proximal_decay=1 - 10 ** source.uniform(-14, 0),
        advantage_decay=1 - 10 ** source.uniform(-14, 0),
        n_policy_iterations=int(10 ** source.uniform(0, 6)),
        aux_learning_rate=source.choice([0.0, 1e-3]),
        optimizer=source.choice(["adam", "radam", "rmsprop", "sgd"]),
        momentum=source.choice([0.0, 0.9]),
        max_grad_norm=source.choice([None, 0.5]),
    )


def draw_batch(source: random.Random) -> dict[str, int]:
    """Return sizes from one environment to a million."""
    return {
        "n_envs": int(2 ** source.uniform(0, 20)),
        "n_steps": int(2 ** source.uniform(0, 14)),
        "n_minibatches": int(2 ** source.uniform(0, 8)),
        "n_epochs": source.randint(1, 20),
    }


def outcome(source: random.Random) -> str:
    """Return what became of one: rescaled, refused or (never) broken."""
    try:
        recipe = draw_recipe(source)
    except UserError:
        return "no such recipe"
    batch = draw_batch(source)
    chosen = {name: batch[name] for name in batch if source.random() < 0.5}
    try:
        moved = rescale(recipe, **chosen, betas=True, grad_norm=True).recipe
    except UserError:
        return "refused"
    numbers = [value for value in moved.values.values() if isinstance(value, int | float)]
    return "rescaled" if all(map(math.isfinite, numbers)) else "broken"


def main() -> None:
    """Draw and count."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    source, counts = random.Random(args.seed), Counter()
    while sum(counts.values()) - counts["no such recipe"] < args.count:
        counts[outcome(source)] += 1
    print(dict(counts))
    if counts["broken"]:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
