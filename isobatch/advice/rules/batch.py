"""Rules about how the batch is cut."""

from __future__ import annotations

import math
from itertools import pairwise

from isobatch.advice.finding import Finding
from isobatch.advice.history import History
from isobatch.advice.rules.changes import cuts
from isobatch.advice.rules.rule import MAYOR, NOTES, PAPER, note, rule, times, to, warning
from isobatch.text import counted


@rule("REINFORCE with under 1,000 rows per update", NOTES)
def reinforce_rows(run: History) -> Finding | None:
    """Whole returns are noisy: they need many rows."""
    rows = run.batch.rollout_size
    if not run.algorithm.whole_returns or rows >= 1000:
        return None
    return warning(
        rows,
        1000,
        f"{rows:,} rows per update, under 1,000: whole returns are too noisy for so few",
        "collect larger rollouts",
        to(n_envs=math.ceil(1000 / run.batch.n_steps)),
    )


SMALL, PER_ACTION = 32, 10


@rule(
    f"minibatches under {SMALL} rows (a note if under {PER_ACTION} x the action dimensions)",
    NOTES,
)
def small_minibatch(run: History) -> Finding | None:
    """Gradients of so few rows are mostly noise."""
    rows, batch = run.batch.minibatch_size, run.batch
    size = run.actions.size if run.actions is not None else 0
    least = max(SMALL, PER_ACTION * size)
    if rows >= least:
        return None
    grave = rows < SMALL and cuts(run)
    why = f"{PER_ACTION} x {size} actions" if PER_ACTION * size > SMALL else f"{SMALL} to 256"
    fewer = max(1, batch.rollout_size // (2 * least))
    return (warning if grave else note)(
        rows,
        least,
        f"minibatches of {rows} rows, under {least} ({why} are usual): gradients are mostly noise",
        "split rollouts into fewer minibatches" if cuts(run) else "collect larger rollouts",
        to(n_minibatches=min(fewer, batch.n_minibatches))
        if cuts(run) and batch.rollout_size >= least
        else to(n_envs=math.ceil(least / batch.n_steps) * batch.n_minibatches),
    )


FEWEST, MOST = 4, 32


@rule(f"under {FEWEST} minibatches a rollout", NOTES)
def few_minibatches(run: History) -> Finding | None:
    """A rollout gives few gradient steps."""
    count, batch = run.batch.n_minibatches, run.batch
    if count >= FEWEST or not cuts(run) or batch.rollout_size < 2 * SMALL:
        return None
    return note(
        count,
        FEWEST,
        f"{counted(count, 'minibatch', 'minibatches')} a rollout of {batch.rollout_size:,} rows, "
        f"where {FEWEST} to {MOST} are usual: few gradient steps for the data",
        "split rollouts into more minibatches",
        to(n_minibatches=min(FEWEST, batch.rollout_size // SMALL)),
    )


@rule(f"over {MOST} minibatches a rollout", NOTES)
def many_minibatches(run: History) -> Finding | None:
    """Gradient steps late in an iteration follow a policy that is no longer the one that acted."""
    count = run.batch.n_minibatches
    if count <= MOST or not cuts(run):
        return None
    return note(
        count,
        MOST,
        f"{count} minibatches a rollout, where {FEWEST} to {MOST} are usual: many steps on data of "
        "one policy",
        "split rollouts into fewer minibatches",
        to(n_minibatches=MOST),
    )


@rule("minibatches of whole environments that hold under 2 of them", NOTES)
def lone_environments(run: History) -> Finding | None:
    """A minibatch from one trajectory is as correlated as it can be."""
    each = run.batch.n_envs / run.batch.n_minibatches
    if run.recipe.objective.minibatches_by != "envs" or each >= 2:
        return None
    return warning(
        each,
        2,
        f"minibatches hold {each:.2g} environments, under 2: each comes from one trajectory",
        "draw minibatches from single rows of all environments",
        to(minibatches_by="samples"),
    )


FEW_ENVS, FEW_ENVS_DUAL = 4, 8


@rule(
    f"under {FEW_ENVS} environments, or under {FEW_ENVS_DUAL} with separate networks",
    f"{NOTES}; {MAYOR}",
)
def few_environments(run: History) -> Finding | None:
    """Rows of few environments resemble each other; separate networks need more of them."""
    batch, dual = run.batch, run.recipe.model.architecture == "dual"
    least = FEW_ENVS_DUAL if dual else FEW_ENVS
    if batch.n_envs >= least:
        return None
    wide = max(1, batch.rollout_size // FEW_ENVS_DUAL)
    return note(
        batch.n_envs,
        least,
        f"{counted(batch.n_envs, 'environment')}, under {least}"
        f"{' with separate networks' if dual else ''}: rows of one trajectory resemble each other",
        "use more environments and shorter rollouts of the same size",
        to(n_envs=FEW_ENVS_DUAL, n_steps=wide),
    )


MANY_EPOCHS = 10


@rule(f"over {MANY_EPOCHS} epochs with under 32 environments", MAYOR)
def many_epochs(run: History) -> Finding | None:
    """More epochs without more environments fit the rollout instead of the task."""
    batch = run.batch
    if batch.n_epochs <= MANY_EPOCHS or batch.n_envs >= 32:
        return None
    return note(
        batch.n_epochs,
        MANY_EPOCHS,
        f"{batch.n_epochs} epochs on rollouts of {counted(batch.n_envs, 'environment')}, over "
        f"{MANY_EPOCHS}: more epochs without more environments fit the rollout, not the task",
        "take fewer epochs, or use more environments",
        to(n_epochs=MANY_EPOCHS),
    )


SWING = 10.0


@rule(
    f"the advantages' standard deviation goes up and down by {SWING:.0f} x from one iteration to "
    "the next",
    PAPER,
)
def advantage_swings(run: History) -> Finding | None:
    """Normalised by one rollout's deviation, advantages mean another thing in every iteration."""
    found = [each for each in run.recent("advantage_std") if each > 0]
    if len(found) < 2 or run.recipe.objective.advantage_normalization in ("none", "ewma"):
        return None
    steps = list(pairwise(found))
    swing = min(max(b / a for a, b in steps), max(a / b for a, b in steps))
    if swing < SWING:
        return None
    return note(
        swing,
        SWING,
        f"the advantages' standard deviation goes up and down by {times(swing)} from one iteration "
        f"to the next, {SWING:.0f}x or more: normalised, advantages change their scale",
        "normalise them over more iterations",
        to(advantage_normalization="ewma", advantage_decay=0.9),
    )
