"""Write rliable.json: what rliable says of some scores; needs `pip install rliable "pandas<3"`.

python tests/golden/make_rliable.py, a few minutes
"""

import json
from pathlib import Path

import numpy as np
from rliable import library, metrics  # pyright: ignore[reportMissingImports]

REPS = 20_000


def shapes(random: np.random.Generator) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return score arrays x and y by name: skewed, of one task, and with many ties."""
    return {
        "skewed": (random.lognormal(-0.5, 0.6, (10, 5)), random.lognormal(-0.3, 0.6, (7, 5))),
        "one_task": (random.normal(0.5, 0.2, (9, 1)), random.normal(0.6, 0.2, (9, 1))),
        "tied": (random.integers(0, 4, (6, 3)) / 3, random.integers(0, 4, (6, 3)) / 3),
    }


def interval(scores: list[np.ndarray], statistic) -> list[float]:
    """Return rliable's stratified percentile interval, of one array or of a pair."""
    entry = tuple(scores) if len(scores) > 1 else scores[0]
    np.random.seed(0)  # rliable draws from the global generator, whatever its random_state.
    _, bounds = library.get_interval_estimates({"arm": entry}, statistic, reps=REPS)
    return bounds["arm"].ravel().tolist()


def numbers(x: np.ndarray, y: np.ndarray) -> dict:
    """Return everything that the test compares."""
    thresholds = [0.0, 1 / 3, 0.5, 0.7, 1.0]
    profile, _ = library.create_performance_profile({"arm": x}, np.array(thresholds), reps=2)
    return {
        "x": x.tolist(),
        "y": y.tolist(),
        "iqm": metrics.aggregate_iqm(x),
        "optimality_gap": metrics.aggregate_optimality_gap(x),
        "probability_of_improvement": metrics.probability_of_improvement(x, y),
        "thresholds": thresholds,
        "profile": profile["arm"].tolist(),
        "iqm_interval": interval([x], metrics.aggregate_iqm),
        "improvement_interval": interval([x, y], metrics.probability_of_improvement),
    }


def main() -> None:
    """Write the file."""
    cases = shapes(np.random.default_rng(0))
    found = {name: numbers(*pair) for name, pair in cases.items()}
    path = Path(__file__).with_name("rliable.json")
    path.write_text(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
