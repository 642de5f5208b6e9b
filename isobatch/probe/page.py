"""From what a probe measured to the text of its page."""

from __future__ import annotations

from typing import Any

import numpy as np

from isobatch.batch import Shape
from isobatch.errors import UserError, shown
from isobatch.pages.figures import Figure
from isobatch.pages.page import fill
from isobatch.probe import figures
from isobatch.probe.record import FORMAT
from isobatch.probe.reference import BIASES, NAMES, Kind
from isobatch.run.store import safe_name


def render(data: dict[str, Any]) -> str:
    """Return the page of a probe, given what `probe.json` holds."""
    found = data.get("format") if isinstance(data, dict) else None
    if found != FORMAT:
        raise UserError(
            f"a probe recorded in format {shown(found)}, of which this version reads {FORMAT}: "
            "probe again"
        )
    source = data["source"]
    points = [_point(number, point) for number, point in enumerate(data["points"], start=1)]
    samples = Shape.parse(source["shape"]).samples
    drawn = {
        f"{point['id']}-{name}": figure
        for point in points
        for name, figure in _figures(point, samples).items()
    }
    page = {"name": safe_name(f"{source['run'] or source['env']}-probe"), "figures": drawn}
    return fill(
        "isobatch.probe",
        page,
        source=source,
        samples=samples,
        points=points,
        biases=BIASES,
        passed_over=data["passed_over"],
    )


def _point(number: int, point: dict[str, Any]) -> dict[str, Any]:
    """Return a point with what its part of the page also says.

    Of a policy that has collapsed, no noise scale is shown: there is no gradient to compare it to.
    """
    collapsed = point["state"] == "collapsed"
    return point | {
        "noise": [] if collapsed else point["noise"],
        "curves": [_named(curve) for curve in point["curves"] if curve["decided"]],
        "is_decided": bool(point["curves"]) and point["curves"][0]["decided"],
        "id": f"point-{number}",
        "place": _place(point),
        "kinds": _kinds(point),
        "batches": _batches(point),
        # Rollouts of one step have nothing to correlate.
        "lags": [entry for entry in point["lags"] if entry["lag"]],
    }


def _named(curve: dict[str, Any]) -> dict[str, Any]:
    """Return a curve whose shapes have names."""
    shapes = [
        shape | {"name": Shape(shape["n_envs"], shape["n_steps"]).name} for shape in curve["shapes"]
    ]
    kind: Kind = curve["reference"]
    return curve | {"shapes": shapes, "against": NAMES[kind], "bias_name": BIASES[kind]}


def _place(point: dict[str, Any]) -> str:
    """Say where in training a point is."""
    if not point["env_steps"]:
        return "before training"
    share = "" if point["fraction"] is None else f", {100 * point['fraction']:.3g}% of training"
    return f"after {point['env_steps']:,} environment steps{share}"


def _figures(point: dict[str, Any], samples: int) -> dict[str, Figure]:
    """Draw what a point has."""
    drawn = {}
    for curve in point["curves"]:
        drawn[f"curve-{curve['reference']}"] = figures.curve(curve)
    for kind, entries in point["kinds"].items():
        drawn[kind] = figures.decomposition(kind, entries)
    if point["noise"]:
        drawn["noise"] = figures.noise(point["noise"], samples)
    agreement = point["agreement"]
    for place, entry in enumerate(agreement, start=1):
        drawn[f"scatter-{place}"] = figures.scatter(entry, agreement)
        drawn[f"cosines-{place}"] = figures.cosines(entry)
    if point["lags"]:
        drawn["lags"] = figures.lags(point["lags"])
    if point["bias"]:
        drawn["bias"] = figures.bias(point["bias"])
        drawn["advantages"] = figures.advantage_error(point["bias"])
    return drawn


def _kinds(point: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """Return decompositions by what was done to advantages: their units differ."""
    kinds: dict[str, list[dict[str, Any]]] = {}
    for entry in point["decomposition"]:
        kinds.setdefault("normalised" if entry["normalized"] else "raw", []).append(entry)
    return kinds


def _batches(point: dict[str, Any]) -> list[dict[str, Any]]:
    """Return for every shape how far its batches, and the samples of one, agree with the others."""
    return [
        {
            "shape": entry["shape"],
            "cosine": _mean(np.array(entry["cosines"])[~np.eye(len(entry["norms"]), dtype=bool)]),
            "norm": _mean(entry["norms"]),
            "own": _along(entry["scatter"][:1]),
            "others": _along(entry["scatter"][1:]),
        }
        for entry in point["agreement"]
    ]


def _along(panels: list[dict[str, list[float]]]) -> float | None:
    """Return the share of samples that point along the mean gradient."""
    return _mean([cosine > 0 for panel in panels for cosine in panel["cosine"]])


def _mean(values: Any) -> float | None:
    return float(np.mean(values)) if len(values) else None
