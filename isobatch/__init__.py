"""Isobatch: on-policy reinforcement learning in which the batch is a thing you can hold."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from isobatch import probe as probe
    from isobatch.batch import Batch as Batch
    from isobatch.errors import UserError as UserError
    from isobatch.objectives import objective as objective
    from isobatch.policy import Policy as Policy
    from isobatch.policy import evaluate as evaluate
    from isobatch.policy import load as load
    from isobatch.presets import preset as preset
    from isobatch.recipe import Recipe as Recipe
    from isobatch.training import Run as Run
    from isobatch.training import resume as resume
    from isobatch.training import train as train

__version__ = "0.1.0"

# Imported on first use: PyTorch and EnvPool take seconds, `isobatch --help` must not.
_HOMES = {
    "Batch": "isobatch.batch",
    "Policy": "isobatch.policy",
    "Recipe": "isobatch.recipe",
    "Run": "isobatch.training",
    "UserError": "isobatch.errors",
    "evaluate": "isobatch.policy",
    "load": "isobatch.policy",
    "objective": "isobatch.objectives",
    "preset": "isobatch.presets",
    "resume": "isobatch.training",
    "train": "isobatch.training",
}
__all__ = [
    "Batch",
    "Policy",
    "Recipe",
    "Run",
    "UserError",
    "evaluate",
    "load",
    "objective",
    "preset",
    "probe",
    "resume",
    "train",
]


def __getattr__(name: str) -> Any:
    if name == "probe":
        return import_module("isobatch.probe")
    if name not in _HOMES:
        raise AttributeError(f"module 'isobatch' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value
