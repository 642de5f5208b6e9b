"""From findings to plain data: what probe.json holds and the page draws."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from isobatch.probe import curve
from isobatch.probe.answer import answer
from isobatch.probe.batches import Batches
from isobatch.probe.laboratory import Findings
from isobatch.probe.plan import gae_lambda
from isobatch.probe.reference import Kind

FORMAT = 2
"""Of probe.json: 1 had one reference, GAE that looks on."""


def record(found: list[Findings], run: str | None) -> dict[str, Any]:
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
            "of": first.question.of,
            "shape": first.own.name,
            "gamma": recipe.objective.gamma,
            "gae_lambda": gae_lambda(recipe),
        },
        "points": [_point(each) | {"answer": answer(each)} for each in found],
    }


def _point(findings: Findings) -> dict[str, Any]:
    policy, experience, found = findings.policy, findings.experience, findings.directions
    total = policy.recipe.total_timesteps
    n_steps, n_envs = found.squares.shape
    return {
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
        "best": findings.best(1, reference).name if decided else None,
        "best_over_ten": findings.best(10, reference).name if decided else None,
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
                "wins_per_second": each.best_share_per_second,
            }
            for each in findings.curves[reference]
        ],
    }
