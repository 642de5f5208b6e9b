"""What a recipe may name: algorithms and what each can do, objectives, encoders, environments.

Everything that depends on the algorithm asks here, so a new one is a learner and an entry. A user's
own comes in through Python (`isobatch.algorithm`, `objective`, `encoder`, `environment`), on the
command line from a module that --import names; no file can add a name.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import Any, Literal

from isobatch.errors import UserError, nearest, one_line

Fields = Mapping[str, Any]
"""Recipe fields by their flat names."""
Presets = Callable[[str, Fields], Fields]
"""(environment family, PPO's fields there) -> what the algorithm sets differently."""


def _nothing(family: str, fields: Fields) -> Fields:
    return {}


@dataclass(frozen=True)
class Algorithm:
    """An algorithm: what learns, and what the rest of Isobatch must know about it."""

    name: str
    learner: Any
    """A class whose instances are `isobatch.algos.Learner`s, or where it is: 'module:Class'."""
    model: Any = "actor-critic"
    """Its networks: 'actor-critic', 'q-network', or a function with the arguments of
    `isobatch.models.make_agent` that returns an `Agent`."""
    summary: str = ""
    """A line for lists."""
    fixes: Fields = field(default_factory=dict)
    """Fields that have one value, and are refused with any other."""
    presets: Presets = _nothing
    coefficients: Mapping[str, float] = field(default_factory=dict)
    """Settings of its own and their defaults: in the recipe, and as flags."""
    proximal: Literal["none", "behavior", "average"] = "none"
    """Which policy limits its steps: none, the one that acted, or an average of recent ones."""
    averaged: str | None = None
    """The algorithm that is the same with an average."""
    phasic: bool = False
    """Auxiliary phases follow policy phases."""
    stale: bool = False
    """It can learn from rollouts some iterations late."""
    policy_gradient: bool = True
    """It follows a gradient of the policy, scaled by advantages."""
    whole_returns: bool = False
    """Its advantages are whole returns, whatever gae_lambda is."""
    explores: bool = False
    """It takes random actions as the table [exploration] says."""
    unprobed: str | None = None
    """Why its gradient is not measured while training; None where it is."""
    exchanged: bool = False
    """Other libraries have it, so that its recipes can be written in their words."""


def find(name: str) -> Algorithm:
    """Return an algorithm by its name."""
    if name not in ALGORITHMS:
        raise unregistered("algorithm", name, ALGORITHMS, field="algo")
    return ALGORITHMS[name]


def known(name: str) -> Algorithm:
    """Return an algorithm by its name; of one that is not registered here only the defaults."""
    return ALGORITHMS.get(name, Algorithm(name, learner=None))


def refuse_unknown_encoder(name: str) -> None:
    """Refuse an encoder that is not registered, unless it is one without a name."""
    if name not in ENCODERS and name != NAMELESS:
        raise unregistered("encoder", name, ENCODERS, field="encoder")


def unregistered(what: str, name: str, names: Iterable[str], field: str) -> UserError:
    """Return the error of a name that no code in this process stands behind."""
    names = list(names)
    return UserError(
        f"{what} {name!r} is not registered; there are {', '.join(names)}."
        f"{nearest(name, names)} One of your own: {IMPORT_IT}",
        field=field,
    )


def import_modules(names: list[str]) -> None:
    """Import modules that the user named, from the present folder too where they are nowhere else.

    What they register is there for this process and, by `import_for_worker`, for those it starts.
    """
    if not names:
        return
    folder = os.getcwd()
    _import(folder, names)
    os.environ[IMPORTS] = os.pathsep.join([folder, *names])


def import_for_worker() -> None:
    """Import what the process that started this one was told to."""
    folder, *names = os.environ.get(IMPORTS, "").split(os.pathsep)
    _import(folder, names)


def _import(folder: str, names: list[str]) -> None:
    if names and folder not in sys.path:
        sys.path.append(folder)  # Last: no file in it stands in for an installed module.
    for name in names:
        try:
            import_module(name)
        except ImportError as error:
            raise UserError(f"cannot import {name}: {one_line(error)}") from None
        IMPORTED.add(name)


IMPORTS = "ISOBATCH_IMPORT"
"""The environment variable that tells workers what to import, and from which folder."""
IMPORTED: set[str] = set()
"""Modules that the user named: those whose code may run because a file names them, too."""
IMPORT_IT = "pass --import MODULE (in Python: import it), the module that defines it"
"""What to do about a name that is not registered."""
OBJECTIVES: dict[str, Mapping[str, float]] = {"clip": {}, "kl": {}, "pg": {}}
"""Policy objectives by name, each with its own coefficients; `isobatch.objective` adds to it."""
ENCODERS: dict[str, Callable[..., Any] | None] = dict.fromkeys(("auto", "mlp", "nature", "impala"))
"""Encoders by name: None of those built in, of a user's own from `ObservationLayout` to module."""
NAMELESS = "custom"
"""What a recipe has for an encoder that was given in Python and never registered."""
ENVIRONMENTS: dict[str, Callable[..., Any]] = {}
"""Functions of the user's own that make environments, by name."""


def coefficients(algo: str, objective: str) -> dict[str, float]:
    """Return the settings an algorithm and an objective have of their own, with their defaults.

    Of a name that is not registered here nothing is known: it has none.
    """
    known = ALGORITHMS.get(algo)
    return {**(known.coefficients if known else {}), **OBJECTIVES.get(objective, {})}


ONE_STEP = {"objective": "pg", "n_minibatches": 1, "n_epochs": 1}
"""What makes an update the policy gradient itself: every row once, under the policy it names."""


def _a2c(family: str, fields: Fields) -> Fields:
    # SB3's A2C on Atari, RMSprop and all; its vf_coef 0.5 is 1 with the half in the loss.
    general = {
        "n_envs": 16, "n_steps": 8, "optimizer": "rmsprop", "learning_rate": 7e-4,
        "gae_lambda": 1.0, "vf_coef": 1.0, "advantage_normalization": "none", "max_grad_norm": 0.5,
    }  # fmt: skip
    # Chosen on CartPole-v1, seeds 1, 2 and 11 to 13: docs/results/algorithms.md.
    small = {"n_envs": 8, "n_steps": 32, "optimizer": "adam", "learning_rate": 3e-3}
    return general | (small if _is_small(family) else {})


def _reinforce(family: str, fields: Fields) -> Fields:
    general = {
        "n_envs": max(8, fields["n_envs"]), "n_steps": 128, "learning_rate": 3e-4,
        "normalize_rewards": True, "advantage_normalization": "none", "max_grad_norm": 0.5,
    }  # fmt: skip
    return general | ({"learning_rate": 3e-3} if _is_small(family) else {})


def _pqn(family: str, fields: Fields) -> Fields:
    # Gallici et al. 2024.
    general = {
        "n_envs": 32, "n_steps": 64, "n_minibatches": 16, "n_epochs": 4, "optimizer": "radam",
        "learning_rate": 1e-4, "learning_rate_schedule": "linear", "gae_lambda": 0.95,
        "max_grad_norm": 10.0, "layer_norm": True, "activation": "relu",
        "hidden_sizes": (128, 128),
        "epsilon_start": 1.0, "epsilon_end": 0.2, "epsilon_fraction": 0.2,
    }  # fmt: skip
    if "encoder" in fields:
        return general | {
            "n_envs": 128, "n_steps": 32, "n_minibatches": 32, "n_epochs": 2,
            "learning_rate": 2.5e-4, "gae_lambda": 0.65,
            "epsilon_end": 0.001, "epsilon_fraction": 0.1,
        }  # fmt: skip
    return general | ({"learning_rate": 5e-4, "epsilon_end": 0.05} if _is_small(family) else {})


def _ppg(family: str, fields: Fields) -> Fields:
    # Cobbe et al. 2020. The auxiliary loss weighs values against the clone's KL: both near one.
    general = {
        "architecture": "dual", "n_policy_iterations": 32, "n_aux_epochs": 6,
        "normalize_rewards": True,
    }  # fmt: skip
    return general | ({"n_epochs": 1} if "encoder" in fields else {})


def _ppg_ewma(family: str, fields: Fields) -> Fields:
    # The policy objective of Hilton et al. 2021, figure 2: the KL penalty with beta 1. Elsewhere
    # PPO's clipping stays, as in PPG: docs/concepts/phases.md.
    penalty = {"objective": "kl", "kl_coef": 1.0, "kl_estimator": "squared"}
    return {**_ppg(family, fields), **(penalty if family.startswith("procgen") else {})}


def _is_small(family: str) -> bool:
    return family in ("classic", "toy-text")


_PPO = Algorithm(
    "ppo",
    learner="isobatch.algos.ppo:Ppo",
    summary="Proximal Policy Optimization",
    proximal="behavior",
    averaged="ppo-ewma",
    stale=True,
    exchanged=True,
)
_PPG = replace(
    _PPO,
    name="ppg",
    learner="isobatch.algos.ppg:Ppg",
    summary="Phasic Policy Gradient: policy phases of PPO, each followed by an auxiliary phase",
    presets=_ppg,
    averaged="ppg-ewma",
    phasic=True,
)
ALGORITHMS: dict[str, Algorithm] = {
    each.name: each
    for each in (
        _PPO,
        replace(
            _PPO,
            name="ppo-ewma",
            summary="PPO whose steps are limited from an average of recent policies",
            proximal="average",
            averaged=None,
        ),
        _PPG,
        replace(
            _PPG,
            name="ppg-ewma",
            summary="PPG with PPO-EWMA's policy phases",
            presets=_ppg_ewma,
            proximal="average",
            averaged=None,
        ),
        Algorithm(
            "a2c",
            learner="isobatch.algos.ppo:Ppo",
            summary="Advantage Actor-Critic: one gradient step on each rollout",
            fixes=ONE_STEP,
            presets=_a2c,
            exchanged=True,
        ),
        Algorithm(
            "reinforce",
            learner="isobatch.algos.reinforce:Reinforce",
            summary="the policy gradient with whole returns",
            fixes=ONE_STEP,
            presets=_reinforce,
            whole_returns=True,
            unprobed="reinforce, whose advantages wait for the ends of episodes",
        ),
        Algorithm(
            "pqn",
            learner="isobatch.algos.pqn:Pqn",
            model="q-network",
            summary="Q(lambda) from parallel environments, without replay or target network",
            fixes={"policy_hidden_sizes": (), "value_hidden_sizes": ()},
            presets=_pqn,
            stale=True,
            policy_gradient=False,
            explores=True,
            unprobed="pqn, which has no policy gradient",
        ),
    )
}
