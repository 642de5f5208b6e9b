"""From findings to the answer: which shape, and whether the batch is too small, in a few lines."""

from __future__ import annotations

import math
from collections.abc import Sequence

from isobatch.batch import Shape
from isobatch.probe.compare import CLEAR, Comparison
from isobatch.probe.curve import UPDATES
from isobatch.probe.findings import Findings
from isobatch.probe.reference import NAMES
from isobatch.probe.sizing import Sizing
from isobatch.probe.track_record import said, said_of_doubling
from isobatch.run.policy import Policy
from isobatch.text import columns, counted, interval, significant

MOST_NAMED = 3
"""Shapes between which it may be undecided; there are more."""
MUCH_WEIGHT = 0.1
"""With more than this left to the value function, Monte-Carlo returns see its errors in part."""


def headline(policy: Policy) -> str:
    """Say whose gradient is measured."""
    recipe = policy.recipe
    if not policy.env_steps:
        return f"{recipe.env}, {recipe.algo}: untrained policy"
    part = policy.env_steps / recipe.total_timesteps
    return (
        f"{recipe.env}, {recipe.algo}: policy at {policy.env_steps:,} env steps "
        f"({part:.0%} of the budget)"
    )


def answer(findings: Findings) -> list[str]:
    """Return the answer as paragraphs, the most important sentence first; details are indented."""
    if findings.has_collapsed:
        return [
            "The policy has collapsed: it nearly always takes the same action "
            f"({findings.exploration}). There is no gradient to measure, so no shape is named and "
            "nothing follows for the batch size.",
            "Probe an earlier policy (--at), and ask isobatch advise what went wrong.",
        ]
    if not findings.has_advice:
        return [*_no_gradient(findings), *_sizes(findings), _key(findings)]
    asked, others = _asked(findings), _all_shapes(findings)
    several = len(findings.question.shapes) > 1
    shapes = [*asked, *others] if several else [*others, *asked]
    return [*shapes, said(), *_sizes(findings), _key(findings)]


def warnings(findings: Findings) -> list[str]:
    """Return what the answer should not be read without; the page and the terminal say the same."""
    lines = list(findings.cautions)
    returns = findings.returns
    if findings.reference == "gae":
        why = (
            ""
            if returns is None
            else ("against Monte-Carlo returns no gradient is distinguishable from its noise: ")
        )
        lines.append(
            f"{why}errors are against GAE, which shares the value function and does not see its "
            "errors"
        )
    elif returns is not None and returns.value_weight > MUCH_WEIGHT:
        lines.append(
            f"Monte-Carlo returns leave {returns.value_weight:.0%} of their weight to the value "
            "function: its errors are seen in part only"
        )
    if findings.experience.episode_length is None:
        lines.append(
            f"no episode ended within {counted(findings.experience.burn_in, 'step')}: later parts "
            "of an episode are not measured"
        )
    if findings.untimed is not None:
        lines.append(f"shapes are not timed: {findings.untimed}")
    return lines


def _no_gradient(findings: Findings) -> list[str]:
    """Say why no shape is named."""
    n_steps, n_envs = findings.directions.squares.shape
    without = findings.bias(findings.reference).share_without_signal
    return [
        "No gradient distinguishable from its noise, so no shape is named: against "
        f"{NAMES[findings.reference]}, |G|^2 is not positive in {without:.0%} of bootstrap "
        f"resamples ({n_envs * n_steps:,} transitions from {counted(n_envs, 'environment')}).",
        "Use more --batches, or another policy that the run has kept (--at): an earlier one if the "
        "task is solved, a later one if nothing is learned yet.",
    ]


def _asked(findings: Findings) -> list[str]:
    """Compare the shapes that were asked for; one alone, with the best other one."""
    compared = findings.comparisons
    first = compared.updates
    lines = []
    if len(findings.question.shapes) > 1:
        names = " or ".join(shape.name for shape in first.shapes)
        lines.append(f"{names}: {_verdict(first)}; {_over_one(first, compared.update)}.")
    if compared.transitions is not None:
        sizes = ", ".join(f"{shape} has {shape.samples:,}" for shape in first.shapes)
        lines.append(
            f"They differ in size ({sizes} transitions): errors are of as many updates. At the "
            f"same number of transitions, one update of the largest, "
            f"{_verdict(compared.transitions)}."
        )
    lines += columns([_row(findings, first, k) for k in range(len(first.shapes))])
    if math.isfinite(first.ratio.value):
        names = f"error of {first.winner} / error of {first.runner_up}"
        lines.append(f"  {names}: {interval(first.ratio)}")
    return lines


def _verdict(compared: Comparison) -> str:
    """Say which shape has the smaller error, if one clearly has."""
    smaller = "smaller" if len(compared.shapes) == 2 else "smallest"
    text = (
        f"{compared.winner} has the {smaller} error in {compared.share:.0%} of bootstrap resamples"
    )
    return text if compared.is_clear else f"no clear winner ({text})"


