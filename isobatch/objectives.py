"""What the policy maximises, by name. A new objective is one function: see docs/objectives.md."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

from isobatch import losses, recipe
from isobatch.errors import UserError
from isobatch.models.distributions import Distribution


class Samples(NamedTuple):
    """What the loss needs of b rows."""

    observation: dict[str, Tensor]
    actions: Tensor
    logp_behav: Tensor
    """[b]: log-probability of the action under the policy that acted."""
    logp_prox: Tensor
    """[b]: the same under the policy the step is limited from."""
    params_prox: Tensor | None
    """[b, P]: that policy's parameters, for the exact KL penalty only."""
    advantages: Tensor
    targets: Tensor
    clip_range: Tensor
    """A number, as a tensor since it may follow a schedule."""


class Current(NamedTuple):
    """The policy being trained, at the same b rows."""

    logp: Tensor
    """[b]: log-probability of the action taken."""
    params: Tensor
    """[b, P]."""
    distribution: Distribution


PolicyLoss = Callable[[Current, Samples, recipe.Objective], Tensor]
"""(current policy, samples, settings) -> losses [b], to be minimised; pure."""

_LOSSES: dict[str, PolicyLoss] = {}


def objective(name: str) -> Callable[[PolicyLoss], PolicyLoss]:
    """Make a function the policy objective `name`, for recipes to use."""

    def register(loss: PolicyLoss) -> PolicyLoss:
        if name in _LOSSES:
            raise UserError(f"there is an objective {name!r} already")
        _LOSSES[name] = loss
        if name not in recipe.OBJECTIVES:
            recipe.OBJECTIVES.append(name)
        return loss

    return register


def policy_loss(name: str) -> PolicyLoss:
    """Return the loss of an objective."""
    return _LOSSES[name]


@objective("clip")
def _clip(current: Current, samples: Samples, settings: recipe.Objective) -> Tensor:
    return losses.clip_loss(
        current.logp,
        samples.logp_behav,
        samples.logp_prox,
        samples.advantages,
        samples.clip_range,
        settings.max_ratio,
    )


@objective("kl")
def _kl(current: Current, samples: Samples, settings: recipe.Objective) -> Tensor:
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
def _pg(current: Current, samples: Samples, settings: recipe.Objective) -> Tensor:
    return losses.policy_gradient_loss(current.logp, samples.advantages)
