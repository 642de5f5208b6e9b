"""From findings to words: one answer to act on, and the tables behind it."""

from __future__ import annotations

import math

from isobatch.estimate import Estimate
from isobatch.noise.scale import NoiseScale
from isobatch.probe.curve import Point
from isobatch.probe.laboratory import Batches, Findings
from isobatch.text import columns, interval

SURE = 0.95
UPDATES = 10
"""Adam's mean gradient is one of about as many."""
POSSIBLE = 0.05
"""A shape that wins less often than this is ruled out."""


def answer(findings: Findings) -> list[str]:
    """Return what the findings come down to, the most important sentence first."""
    lines = [_lost(findings)]
    if findings.tells:
        lines = [_choice(findings), _over_time(findings), *_trade(findings)]
    lines += [_sources(each) for each in findings.batches]
    lines += [_noise(each, findings.samples) for each in findings.batches[:1]]
    if findings.tells:
        lines += _per_second(findings)
    return lines + _reservations(findings)


def _choice(findings: Findings) -> str:
    best = findings.best()
    rivals = sorted(
        (each for each in findings.curve if each is not best and each.wins >= POSSIBLE),
        key=lambda each: -each.wins,
    )
    text = f"at {findings.samples:,} samples: {best.name}, error {best.error.value:.3g}"
    text += f", the smallest in {best.wins:.0%} of resamples of the environments"
    if rivals and best.wins < SURE:
        names = ", ".join(f"{each.name} ({each.wins:.0%})" for each in rivals[:3])
        text += f"; not ruled out: {names}"
    own = _shape(findings, findings.own.name)
    if own is not None and own is not best:
        text += f". {own.name}, the recipe's, has {own.error.value:.3g}"
    elif own is best:
        text += ". It is the recipe's own"
    return f"{text}. (Squared errors in units of the squared gradient.)"


def _lost(findings: Findings) -> str:
    n_steps, n_envs = findings.directions.squares.shape
    return (
        f"at {findings.samples:,} samples: no shape to name. The gradient is lost in the noise of "
        f"{n_envs * n_steps:,} rows from {n_envs} environments; more --batches would tell, or a "
        "place earlier in training"
    )


def _over_time(findings: Findings) -> str:
    """Say what is best where a policy hardly moves from one update to the next."""
    best = findings.best(UPDATES)
    return (
        f"over {UPDATES} updates, whose noise averages out and whose bias does not: {best.name}, "
        f"error {best.error_over(UPDATES):.3g}"
    )


def _trade(findings: Findings) -> list[str]:
    """Say what longer rollouts would do, from the recipe's own length or else the best one's."""
    here = _shape(findings, findings.own.name) or findings.best()
    lines = []
    longer = [each for each in findings.curve if each.n_steps > here.n_steps]
    shorter = [each for each in findings.curve if each.n_steps < here.n_steps]
    for other, words in ((longer[:1], "longer"), (shorter[-1:], "shorter")):
        for each in other:
            lines.append(
                f"{words} rollouts, {here.n_steps} -> {each.n_steps} steps: bias^2 "
                f"{_moved(here.bias2, each.bias2)}, variance "
                f"{_moved(here.variance, each.variance)}"
            )
    return lines


def _moved(old: Estimate, new: Estimate) -> str:
    return f"{max(old.value, 0):.3g} -> {max(new.value, 0):.3g}"


def _sources(batches: Batches) -> str:
    raw = batches.raw
    share = raw.covariance.value / raw.total.value if raw.total.value else 0.0
    rows = batches.shape.samples
    effect = f"design effect {interval(raw.design_effect)}"
    if batches.shape.n_steps == 1:
        return f"{batches.shape.name}: one step an environment, so nothing to correlate"
    if share >= 0:
        text = (
            f"correlation within rollouts is {share:.0%} of the variance, single samples the rest"
        )
    else:
        text = (
            f"steps of a rollout make up for each other: correlation takes {-share:.0%} of the "
            "variance off"
        )
    worth = raw.effective_samples.value
    told = "" if raw.covariance.low > 0 or raw.covariance.high < 0 else ", not told from none"
    return (
        f"{batches.shape.name}: {text}{told} ({effect}); its {rows:,} samples are worth "
        f"{worth:,.0f} independent ones"
    )


