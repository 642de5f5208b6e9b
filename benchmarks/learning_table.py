"""Print the learning results as Markdown: per environment and library, every seed and quartiles.

python benchmarks/learning_table.py docs/results/learning-isobatch.csv docs/results/learning-sb3.csv
"""

import argparse
import csv
from pathlib import Path

import numpy as np


def scores(path: Path) -> dict[tuple[str, int], list[tuple[float, float]]]:
    """Return (score, seconds) per seed by (environment, budget)."""
    found: dict[tuple[str, int], list[tuple[float, float]]] = {}
    with path.open(newline="") as file:
        for env, _, budget, score, seconds in csv.reader(file):
            found.setdefault((env, int(budget)), []).append((float(score), float(seconds)))
    return found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", type=Path, nargs="+", help="learning-LIBRARY.csv")
    args = parser.parse_args()
    print("| environment | steps | library | return of each seed | quartiles | minutes a seed |")
    print("|---|---|---|---|---|---|")
    tables = {path.stem.removeprefix("learning-"): scores(path) for path in args.files}
    for key in sorted({key for table in tables.values() for key in table}):
        for library, table in tables.items():
            if key in table:
                returns, seconds = zip(*table[key], strict=True)
                low, middle, high = np.percentile(returns, [25, 50, 75])
                each = ", ".join(f"{value:.4g}" for value in returns)
                quartiles = f"{low:.4g} / **{middle:.4g}** / {high:.4g}"
                minutes = np.median(seconds) / 60
                print(
                    f"| {key[0]} | {key[1]:,} | {library} | {each} | {quartiles} | {minutes:.1f} |"
                )


if __name__ == "__main__":
    main()
