"""From findings to tables: the numbers behind the answer, as lines of text."""

from __future__ import annotations

from isobatch.noise.scale import NoiseScale
from isobatch.probe.batches import Batches
from isobatch.probe.curve import Bias, Length, Point
from isobatch.probe.laboratory import Findings
from isobatch.probe.reference import Kind
from isobatch.text import columns, interval

TITLES: dict[Kind, str] = {
    "monte-carlo": "against Monte-Carlo returns",
    "gae": "against GAE, its own value function",
}


def tables(findings: Findings) -> list[str]:
    """Return the numbers behind the answer, as lines of text."""
    lines = [
        "brackets: 95% confidence intervals; |G|^2: squared gradient norm; tr(Sigma): variance of "
        "one sample's gradient"
    ]
    for reference, shapes in findings.curves.items():
        if findings.is_decided(reference):
            lines += ["", *_curve_table(shapes, TITLES[reference])]
    for each in findings.batches:
        lines += ["", *_decomposition_table(each), "", *_noise_table(each.noise, each.shape.name)]
    lines += ["", *_bias_table(findings.biases, findings.against_returns)]
    return lines


def _bias_table(biases: list[Bias], held: Bias | None) -> list[str]:
    """Return |b(T)| / |G| against each reference, in columns."""
    every = [*([held] if held else []), *biases]
    rows = [("T", *(f"bias / |G| {_named(each)}" for each in every))]
    lengths = [*zip(*(each.lengths for each in every), strict=True)]
    rows += [(str(each[0].n_steps), *map(_off, every, each)) for each in lengths]
    rows.append(("no end", *(_off(bias, bias.endless) for bias in every)))
    note = "in parentheses: advantage error (relative RMS); no end: the value function alone"
    return [*columns(rows), note]


def _named(bias: Bias) -> str:
    return TITLES[bias.kind] if bias.kind == "monte-carlo" else f"against GAE {bias.gae_lambda:g}"


def _off(bias: Bias, length: Length) -> str:
    return f"{interval(bias.norm(length))} ({length.advantage_error:.3f})"


def _curve_table(shapes: list[Point], title: str) -> list[str]:
    rows = [(title, "bias^2 / |G|^2", "variance / |G|^2", "error", "best in", "env steps/s")]
    rows += [
        (
            each.name,
            interval(each.bias2),
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
