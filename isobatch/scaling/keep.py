"""Three ways to another number of environments: what of the batch stays as it was."""

from __future__ import annotations

from typing import Any, Literal, get_args

from isobatch.batch import Batch
from isobatch.errors import UserError, nearest
from isobatch.recipe import Recipe
from isobatch.scaling.horizon import horizon

Keep = Literal["rollout", "minibatch-size", "minibatches"]
KEEPS: tuple[Keep, ...] = get_args(Keep)
FITS: dict[Keep, str] = {
    "rollout": "fits while n_steps covers GAE's horizon",
    "minibatch-size": "fits where the minibatch is already as large as the device or the noise "
    "scale allows (arXiv 2603.06009)",
    "minibatches": "fits one epoch and minibatches well below the noise scale (arXiv 2110.00641)",
}
"""When each way is the one to take."""


def kept_sizes(batch: Batch, given: dict[str, Any], keep: str | None) -> dict[str, Any]:
    """Return the sizes asked for, `given`, with what keeping the rest means for the others.

    rollout: N x T stays, so the one of the two that is not given moves against the other;
    minibatch-size: N x T / M stays, the fixed inner loop; minibatches: M stays, the paper's.
    None: what is not given stays, which is the last.
    """
    if keep is None:
        return given
    if keep not in KEEPS:
        hint = nearest(str(keep), list(KEEPS))
        raise UserError(f"keep must be one of {', '.join(KEEPS)}, got {keep!r}.{hint}", "keep")
    _refuse_contradiction(given, keep)
    if keep == "rollout":
        return given | _same_rollout(batch, given)
    if keep == "minibatch-size":
        return given | {"minibatch_size": batch.minibatch_size}
    return given


def advised_keep(recipe: Recipe, given: dict[str, Any]) -> tuple[Keep | None, str]:
    """Return the way to more environments, where nothing else is given, and why; None otherwise.

    The evidence is docs/results/scale-up.md: with eight times the environments, the same rollout
    came closest to the tuned recipe on the three tasks where its steps still covered GAE's horizon;
    larger rollouts leave an eighth of the updates. On the fourth, where they did not, every way
    lost. Downwards there are more updates, and the rules hold (docs/results/rescale.md).
    """
    old, new = recipe.batch.n_envs, given.get("n_envs")
    if given.keys() != {"n_envs"} or new is None or new <= old:
        return None, ""
    rows, reach = recipe.batch.rollout_size, _reach(recipe)
    steps = rows // new
    if rows % new or rows % recipe.batch.n_minibatches:
        return "minibatches", f"{rows:,} rows do not divide by n_envs {new}"
    if steps < reach:
        return "minibatches", (
            f"n_steps {steps} would not cover GAE's horizon of {reach:.3g} steps; where that was "
            "tried, every way learned much less than the tuned recipe"
        )
    return "rollout", (
        f"n_steps {steps} still covers GAE's horizon of {reach:.3g} steps: where that was tried, "
        "this came closest to the tuned recipe, and larger rollouts learned less"
    )


def _reach(recipe: Recipe) -> float:
    return horizon(recipe.objective.gamma, recipe.objective.gae_lambda)


def _same_rollout(batch: Batch, given: dict[str, Any]) -> dict[str, int]:
    """Return N for the T that is given, or T for the N."""
    name, other = ("n_steps", "n_envs") if "n_envs" in given else ("n_envs", "n_steps")
    if other not in given:
        return {}
    if given[other] < 1 or batch.rollout_size % given[other]:
        raise UserError(
            f"keep rollout: {batch.rollout_size:,} rows do not divide by {other} {given[other]}",
            field=other,
        )
    return {name: batch.rollout_size // given[other]}


def _refuse_contradiction(given: dict[str, Any], keep: str) -> None:
    own = ("n_minibatches", "minibatch_size")
    contradicted = {
        "rollout": ("n_envs", "n_steps") if {"n_envs", "n_steps"} <= given.keys() else (),
        "minibatch-size": own,
        "minibatches": own,
    }[keep]
    clash = [name for name in contradicted if name in given]
    if clash:
        raise UserError(
            f"keep {keep} leaves {' and '.join(clash)} no choice: give one or the other",
            field=clash[0],
        )
