"""What a study says about its claims: supported, contradicted or undecided."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from isobatch.errors import UserError
from isobatch.estimate import Estimate
from isobatch.scores import not_normalised
from isobatch.study.claims import Claim, Contrast
from isobatch.study.results import Results
from isobatch.study.stats import (
    Floats,
    bonferroni,
    bootstrap_difference,
    bootstrap_pair_ci,
    equivalence,
    mean,
    probability_of_improvement,
    van_elteren,
)
from isobatch.text import counted, interval

Outcome = Literal["supported", "contradicted", "undecided"]
LEVEL = 0.05
"""The chance of a wrong verdict on any claim of a study, if none of them held."""
FEWEST_RUNS = 5
"""Below, the test finds too much and the interval is too narrow: docs/results/statistics.md."""


MOST_NAMED = 4
"""Tasks named on either side of a disagreement."""


class Task(NamedTuple):
    """How one side compares with another in one environment."""

    env: str
    effect: float
    """As `Comparison.effect`."""
    probability: float


@dataclass(frozen=True)
class Comparison:
    """How one side compares with another, at the level that holds for all claims together."""

    effect: float
    """Difference of the mean normalised scores; by rank, the probability of improvement."""
    low: float
    high: float
    """Its bootstrap interval."""
    p: float
    """Van Elteren's, times the number of claims."""
    probability: float
    """That a run of the first beats one of the second."""
    ranked: bool = False
    tasks: tuple[Task, ...] = ()
    claims: int = 1
    """How many claims interval and p are adjusted for."""

    @property
    def neutral(self) -> float:
        """The effect where there is none."""
        return 0.5 if self.ranked else 0.0

    @property
    def apart(self) -> bool:
        """True where the interval leaves out that there is no effect."""
        return self.low > self.neutral or self.high < self.neutral

    def is_inside(self, margin: float) -> bool:
        """Whether the interval leaves out a difference of `margin` or more."""
        return max(abs(self.low), abs(self.high)) < margin

    def is_beyond(self, margin: float) -> bool:
        """Whether the interval leaves out a difference of `margin` or less."""
        return self.low > margin or self.high < -margin

    def is_at_odds(self, margin: float | None) -> bool:
        """Whether one of the test and the interval decides the claim, and the other does not."""
        decides = self.apart if margin is None else self.is_inside(margin) or self.is_beyond(margin)
        return (self.p < LEVEL) != decides

    @property
    def direction(self) -> int:
        """1 or -1 where the test and the interval agree that the first is better or worse."""
        if self.p >= LEVEL or not self.apart:
            return 0
        return 1 if self.low > self.neutral else -1

    @property
    def adjustment(self) -> str:
        """What interval and p are adjusted for; nothing where there is one claim."""
        return f" (both for {self.claims} claims, Bonferroni)" if self.claims > 1 else ""

    @property
    def shown(self) -> str:
        """The effect and its interval: +0.123 [+0.045, +0.201]."""
        digits = ".3f" if self.ranked else "+.3f"
        return interval(Estimate(self.effect, self.low, self.high), digits)


@dataclass(frozen=True)
class Verdict:
    """A claim and what became of it."""

    claim: Claim
    verdict: Outcome
    runs: int
    """Seeds counted, the same for both sides."""
    found: Comparison | None = None
    reason: str = ""

    @property
    def sentence(self) -> str:
        """The verdict in a line."""
        if self.found is None:
            return f"{self.verdict}: {self.reason}"
        return (
            f"{self.verdict}: {self.reason}; {self.measured} {self.found.shown}, {self.test} "
            f"p = {self.found.p:.3g}, {counted(self.runs, 'seed')}{self.found.adjustment}"
        )

    @property
    def pulls(self) -> list[str]:
        """Where test and interval disagree, the tasks that pull towards either side, a line each.

        The test counts ranks, the interval is of the mean: one task of many may sway the second.
        """
        found = self.found
        if found is None or self.verdict != "undecided" or not found.is_at_odds(self.claim.margin):
            return []
        tasks = sorted(found.tasks, key=lambda task: -abs(task.effect - found.neutral))
        towards = {
            describe(self.claim.better): [each for each in tasks if each.effect > found.neutral],
            describe(self.claim.than): [each for each in tasks if each.effect < found.neutral],
        }
        return [
            f"tasks that pull towards {side}: {_listed(each, found.ranked)}"
            for side, each in towards.items()
        ]

    @property
    def effect(self) -> float | None:
        """What was found: `Comparison.effect`; None, like the rest, where nothing was compared."""
        return self.found.effect if self.found else None

    @property
    def low(self) -> float | None:
        """The lower end of its interval."""
        return self.found.low if self.found else None

    @property
    def high(self) -> float | None:
        """The upper end."""
        return self.found.high if self.found else None

    @property
    def p(self) -> float | None:
        """The p-value of `test`, times the number of claims."""
        return self.found.p if self.found else None

    @property
    def probability(self) -> float | None:
        """That a run of the first side beats one of the second."""
        return self.found.probability if self.found else None

    @property
    def measured(self) -> str:
        """What the effect is."""
        if self.claim.column:
            return f"probability that {self.claim.column} is larger"
        if self.found is not None and self.found.ranked:
            return "probability of improvement"
        what = "area under the curve" if self.claim.measure == "curve" else "score"
        return f"difference of the normalised {what}"

    @property
    def test(self) -> str:
        """The test that the p-value comes from."""
        if self.claim.margin is None:
            return "van Elteren test"
        inside = self.found is not None and abs(self.found.effect) < self.claim.margin
        return "equivalence test" if inside else "test of a difference beyond the margin"


