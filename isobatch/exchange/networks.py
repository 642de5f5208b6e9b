"""Stable-Baselines3's policy and policy_kwargs as the recipe's networks and Adam, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from isobatch.errors import UserError, shown
from isobatch.exchange.values import Name, Reader, flag, number, whole
from isobatch.recipe import Recipe

ACTIVATIONS = {
    "Tanh": "tanh", "ReLU": "relu", "ELU": "elu", "GELU": "gelu", "SiLU": "silu",
    "LeakyReLU": "leaky_relu",
}  # fmt: skip
LACKS = {
    "squash_output": (False, "actions squashed by tanh"),
    "full_std": (True, "number of parameters of gSDE's standard deviation"),
    "use_expln": (False, "how gSDE keeps its standard deviation positive"),
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
        "hidden_sizes": (64, 64),
        "activation": "tanh",
        "init": "orthogonal" if _take(kwargs, "ortho_init", flag, True) else "torch",
        "log_std_init": float(_take(kwargs, "log_std_init", number, 0.0)),
        "layer_norm": False,
    }
    if policy == "MultiInputPolicy":
        lost.append("policy MultiInputPolicy: one encoder per observation key, shared")
    if image:
        for name in ("net_arch", "activation_fn"):
            if kwargs.get(name) not in (None, []):
                lost.append(f"policy_kwargs {name} {kwargs[name]}: layers after the image encoder")
    else:
        fields["hidden_sizes"] = _widths(kwargs.get("net_arch"), lost)
        fields["activation"] = _activation(kwargs.get("activation_fn"), lost)
    for name, value in kwargs.items():
        idle, does = LACKS.get(name, (None, "has no counterpart"))
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
    lost += [f"policy_kwargs optimizer_kwargs {name} {settings[name]}: an optimiser argument"
             for name in settings]  # fmt: skip
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
    image = model.encoder in ("nature", "impala")
    if image and model.architecture == "dual":
        kwargs["share_features_extractor"] = False
    if not image and model.hidden_sizes != (64, 64):
        kwargs["net_arch"] = list(model.hidden_sizes)
    if not image and model.activation != "tanh":
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


def _widths(value: Any, lost: list[str]) -> tuple[int, ...]:
    if value is None:
        return (64, 64)
    # Before SB3 1.8 the dictionary stood in a list.
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], Mapping):
        value = value[0]
    if isinstance(value, Mapping):
        if set(value) - {"pi", "vf"}:
            said = f"policy_kwargs net_arch must be dict(pi=[...], vf=[...]), got {shown(value)}"
            raise UserError(said)
        policy, critic = value.get("pi", []), value.get("vf", [])
        if policy != critic:
            lost.append(
                f"policy_kwargs net_arch vf {critic}: Isobatch uses the policy's widths, {policy}"
            )
        value = policy
    try:
        if not isinstance(value, list | tuple):
            raise TypeError
        sizes = tuple(whole(each) for each in value)
    except (TypeError, ValueError):
        raise UserError(
            f"policy_kwargs net_arch must be a list of widths or dict(pi=[...], vf=[...]), "
            f"got {shown(value)}"
        ) from None
    if not sizes:
        raise UserError("policy_kwargs net_arch must have at least one layer, got []")
    return sizes


def _activation(value: Any, lost: list[str]) -> str:
    name = "Tanh" if value is None else str(value).rpartition(".")[2]
    if name not in ACTIVATIONS:
        lost.append(
            f"policy_kwargs activation_fn {value}: Isobatch has {', '.join(ACTIVATIONS.values())}; "
            "tanh is used"
        )
    return ACTIVATIONS.get(name, "tanh")


def _take(kwargs: dict[str, Any], name: str, read: Reader, default: Any) -> Any:
    """Return one of the policy's arguments."""
    value = kwargs.get(name, default)
    try:
        return read(value)
    except ValueError as error:
        raise UserError(f"policy_kwargs {name} {error}, got {shown(value)}") from None
