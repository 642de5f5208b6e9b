"""From findings to plain data: what probe.json holds and the page draws."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from isobatch.probe import curve
from isobatch.probe.answer import answer, warnings
from isobatch.probe.batches import Batches
from isobatch.probe.compare import Comparison
from isobatch.probe.details import details
from isobatch.probe.findings import Findings
from isobatch.probe.plan import gae_lambda
from isobatch.probe.reference import Kind

FORMAT = 3
"""Of probe.json: 1 had one reference, GAE that looks on; 2 had no comparison of shapes."""


def record(
    found: Sequence[Findings], run: str | None = None, passed_over: Sequence[str] = ()
) -> dict[str, Any]:
    """Return findings at one or more points of a run as plain data: probe.json."""
    first = found[0]
    recipe = first.policy.recipe
    return {
        "format": FORMAT,
        "source": {
            "run": run,
            "env": recipe.env,
            "algo": recipe.algo,
            "policy": "trained" if first.policy.env_steps else "random",
            "loss": first.question.loss,
            "shape": first.own.name,
            "gamma": recipe.objective.gamma,
            "gae_lambda": gae_lambda(recipe),
        },
        "passed_over": list(passed_over),
        "points": [_point(each) | _said(each) for each in found],
    }


def _said(findings: Findings) -> dict[str, Any]:
    """Return what the terminal and the page say."""
    return {
        "answer": answer(findings),
        "warnings": warnings(findings),
        "details": details(findings),
    }


def _point(findings: Findings) -> dict[str, Any]:
    policy, experience, found = findings.policy, findings.experience, findings.directions
    total = policy.recipe.total_timesteps
    n_steps, n_envs = found.squares.shape
    return {
        "state": _state(findings),
        "env_steps": policy.env_steps,
        "fraction": policy.env_steps / total if policy.env_steps else None,
        "collected": {
            "n_envs": n_envs,
            "n_steps": len(experience.rollout.rewards),
            "rows": n_envs * n_steps,
            "burn_in": experience.burn_in,
            "episode_length": experience.episode_length,
            "seconds": findings.seconds,
        },
        "entropy": None if findings.exploration is None else findings.exploration.entropy,
        "comparisons": [
            _comparison(name, compared)
            for name, compared in vars(findings.comparisons).items()
            if compared is not None
        ],
        "sizing": {
            name: {
                "rows": each.rows,
                "noise_scale": each.scale.json,
                "verdict": "cannot tell" if findings.has_collapsed else each.verdict,
                "steps_doubled": each.steps.json,
                "samples_doubled": each.samples.json,
            }
            for name, each in (("minibatch", findings.minibatch), ("rollout", findings.rollout))
        },
        "parameters": found.n_parameters,
        "sketch": None
        if found.sketch is None
        else {"width": found.sketch.width, "error": found.sketch.error},
        "decomposition": [row for each in findings.batches for row in _decompositions(each)],
        "noise": [
            {
                "shape": each.shape.name,
                "estimator": noise.estimator,
                "noise_scale": noise.noise_scale.json,
                "signal": noise.signal.json,
                "trace": noise.trace.json,
            }
            for each in findings.batches
            for noise in each.noise
        ],
        "agreement": [_agreement(each) for each in findings.batches],
        "lags": [
            {
                "shape": each.shape.name,
                "lag": each.lags.lags,
                "within": each.lags.within,
                "across": each.lags.across,
            }
            for each in findings.batches
        ],
        "credit": [
            {
                "shape": each.shape.name,
                "variance": each.credit.variance if each.credit.is_identified else None,
                "covered": each.credit.covered,
            }
            for each in findings.batches
        ],
        "minibatches": [
            {
                "shape": each.shape.name,
                "size": each.minibatches.size,
                "cosine": each.minibatches.cosine.json,
                "by_chance": each.minibatches.by_chance,
            }
            for each in findings.batches
        ],
        "bias": [_bias(each) for each in _biases(findings)],
        "returns": _returns(findings),
        "curves": [_curve(findings, reference) for reference in findings.curves],
    }


def _state(findings: Findings) -> str:
    """Return whether there is a gradient to speak of: measured, no gradient or collapsed."""
    if findings.has_collapsed:
        return "collapsed"
    return "measured" if findings.has_advice else "no gradient"


def _comparison(over: str, compared: Comparison) -> dict[str, Any]:
    return {
        "over": over,
        "shapes": [each.name for each in compared.shapes],
        "batches": list(compared.batches),
        "error": [each.json for each in compared.errors],
        "wins": list(compared.wins),
        "winner": compared.winner.name if compared.is_clear else None,
        "ratio": compared.ratio.json,
    }


def _decompositions(batches: Batches) -> list[dict[str, Any]]:
    pairs = [(False, batches.raw, batches.across[0])]
    if batches.normalized is not None:
        pairs.append((True, batches.normalized, batches.across[1]))
    return [
        {
            "shape": batches.shape.name,
            "n_envs": batches.shape.n_envs,
            "n_steps": batches.shape.n_steps,
            "batches": batches.batches,
            "normalized": normalized,
            "total": each.total.json,
            "individual": each.individual.json,
            "covariance": each.covariance.json,
            "icc": each.icc.json,
            "design_effect": each.design_effect.json,
            "effective_samples": each.effective_samples.json,
            "across_batches": across,
        }
        for normalized, each, across in pairs
    ]


def _agreement(batches: Batches) -> dict[str, Any]:
    found = batches.agreement
    norms = _rounded(found.sample_norms)
    return {
        "shape": batches.shape.name,
        "cosines": [_rounded(row) for row in found.cosines],
        "norms": _rounded(found.norms),
        "scatter": [{"norm": norms, "cosine": _rounded(row)} for row in found.sample_cosines],
    }


def _rounded(values: Tensor) -> list[float]:
    return [float(f"{each:.4g}") for each in values.tolist()]


def _biases(findings: Findings) -> list[curve.Bias]:
    held = findings.against_returns
    return [*([held] if held else []), *findings.biases]


def _bias(bias: curve.Bias) -> dict[str, Any]:
    return {
        "reference": bias.kind,
        "gae_lambda": bias.gae_lambda,
        "n_steps": [each.n_steps for each in bias.lengths],
        "bias": [bias.norm(each).json for each in bias.lengths],
        "advantage_error": [each.advantage_error for each in bias.lengths],
        "endless": bias.norm(bias.endless).json,
    }


def _returns(findings: Findings) -> dict[str, Any] | None:
    """Return how far the Monte-Carlo reference does without the value function."""
    returns = findings.returns
    if returns is None:
        return None
    return {
        "complete": returns.complete,
        "value_weight": returns.value_weight,
        "horizon": returns.horizon,
    }


def _curve(findings: Findings, reference: Kind) -> dict[str, Any]:
    decided = findings.is_decided(reference)
    per_second = findings.best_per_second(reference) if decided else None
    bias = findings.bias(reference)
    return {
        "reference": reference,
        "decided": decided,
        "without_signal": bias.share_without_signal,
        "endless_bias2": curve.endless_bias(bias).json,
        "samples": findings.samples,
        "best": findings.best(reference=reference).name if decided else None,
        "best_over_ten": findings.best(True, reference).name if decided else None,
        "fastest": per_second.name if per_second else None,
        "own": findings.own.name,
        "shapes": [
            {
                "n_envs": each.shape.n_envs,
                "n_steps": each.shape.n_steps,
                "bias2": each.bias2.json,
                "variance": each.variance.json,
                "error": each.error.json,
                "steps_per_second": each.steps_per_second,
                "wins": each.best_share,
                "wins_over_ten": each.best_share_over_updates,
                "wins_per_second": each.best_share_per_second,
            }
            for each in findings.curves[reference]
        ],
    }
