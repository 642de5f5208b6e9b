"""Stable-Baselines3's policy and policy_kwargs as the recipe's networks and Adam, and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from isobatch.errors import UserError, shown
from isobatch.exchange.values import Name, Reader, flag, number
from isobatch.exchange.values import widths as read_widths
from isobatch.recipe import Model, Recipe

ACTIVATIONS = {
    "Tanh": "tanh", "ReLU": "relu", "ELU": "elu", "GELU": "gelu", "SiLU": "silu",
    "LeakyReLU": "leaky_relu",
}  # fmt: skip
LACKS = {
    "squash_output": (False, "actions squashed by tanh; here they are clipped to their bounds"),
    "use_sde": (None, "an argument of PPO and A2C; SB3 refuses it here"),
    "full_std": (
        True,
        "one standard deviation of gSDE per feature, not per feature and action; here all "
        "are learned, and exploration may narrow per action",
    ),
    "use_expln": (
        False,
        "another function than exp from log_std to gSDE's standard deviation; here exp, which "
        "grows faster where noise grows",
    ),
    "normalize_images": (True, "dividing images by 255, which Isobatch always does"),
}
READ = (
    "net_arch", "activation_fn", "share_features_extractor", "optimizer_kwargs", "ortho_init",
    "log_std_init",
)  # fmt: skip
EPS = {"library": 1e-5, "torch": 1e-8}
"""Adam's epsilon: SB3's own, and PyTorch's, which holds once optimizer_kwargs are given."""
BETAS = (0.9, 0.999)


def read(policy: str, kwargs: dict[str, Any] | None, lost: list[str]) -> dict[str, Any]:
    """Return the recipe's model; lines for what it cannot be are added to `lost`."""
    kwargs = kwargs or {}
    image = policy == "CnnPolicy"
    shared = image and bool(kwargs.get("share_features_extractor", True))
    fields: dict[str, Any] = {
        "encoder": "nature" if image else "auto",
        "architecture": "shared" if shared else "dual",
        **_layers(kwargs.get("net_arch"), image, lost),
        "activation": _activation(kwargs.get("activation_fn"), lost),
        "init": "orthogonal" if _take(kwargs, "ortho_init", flag, True) else "torch",
        "log_std_init": float(_take(kwargs, "log_std_init", number, 0.0)),
        "layer_norm": False,
    }
    if policy == "MultiInputPolicy":
        lost.append(
            "policy MultiInputPolicy: one encoder per observation key, shared; here vectors are "
            "joined into one, and features differ"
        )
    for name, value in kwargs.items():
        idle, does = LACKS.get(name, (None, "has no counterpart; here networks are as without it"))
        if name not in READ and value != idle:
            lost.append(f"policy_kwargs {name} {value}: {does}")
    return fields


def adam(kwargs: dict[str, Any] | None, lost: list[str]) -> dict[str, Any]:
    """Return Adam's settings; the betas and epsilon of optimizer_kwargs are understood."""
    given = (kwargs or {}).get("optimizer_kwargs")
    if given is not None and not isinstance(given, Mapping):
        raise UserError(f"policy_kwargs optimizer_kwargs must be a dictionary, got {shown(given)}")
    # A class of one's own has defaults of its own.
    plain = given is None or "optimizer_class" in (kwargs or {})
    settings: dict[str, Any] = {} if plain else {**(given or {})}
    eps = settings.pop("eps", EPS["library" if plain else "torch"])
    betas = settings.pop("betas", BETAS)
    lost += [
        f"policy_kwargs optimizer_kwargs {name} {each}: an optimiser argument; steps differ"
        for name, each in settings.items()
    ]
    try:
        first, second = (float(number(each)) for each in betas)
        return {"adam_eps": number(eps), "adam_beta1": first, "adam_beta2": second}
    except (TypeError, ValueError):
        raise UserError(
            f"policy_kwargs optimizer_kwargs must be eps=X, betas=(X, X), got {shown(given)}"
        ) from None


