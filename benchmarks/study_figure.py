"""Draw a study's learning curves at marks: a panel to each environment, a line to each arm.

python benchmarks/study_figure.py studies/scale-up --out docs/results/scale-up.svg
"""

import argparse
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from isobatch.study.design import Cell
from isobatch.study.results import Results


def main() -> None:
    """Draw the figure: means over seeds, and bands of two standard errors."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("study", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    results = Results.load(args.study)
    study = results.study
    seeds = results.seeds(list(study.arms))
    plt.rcParams["svg.hashsalt"] = "isobatch"  # The same runs give the same file.
    count = len(study.envs)
    figure, axes = plt.subplots(1, count, figsize=(3.6 * count, 3.2), squeeze=False)
    for axis, env in zip(axes[0], study.envs, strict=True):
        for arm in study.arms:
            curves = [results.marks(Cell(arm, env, seed)) for seed in seeds]
            steps, values = curves[0][0], np.array([returns for _, returns in curves])
            mean, error = values.mean(0), values.std(0, ddof=1) / len(seeds) ** 0.5
            (line,) = axis.plot(steps, mean, label=arm, linewidth=1.4)
            band = mean - 2 * error, mean + 2 * error
            axis.fill_between(steps, *band, color=line.get_color(), alpha=0.12, linewidth=0)
        axis.set_title(env, fontsize=10)
        axis.set_xlabel("environment steps")
        axis.ticklabel_format(axis="x", style="sci", scilimits=(0, 0))
        axis.grid(alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0][0].set_ylabel("return of evaluations")
    axes[0][-1].legend(fontsize=7, frameon=False)
    figure.tight_layout()
    args.out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(args.out, metadata={"Date": None})


if __name__ == "__main__":
    main()
