"""Runner configurations of Isaac Lab and legged_gym, Python classes, as rsl_rl's dictionary."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from isobatch.errors import UserError, nearest
from isobatch.exchange.source import Called, Class, load_python
from isobatch.exchange.values import Name

DEFAULTS: dict[str, dict[str, Any]] = {
    "RslRlOnPolicyRunnerCfg": {"seed": 42},
    "RslRlPpoAlgorithmCfg": {},
    "RslRlPpoActorCriticCfg": {},
    "RslRlPpoActorCriticRecurrentCfg": {"class_name": "ActorCriticRecurrent"},
    "RslRlMLPModelCfg": {},
    "RslRlRNNModelCfg": {"class_name": "RNNModel"},
    "RslRlCNNModelCfg": {"class_name": "CNNModel"},
    "CNNCfg": {},
    "GaussianDistributionCfg": {"class_name": "GaussianDistribution"},
    "HeteroscedasticGaussianDistributionCfg": {"class_name": "HeteroscedasticGaussianDistribution"},
    "RslRlRndCfg": {},
    "RslRlSymmetryCfg": {},
}
"""Isaac Lab's classes, with their defaults that are not rsl_rl's own."""
DISTILLATION = "RslRlDistillationRunnerCfg"


def load(path: Path, name: str | None = None) -> dict[str, Any]:
    """Return the runner's dictionary that a file's class `name`, or its only one, says."""
    classes = load_python(path)[1]
    runners = [k for k, each in classes.items() if {"algorithm", "runner"} & set(each.fields)]
    if name is None and len(runners) > 1:
        raise UserError(f"{path}: which class? Add class=NAME: {', '.join(runners)}")
    if name is None and not runners:
        raise UserError(f"{path}: it has no class with the settings of a runner and its algorithm")
    chosen = runners[0] if name is None else name
    if chosen not in classes:
        raise UserError(f"{path}: it has no class {chosen}.{nearest(chosen, runners)}")
    return _runner(classes[chosen], f"{path}, {chosen}")


def _runner(found: Class, place: str) -> dict[str, Any]:
    unread: list[str] = []
    given: dict[str, Any] = {}
    for base in found.foreign:
        name = base.rpartition(".")[2]
        if name == DISTILLATION:
            raise UserError(f"{place} distils a policy from a teacher: Isobatch imports PPO")
        given |= DEFAULTS.get(name, {})
        unread += [] if name in DEFAULTS else [base]
    given |= _plain(found.values(place), unread)
    return given | ({"unread": sorted(set(unread))} if unread else {})


def _plain(value: Any, unread: list[str]) -> Any:
    """Return calls as dictionaries with their class's defaults, without what is MISSING there."""
    if isinstance(value, list):
        return [_plain(each, unread) for each in value]
    if not isinstance(value, dict):
        return value
    kept = {
        name: _plain(each, unread)
        for name, each in value.items()
        if not (isinstance(each, Name) and each.rpartition(".")[2] == "MISSING")
    }
    if not isinstance(value, Called):
        return kept
    name = value.name.rpartition(".")[2]
    unread += [] if name in DEFAULTS else [value.name]
    return DEFAULTS.get(name, {}) | kept
