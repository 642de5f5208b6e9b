"""From findings to text: the answer first, then how certain it is, why, and the tables."""

from __future__ import annotations

import math

from isobatch.estimate import Estimate
from isobatch.noise.scale import NoiseScale
from isobatch.probe.curve import Point
from isobatch.probe.laboratory import Batches, Findings
from isobatch.text import columns, interval

CERTAIN = 0.95
"""A shape best in this share of resamples is named without alternatives."""
UPDATES = 10
"""Adam's mean gradient is one of about as many."""
RULED_OUT = 0.05
"""A shape that is best in a smaller share of resamples is ruled out."""
MOST_ALTERNATIVES = 3


def answer(findings: Findings) -> list[str]:
    """Return what the findings come down to, the most important sentence first."""
    if findings.has_curve:
        lines = [_choice(findings), *_certainty(findings), _over_updates(findings)]
        lines += _other_lengths(findings)
    else:
        lines = [_no_choice(findings)]
    lines += [_correlation(each) for each in findings.batches]
    lines += [_noise(each, findings.samples) for each in findings.batches[:1]]
    if findings.has_curve:
        lines += _per_second(findings)
    return lines + _reservations(findings)


def _choice(findings: Findings) -> str:
    """Name the shape with the smallest error, and what the recipe's own has."""
    best, own = findings.best(), _on_curve(findings, findings.own.name)
    name = f"{best.name}, the recipe's shape," if own is best else best.name
    text = (
        f"at {findings.samples:,} samples per rollout: {name} has the smallest gradient error "
        f"(bias^2 + variance), {best.error.value:.3g} |G|^2"
    )
    if own is not None and own is not best:
        text += f"; the recipe's {own.name} has {own.error.value:.3g} |G|^2"
    return text


def _certainty(findings: Findings) -> list[str]:
    """Say in how many resamples the shape is best, which others may be, and how many tell."""
    best = findings.best()
    others = sorted(
        (each for each in findings.curve if each is not best and each.best_share >= RULED_OUT),
        key=lambda each: -each.best_share,
    )
    text = (
        f"{best.name} has the smallest error in {best.best_share:.0%} of bootstrap resamples of "
        "the environments"
    )
    if others and best.best_share < CERTAIN:
        named = others[:MOST_ALTERNATIVES]
        text += f"; not ruled out: {', '.join(f'{e.name} ({e.best_share:.0%})' for e in named)}"
    lines = [text]
    without = findings.biases[0].share_without_signal
    if without > RULED_OUT:
        lines.append(
            f"in {without:.0%} of bootstrap resamples the estimate of |G|^2 is not positive: the "
            "evidence for any shape is weak; use more --batches"
        )
    return lines


def _no_choice(findings: Findings) -> str:
    n_steps, n_envs = findings.directions.squares.shape
    return (
        f"at {findings.samples:,} samples per rollout: too noisy to choose a shape. |G|^2 is not "
        f"significantly greater than zero in {n_envs * n_steps:,} samples from {n_envs} "
        "environments; use more --batches, or an earlier point of training (--at)"
    )


def _over_updates(findings: Findings) -> str:
    """Say what is best where a policy hardly moves from one update to the next."""
    best = findings.best(UPDATES)
    return (
        f"averaged over {UPDATES} updates (variance / {UPDATES}, the same bias): {best.name} has "
        f"the smallest error, {best.error_over(UPDATES):.3g} |G|^2"
    )


def _other_lengths(findings: Findings) -> list[str]:
    """Say what longer and shorter rollouts do, from the recipe's length or else the best one's."""
    here = _on_curve(findings, findings.own.name) or findings.best()
    longer = [each for each in findings.curve if each.n_steps > here.n_steps]
    shorter = [each for each in findings.curve if each.n_steps < here.n_steps]
    return [
        f"{word} rollouts, {here.name} -> {other.name}: bias^2 {_change(here.bias2, other.bias2)}, "
        f"variance {_change(here.variance, other.variance)}"
        for others, word in ((longer[:1], "longer"), (shorter[-1:], "shorter"))
        for other in others
    ]


def _change(old: Estimate, new: Estimate) -> str:
    return f"{max(old.value, 0):.3g} -> {max(new.value, 0):.3g} |G|^2"


def _correlation(batches: Batches) -> str:
    """Say what correlation within trajectories does to the variance, and if that is significant."""
    name, raw = batches.shape.name, batches.raw
    if batches.shape.n_steps == 1:
        return f"{name}: one step per environment, so no correlation within trajectories"
    share = raw.covariance.value / raw.total.value if raw.total.value else 0.0
    if math.isnan(raw.covariance.low):
        significance = ", too few environments for an interval"
    elif raw.covariance.low <= 0 <= raw.covariance.high:
        significance = ", not significantly different from zero"
    else:
        significance = ""
    return (
        f"{name}: covariance within trajectories is {share:.0%} of the gradient's variance"
        f"{significance} (design effect {_with_level(raw.design_effect)}); effective sample size "
        f"{raw.effective_samples.value:,.0f} for {batches.shape.samples:,} samples"
    )


