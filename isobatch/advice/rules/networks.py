"""Rules about what happens inside the networks: the failure signatures of 2506.03404."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from isobatch.advice.finding import Finding
from isobatch.advice.history import SELDOM, History
from isobatch.advice.rules.changes import more_entropy, smaller_steps
from isobatch.advice.rules.rule import (
    LEARNING,
    MAYOR_NUMBERS,
    Changes,
    note,
    rule,
    times,
    to,
    warning,
)

PARTS = ("_actor", "_critic", "")
"""A diagnostic is one column each where there are two networks, or one."""


def networks(name: str, part: str) -> str:
    """Return a diagnostic's name in words: feature rank of the actor."""
    whose = part.removeprefix("_")
    return name.replace("_", " ") + (f" of the {whose}" if whose else "")


def more_environments(run: History) -> Changes:
    """Return twice the environments at the same rollout, what 2506.03404 found to help."""
    batch = run.batch
    return to(n_envs=2 * batch.n_envs, n_steps=max(1, batch.n_steps // 2))


def signature(run: History) -> Callable[..., Finding]:
    """Return how bad a sign of instability is: FrozenLake8x8-v1's rank falls while it learns."""
    return note if run.learns else warning


def moved(
    run: History, name: str, factor: float, meaning: str, floor: float = 0.0
) -> Finding | None:
    """Return what there is to say where a diagnostic is `factor` times its first value, or beyond.

    `floor` is what the larger of both must reach, so that small numbers do not count.
    """
    for part in PARTS:
        now, first = run.median(name + part, SELDOM), run.early(name + part)
        if now is None or first is None or first <= 0 or max(now, first) < floor:
            continue
        ratio = now / first
        if ratio > factor if factor > 1 else ratio < factor:
            way = "rose" if factor > 1 else "fell"
            return signature(run)(
                ratio,
                factor,
                f"{networks(name, part)} {way} from {first:.3g} to {now:.3g}, {times(ratio)}: "
                f"{meaning}",
                "take smaller steps, or use more environments at the same rollout",
                smaller_steps(run, 0.5) | more_environments(run),
            )
    return None


WEIGHTS_GROWN, KURTOSIS_GROWN, RANK_LEFT = 2.5, 2.0, 0.5
"""Runs that learn: weights of the critic up to 1.9x, kurtosis 0.3x to 2.6x in single measurements,
ranks down to 0.6x of 23. Ranks that begin at 2 to 7 go up and down: only larger ones can fall."""
LARGE_KURTOSIS, LARGE_RANK = 10.0, 8.0


@rule(f"weight norm over {WEIGHTS_GROWN:g} x its first value{LEARNING}", MAYOR_NUMBERS)
def weight_norm(run: History) -> Finding | None:
    """Weights grow where training is unstable, and what they learned becomes hard to change."""
    return moved(run, "weight_norm", WEIGHTS_GROWN, "a sign of unstable training")


@rule(
    f"gradient kurtosis over {KURTOSIS_GROWN:g} x its first value, and over {LARGE_KURTOSIS:g}"
    f"{LEARNING}",
    MAYOR_NUMBERS,
)
def gradient_kurtosis(run: History) -> Finding | None:
    """A few entries outweigh the gradient."""
    return moved(
        run,
        "gradient_kurtosis",
        KURTOSIS_GROWN,
        "a few weights get most of the gradient",
        LARGE_KURTOSIS,
    )


@rule(
    f"feature rank under {RANK_LEFT:g} x its first value of {LARGE_RANK:g} or more", MAYOR_NUMBERS
)
def feature_rank(run: History) -> Finding | None:
    """Features collapse into few directions, and the network loses what it could still learn.

    A note only: it spoke of a fifth of good runs and of no bad one (docs/tasks/advise.md).
    """
    found = moved(
        run, "feature_rank", RANK_LEFT, "features collapse into few directions", LARGE_RANK
    )
    return found and replace(found, severity="note")


DORMANT, DORMANT_MORE = 0.25, 0.1


@rule(
    f"over {DORMANT:.0%} of units dormant, {DORMANT_MORE:.0%} more than at first{LEARNING}",
    MAYOR_NUMBERS,
)
def dormant_units(run: History) -> Finding | None:
    """The network uses less and less of itself."""
    for part in PARTS:
        name = f"dormant_fraction{part}"
        now, first = run.median(name, SELDOM), run.early(name)
        if now is not None and first is not None and now > max(DORMANT, first + DORMANT_MORE):
            return signature(run)(
                now,
                DORMANT,
                f"{now:.0%} of units{' of the ' + part[1:] if part else ''} are dormant "
                f"{run.lately}, {first:.0%} at first: the network uses fewer of its units",
                "take smaller steps, or use more environments at the same rollout",
                smaller_steps(run, 0.5) | more_environments(run),
            )
    return None


NEW_STATES, FEWER_NEW = 0.02, 10.0


@rule(
    f"under {NEW_STATES:.0%} of recent steps reach states not seen before, a "
    f"{FEWER_NEW:.0f}th of the first rollout's or less, and the return is no better than at the "
    "start",
    MAYOR_NUMBERS,
)
def state_coverage(run: History) -> Finding | None:
    """The policy revisits known states, and has not found what it needs there."""
    places, coverage = run.column("state_coverage")
    steps = [run.at("env_steps", place) or 0.0 for place in places]
    if len(steps) < SELDOM or run.has_progressed is not False or steps[-1] <= steps[-2]:
        return None
    seen = [a * b for a, b in zip(coverage, steps, strict=True)]
    new = max(0.0, seen[-1] - seen[-2]) / (steps[-1] - steps[-2])
    if new >= NEW_STATES or new > coverage[0] / FEWER_NEW:
        return None
    return note(
        new,
        NEW_STATES,
        f"{new:.1%} of recent steps reach states not seen before, {coverage[0]:.0%} at first, and "
        "the return is no better than then: the policy revisits known states",
        "explore more, or use more environments at the same rollout",
        more_environments(run) if run.algorithm.explores else more_entropy(run),
    )
