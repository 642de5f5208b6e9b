"""Where the numbers of an update should lie: the bands a page draws, by the rules of advice."""

from __future__ import annotations

from typing import NamedTuple

from isobatch.advice.rules.policy import CLIP_HIGH, CLIP_HIGH_EPOCHS, CLIP_LOW, KL_HIGH
from isobatch.recipe import Recipe

APPROX_KL_MOST = 0.02
"""About where the usual ends: healthy runs have a median of 0.001 to 0.01."""
CLIP_FRACTION_LEAST = 0.01
"""Well below it the clip range hardly matters (arXiv 2110.00641, section 6.2)."""


class Advised(NamedTuple):
    """The band of a column, and what lies beyond it."""

    low: float
    high: float
    why: str


def advised(recipe: Recipe) -> dict[str, Advised]:
    """Return the bands of a recipe's columns, by name."""
    found = {
        "approx_kl": Advised(
            0.0,
            APPROX_KL_MOST,
            f"above, the policy moves far in one iteration; advice warns above {KL_HIGH:g}",
        )
    }
    if recipe.objective.objective == "clip":
        found["clip_fraction"] = Advised(
            CLIP_FRACTION_LEAST,
            CLIP_HIGH if recipe.batch.n_epochs == 1 else CLIP_HIGH_EPOCHS,
            f"above, the step size is too high; below {CLIP_LOW:g}, rollouts or steps could be "
            "larger",
        )
    return found
