"""Rules about the value function: its scale, its weight in the loss, what it explains."""

from __future__ import annotations

from isobatch.advice.finding import Finding
from isobatch.advice.history import History
from isobatch.advice.rules.policy import entropy_collapse, kl_low
from isobatch.advice.rules.rule import OURS, note, problem, rule, to

LARGE_VALUE_LOSS, LARGE_SHARED = 50.0, 1.0
"""Times vf_coef. Where rewards are normalised it stayed under 0.8 here; Pendulum-v1, which learns
hardly anything as it is, has 140 to 500, Acrobot-v1 with a shared network, which learns nothing,
6."""
DROWNED = 10.0
UNEXPLAINED = 0.05


@rule(
    f"vf_coef x value loss over {LARGE_SHARED:g} in a shared network, or over "
    f"{LARGE_VALUE_LOSS:.0f} with an explained variance under {UNEXPLAINED}; gradient norm over "
    f"{DROWNED:.0f} x max_grad_norm, rewards not normalised, a fifth of the budget spent (a note "
    "if the return has risen by half or more)",
    OURS,
)
def value_scale(run: History) -> Finding | None:
    """The value loss is so large that its gradient outweighs the policy's, or is clipped away.

    With one network both losses move the same weights; with two, clipping the norm of both
    gradients together leaves the value function a step too small for returns in the hundreds.
    """
    recipe, shared = run.recipe, run.recipe.model.architecture == "shared"
    if recipe.normalize.normalize_rewards or run.part < 0.2:
        return None
    # A shared network may come to fit its values once the policy is lost: the worse of both times.
    loss, norm = (
        max(run.median(name) or 0.0, (run.early(name) or 0.0) if shared else 0.0)
        for name in ("value_loss", "grad_norm")
    )
    explained, clipped = run.median("explained_variance"), recipe.optimizer.max_grad_norm
    weighted = recipe.objective.vf_coef * loss
    least = LARGE_SHARED if shared else LARGE_VALUE_LOSS
    if weighted <= least or clipped is None or norm <= DROWNED * clipped:
        return None
    if not shared and (explained is None or explained >= UNEXPLAINED):
        return None
    policy = run.median("policy_loss")
    beside = "" if policy is None else f" and the policy loss {abs(policy):.1g}"
    return (note if run.learns else problem)(
        weighted,
        least,
        f"vf_coef x value loss is {weighted:.3g}{beside}, and gradients of norm {norm:.3g} are "
        f"clipped to {clipped:g}: "
        + (
            "in a shared network the value function's gradient outweighs the policy's"
            if shared
            else "too little is left for the value function to learn returns this large"
        ),
        "normalise rewards" + (", or give the value function its own network" * shared),
        to(normalize_rewards=True),
    )


LARGE_WEIGHT = 5.0


@rule(
    f"vf_coef over {LARGE_WEIGHT:g}, gradient norm over {DROWNED:.0f} x max_grad_norm, a fifth of "
    "the budget spent",
    OURS,
)
def value_weight(run: History) -> Finding | None:
    """Both gradients are clipped together: the value function's leaves the policy no step."""
    weight, norm = run.recipe.objective.vf_coef, run.median("grad_norm")
    clipped = run.recipe.optimizer.max_grad_norm
    if norm is None or clipped is None or weight <= LARGE_WEIGHT or run.part < 0.2:
        return None
    if norm <= DROWNED * clipped:
        return None
    return note(
        weight,
        LARGE_WEIGHT,
        f"vf_coef is {weight:g}, over {LARGE_WEIGHT:g}, and gradients of norm {norm:.3g} are "
        f"clipped to {clipped:g}: the value function's leave the policy's next to nothing",
        "weight the value loss less",
        to(vf_coef=0.5),
    )


@rule(
    f"explained variance under {UNEXPLAINED} after a quarter of the budget, while advantages are "
    "not much smaller than at first",
    OURS,
)
def value_unlearned(run: History) -> Finding | None:
    """The value function explains nothing of the returns.

    A note only: it spoke of good runs and of no bad one (docs/tasks/advise.md).
    """
    explained = run.median("explained_variance")
    if explained is None or explained >= UNEXPLAINED or run.rows < 20 or run.part < 0.25:
        return None
    if run.is_settled or run.reward_unseen or run.reward_rare:
        return None
    if not run.recipe.objective.baseline:
        return None
    if any(cause(run) is not None for cause in (value_scale, entropy_collapse, kl_low)):
        return None
    normalised = run.recipe.normalize.normalize_rewards
    return note(
        explained,
        UNEXPLAINED,
        f"explained variance {explained:.2g} {run.lately}, under {UNEXPLAINED}: the value function "
        "predicts returns no better than their mean",
        "take larger steps on the value function"
        if normalised
        else "normalise rewards, so that returns are of the size that networks learn",
        to(vf_coef=2 * run.recipe.objective.vf_coef) if normalised else to(normalize_rewards=True),
    )
