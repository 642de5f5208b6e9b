"""Draw batches against each other: |g| of one batch's samples, and their cosine to others' means.

python benchmarks/probe_figure.py probe.json --out docs/results/probe-frozenlake.svg

One row to a shape, one column to a batch; the first column is the batch's own mean, which its
samples are part of. Prints what is seen in numbers.
"""

import argparse
import json
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np


def seen(entry: dict) -> str:
    """Say how far batches agree."""
    cosines = np.array(entry["cosines"])
    others = cosines[~np.eye(len(cosines), dtype=bool)]
    own = np.array(entry["scatter"][0]["cosine"])
    rest = np.concatenate([panel["cosine"] for panel in entry["scatter"][1:]])
    return (
        f"{entry['shape']}: cosine of two batches' means {others.mean():+.2f} on average "
        f"({others.min():+.2f} to {others.max():+.2f}); of a sample to its own batch's mean "
        f"{own.mean():+.3f}, to another's {rest.mean():+.3f}; {np.mean(rest > 0):.0%} of those "
        "point the same way"
    )


def main() -> None:
    """Draw the figure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("probe", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    data = json.loads(args.probe.read_text())
    entries = data["points"][-1]["agreement"]
    columns = len(entries[0]["scatter"])
    plt.rcParams["svg.hashsalt"] = "isobatch"  # The same data give the same file.
    figure, axes = plt.subplots(
        len(entries), columns, figsize=(2.1 * columns, 2.1 * len(entries)), sharex="row",
        sharey=True, squeeze=False,
    )  # fmt: skip
    for row, entry in zip(axes, entries, strict=True):
        print(seen(entry))
        for k, (axis, panel) in enumerate(zip(row, entry["scatter"], strict=True)):
            # Drawn as pixels: a page of points would be megabytes of markup.
            axis.scatter(
                panel["norm"], panel["cosine"], s=5, alpha=0.5, linewidths=0, rasterized=True
            )
            axis.axhline(0, linewidth=0.6, color="grey")
            axis.set_ylim(-1.05, 1.05)
            axis.set_title(
                f"{entry['shape']}, batch 0 against {k}" if k else f"{entry['shape']}, its own",
                fontsize=7,
            )
            axis.tick_params(labelsize=6)
        row[0].set_ylabel("cosine", fontsize=7)
    for axis in axes[-1]:
        axis.set_xlabel("|g|", fontsize=7)
    figure.suptitle(data["source"]["env"], fontsize=9)
    figure.tight_layout()
    figure.savefig(args.out, metadata={"Date": None}, dpi=150)


if __name__ == "__main__":
    main()
