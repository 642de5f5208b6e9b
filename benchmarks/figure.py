"""Draw learning curves of kept runs: one panel per environment, one line per seed.

python benchmarks/figure.py runs/learning/CartPole-v1-* --out docs/results/learning.svg
"""

import argparse
from pathlib import Path

import matplotlib.pyplot as plt

from isobatch.recipe import Recipe
from isobatch.run.store import read_metrics


def curve(path: Path) -> tuple[list[int], list[float]]:
    """Return (environment steps, mean return of the last 100 episodes) of a run."""
    rows = [row for row in read_metrics(path) if row["episode_return"] is not None]
    return [row["env_steps"] for row in rows], [row["episode_return"] for row in rows]


def main() -> None:
    """Draw the figure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    panels: dict[str, list[Path]] = {}
    for path in sorted(args.runs):
        panels.setdefault(Recipe.load(path / "recipe.toml").env, []).append(path)
    plt.rcParams["svg.hashsalt"] = "isobatch"  # The same runs give the same file.
    figure, axes = plt.subplots(1, len(panels), figsize=(4 * len(panels), 3), squeeze=False)
    for axis, (env, paths) in zip(axes[0], panels.items(), strict=True):
        for path in paths:
            axis.plot(*curve(path), linewidth=1.2)
        axis.set_title(env, fontsize=10)
        axis.set_xlabel("environment steps")
        axis.ticklabel_format(axis="x", style="sci", scilimits=(0, 0))
        axis.grid(alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0][0].set_ylabel("return, last 100 episodes")
    figure.tight_layout()
    args.out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(args.out, metadata={"Date": None})


if __name__ == "__main__":
    main()