def _noise(batches: Batches, samples: int) -> str:
    noise = next(each for each in batches.noise if each.estimator == "per-environment")
    scale = noise.noise_scale
    if math.isinf(scale.value):
        known = f" (95% CI: at least {scale.low:,.0f} samples)" if 0 < scale.low < math.inf else ""
        return (
            f"noise scale: too large to measure{known}; |G|^2 is not significantly greater than "
            f"zero in {batches.batches * batches.shape.samples:,} samples, so any larger batch "
            "helps"
        )
    value = _with_level(scale, ",.0f", " samples")
    text = f"noise scale {value}, for {batches.shape.n_steps}-step rollouts"
    if scale.low > 2 * samples:
        advice = f"well above {samples:,}, so a larger batch helps nearly in proportion"
    elif scale.high < samples / 2:
        advice = f"well below {samples:,}, so a smaller batch would do nearly as well"
    else:
        advice = f"{samples:,} is neither well below nor well above it"
    return f"{text}: {advice}"


def _with_level(estimate: Estimate, digits: str = ".3g", unit: str = "") -> str:
    """Return 1.14, 95% CI [0.831, 1.63]; the value alone where there is no interval."""
    value, space, bounds = interval(estimate, digits).partition(" ")
    return f"{value}{unit}, 95% CI {bounds}" if space else f"{value}{unit}"


def _per_second(findings: Findings) -> list[str]:
    best = findings.best_per_second
    if best is None:
        return []
    share = best.best_share_per_second
    resamples = f", in {share:.0%} of bootstrap resamples" if share else ""
    return [
        f"per second on this machine: {best.name}, {best.steps_per_second:,.0f} env steps/s, "
        f"has the smallest error x time{resamples}"
    ]


def _reservations(findings: Findings) -> list[str]:
    """Say what the measurement leaves out or approximates."""
    lines = []
    if findings.experience.episode_length is None:
        lines.append(
            f"no episode ended within {findings.experience.burn_in:,} steps: later parts of an "
            "episode are not measured"
        )
    if findings.directions.sketch is not None:
        sketch = findings.directions.sketch
        lines.append(
            f"gradients of {findings.directions.n_parameters:,} parameters were randomly projected "
            f"to {sketch.width:,} dimensions: squared norms have a standard error of up to "
            f"{sketch.error:.1%}"
        )
    return lines


def tables(findings: Findings) -> list[str]:
    """Return the numbers behind the answer, as lines of text."""
    lines = [
        "brackets: 95% confidence intervals; |G|^2: squared gradient norm; tr(Sigma): variance of "
        "one sample's gradient"
    ]
    if findings.has_curve:
        lines += ["", *_curve_table(findings.curve)]
    for each in findings.batches:
        lines += ["", *_decomposition_table(each), "", *_noise_table(each.noise, each.shape.name)]
    for bias in findings.biases:
        rows = [("T", f"bias / |G|, lambda {bias.gae_lambda:g}", "advantage error (relative RMS)")]
        rows += [
            (str(each.n_steps), interval(bias.norm(each)), f"{each.advantage_error:.3f}")
            for each in bias.lengths
        ]
        lines += ["", *columns(rows)]
    return lines


def _curve_table(shapes: list[Point]) -> list[str]:
    rows = [("shape", "bias^2 / |G|^2", "variance / |G|^2", "error", "best in", "env steps/s")]
    rows += [
        (
            each.name,
            f"{each.bias2.value:.3g}",
            f"{each.variance.value:.3g}",
            interval(each.error),
            f"{each.best_share:.0%}",
            "-" if each.steps_per_second is None else f"{each.steps_per_second:,.0f}",
        )
        for each in shapes
    ]
    note = "error: bias^2 + variance; best in: share of bootstrap resamples with the smallest error"
    return [*columns(rows), note]


def _decomposition_table(batches: Batches) -> list[str]:
    rows = [
        (
            f"variance of {batches.shape.name}",
            "total",
            "individual",
            "covariance",
            "intraclass correlation",
            "design effect",
        )
    ]
    pairs = [("raw advantages", batches.raw), ("normalised advantages", batches.normalized)]
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
    rows = [(f"noise of {shape}", "noise scale", "|G|^2", "tr(Sigma)")]
    rows += [
        (each.estimator, interval(each.noise_scale), interval(each.signal), interval(each.trace))
        for each in noises
    ]
    return columns(rows)


def _on_curve(findings: Findings, name: str) -> Point | None:
    return next((each for each in findings.curve if each.name == name), None)
