"""Rules about how far the policy moves: KL divergence, clipping, entropy, stale data."""

from __future__ import annotations

import math

from isobatch.advice.finding import Finding
from isobatch.advice.history import SELDOM, History
from isobatch.advice.rules.changes import more_entropy, smaller_steps, step_size
from isobatch.advice.rules.rule import (
    LEARNING,
    MAYOR_NUMBERS,
    OURS,
    PAPER,
    note,
    problem,
    rule,
    to,
    warning,
)
from isobatch.text import counted

KL_HIGH, KL_FAR = 0.05, 0.2
"""Runs that learn had 0.012 or less, as medians over tenths of a run. It is the mean over an
iteration's updates."""


@rule(f"approximate KL over {KL_HIGH} (over {KL_FAR}: a problem){LEARNING}", OURS)
def kl_high(run: History) -> Finding | None:
    """Each iteration takes the policy far from the one that acted.

    A note in runs that learn: it spoke as often of good runs as of bad ones (docs/tasks/advise.md).
    """
    kl, epochs = run.median("approx_kl"), run.batch.n_epochs
    if kl is None or kl <= KL_HIGH:
        return None
    say = note if run.learns else problem if kl > KL_FAR else warning
    text = f"approximate KL {kl:.2g} {run.lately}, over {KL_HIGH}: each iteration takes the "
    text += "policy far from the one that acted"
    slower = smaller_steps(run, math.sqrt(KL_HIGH / 2 / kl))
    if epochs == 1:
        return say(kl, KL_HIGH, text, "take smaller steps", slower)
    return say(
        kl,
        KL_HIGH,
        f"{text}, in {counted(epochs, 'epoch')}",
        "take smaller steps, or fewer epochs: one to begin with (2110.00641)",
        slower if kl > KL_FAR else to(n_epochs=max(1, epochs // 2)),
    )


CLIP_HIGH, CLIP_HIGH_EPOCHS = 0.1, 0.2


def clips(run: History) -> bool:
    """Whether the clip fraction says anything: the objective clips, and steps follow the first."""
    return run.recipe.objective.objective == "clip" and run.batch.grad_steps_per_iteration > 1


@rule(
    f"clip fraction over {CLIP_HIGH:.0%} with one epoch, {CLIP_HIGH_EPOCHS:.0%} with several",
    PAPER,
)
def clip_high(run: History) -> Finding | None:
    """More of the batch is clipped away than a good step size would.

    A note only: twice it spoke of good runs as often as of bad ones (docs/tasks/advise.md).
    """
    clipped, epochs = run.median("clip_fraction"), run.batch.n_epochs
    most = CLIP_HIGH if epochs == 1 else CLIP_HIGH_EPOCHS
    if clipped is None or clipped <= most or not clips(run):
        return None
    return note(
        clipped,
        most,
        f"clip fraction {clipped:.0%} {run.lately}, over {most:.0%} with "
        f"{counted(epochs, 'epoch')}: the step size is too high",
        "take smaller steps" + (", or fewer epochs" if epochs > 1 else ""),
        smaller_steps(run, most / 2 / clipped),
    )


ENTROPY_LEFT = 0.05
"""Of discrete policies: the part of the uniform policy's entropy."""
ENTROPY_LOST = 3.0
"""Of continuous ones, in nats per dimension: a standard deviation 20 times smaller."""


def entropy_floor(run: History) -> float | None:
    """Return the entropy under which a policy has stopped exploring, None where that is unknown."""
    first, actions = run.early("entropy"), run.actions
    if first is None:
        return None
    if actions is not None and actions.entropy is None:
        return first - ENTROPY_LOST * max(1, actions.size)
    most = first if actions is None or actions.entropy is None else actions.entropy
    return ENTROPY_LEFT * most if most > 0 and min(run.recent("entropy")) >= 0 else None


@rule(
    f"entropy under {ENTROPY_LEFT:.0%} of the uniform policy's, or of continuous actions "
    f"{ENTROPY_LOST:.0f} nats per dimension lower than at first, and the return no better than "
    "then",
    OURS,
)
def entropy_collapse(run: History) -> Finding | None:
    """The policy has stopped trying things before it found any that work."""
    entropy, first, floor = run.median("entropy"), run.early("entropy"), entropy_floor(run)
    if entropy is None or first is None or floor is None or entropy > floor:
        return None
    if run.has_progressed is not False:
        return None
    change, advice = more_entropy(run), "reward entropy"
    leap = max(run.values("approx_kl"), default=0.0)
    if leap > KL_HIGH:  # It collapsed in a few steps: they were too large.
        change = smaller_steps(run, 0.1)
        advice = f"take smaller steps: the KL has been {leap:.2g} in an iteration"
    text = "the policy has stopped exploring, and the return is no better than at the start"
    if run.actions is not None and run.actions.entropy is None:
        lost = (first - entropy) / max(1, run.actions.size)
        said = f"entropy {lost:.1f} nats per action dimension lower than at first"
        return problem(lost, ENTROPY_LOST, f"{said}: {text}", advice, change)
    left = ENTROPY_LEFT * entropy / floor
    said = f"entropy {entropy:.2g} {run.lately}, {left:.1%} of the uniform policy's"
    return problem(left, ENTROPY_LEFT, f"{said}: {text}", advice, change)


LARGE_BONUS, ENTROPY_KEPT = 0.1, 0.9


@rule(
    f"ent_coef over {LARGE_BONUS:g}, and after a quarter of the budget entropy over "
    f"{ENTROPY_KEPT:.0%} of the uniform policy's, or of continuous actions no lower than at first",
    OURS,
)
def entropy_bonus(run: History) -> Finding | None:
    """The bonus outweighs the reward: the policy stays random."""
    entropy, first = run.median("entropy"), run.early("entropy")
    bonus, actions = run.recipe.objective.ent_coef, run.actions
    if entropy is None or first is None or bonus <= LARGE_BONUS or run.part < 0.25:
        return None
    uniform = None if actions is None else actions.entropy
    if entropy < (first if uniform is None else ENTROPY_KEPT * uniform):
        return None
    beside = f"{first:.2g} at first" if uniform is None else f"{entropy / uniform:.0%} of uniform"
    return note(
        bonus,
        LARGE_BONUS,
        f"ent_coef is {bonus:g}, over {LARGE_BONUS:g}, and the entropy {entropy:.2g} ({beside}): "
        "the bonus outweighs the reward, and the policy stays random",
        "reward entropy less",
        to(ent_coef=0.01),
    )


ESS_LOW, ESS_GONE = 0.8, 0.5
"""Healthy runs here stay over 0.96."""


@rule(f"importance ESS under {ESS_LOW:.0%} (under {ESS_GONE:.0%}: a problem)", MAYOR_NUMBERS)
def importance_ess(run: History) -> Finding | None:
    """A few rows carry the batch: the policy has moved too far from the one that acted."""
    left = run.median("importance_ess", SELDOM)
    if left is None or left >= ESS_LOW:
        return None
    epochs = run.batch.n_epochs
    return (problem if left < ESS_GONE else warning)(
        left,
        ESS_LOW,
        f"importance ESS {left:.0%} {run.lately}, under {ESS_LOW:.0%}: after an iteration's "
        "updates a few rows outweigh the rest of the batch",
        "take fewer epochs, or smaller steps" if epochs > 1 else "take smaller steps",
        to(n_epochs=max(1, epochs // 2)) if epochs > 1 else smaller_steps(run, 0.5),
    )


CAPPED = 1e-3


@rule(f"over {CAPPED:.1%} of importance ratios are capped at max_ratio", OURS)
def ratios_capped(run: History) -> Finding | None:
    """Ratios this large are no sign of a policy that changes step by step."""
    capped = run.median("capped_fraction")
    if capped is None or capped <= CAPPED:
        return None
    cap = run.recipe.objective.max_ratio
    return warning(
        capped,
        CAPPED,
        f"{capped:.1%} of importance ratios reach {cap:g} {run.lately}: actions have become that "
        "much likelier within an iteration",
        "take smaller steps",
        smaller_steps(run, 0.1),
    )


STOPPED, TAKEN = 0.5, 0.5
USUAL_TARGET = 0.01


@rule(
    f"target_kl stops over {STOPPED:.0%} of iterations, before {TAKEN:.0%} of their gradient steps",
    OURS,
)
def target_kl_stops(run: History) -> Finding | None:
    """Most of the gradient steps that the recipe asks for are never taken."""
    target, recent = run.recipe.objective.target_kl, run.recent("updates_per_sample")
    stops = sum(run.recent("stopped_early", 0)) / max(1, len(recent))
    passes = run.median("updates_per_sample")
    if target is None or passes is None or stops <= STOPPED:
        return None
    taken = passes / run.batch.n_epochs
    if taken >= TAKEN:
        return None
    return warning(
        stops,
        STOPPED,
        f"target_kl {target:g} stopped {min(1.0, stops):.0%} of iterations {run.lately}, after "
        f"{taken:.0%} of their gradient steps",
        "take smaller steps, so that all of them are taken"
        if target >= USUAL_TARGET
        else f"allow a larger KL: {USUAL_TARGET:g} to 0.03 are usual",
        smaller_steps(run, 0.5) if target >= USUAL_TARGET else to(target_kl=USUAL_TARGET),
    )


CLIP_LOW, KL_LOW = 0.003, 1e-4


@rule(
    f"clip fraction under {CLIP_LOW:.1%} before the step size is annealed, with something left "
    "to learn",
    PAPER,
)
def clip_low(run: History) -> Finding | None:
    """Clipping hardly ever holds a step back: there is room for a larger rollout."""
    clipped = run.median("clip_fraction")
    if clipped is None or clipped >= CLIP_LOW or not clips(run):
        return None
    if run.steps_annealed or run.is_settled or run.reward_unseen:
        return None
    decay = run.recipe.objective.proximal_decay
    averages = run.algorithm.proximal == "average"
    return note(
        clipped,
        CLIP_LOW,
        f"clip fraction {clipped:.2%} {run.lately}, well under 1%: the rollout could be larger, or "
        "the steps",
        "average the proximal policy over more steps" if averages else "use more environments",
        to(proximal_decay=round(1 - (1 - decay) / 4, 5))
        if averages
        else to(n_envs=2 * run.batch.n_envs),
    )


@rule(
    f"approximate KL under {KL_LOW:g} at first and now, and the return has not risen by half",
    OURS,
)
def kl_low(run: History) -> Finding | None:
    """The policy hardly moves."""
    kl = max((run.median("approx_kl"), run.early("approx_kl")), key=lambda each: each or 0.0)
    if kl is None or kl >= KL_LOW or run.batch.grad_steps_per_iteration == 1:
        return None
    if run.gain is None or run.learns or run.is_settled or run.reward_unseen:
        return None
    if entropy_collapse(run) is not None or max(run.values("approx_kl")) > KL_HIGH:
        return None  # A policy that has leapt and stands still needs no larger steps.
    return warning(
        kl,
        KL_LOW,
        f"approximate KL {kl:.1g} {run.lately}, under {KL_LOW:g}: the policy hardly moves",
        "take larger steps",
        step_size(run, 10),
    )
