"""Three ways to another number of environments: what of the batch stays as it was."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args

from isobatch.batch import Batch
from isobatch.errors import UserError, nearest
from isobatch.recipe import Recipe
from isobatch.scaling.horizon import horizon

Keep = Literal["rollout", "minibatch-size", "minibatches"]
KEEPS: tuple[Keep, ...] = get_args(Keep)
WAYS: dict[Keep, str] = {
    "rollout": "the same rollout, n_steps against n_envs; all else stays. Fits while n_steps "
    "covers GAE's horizon.",
    "minibatch-size": "the same minibatch and step size, another number of minibatches (a fixed "
    "inner loop, arXiv 2603.06009). Fits where the minibatch is already as large as the device or "
    "the noise scale allows.",
    "minibatches": "a larger or smaller minibatch, the step size by the rules (arXiv 2110.00641). "
    "Fits one epoch, and minibatches well below the noise scale.",
}
"""What each way does, and when it fits."""


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


def advised_keep(recipe: Recipe, given: Mapping[str, Any]) -> tuple[Keep | None, str]:
    """Return the way to another number of environments, where nothing else is given, and why.

    The evidence is in `record`. With eight times the environments the same rollout came closest to
    the tuned recipe on the three tasks where its steps still covered GAE's horizon; larger rollouts
    leave an eighth of the updates. On the fourth, where they did not, every way lost. Downwards
    there are more updates, and the rules hold. None where the question is another.
    """
    old, new = recipe.batch.n_envs, given.get("n_envs")
    if given.keys() != {"n_envs"} or new is None or new == old:
        return None, ""
    if new < old:
        return "minibatches", (
            "fewer environments leave more updates in the budget, and where that was tried the "
            "rules lost nothing that shows"
        )
    rows, reach = recipe.batch.rollout_size, gae_horizon(recipe)
    steps = rows // new
    if rows % new or rows % recipe.batch.n_minibatches:
        return "minibatches", f"a rollout of {rows:,} transitions does not divide by n_envs {new}"
    if steps < reach:
        return "minibatches", (
            f"the same rollout would leave n_steps {steps}, which does not cover GAE's horizon of "
            f"{reach:.3g} steps. Where that was tried, every way learned much less than the tuned "
            "recipe"
        )
    return "rollout", (
        f"the budget holds as many updates as before, and n_steps {steps} still covers GAE's "
        f"horizon of {reach:.3g} steps"
    )


def gae_horizon(recipe: Recipe) -> float:
    """Return how many steps GAE of this recipe looks ahead."""
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
