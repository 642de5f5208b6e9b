"""From findings to further sentences: what the answer rests on, for the page and for --verbose."""

from __future__ import annotations

import math

from isobatch.estimate import Estimate
from isobatch.probe.batches import Batches
from isobatch.probe.curve import endless_bias
from isobatch.probe.findings import Findings
from isobatch.probe.reference import Returns
from isobatch.text import interval, significant


def details(findings: Findings) -> list[str]:
    """Return what the answer rests on, a sentence each; nothing of a policy that has collapsed."""
    if findings.has_collapsed:
        return []
    lines = []
    if findings.has_advice:
        lines += _other_lengths(findings)
    if findings.returns is not None:
        lines += _references(findings, findings.returns)
    for each in findings.batches:
        lines += [_correlation(each), _credit(each), _minibatches(each)]
    return lines + _projection(findings)


def _other_lengths(findings: Findings) -> list[str]:
    """Say what longer and shorter rollouts do, from the recipe's length or else the best one's."""
    here = findings.point(findings.own) or findings.best()
    longer = [each for each in findings.curve if each.n_steps > here.n_steps]
    shorter = [each for each in findings.curve if each.n_steps < here.n_steps]
    return [
        f"{word} rollouts, {here.name} -> {other.name}: bias^2 {_change(here.bias2, other.bias2)}, "
        f"variance {_change(here.variance, other.variance)}"
        for others, word in ((longer[:1], "longer"), (shorter[-1:], "shorter"))
        for other in others
    ]


def _change(old: Estimate, new: Estimate) -> str:
    return f"{significant(max(old.value, 0))} -> {significant(max(new.value, 0))} |G|^2"


def _references(findings: Findings, returns: Returns) -> list[str]:
    """Say what the other reference has it, and so what the value function costs."""
    lines = []
    decided = findings.is_decided("gae")
    if decided and findings.reference != "gae":
        best = findings.best(reference="gae")
        lines.append(
            "against GAE, which shares the recipe's value function and cannot see its errors: "
            f"{best.name} has the smallest error in {best.best_share:.0%} of bootstrap resamples, "
            f"{significant(best.error.value)} |G|^2"
        )
    if decided and findings.is_decided("monte-carlo"):
        lines.append(_biases(findings))
    return [*lines, _wholeness(returns)]


def _biases(findings: Findings) -> str:
    """Say what ending rollouts costs, and what the value function does."""
    points = [findings.point(findings.own) or findings.best(), findings.curve[0]]
    alike = {each.name: each for each in findings.curves["gae"]}
    parts = [
        f"{each.name} {significant(max(alike[each.name].bias2.value, 0))} and "
        f"{significant(each.bias2.value)}"
        for each in dict.fromkeys(points)
    ]
    endless = interval(endless_bias(findings.bias("monte-carlo")))
    return (
        "bootstrapping bias^2 (from ending rollouts, against GAE) and total bias^2 (with the value "
        f"function's errors, against Monte-Carlo returns), over |G|^2: {', '.join(parts)}; "
        f"value-function bias^2, of rollouts without end: {endless}"
    )


def _wholeness(returns: Returns) -> str:
    """Say how far the returns do without the value function."""
    text = f"Monte-Carlo returns: {returns.complete:.0%} of transitions see their episode terminate"
    if returns.complete < 1:
        text += (
            "; the rest are bootstrapped where the episode is truncated, or after "
            f"{returns.horizon:,} steps or more, which leaves {returns.value_weight:.2g} of the "
            "weight to the value function on average"
        )
    return text


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
        significance = ", negatively correlated" if share < 0 else ""
    return (
        f"{name}: per-sample noise is {1 - share:.0%} of the gradient's variance, per-trajectory "
        f"noise (covariance within trajectories) {share:.0%}{significance} (design effect "
        f"{interval(raw.design_effect)}); effective sample size "
        f"{raw.effective_samples.value:,.0f} for {batches.shape.samples:,} transitions"
    )


def _credit(batches: Batches) -> str:
    """Say what chance after a state and an action adds, where that can be estimated."""
    name, credit = batches.shape.name, batches.credit
    if not credit.is_identified:
        return (
            f"{name}: credit-assignment noise cannot be estimated: {credit.covered:.0%} of "
            "transitions have their state and action in another environment too"
        )
    share = credit.variance / batches.raw.individual.value
    return (
        f"{name}: credit-assignment noise is {share:.0%} of the per-sample noise, from the "
        f"{credit.covered:.0%} of transitions whose state and action another environment saw too"
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


def _projection(findings: Findings) -> list[str]:
    sketch = findings.directions.sketch
    if sketch is None:
        return []
    return [
        f"gradients of {findings.directions.n_parameters:,} parameters were randomly projected to "
        f"{sketch.width:,} dimensions: squared norms have a standard error of up to "
        f"{sketch.error:.1%}"
    ]
