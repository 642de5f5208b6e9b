"""From findings to sentences: the answer first, then how certain it is, and why."""

from __future__ import annotations

import math

from isobatch.estimate import Estimate
from isobatch.probe.batches import Batches
from isobatch.probe.curve import Point, endless_bias
from isobatch.probe.laboratory import Findings
from isobatch.probe.reference import Kind, Returns
from isobatch.text import interval

CERTAIN = 0.95
"""A shape best in this share of resamples is named without alternatives."""
UPDATES = 10
"""Adam's mean gradient is one of about as many."""
RULED_OUT = 0.05
"""A shape that is best in a smaller share of resamples is ruled out."""
MOST_ALTERNATIVES = 3
MUCH_WEIGHT = 0.1
"""With more than this left to the value function, Monte-Carlo returns see its errors in part."""
NAMES: dict[Kind, str] = {"monte-carlo": "Monte-Carlo returns", "gae": "GAE"}


def answer(findings: Findings) -> list[str]:
    """Return what the findings come down to, the most important sentence first."""
    if findings.has_advice:
        lines = [_choice(findings), *_certainty(findings), _over_updates(findings)]
        lines += _other_lengths(findings)
    else:
        lines = [_undecided(findings)]
    lines += _references(findings)
    for each in findings.batches:
        lines += [_correlation(each), _credit(each), _minibatches(each)]
    lines += [_noise(each, findings.samples) for each in findings.batches[:1]]
    if findings.has_advice:
        lines += _per_second(findings)
    return lines + _reservations(findings)


def _choice(findings: Findings) -> str:
    """Name the shape with the smallest error, and what the recipe's own has."""
    best, own = findings.best(), _on_curve(findings, findings.own.name)
    name = f"{best.name}, the recipe's shape," if own is best else best.name
    text = (
        f"at {findings.samples:,} samples per rollout: {name} has the smallest gradient error "
        f"(bias^2 + variance) against {NAMES[findings.reference]}, {best.error.value:.3g} |G|^2"
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
    return [text]


def _undecided(findings: Findings) -> str:
    """Say why no shape is named."""
    n_steps, n_envs = findings.directions.squares.shape
    without = findings.bias(findings.reference).share_without_signal
    return (
        f"at {findings.samples:,} samples per rollout: undecided, too noisy to choose a shape. "
        f"Against {NAMES[findings.reference]}, |G|^2 is not significantly greater than zero in "
        f"{n_envs * n_steps:,} samples from {n_envs} environments (not positive in {without:.0%} "
        "of bootstrap resamples); use more --batches, or an earlier point of training (--at)"
    )


def _references(findings: Findings) -> list[str]:
    """Say what the other reference has it, and so what the value function costs."""
    returns = findings.returns
    if returns is None:
        return [
            "held against GAE that looks on, which shares the value function: its errors are not "
            "seen"
        ]
    lines = []
    gae = findings.is_decided("gae")
    if gae:
        best = findings.best(reference="gae")
        lines.append(
            f"against GAE, which shares the recipe's value function and cannot see its errors: "
            f"{best.name} has the smallest error, {best.error.value:.3g} |G|^2"
        )
    if gae and findings.has_advice:
        lines.append(_value_function(findings))
    return [*lines, _wholeness(returns)]


def _value_function(findings: Findings) -> str:
    """Say what ending rollouts costs, and what the value function does."""
    points = [_on_curve(findings, findings.own.name) or findings.best(), findings.curve[0]]
    alike = {each.name: each for each in findings.curves["gae"]}
    parts = [
        f"{each.name} {max(alike[each.name].bias2.value, 0):.3g} and {each.bias2.value:.3g}"
        for each in dict.fromkeys(points)
    ]
    endless = interval(endless_bias(findings.bias("monte-carlo")))
    return (
        "bias^2 / |G|^2 from ending rollouts (against GAE), and with the value function's errors "
        f"(against Monte-Carlo returns): {', '.join(parts)}; the value function alone, rollouts "
        f"without end: {endless}"
    )


def _wholeness(returns: Returns) -> str:
    """Say how far the returns do without the value function."""
    text = f"Monte-Carlo returns: {returns.complete:.0%} of samples see their episode terminate"
    if returns.complete < 1:
        text += (
            "; the rest are bootstrapped where the episode is truncated, or after "
            f"{returns.horizon:,} steps or more, which leaves {returns.value_weight:.2g} of the "
            "weight to the value function on average"
        )
    if returns.value_weight > MUCH_WEIGHT:
        text += ": its errors are seen in part only"
    return text


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
    """Say what single samples and their correlation add to the variance, and if that is decided."""
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
        f"{name}: per-sample noise is {1 - share:.0%} of the gradient's variance, per-trajectory "
        f"noise (covariance within trajectories) {share:.0%}{significance} (design effect "
        f"{_with_level(raw.design_effect)}); effective sample size "
        f"{raw.effective_samples.value:,.0f} for {batches.shape.samples:,} samples"
    )


def _credit(batches: Batches) -> str:
    """Say what chance after a state and an action adds, where that can be estimated."""
    name, credit = batches.shape.name, batches.credit
    if not credit.is_identified:
        return (
            f"{name}: credit-assignment noise cannot be estimated: {credit.covered:.0%} of samples "
            "have their state and action in another environment too"
        )
    share = credit.variance / batches.raw.individual.value
    return (
        f"{name}: credit-assignment noise is {share:.0%} of the per-sample noise, from the "
        f"{credit.covered:.0%} of samples whose state and action another environment saw too"
    )


def _minibatches(batches: Batches) -> str:
    """Say how far a minibatch's gradient goes the way of its rollout's."""
    name, found = batches.shape.name, batches.minibatches
    if found.by_chance >= 1:
        return f"{name}: a minibatch is the whole rollout, so their gradients are the same"
    return (
        f"{name}: minibatches of {found.size:,} have a cosine of {found.cosine.value:.2f} to their "
        f"rollout's gradient, 95% of them between {found.cosine.low:.2f} and "
        f"{found.cosine.high:.2f}; pure noise would give {found.by_chance:.2f}"
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
    best = findings.best_per_second()
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


def _on_curve(findings: Findings, name: str) -> Point | None:
    return next((each for each in findings.curve if each.name == name), None)