def write(recipe: Recipe) -> tuple[str, str | None]:
    """Return (policy, policy_kwargs as text) of a recipe's networks and Adam."""
    model, optimizer = recipe.model, recipe.optimizer
    kwargs: dict[str, Any] = {}
    image = is_image(model)
    if image and model.architecture == "dual":
        kwargs["share_features_extractor"] = False
    policy, value = widths(recipe)
    if policy != value:
        kwargs["net_arch"] = {"pi": list(policy), "vf": list(value)}
    elif policy != (() if image else (64, 64)):
        kwargs["net_arch"] = list(policy)
    if model.activation != "tanh":
        names = {ours: theirs for theirs, ours in ACTIVATIONS.items()}
        kwargs["activation_fn"] = Name(f"nn.{names[model.activation]}")
    if model.init == "torch":
        kwargs["ortho_init"] = False
    if model.log_std_init:
        kwargs["log_std_init"] = model.log_std_init
    betas = (optimizer.adam_beta1, optimizer.adam_beta2)
    if optimizer.optimizer != "rmsprop" and (betas, optimizer.adam_eps) != (BETAS, EPS["library"]):
        kwargs["optimizer_kwargs"] = {"eps": optimizer.adam_eps, "betas": betas}
    return "CnnPolicy" if image else "MlpPolicy", as_text(kwargs) if kwargs else None


def as_text(value: Any) -> str:
    """Return options as Python source; names such as nn.ReLU stand as they are."""
    if isinstance(value, dict):
        return f"dict({', '.join(f'{name}={as_text(each)}' for name, each in value.items())})"
    return value if isinstance(value, Name) else repr(value)


def apart(policy: Sequence[int], value: Sequence[int]) -> dict[str, Any]:
    """Return the fields of MLPs that share nothing, of these widths."""
    policy, value = tuple(policy), tuple(value)
    if policy == value:
        return {"hidden_sizes": policy}
    return {"hidden_sizes": (), "policy_hidden_sizes": policy, "value_hidden_sizes": value}


def widths(recipe: Recipe) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the widths of all the hidden layers of policy and value, but for an image encoder."""
    model = recipe.model
    before = () if is_image(model) else model.hidden_sizes
    return (*before, *model.policy_hidden_sizes), (*before, *model.value_hidden_sizes)


def is_image(model: Model) -> bool:
    """Say whether the encoder is one of images."""
    return model.encoder in ("nature", "impala")


def _layers(value: Any, image: bool, lost: list[str]) -> dict[str, Any]:
    """Return the fields that net_arch says; an image's features are followed by its layers."""
    if value is None:
        return {} if image else {"hidden_sizes": (64, 64)}
    shared, policy, critic = _net_arch(value)
    if image:
        if shared:
            lost.append(
                f"policy_kwargs net_arch {list(shared)}: layers that policy and value share after "
                "the image encoder; in Isobatch each has its own"
            )
        return {
            "policy_hidden_sizes": (*shared, *policy), "value_hidden_sizes": (*shared, *critic),
        }  # fmt: skip
    if not shared:
        return apart(policy, critic)
    return {
        "architecture": "shared", "hidden_sizes": shared, "policy_hidden_sizes": policy,
        "value_hidden_sizes": critic,
    }  # fmt: skip


def _net_arch(value: Any) -> tuple[tuple[int, ...], ...]:
    """Return the widths of shared layers, the policy's and the value's.

    Up to SB3 1.7 a list ended with a dictionary, after the layers that both share.
    """
    shared, own = [], value
    if isinstance(value, list) and value and isinstance(value[-1], Mapping):
        *shared, own = value
    if not isinstance(own, Mapping):
        own = {"pi": own, "vf": own}
    try:
        if set(own) - {"pi", "vf"}:
            raise ValueError
        parts = (shared, own.get("pi", []), own.get("vf", []))
        return tuple(read_widths(each) for each in parts)
    except ValueError:
        raise UserError(
            f"policy_kwargs net_arch must be a list of widths or dict(pi=[...], vf=[...]), "
            f"got {shown(value)}"
        ) from None


def _activation(value: Any, lost: list[str]) -> str:
    name = "Tanh" if value is None else str(value).rpartition(".")[2]
    if name not in ACTIVATIONS:
        lost.append(
            f"policy_kwargs activation_fn {value}: Isobatch has {', '.join(ACTIVATIONS.values())}; "
            "tanh is used, and what is learned may differ"
        )
    return ACTIVATIONS.get(name, "tanh")


def _take(kwargs: dict[str, Any], name: str, read: Reader, default: Any) -> Any:
    """Return one of the policy's arguments."""
    value = kwargs.get(name, default)
    try:
        return read(value)
    except ValueError as error:
        raise UserError(f"policy_kwargs {name} {error}, got {shown(value)}") from None
