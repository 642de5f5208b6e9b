"""What a study says about its claims: supported, contradicted or undecided."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from isobatch.errors import UserError
from isobatch.estimate import Estimate
from isobatch.study.design import Claim, Contrast
from isobatch.study.results import Results
from isobatch.study.stats import (
    Floats,
    bonferroni,
    bootstrap_difference,
    equivalence,
    mean,
    probability_of_improvement,
    van_elteren,
)
from isobatch.text import counted, interval

LEVEL = 0.05
"""The chance of a wrong verdict on any claim of a study, if none of them held."""
FEWEST_RUNS = 5
"""Below, the test finds too much and the interval is too narrow: docs/results/statistics.md."""


@dataclass(frozen=True)
class Verdict:
    """A claim and what became of it."""

    claim: Claim
    verdict: Literal["supported", "contradicted", "undecided"]
    runs: int
    """Seeds counted, the same for both sides."""
    effect: float | None = None
    """Difference of the mean normalised score, averaged over environments."""
    low: float | None = None
    high: float | None = None
    """Its bootstrap interval, at the level that holds for all claims together."""
    p: float | None = None
    """Times the number of claims: van Elteren's, or of the equivalence test."""
    probability: float | None = None
    """That a run of the first beats one of the second."""
    reason: str = ""

    @property
    def sentence(self) -> str:
        """The verdict in a line."""
        if self.effect is None:
            return f"{self.verdict}: {self.reason}"
        return (
            f"{self.verdict}: {self.reason}; difference of the {unit(self.claim)} "
            f"{self.difference}, {name_of_test(self.claim)} p = {self.p:.3g}, "
            f"{counted(self.runs, 'seed')} (interval and p Bonferroni-adjusted)"
        )

    @property
    def difference(self) -> str:
        """The effect and its interval: +0.123 [+0.045, +0.201]."""
        assert self.effect is not None
        assert self.low is not None
        assert self.high is not None
        return interval(Estimate(self.effect, self.low, self.high), "+.3f")


def verdicts(results: Results) -> list[Verdict]:
    """Judge every claim of a study; levels are Bonferroni's over all of them."""
    claims = results.study.claims
    sides = [_sides(results, claim) for claim in claims]
    p_values = bonferroni(
        [
            1.0 if isinstance(pair, Verdict) else _p(claim, *pair)
            for claim, pair in zip(claims, sides, strict=True)
        ]
    )
    return [
        pair if isinstance(pair, Verdict) else _judge(claim, *pair, p, len(claims))
        for claim, pair, p in zip(claims, sides, p_values, strict=True)
    ]


def _sides(results: Results, claim: Claim) -> tuple[Floats, Floats] | Verdict:
    """Return both sides' scores, or the verdict where they cannot be had."""
    seeds = results.seeds(claim.arms)
    if len(seeds) < FEWEST_RUNS:
        done = counted(len(seeds), "seed")
        reason = f"only {done} with all runs of these arms finished, {FEWEST_RUNS} needed"
        return Verdict(claim, "undecided", len(seeds), reason=reason)
    try:
        better = results.scores(claim.better, seeds, claim.measure)
        return better, results.scores(claim.than, seeds, claim.measure)
    except UserError as error:
        return Verdict(claim, "undecided", len(seeds), reason=str(error))


def _p(claim: Claim, better: Floats, than: Floats) -> float:
    if claim.margin is None:
        return van_elteren(better, than)[1]
    return equivalence(better, than, claim.margin)


def _judge(claim: Claim, better: Floats, than: Floats, p: float, claims: int) -> Verdict:
    """Decide only where the test and the interval agree."""
    effect = float(mean(better) - mean(than))
    low, high = bootstrap_difference(better, than, mean, level=1 - LEVEL / claims)
    significant = p < LEVEL
    if claim.margin is None:
        supported, contradicted = significant and low > 0, significant and high < 0
        reason = _direction(supported, contradicted, significant, apart=low > 0 or high < 0)
    else:
        inside = max(abs(low), abs(high)) < claim.margin
        supported = significant and inside
        contradicted = min(low, high) > claim.margin or max(low, high) < -claim.margin
        reason = _equivalence(supported, contradicted, claim.margin)
    outcome = "supported" if supported else "contradicted" if contradicted else "undecided"
    return Verdict(
        claim,
        outcome,
        len(better),
        effect,
        float(low),
        float(high),
        p,
        float(probability_of_improvement(better, than)),
        reason,
    )


def _direction(supported: bool, contradicted: bool, significant: bool, apart: bool) -> str:
    if supported:
        return "a significant difference in the claimed direction"
    if contradicted:
        return "a significant difference in the opposite direction"
    if significant or apart:
        return "the test and the interval disagree"
    return "no significant difference"


def _equivalence(supported: bool, contradicted: bool, margin: float) -> str:
    if supported:
        return f"equivalent within the margin of {margin:g}"
    if contradicted:
        return f"the difference exceeds the margin of {margin:g}"
    return f"a difference of {margin:g} is not ruled out"


def unit(claim: Claim) -> str:
    """Return what a claim's effect is a difference of."""
    return "normalised score" if claim.measure == "score" else "normalised area under the curve"


def name_of_test(claim: Claim) -> str:
    """Return the test that a claim's p-value comes from."""
    return "equivalence test" if claim.margin else "van Elteren test"


def describe(contrast: Contrast) -> str:
    """Return a claim's side as text."""
    return contrast if isinstance(contrast, str) else f"gain of {contrast[0]} over {contrast[1]}"