def verdicts(results: Results) -> list[Verdict]:
    """Judge every claim of a study; levels are Bonferroni's over all of them.

    Where an environment's scores cannot be normalised, arms are compared by rank within each
    environment: the test is the same, and the interval is that of the probability of improvement.
    A margin is in normalised score, so claims with one are then left undecided.
    """
    return [_verdict(results, claim) for claim in results.study.claims]


def _verdict(results: Results, claim: Claim) -> Verdict:
    seeds = results.seeds(claim.arms)
    if len(seeds) < FEWEST_RUNS:
        done = counted(len(seeds), "seed")
        reason = f"only {done} with all runs of these arms finished, {FEWEST_RUNS} needed"
        return Verdict(claim, "undecided", len(seeds), reason=reason)
    if claim.margin is not None and results.unscaled:
        reason = f"a margin is in normalised score; {not_normalised(results.unscaled)}"
        return Verdict(claim, "undecided", len(seeds), reason=reason)
    try:
        found = _compare(results, claim, claim.better, claim.than, seeds)
        outcome, reason = _judge(results, claim, found, seeds)
    except UserError as error:
        return Verdict(claim, "undecided", len(seeds), reason=str(error))
    return Verdict(claim, outcome, len(seeds), found, reason)


def _compare(
    results: Results, claim: Claim, first: Contrast, second: Contrast, seeds: list[int]
) -> Comparison:
    """Compare two sides as the claim asks."""
    ranked, claims = bool(results.unscaled or claim.column), len(results.study.claims)
    x, y = (results.scores(each, seeds, claim.of, not ranked) for each in (first, second))
    level = 1 - LEVEL / claims
    probability = float(probability_of_improvement(x, y))
    if ranked:
        effect, (low, high) = probability, bootstrap_pair_ci(x, y, level=level)
    else:
        effect = float(mean(x) - mean(y))
        low, high = bootstrap_difference(x, y, mean, level=level)
    if claim.margin is None:
        p = van_elteren(x, y)[1]
    else:
        # One-sided either way: that they differ by less than the margin, or by more.
        inside = equivalence(x, y, claim.margin)
        p = inside if abs(effect) < claim.margin else 1 - inside
    (adjusted,) = bonferroni([p], claims)
    tasks = tuple(
        _task(env, x[:, place], y[:, place], ranked) for place, env in enumerate(results.study.envs)
    )
    return Comparison(effect, float(low), float(high), adjusted, probability, ranked, tasks, claims)


def _task(env: str, x: Floats, y: Floats, ranked: bool) -> Task:
    probability = float(probability_of_improvement(x, y))
    return Task(env, probability if ranked else float(mean(x) - mean(y)), probability)


def _listed(tasks: list[Task], ranked: bool) -> str:
    """Name tasks with their numbers, the strongest first."""
    named = [
        f"{task.env} ({'' if ranked else f'difference {task.effect:+.3f}, '}"
        f"probability of improvement {task.probability:.2f})"
        for task in tasks[:MOST_NAMED]
    ]
    more = len(tasks) - len(named)
    return ", ".join(named + [f"{more} more"] * (more > 0)) or "none"


def _judge(
    results: Results, claim: Claim, found: Comparison, seeds: list[int]
) -> tuple[Outcome, str]:
    """Decide only where the test and the interval agree."""
    if claim.margin is not None:
        return _equivalent(found, claim.margin)
    if isinstance(claim.better, str):
        return _outcome(found.direction), _direction(found)
    own = [_compare(results, claim, side[0], side[1], seeds) for side in (claim.better, claim.than)]
    return _gain(claim, found, *own)


def _outcome(direction: int) -> Outcome:
    return ("undecided", "supported", "contradicted")[direction]


def _direction(found: Comparison) -> str:
    if found.direction:
        way = "claimed" if found.direction > 0 else "opposite"
        return f"a significant difference in the {way} direction"
    if found.is_at_odds(None):
        return "the test and the interval disagree"
    return "the difference is not significant"


def _equivalent(found: Comparison, margin: float) -> tuple[Outcome, str]:
    if found.is_at_odds(margin):
        return "undecided", f"the test and the interval disagree on a margin of {margin:g}"
    if found.is_inside(margin):
        return "supported", f"equivalent within the margin of {margin:g}"
    if found.is_beyond(margin):
        return "contradicted", f"the difference exceeds the margin of {margin:g}"
    return "undecided", f"a difference of {margin:g} is not ruled out"


def _gain(
    claim: Claim, found: Comparison, better: Comparison, than: Comparison
) -> tuple[Outcome, str]:
    """Judge that one gain is larger than another: there must be a gain.

    To lose less is no gain. Supported takes both tests to be significant, which is no likelier by
    chance than one; if the better side's own gain is significantly a loss, no gain is there to be
    the larger one.
    """
    own = "; ".join(
        f"{_name(side)} {_gains(each)} ({each.shown})"
        for side, each in ((claim.better, better), (claim.than, than))
    )
    if better.direction < 0:
        first, second = _name(claim.better), _name(claim.than)
        if than.direction < 0 and found.direction > 0:
            return "contradicted", f"both lose, {first} less than {second}: {own}"
        return "contradicted", f"no gain but a loss: {own}"
    if found.direction > 0 and better.direction == 0:
        less = ", it loses less" if than.direction < 0 else ""
        return "undecided", f"the difference is significant, the gain is not{less}: {own}"
    return _outcome(found.direction), f"{_direction(found)}: {own}"


def _gains(own: Comparison) -> str:
    return ("has no significant gain or loss", "gains", "loses")[own.direction]


def _name(contrast: Contrast) -> str:
    return contrast if isinstance(contrast, str) else f"{contrast[0]} over {contrast[1]}"


def describe(contrast: Contrast) -> str:
    """Return a claim's side as text."""
    return contrast if isinstance(contrast, str) else f"gain of {_name(contrast)}"
