"""The names of one network's weights here and in other libraries."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from torch import Tensor, nn

from isobatch.errors import UserError
from isobatch.models import ActorCritic
from isobatch.models.encoders import MlpEncoder, ObservationEncoder

Names = Mapping[str, str]
"""Parameters' names here, each with its name there."""


class Layers(NamedTuple):
    """A network's parts there; of layers in a row every second is linear, between activations."""

    policy: str
    """Hidden layers of the policy, such as 'mlp_extractor.policy_net.'."""
    value: str
    action_head: str
    value_head: str
    log_std: str
    trunk: str = ""
    """Hidden layers that policy and value share, where they have a name of their own."""
    auxiliary: str = ""
    """PPG's second value head, where there is one."""
    image: Mapping[str, str] = {}
    """The parts of an image encoder here, each with its name there."""
    value_image: Mapping[str, str] = {}
    """The same of the value function's own."""


SB3_IMAGE = {"convolutions.": "cnn.", "dense.": "linear.0."}
SB3 = Layers(
    policy="mlp_extractor.policy_net.",
    value="mlp_extractor.value_net.",
    action_head="action_net.",
    value_head="value_net.",
    log_std="log_std",
    image={ours: f"features_extractor.{theirs}" for ours, theirs in SB3_IMAGE.items()},
    value_image={ours: f"vf_features_extractor.{theirs}" for ours, theirs in SB3_IMAGE.items()},
)
SB3_TRUNK = "mlp_extractor.shared_net."
"""Layers that policy and value share, up to SB3 1.7."""
SB3_ALIASES = ("pi_features_extractor.", "vf_features_extractor.")
"""The same encoder once more, where policy and value share it; the first in any case."""


def names(layers: Layers, model: ActorCritic) -> dict[str, str]:
    """Return the model's parameters' names here, each with its name there if it has one."""
    before = 0 if layers.trunk else _linears(model.actor.encoder)
    stacks = {
        "actor.encoder.vector.layers.": (layers.trunk or layers.policy, 0),
        "actor.hidden.layers.": (layers.policy, before),
        "critic_encoder.vector.layers.": (layers.value, 0),
        "value_hidden.layers.": (layers.value, before),
    }
    parts = {
        "actor.head.": layers.action_head,
        "value_head.": layers.value_head,
        "actor.free": layers.log_std,
        **({"auxiliary_head.": layers.auxiliary} if layers.auxiliary else {}),
        **{f"actor.encoder.image.{ours}": each for ours, each in layers.image.items()},
        **{f"critic_encoder.image.{ours}": each for ours, each in layers.value_image.items()},
    }
    found = {}
    for name in model.state_dict():
        for ours, (theirs, first) in stacks.items():
            if name.startswith(ours):
                place, _, kind = name.removeprefix(ours).partition(".")
                found[name] = f"{theirs}{2 * (first + int(place))}.{kind}"
        for ours, theirs in parts.items():
            if name.startswith(ours):
                found[name] = theirs + name.removeprefix(ours)
    return found


def _linears(encoder: nn.Module) -> int:
    """Return how many linear layers an encoder of vectors has."""
    mlp = encoder.vector if isinstance(encoder, ObservationEncoder) else None
    return len(mlp.linears) if isinstance(mlp, MlpEncoder) else 0


def carried(
    weights: Mapping[str, Tensor],
    needed: Mapping[str, Tensor],
    names: Names,
    source: str,
    env: str,
    spare: Iterable[str] = (),
) -> dict[str, Tensor]:
    """Return foreign weights under the names of `needed`, the model's own, which give the shapes.

    What is missing, left over (but for names that begin with a `spare`) or of another shape is
    refused in a line.
    """
    found: dict[str, Tensor] = {}
    used = set()
    for name, own in needed.items():
        theirs = names[name]
        if theirs not in weights:
            raise UserError(f"{source} does not fit {env}: it has no {theirs}")
        value = weights[theirs]
        if value.shape != own.shape:
            raise UserError(
                f"{source} does not fit {env}: {theirs} is {_shape(value)} in the file and "
                f"{_shape(own)} for the spaces of {env}"
            )
        if not value.isfinite().all():
            raise UserError(f"{source}: {theirs} has numbers that are not finite")
        found[name] = value.to(own.dtype)
        used.add(theirs)
    left = [name for name in weights if name not in used and not name.startswith(tuple(spare))]
    if left:
        raise UserError(f"{source} has weights that Isobatch's networks have not: {left[0]}")
    return found


def widths(weights: Mapping[str, Tensor], prefix: str) -> list[int]:
    """Return the widths of a stack's linear layers: 0, 2, 4, ... after `prefix`."""
    found = []
    while (layer := weights.get(f"{prefix}{2 * len(found)}.weight")) is not None:
        found.append(len(layer))
    return found


def _shape(tensor: Tensor) -> str:
    return "x".join(map(str, tensor.shape)) or "one number"
