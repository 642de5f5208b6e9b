"""Sizes that no memory here holds, refused before they are tried."""

from __future__ import annotations

import math
from itertools import pairwise

from isobatch.envs.spaces import ObservationLayout
from isobatch.errors import UserError
from isobatch.machine import available_memory
from isobatch.presets import listed_family
from isobatch.recipe import Recipe
from isobatch.text import size

ROW_BYTES = 40
"""Of a row beside its observation: action, log-probability, value, reward, score, ends."""
ENV_BYTES = {"dmc": 12_300_000}
"""Of an environment, by family, where that is much: others measured take 1.3 MB or less."""
WEIGHT_BYTES = 16
"""Of a weight: itself, its gradient and Adam's two moments, each float32."""


def refuse_too_large(recipe: Recipe, layout: ObservationLayout | None = None) -> None:
    """Refuse a batch or a network that needs more memory than there is, at the very least.

    Without the `layout` of the observations, as if each were a single number.
    """
    free = available_memory()
    if free is None or recipe.machine.device == "cuda":
        return
    environments = environment_bytes(recipe)
    if environments > free:
        raise UserError(
            f"n_envs {recipe.batch.n_envs:,} of {recipe.env} need {size(environments)} of memory; "
            f"{size(free)} is available",
            field="n_envs",
        )
    rows = recipe.batch.rollout_size * (1 + recipe.objective.staleness)
    needed = rows * (_observation_bytes(layout) + ROW_BYTES)
    if needed > free:
        raise UserError(
            f"a rollout of {recipe.batch.rollout_size:,} rows (n_envs {recipe.batch.n_envs:,} x "
            f"n_steps {recipe.batch.n_steps:,}) needs {size(needed)} of memory or more; "
            f"{size(free)} is available",
            field="n_envs",
        )
    model = recipe.model
    for own in (model.policy_hidden_sizes, model.value_hidden_sizes):
        widths = (*model.hidden_sizes, *own)
        weights = sum(a * b for a, b in pairwise(widths))
        if weights * WEIGHT_BYTES > free:
            raise UserError(
                f"hidden_sizes {' '.join(map(str, widths))} take "
                f"{size(weights * WEIGHT_BYTES)} of memory or more; {size(free)} is available",
                field="hidden_sizes",
            )


def environment_bytes(recipe: Recipe) -> int:
    """Return what a run's environments take, 0 where that is little."""
    return recipe.batch.n_envs * ENV_BYTES.get(listed_family(recipe.env) or "", 0)


def _observation_bytes(layout: ObservationLayout | None) -> int:
    if layout is None:
        return 4
    return sum(
        math.prod(shape) * layout.dtypes[part].itemsize for part, shape in layout.shapes.items()
    )
