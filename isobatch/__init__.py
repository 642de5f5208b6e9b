"""Isobatch: on-policy reinforcement learning in which the batch is an explicit, tunable object."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from isobatch import probe as probe
    from isobatch.advice import advise as advise
    from isobatch.algos import algorithm as algorithm
    from isobatch.batch import Batch as Batch
    from isobatch.batch import Shape as Shape
    from isobatch.envs.own import environment as environment
    from isobatch.errors import UserError as UserError
    from isobatch.models.own import encoder as encoder
    from isobatch.objectives import objective as objective
    from isobatch.presets import preset as preset
    from isobatch.recipe import Recipe as Recipe
    from isobatch.rescaling import rescale as rescale
    from isobatch.run.policy import Policy as Policy
    from isobatch.run.policy import evaluate as evaluate
    from isobatch.run.policy import load as load
    from isobatch.run.result import Run as Run
    from isobatch.run.sinks import Sink as Sink
    from isobatch.run.training import resume as resume
    from isobatch.run.training import train as train

__version__ = "0.2.0"

# Imported on first use: PyTorch and EnvPool take seconds, `isobatch --help` must not.
_HOMES = {
    "Batch": "isobatch.batch",
    "Policy": "isobatch.run.policy",
    "Recipe": "isobatch.recipe",
    "Run": "isobatch.run.result",
    "Shape": "isobatch.batch",
    "Sink": "isobatch.run.sinks",
    "UserError": "isobatch.errors",
    "advise": "isobatch.advice",
    "algorithm": "isobatch.algos",
    "encoder": "isobatch.models.own",
    "environment": "isobatch.envs.own",
    "evaluate": "isobatch.run.policy",
    "load": "isobatch.run.policy",
    "objective": "isobatch.objectives",
    "preset": "isobatch.presets",
    "rescale": "isobatch.rescaling",
    "resume": "isobatch.run.training",
    "train": "isobatch.run.training",
}
__all__ = [
    "Batch",
    "Policy",
    "Recipe",
    "Run",
    "Shape",
    "Sink",
    "UserError",
    "advise",
    "algorithm",
    "encoder",
    "environment",
    "evaluate",
    "load",
    "objective",
    "preset",
    "probe",
    "rescale",
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


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