def _noise(batches: Batches, samples: int) -> str:
    noise = next(each for each in batches.noise if each.estimator == "per-environment")
    scale = noise.noise_scale
    least = _count(scale.low)
    if math.isinf(scale.value):
        known = f", at least {least}" if scale.low > 0 else ""
        return (
            f"noise scale: not bounded{known}; the gradient's signal is lost in the noise of "
            f"{batches.batches * batches.shape.samples:,} samples, so any larger batch helps"
        )
    text = f"noise scale {_count(scale.value)} samples in rollouts of {batches.shape.n_steps}"
    text += f" [{least}, {_count(scale.high)}]"
    if scale.low > 2 * samples:
        advice = f"well above {samples:,}, so that a larger batch helps nearly in proportion"
    elif scale.high < samples / 2:
        advice = f"well below {samples:,}, so that a smaller batch would do nearly as well"
    else:
        advice = f"{samples:,} is neither well below nor well above it"
    return f"{text}: {advice}"


def _count(value: float) -> str:
    return "no bound" if not math.isfinite(value) else f"{value:,.0f}"


def _per_second(findings: Findings) -> list[str]:
    fastest = findings.fastest
    if fastest is None:
        return []
    wins = f" in {fastest.wins_per_second:.0%} of resamples" if fastest.wins_per_second else ""
    return [
        f"per second on this machine: {fastest.name}, {fastest.steps_per_second:,.0f} steps/s; the "
        f"smallest error x time{wins}"
    ]


def _reservations(findings: Findings) -> list[str]:
    """Say what keeps the answer from being one."""
    lines = []
    lost = findings.biases[0].lost
    if lost > POSSIBLE and findings.tells:
        lines.append(
            f"in {lost:.0%} of resamples no gradient is left beside its noise: the choice of shape "
            "rests on little; more --batches would tell"
        )
    if findings.experience.episode_length is None:
        lines.append(
            f"no episode ended in {findings.experience.burn_in} steps: what comes later in one "
            "is not in this"
        )
    if findings.directions.sketch is not None:
        sketch = findings.directions.sketch
        lines.append(
            f"gradients of {findings.directions.n_parameters:,} numbers were sketched to "
            f"{sketch.width:,}: squared norms to within {sketch.error:.1%} (one deviation)"
        )
    return lines


def tables(findings: Findings) -> list[str]:
    """Return the numbers behind the answer, as lines of text."""
    lines = []
    if findings.tells:
        lines += _curve_table(findings.curve)
    for each in findings.batches:
        lines += ["", *_decomposition_table(each), "", *_noise_table(each.noise, each.shape.name)]
    for bias in findings.biases:
        rows = [("T", f"bias / gradient, lambda {bias.gae_lambda:g}", "advantage error")]
        rows += [
            (str(each.n_steps), interval(bias.norm(each)), f"{each.advantage_error:.3f}")
            for each in bias.lengths
        ]
        lines += ["", *columns(rows)]
    return lines


def _curve_table(shapes: list[Point]) -> list[str]:
    rows = [("shape", "bias^2", "variance", "error", "wins", "steps/s")]
    rows += [
        (
            each.name,
            f"{each.bias2.value:.3g}",
            f"{each.variance.value:.3g}",
            interval(each.error),
            f"{each.wins:.0%}",
            "-" if each.steps_per_second is None else f"{each.steps_per_second:,.0f}",
        )
        for each in shapes
    ]
    return columns(rows)


def _decomposition_table(batches: Batches) -> list[str]:
    rows = [(batches.shape.name, "variance", "individual", "covariance", "icc", "design effect")]
    pairs = [("raw", batches.raw), ("normalized", batches.normalized)]
    rows += [
        (
            name,
            interval(each.total),
            interval(each.individual),
            interval(each.covariance),
            interval(each.icc),
            interval(each.design_effect),
        )
        for name, each in pairs
        if each is not None
    ]
    return columns(rows)


def _noise_table(noises: list[NoiseScale], shape: str) -> list[str]:
    rows = [(shape, "noise scale", "signal", "trace")]
    rows += [
        (each.estimator, interval(each.noise_scale), interval(each.signal), interval(each.trace))
        for each in noises
    ]
    return columns(rows)


def _shape(findings: Findings, name: str) -> Point | None:
    return next((each for each in findings.curve if each.name == name), None)
