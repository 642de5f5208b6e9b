"""Where the numbers of an update should lie: the bands that advice names and pages draw."""

from __future__ import annotations

from typing import NamedTuple

from isobatch.recipe import Recipe

APPROX_KL_MOST = 0.02
"""Beyond about this the policy moves far in one iteration."""
CLIP_FRACTION_LEAST = 0.01
"""Below it the clip range hardly matters: the rollout could be larger."""
CLIP_FRACTION_MOST, CLIP_FRACTION_MOST_EPOCHS = 0.10, 0.20
"""Above it steps are too large, with one epoch and with several."""


class Advised(NamedTuple):
    """The band of a column, and why."""

    low: float
    high: float
    why: str


def advised(recipe: Recipe) -> dict[str, Advised]:
    """Return the bands of a recipe's columns, by name."""
    found = {
        "approx_kl": Advised(0.0, APPROX_KL_MOST, "above, the policy moves far in one iteration")
    }
    if recipe.objective.objective == "clip":
        several = recipe.batch.n_epochs > 1
        most = CLIP_FRACTION_MOST_EPOCHS if several else CLIP_FRACTION_MOST
        why = "below, rollouts could be larger; above, steps are too large"
        found["clip_fraction"] = Advised(CLIP_FRACTION_LEAST, most, why)
    return found
