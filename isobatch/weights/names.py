"""The names of one network's weights here and in other libraries."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from torch import Tensor

from isobatch.errors import UserError

Rename = Callable[[str], str]
"""From a parameter's name here to its name there."""


class Layers(NamedTuple):
    """A network's parts there; of layers in a row every second is linear, between activations."""

    policy: str
    """Hidden layers of the policy, such as 'mlp_extractor.policy_net.'."""
    value: str
    action_head: str
    value_head: str
    log_std: str
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
SB3_ALIASES = ("pi_features_extractor.", "vf_features_extractor.")
"""The same encoder once more, where policy and value share it; the first in any case."""


def renamed(layers: Layers) -> Rename:
    """Return the function from names here to those there."""
    prefixes = {
        "actor.head.": layers.action_head,
        "value_head.": layers.value_head,
        "actor.free": layers.log_std,
        **{f"actor.encoder.image.{ours}": each for ours, each in layers.image.items()},
        **{f"critic_encoder.image.{ours}": each for ours, each in layers.value_image.items()},
    }
    stacks = {
        "actor.encoder.vector.layers.": layers.policy,
        "critic_encoder.vector.layers.": layers.value,
    }

    def rename(name: str) -> str:
        for ours, theirs in stacks.items():
            if match := re.fullmatch(rf"{re.escape(ours)}(\d+)\.(\w+)", name):
                return f"{theirs}{2 * int(match[1])}.{match[2]}"
        for ours, theirs in prefixes.items():
            if name.startswith(ours):
                return theirs + name.removeprefix(ours)
        raise KeyError(name)

    return rename


def carried(
    weights: Mapping[str, Tensor],
    needed: Mapping[str, Tensor],
    rename: Rename,
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
        theirs = rename(name)
        if theirs not in weights:
            raise UserError(f"{source} does not fit {env}: it has no {theirs}")
        value = weights[theirs]
        if value.shape != own.shape:
            raise UserError(
                f"{source} does not fit {env}: {theirs} is {_shape(value)} in the file and "
                f"{_shape(own)} for the spaces of {env}"
            )
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
