"""How a run goes, in words: learning, not learning, or had learned and lost it; where it broke."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import Literal

from isobatch.advice.history import LATE, LEAST, PROGRESS, WINDOW, History
from isobatch.advice.rules.learning import FALLEN
from isobatch.advice.rules.policy import entropy_collapse, entropy_floor
from isobatch.text import counted, number

AROUND = WINDOW // 2
"""Rows before a collapse, and after it, that are compared."""
SPENT = 0.99
"""A run that has spent this part of its budget is over: the last iteration may not be whole."""

State = Literal["learning", "not learning", "had learned and lost it", "too early to say"]


@dataclass(frozen=True)
class Verdict:
    """What a run comes to so far."""

    state: State
    sentence: str
    """The state in words, with the mean returns that show it."""
    collapse: str = ""
    """Where it broke, and what the policy did there. Empty where it did not."""


def verdict(run: History) -> Verdict:
    """Return how a run goes by its mean return in training, and where it broke."""
    now, first = run.median("episode_return"), run.first_return
    if not run.rows:
        return Verdict("too early to say", "No rows yet: only the recipe was looked at.")
    if now is None or first is None:
        ended = counted(int(run.last("episodes") or 0), "episode")
        return Verdict(
            "too early to say",
            f"Too early to say: {counted(run.rows, 'iteration')} and {ended} are too few for a "
            "trend.",
        )
    if run.lost is not None and run.lost > FALLEN:
        return _lost(run, first)
    beside = f"the mean return is {now:.4g}, and was {first:.4g} at the start"
    rose = run.gain is not None and run.gain > PROGRESS
    if run.has_progressed:
        done = "Learned" if run.part >= SPENT else "Learning"
        if rose:
            beside = f"the mean return rose from {first:.4g} to {now:.4g}"
        return Verdict("learning", f"{done}: {beside}.")
    if run.reward_unseen:
        beside = f"every episode returned {number(now)}"
    elif rose and run.scale is not None:
        low, high = run.scale.low, run.scale.high
        beside += f"; random actions score {low:.4g}, the reference {high:.4g}"
    so_far = "" if run.part >= LATE else " so far"
    broke = "" if entropy_collapse(run) is None else _policy_collapse(run)
    return Verdict("not learning", f"Not learning{so_far}: {beside}.", broke)


def _lost(run: History, first: float) -> Verdict:
    """Say of a run that lost its gain when that was: below half of it, and never above again."""
    places, values = run.column("episode_return")
    best = max(values[LEAST:])
    kept = best - FALLEN * (best - first)
    last_good = max(k for k, value in enumerate(values) if value >= kept)
    place = places[min(last_good + 1, len(places) - 1)]
    return Verdict(
        "had learned and lost it",
        f"Had learned and lost it at iteration {run.iteration(place):,}: the mean return rose from "
        f"{first:.4g} to {best:.4g} and fell to {values[-1]:.4g}.",
        f"It fell at {_where(run, place)}: {_around(run, place)}.",
    )


def _policy_collapse(run: History) -> str:
    """Say where the entropy fell below its floor for good."""
    places, values = run.column("entropy")
    floor = entropy_floor(run)
    assert floor is not None, "the rule found a collapse"
    above = [k for k, value in enumerate(values) if value > floor]
    place = places[min(above[-1] + 1, len(places) - 1)] if above else places[0]
    return f"The policy collapsed at {_where(run, place)}: {_around(run, place)}."


def _where(run: History, place: int) -> str:
    steps = run.at("env_steps", place)
    return f"iteration {run.iteration(place):,}" + (f" ({steps:,.0f} env steps)" if steps else "")


def _around(run: History, place: int) -> str:
    """Say what KL, clip fraction and entropy were before a row and from it on."""
    said = []
    for name, words, form in (
        ("approx_kl", "approximate KL", ".2g"),
        ("clip_fraction", "clip fraction", ".0%"),
        ("entropy", "entropy", ".2g"),
    ):
        places, values = run.column(name)
        near = [(k, v) for k, v in zip(places, values, strict=True) if abs(k - place) <= AROUND]
        sides = [[v for k, v in near if k < place], [v for k, v in near if k >= place]]
        if not near:
            continue
        text = f"{words} " + " -> ".join(f"{median(each):{form}}" for each in sides if each)
        if name == "approx_kl":
            peak, most = max(near, key=lambda each: each[1])
            text += f" (at most {most:.2g}, in iteration {run.iteration(peak):,})"
        said.append(text)
    return ", ".join(said) or "its rows do not say what the policy did there"