def _over_one(first: Comparison, update: Comparison) -> str:
    """Say the same of a single update, in short where nothing changes."""
    if (update.winner, update.is_clear) == (first.winner, first.is_clear):
        return f"the same over one update ({update.share:.0%})"
    return f"over one update, {_verdict(update)}"


def _row(findings: Findings, compared: Comparison, k: int) -> tuple[str, str, str]:
    shape = compared.shapes[k]
    point = findings.point(shape)
    speed = None if point is None else point.steps_per_second
    timed = "" if speed is None else f"{significant(speed)} env steps/s"
    own = " (the recipe's)" if shape == findings.own else ""
    return f"  {shape.name}{own}", f"error {interval(compared.errors[k])}", timed


def _all_shapes(findings: Findings) -> list[str]:
    """Say which of all shapes of that size is best, over several updates, over one, and by time."""
    points = findings.curve
    shapes = [each.shape for each in points]
    shares = [each.best_share_over_updates for each in points]
    often = _choice(shapes, shares, " of bootstrap resamples")
    once = _choice(shapes, [each.best_share for each in points])
    lines = [
        f"Smallest error of all shapes with {findings.samples:,} transitions: {often}; over one "
        f"update, {once}."
    ]
    timed = [each for each in points if each.best_share_per_second is not None]
    if timed:
        shares = [each.best_share_per_second or 0.0 for each in timed]
        choice = _choice([each.shape for each in timed], shares)
        lines.append(f"Smallest error of one update x time on this machine: {choice}.")
    return lines


def _choice(shapes: Sequence[Shape], shares: Sequence[float], unit: str = "") -> str:
    """Name the shape that wins most often, or those between which it is undecided.

    A share says in how many of the resamples a shape wins; the first one with its unit.
    """
    ranked = sorted(zip(shares, shapes, strict=True), key=lambda pair: -pair[0])
    named: list[str] = []
    total = 0.0
    for share, shape in ranked[:MOST_NAMED]:
        if total < CLEAR and share > 0:
            named.append(f"{shape} ({share:.0%}{'' if named else unit})")
            total += share
    if total < CLEAR:
        named.append("others")
    if len(named) == 1:
        return named[0]
    return f"undecided between {', '.join(named[:-1])} and {named[-1]}"


def _sizes(findings: Findings) -> list[str]:
    """Say whether minibatch and rollout are too small, and what doubling them would buy."""
    rollout, minibatch = findings.rollout, findings.minibatch
    steps = findings.sized_by.shape.n_steps
    own = findings.own
    measured_at = f" for {steps}-step rollouts"
    text = _sized(f"Rollout of {rollout.rows:,} transitions", rollout, measured_at)
    if _advises(rollout):
        text += (
            f" Doubling it to {2 * own.n_envs}x{own.n_steps}: {_times(rollout, 'iterations')}, "
            f"{significant(rollout.samples.value)}x the env steps"
        )
        slower = findings.doubled_seconds
        if slower is not None:
            text += f", {significant(rollout.steps.value * slower)}x the time on this machine"
        text += "."
    if minibatch.rows >= rollout.rows:
        return [f"{text} A minibatch is the whole rollout."]
    small = _sized(f"Minibatch of {minibatch.rows:,} transitions", minibatch)
    if _advises(minibatch):
        small += (
            f" Doubling it: {_times(minibatch, 'gradient steps')}, on 2x the transitions each: "
            f"{significant(minibatch.samples.value)}x the transitions processed."
        )
    return [small, text]


def _advises(sizing: Sizing) -> bool:
    return sizing.verdict != "cannot tell"


def _sized(what: str, sizing: Sizing, of: str = "") -> str:
    scale = f"noise scale {interval(sizing.scale)} transitions{of}"
    if _advises(sizing):
        return f"{what}: {sizing.verdict}, {scale}."
    unbounded = math.isinf(sizing.scale.high) or math.isnan(sizing.scale.high)
    why = "|G|^2 is not significantly greater than zero" if unbounded else "the interval is wide"
    return f"{what}: cannot tell if it is too small, {scale}: {why}."


def _times(sizing: Sizing, what: str) -> str:
    return f"{interval(sizing.steps)} times the {what} to the same progress"


def _key(findings: Findings) -> str:
    """Explain the numbers."""
    error = ""
    if findings.has_advice:
        error = (
            f"Error: bias^2 + variance over |G|^2, of the mean of {UPDATES} updates, against "
            f"{NAMES[findings.reference]}"
        )
        if any(math.isinf(each.value) for each in findings.comparisons.update.errors):
            error += " (inf: the mean gradient does not point along G)"
        error += ". "
    model = ""
    if _doubled(findings):
        model = (
            "Doubling: simple noise model (McCandlish et al. 2018), for a step size that moves by "
            f"the rules (x 1.41 with Adam). {said_of_doubling()} "
        )
    return f"{error}{model}Brackets: 95% confidence intervals."


def _doubled(findings: Findings) -> bool:
    return _advises(findings.rollout) or _advises(findings.minibatch)
