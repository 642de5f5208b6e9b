"""The gradient laboratory: where the noise of an update comes from.

decompose(gradients)         the variance of a batch's gradient: single samples, correlation
noise_scale(gradients)       the batch size beyond which more samples stop helping
investigate(policy, ...)     both, and the iso-batch curve, of a policy in its environment
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from isobatch.probe.laboratory import Findings, Question, ShapeOf, investigate
    from isobatch.probe.noise import noise_scale
    from isobatch.probe.variance import Decomposition, decompose

__all__ = [
    "Decomposition",
    "Findings",
    "Question",
    "ShapeOf",
    "decompose",
    "investigate",
    "noise_scale",
]

_HOMES = {
    "Decomposition": "variance",
    "decompose": "variance",
    "noise_scale": "noise",
    "Findings": "laboratory",
    "Question": "laboratory",
    "ShapeOf": "laboratory",
    "investigate": "laboratory",
}


def __getattr__(name: str) -> Any:
    """Load what is asked for: training needs only a corner of the laboratory."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
