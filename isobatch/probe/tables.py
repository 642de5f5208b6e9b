"""From findings to tables: the numbers behind the answer, as lines of text."""

from __future__ import annotations

from isobatch.noise.scale import NoiseScale
from isobatch.probe.batches import Batches
from isobatch.probe.curve import Bias, Length, Point
from isobatch.probe.findings import Findings
from isobatch.probe.reference import BIASES, NAMES, Kind
from isobatch.text import columns, interval, significant


def tables(findings: Findings) -> list[str]:
    """Return the numbers behind the answer, as lines of text."""
    lines = []
    for reference, shapes in findings.curves.items():
        if findings.is_decided(reference):
            lines += [*_curve_table(shapes, reference), ""]
    for each in findings.batches:
        lines += [*_decomposition_table(each), "", *_noise_table(each.noise, each.shape.name), ""]
    lines += [*_bias_table(findings.biases, findings.against_returns)]
    return lines


def _curve_table(shapes: list[Point], reference: Kind) -> list[str]:
    rows = [("", "bias^2", "variance", "error", "best in", "steps/s")]
    rows += [
        (
            each.name,
            significant(each.bias2.value),
            significant(each.variance.value),
            interval(each.error),
            f"{each.best_share:.0%}",
            "-" if each.steps_per_second is None else f"{each.steps_per_second:,.0f}",
        )
        for each in shapes
    ]
    return [
        f"errors over |G|^2 against {NAMES[reference]}; bias^2: {BIASES[reference]}, rescaled",
        *columns(rows),
    ]


def _decomposition_table(batches: Batches) -> list[str]:
    pairs = [("raw", batches.raw), ("normalised", batches.normalized)]
    lines = []
    for kind, each in pairs:
        if each is None:
            continue
        rows = [
            (f"variance of {batches.shape.name}, {kind} advantages", interval(each.total)),
            ("individual", interval(each.individual)),
            ("covariance", interval(each.covariance)),
            ("intraclass correlation", interval(each.icc)),
            ("design effect", interval(each.design_effect)),
            ("effective sample size", interval(each.effective_samples)),
        ]
        lines += columns(rows)
    return lines


def _noise_table(noises: list[NoiseScale], shape: str) -> list[str]:
    rows = [(f"noise of {shape}", "noise scale (transitions)", "|G|^2", "tr(Sigma)")]
    rows += [
        (
            each.estimator,
            interval(each.noise_scale),
            significant(each.signal.value),
            significant(each.trace.value),
        )
        for each in noises
    ]
    return columns(rows)


def _bias_table(biases: list[Bias], held: Bias | None) -> list[str]:
    """Return |b(T)| / |G| against each reference, in columns."""
    every = [*([held] if held else []), *biases]
    rows = [("T", *(_named(each) for each in every))]
    lengths = [*zip(*(each.lengths for each in every), strict=True)]
    rows += [(str(each[0].n_steps), *map(_off, every, each)) for each in lengths]
    rows.append(("no end", *(_off(bias, bias.endless) for bias in every)))
    return [
        "|b| / |G| of T-step rollouts, not rescaled (advantage error, relative RMS)",
        *columns(rows),
        "no end: value-function bias",
    ]


def _named(bias: Bias) -> str:
    name = BIASES[bias.kind]
    return name if bias.kind == "monte-carlo" else f"{name}, GAE {bias.gae_lambda:g}"


def _off(bias: Bias, length: Length) -> str:
    return f"{interval(bias.norm(length))} ({length.advantage_error:.3f})"
