"""rl_games' networks as the recipe's, and back."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from isobatch.errors import UserError, shown
from isobatch.exchange.table import OURS, REQUIRED, Key, Table
from isobatch.exchange.values import anything, choice, flag, number, optional, text, widths
from isobatch.recipe import Recipe

ACTIVATIONS = {"tanh": "tanh", "relu": "relu", "elu": "elu", "gelu": "gelu", "swish": "silu"}
NATURE = [(32, 8, 4, 0), (64, 4, 2, 0), (64, 3, 1, 0)]
"""Filters, kernel, stride and padding of the three convolutions."""
BY_TORCH = {"name": "default"}
ORTHOGONAL = {"name": "orthogonal_initializer", "gain": 2**0.5}
SPACE = {"continuous": {
    "mu_activation": "None", "sigma_activation": "None", "mu_init": {"name": "default"},
    "sigma_init": {"name": "const_initializer", "val": 0}, "fixed_sigma": True,
}}  # fmt: skip
"""The policy over continuous actions as a recipe has it."""
SPACE_LACKS = {
    "mu_activation": (None, "a function of the mean action"),
    "sigma_activation": (None, "a function of the standard deviation"),
    "fixed_sigma": (True, "a state-dependent standard deviation; in Isobatch it is one per action"),
    "min_sigma": (0, "a lower bound of the standard deviation"),
    "logstd_bounds": (None, "bounds of the log standard deviation"),
    "sigma_parametrization": ("exp", "a standard deviation that is no exponential of a parameter"),
}


def dictionary(value: Any) -> dict[str, Any]:
    """Read a dictionary."""
    read = anything(value)
    if not isinstance(read, Mapping):
        raise ValueError("must be a dictionary")
    return {str(name): each for name, each in read.items()}


def _initializer(value: Any) -> dict[str, Any]:
    """Read how weights begin; the gain of orthogonal ones is a matter of a few digits."""
    read = dictionary(value)
    if str(read.get("name")).startswith("orthogonal") and "gain" in read:
        gain = number(read["gain"])
        return ORTHOGONAL if math.isclose(gain, 2**0.5, rel_tol=0.01) else read
    return read


NETWORK: Table = {
    "network.name": Key(choice("actor_critic", "resnet_actor_critic"), "actor_critic"),
    "network.separate": Key(flag, False),
    "network.space": Key(optional(dictionary), None),
    "network.mlp.units": Key(widths, REQUIRED),
    "network.mlp.activation": Key(text, REQUIRED),
    "network.mlp.initializer": Key(_initializer, REQUIRED),
    "network.mlp.d2rl": Key(flag, False, lacks="the observation joins every hidden layer (D2RL)"),
    "network.mlp.regularizer": Key(anything),
    "network.mlp.norm_only_first_layer": Key(anything),
    "network.mlp.normalization": Key(anything),
    "network.cnn": Key(optional(dictionary), None),
    "network.rnn": Key(optional(dictionary), None),
    "network.lstm": Key(optional(dictionary), None),
    "network.normalization": Key(
        optional(text), lacks="normalisation after each hidden activation"
    ),
    "network.value_activation": Key(optional(text), lacks="a function of the value"),
    "network.value_shape": Key(anything),
    "network.require_rewards": Key(flag, False, lacks="the last reward as an observation"),
    "network.require_last_actions": Key(flag, False, lacks="the last action as an observation"),
}


def read(values: dict[str, Any], lost: list[str]) -> dict[str, Any]:
    """Read the networks; a recurrent one is refused."""
    for name in ("network.rnn", "network.lstm"):
        if values[name] is not None:
            kind = shown(values[name].get("name", "lstm"))
            raise UserError(f"{name} {kind}: recurrent networks have no counterpart")
    units, activation = values["network.mlp.units"], values["network.mlp.activation"]
    if activation not in ACTIVATIONS:
        lost.append(
            f"network.mlp.activation {activation}: Isobatch has {', '.join(ACTIVATIONS)}; elu is "
            "used"
        )
    initializer = values["network.mlp.initializer"]
    by_torch = initializer.get("name") == "default"
    if by_torch:
        lost.append(
            "network.mlp.initializer default: PyTorch's own weights with biases of 0; Isobatch has "
            "PyTorch's own biases too, which are small"
        )
    elif initializer != ORTHOGONAL:
        lost.append(
            f"network.mlp.initializer {initializer.get('name')}: other initial weights; Isobatch "
            "uses orthogonal ones, so that learning begins otherwise"
        )
    _space(values, lost)
    return {
        "encoder": _encoder(values, lost),
        "architecture": "dual" if values["network.separate"] else "shared",
        "hidden_sizes": OURS["hidden_sizes"] if values["network.cnn"] else units,
        "activation": ACTIVATIONS.get(activation, "elu"),
        "init": "torch" if by_torch else "orthogonal",
        "log_std_init": _log_std(values["network.space"], values["model.name"]),
    }


def _space(values: Mapping[str, Any], lost: list[str]) -> None:
    """Say what of the policy over actions is otherwise."""
    space = values["network.space"] or {}
    continuous = space.get("continuous")
    if not isinstance(continuous, Mapping):
        return
    for name, (idle, does) in SPACE_LACKS.items():
        value = continuous.get(name, idle)
        if str(value) != str(idle):
            lost.append(f"network.space.continuous {name} {value}: {does}")


def _log_std(space: Any, model: str) -> float:
    """Return the initial log standard deviation of continuous actions."""
    continuous = (space or {}).get("continuous")
    initial = continuous.get("sigma_init") if isinstance(continuous, Mapping) else None
    is_log = model == "continuous_a2c_logstd"
    value = initial.get("val", initial.get("value")) if isinstance(initial, Mapping) else None
    if value is None:
        return 0.0
    try:
        return float(number(value)) if is_log else math.log(number(value))
    except ValueError:
        wanted = "a number" if is_log else "a positive number"
        raise UserError(
            f"network.space.continuous sigma_init must be {wanted}, got {shown(value)}"
        ) from None


def _said_space(recipe: Recipe, like: Mapping[str, Any]) -> dict[str, Any]:
    """Say the initial standard deviation where it is not what the settings have already."""
    given, model = like.get("network.space"), like.get("model.name", "continuous_a2c_logstd")
    wanted = recipe.model.log_std_init
    if _log_std(given, model) == wanted:
        return {} if given is None else {"network.space": given}
    said = wanted if model == "continuous_a2c_logstd" else math.exp(wanted)
    continuous = (given or SPACE).get("continuous", SPACE["continuous"])
    own = {**continuous, "sigma_init": {"name": "const_initializer", "val": said}}
    return {"network.space": {"continuous": own}}


def _encoder(values: Mapping[str, Any], lost: list[str]) -> str:
    """Return the encoder nearest to the convolutions, if any."""
    cnn, units = values["network.cnn"], values["network.mlp.units"]
    if cnn is None:
        return "auto"
    residual = values["network.name"] == "resnet_actor_critic"
    name, depths, width = ("impala", [16, 32, 32], 256) if residual else ("nature", None, 512)
    found = cnn.get("conv_depths") if residual else _convolutions(cnn)
    if found != (depths if residual else NATURE) or cnn.get("type", "conv2d") != "conv2d":
        lost.append(f"network.cnn {found}: other convolutions; Isobatch uses {name}'s")
    if tuple(units) != (width,):
        lost.append(
            f"network.mlp.units {list(units)}: layers after the convolutions; Isobatch uses one of "
            f"{width}"
        )
    return name


def _convolutions(cnn: Mapping[str, Any]) -> list[Any]:
    names = ("filters", "kernel_size", "strides", "padding")
    layers = cnn.get("convs") or []
    if not isinstance(layers, list) or not all(isinstance(each, Mapping) for each in layers):
        raise UserError("network.cnn convs must be a list of convolutions")
    return [tuple(each.get(name) for name in names) for each in layers]


def write(recipe: Recipe, like: Mapping[str, Any]) -> dict[str, Any]:
    """Return the networks' keys."""
    model = recipe.model
    image = {"nature": 512, "impala": 256}.get(model.encoder)
    values = {
        "network.name": "resnet_actor_critic" if model.encoder == "impala" else "actor_critic",
        "network.separate": model.architecture == "dual",
        "network.mlp.units": [image] if image else list(model.hidden_sizes),
        "network.mlp.activation": next(
            (name for name, ours in ACTIVATIONS.items() if ours == model.activation), "elu"
        ),
        "network.mlp.initializer": BY_TORCH if model.init == "torch" else ORTHOGONAL,
        **_said_space(recipe, like),
    }
    if model.encoder == "impala":
        values["network.cnn"] = {"conv_depths": [16, 32, 32], "activation": "relu",
                                 "initializer": BY_TORCH}  # fmt: skip
    if model.encoder == "nature":
        names = ("filters", "kernel_size", "strides", "padding")
        values["network.cnn"] = {
            "type": "conv2d",
            "activation": "relu",
            "initializer": ORTHOGONAL,
            "convs": [dict(zip(names, each, strict=True)) for each in NATURE],
        }
    return values
