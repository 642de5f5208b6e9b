"""What the policy maximises, by name. A new objective is one function."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from torch import Tensor

from isobatch import losses, registry
from isobatch.errors import UserError
from isobatch.models.distributions import Distribution
from isobatch.recipe import Objective, Recipe
from isobatch.recipe.checks import problem


class Samples(NamedTuple):
    """What the loss needs of b rows."""

    observation: dict[str, Tensor]
    """[b, ...] each part, normalised as when acting."""
    actions: Tensor
    """[b, K] in policy form."""
    logp_behav: Tensor
    """[b]: log-probability of the action under the policy that acted."""
    logp_prox: Tensor
    """[b]: the same under the policy the step is limited from."""
    params_prox: Tensor | None
    """[b, P]: that policy's parameters, for the exact KL penalty only."""
    advantages: Tensor
    """[b]: normalised as the recipe says."""
    targets: Tensor
    """[b]: what the value function is fitted to."""
    clip_range: Tensor
    """A number, as a tensor since it may follow a schedule."""
    logp_before: Tensor | None = None
    """[b]: the same under the policy as it was before this update; None: the one that acted."""
    params_before: Tensor | None = None
    """[b, P]: the parameters of the policy before this update, where the step size follows its
    KL."""
    values_behav: Tensor | None = None
    """[b]: values at acting time, where the value loss is clipped."""
    clip_range_vf: Tensor | None = None
    """How far from them values count, as `clip_range`."""


class Current(NamedTuple):
    """The policy being trained, at the same b rows."""

    logp: Tensor
    """[b]: log-probability of the action taken."""
    params: Tensor
    """[b, P]."""
    distribution: Distribution
    """What the parameters are parameters of: log_prob, entropy, kl ..."""


PolicyLoss = Callable[[Current, Samples, Objective], Tensor]
"""(current policy, samples, settings) -> losses [b], to be minimised; pure."""

_LOSSES: dict[str, PolicyLoss] = {}
BUILT_IN = ("clip", "kl", "pg")
"""Objectives of this package: losses of single rows, whose code is known."""


def objective(
    name: str, coefficients: Mapping[str, float] | None = None
) -> Callable[[PolicyLoss], PolicyLoss]:
    """Register a function as the policy objective `name`.

    `coefficients` are its own settings with their defaults: they become recipe fields, and the
    function reads them as `settings.coefficients[name]`.
    """
    own = dict(coefficients or {})
    refuse_taken_names(own)

    def register(loss: PolicyLoss) -> PolicyLoss:
        if name in _LOSSES:
            raise UserError(f"there is an objective {name!r} already")
        _LOSSES[name] = loss
        registry.OBJECTIVES[name] = own
        return loss

    return register


def refuse_taken_names(coefficients: Mapping[str, float]) -> None:
    """Refuse coefficients that are no finite numbers, or named like a field every recipe has."""
    taken = Recipe(env="").values
    for name, value in coefficients.items():
        if not name.isidentifier() or name in taken or name == "minibatch_size":
            raise UserError(f"a coefficient cannot be named {name!r}", field=name)
        found = problem(float, value)
        if found:
            raise UserError(f"{name} {found}, got {value!r}", field=name)


def policy_loss(name: str) -> PolicyLoss:
    """Return the loss of an objective."""
    if name not in _LOSSES:
        raise registry.unregistered("objective", name, _LOSSES, field="objective")
    return _LOSSES[name]


@objective("clip")
def _clip(current: Current, samples: Samples, settings: Objective) -> Tensor:
    return losses.clip_loss(
        current.logp,
        samples.logp_behav,
        samples.logp_prox,
        samples.advantages,
        samples.clip_range,
        settings.max_ratio,
    )


@objective("kl")
def _kl(current: Current, samples: Samples, settings: Objective) -> Tensor:
    exact = samples.params_prox
    return losses.kl_loss(
        current.logp,
        samples.logp_behav,
        samples.logp_prox,
        samples.advantages,
        settings.kl_coef,
        settings.max_ratio,
        kl=None if exact is None else current.distribution.kl(exact, current.params),
    )


@objective("pg")
def _pg(current: Current, samples: Samples, settings: Objective) -> Tensor:
    return losses.policy_gradient_loss(current.logp, samples.advantages)
