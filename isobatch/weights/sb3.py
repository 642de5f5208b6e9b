"""A policy that Stable-Baselines3 saved: its settings as a recipe, its weights under our names."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from isobatch import exchange, files
from isobatch.errors import UserError, shown
from isobatch.exchange.networks import ACTIVATIONS
from isobatch.exchange.values import Name
from isobatch.origin import Origin
from isobatch.recipe import Recipe
from isobatch.weights import normalizer, sb3_zip, torch_file
from isobatch.weights.landing import Foreign, Landed, OptimizerState, land
from isobatch.weights.names import SB3, SB3_ALIASES, SB3_TRUNK, Layers, widths
from isobatch.weights.normalizer import Statistics
from isobatch.weights.sb3_zip import Archive

BESIDE = ("vecnormalize.pkl", "vec_normalize.pkl")
"""Names of VecNormalize's file: the zoo's, and that of SB3's examples."""
SETTINGS = (
    "n_envs", "n_steps", "batch_size", "n_epochs", "gamma", "gae_lambda", "clip_range_vf",
    "normalize_advantage", "target_kl", "ent_coef", "vf_coef", "max_grad_norm", "use_sde",
    "sde_sample_freq", "seed",
)  # fmt: skip
"""Entries of a zip that are the arguments they were given as."""
EXTRACTORS = ("FlattenExtractor", "NatureCNN", "CombinedExtractor")
SDE = {"full_std": True, "use_expln": False, "squash_output": False}
"""Arguments of gSDE's distribution that have one value here."""
REMEMBERED = {
    "adam": {"mean": "exp_avg", "square": "exp_avg_sq"},
    "rmsprop": {"square": "square_avg"},
}
"""What optimisers keep of each parameter, here and in PyTorch."""


def from_sb3(
    path: str | Path,
    env: str,
    out: str | Path | None = None,
    *,
    normalizer: str | Path | None = None,
    settings: Mapping[str, Any] | None = None,
) -> Landed:
    """Make a run directory of a zip that PPO or A2C of Stable-Baselines3 saved.

    `normalizer` is the file of its VecNormalize, by default vecnormalize.pkl beside the zip, and
    'none' where there is none. `settings` are keyword arguments of PPO or A2C that the zip does not
    tell, or tells wrongly: a schedule that is a function is not decoded.
    """
    path = Path(path)
    content = files.read(path, torch_file.MOST)
    archive = sb3_zip.read(content, str(path))
    data = archive.data
    given, notes = arguments(archive, str(path), settings or {})
    file = _normalizer(path, data, normalizer)
    statistics = _statistics(file)
    imported = exchange.read("sb3", given, env)
    recipe = imported.recipe.replace(**_normalizing(statistics))
    notes += [*imported.unknown, *imported.notes]
    optimizer = _optimizer(archive, recipe, notes)
    digest = hashlib.sha256(content).hexdigest()
    library = f"Stable-Baselines3 {archive.version}".strip()
    foreign = Foreign(
        source=str(path),
        origin=Origin(library, path.name, digest, _steps(data, "num_timesteps")),
        recipe=recipe,
        weights=archive.weights,
        layers=_layers(archive.weights),
        spare=SB3_ALIASES,
        optimizer=optimizer,
        statistics=statistics,
        statistics_source=str(file),
        notes=tuple(notes),
    )
    return land(foreign, out)


def arguments(
    archive: Archive, source: str, settings: Mapping[str, Any]
) -> tuple[dict[str, Any], list[str]]:
    """Return the keyword arguments a zip's model was made with, and a line for each unknown one."""
    data, weights = archive.data, archive.weights
    algo = sb3_zip.algorithm(data)
    image = any(name.startswith("features_extractor.cnn.") for name in weights)
    space = sb3_zip.attributes(data.get("observation_space"))
    shape = space.get("_shape")
    if not image and space.get("dtype") == "uint8" and isinstance(shape, list) and len(shape) == 3:
        raise UserError(f"{source} flattens images and divides them by 255; Isobatch does not")
    given: dict[str, Any] = {"algo": algo, "policy": "CnnPolicy" if image else "MlpPolicy"}
    given |= {
        name: data[name]
        for name in SETTINGS
        if data.get(name) is not None and sb3_zip.is_plain(data[name])
    }
    done, budget = (_steps(data, name) for name in ("num_timesteps", "_total_timesteps"))
    if max(done, budget):
        given["total_timesteps"] = max(done, budget)
    given |= _networks(data, weights, image, algo, source)
    notes: list[str] = []
    rate = sb3_zip.schedule(data.get("learning_rate"))
    rate = sb3_zip.schedule(data.get("lr_schedule")) if rate is None else rate
    last = _last_rate(archive.optimizer)
    schedules = {"learning_rate": (rate, last)}
    if algo == "ppo":
        schedules["clip_range"] = (sb3_zip.schedule(data.get("clip_range")), None)
    for name, (known, otherwise) in schedules.items():
        if known is not None or name in settings:
            given |= {} if known is None else {name: known}
            continue
        if otherwise is not None:
            given[name] = otherwise
        said = f"{otherwise}, that of the last update," if otherwise else "SB3's default"
        notes.append(
            f"{name}: a function, which is not decoded; {said} is used ({name}=X changes it)"
        )
    return given | dict(settings), notes


def _networks(
    data: dict[str, Any], weights: Mapping[str, Tensor], image: bool, algo: str, source: str
) -> dict[str, Any]:
    """Return the keys that say networks and optimiser; widths are those of the weights."""
    kwargs = sb3_zip.attributes(data.get("policy_kwargs"))
    extractor = kwargs.pop("features_extractor_class", None)
    if extractor is not None and sb3_zip.class_name(extractor) not in EXTRACTORS:
        raise UserError(f"{source} has a features extractor of its own, {shown(extractor)}")
    kwargs.pop("features_extractor_kwargs", None)
    if image and kwargs.pop("normalize_images", True) is not True:
        raise UserError(f"{source} takes images undivided (normalize_images=False)")
    for name, usual in SDE.items():
        if (found := kwargs.pop(name, usual)) != usual:
            raise UserError(f"{source} has gSDE with {name}={shown(found)}; Isobatch has {usual}")
    activation = sb3_zip.class_name(kwargs.get("activation_fn", "Tanh"))
    if activation not in ACTIVATIONS:
        raise UserError(
            f"{source} has the activation {activation}; {', '.join(ACTIVATIONS)} are read"
        )
    shared, policy, value = (widths(weights, each) for each in (SB3_TRUNK, SB3.policy, SB3.value))
    own = {"pi": policy, "vf": value}
    kwargs |= {
        "net_arch": [*shared, own] if shared else own,
        "activation_fn": Name(f"nn.{activation}"),
    }
    if algo != "a2c":
        return {"policy_kwargs": kwargs}
    if sb3_zip.class_name(kwargs.get("optimizer_class", "")) != "RMSprop":
        return {"policy_kwargs": kwargs, "use_rms_prop": False}
    del kwargs["optimizer_class"]
    options = kwargs.pop("optimizer_kwargs", None)
    eps = options.get("eps", 1e-8) if isinstance(options, dict) else 1e-8
    return {"policy_kwargs": kwargs, "rms_prop_eps": eps}


def _normalizer(path: Path, data: dict[str, Any], given: str | Path | None) -> Path | None:
    """Return VecNormalize's file; refuse to go without where the zip was trained with one."""
    if given is not None:
        return None if str(given) == "none" else Path(given)
    beside = [folder / name for folder in (path.parent, path.with_suffix("")) for name in BESIDE]
    found = next((file for file in beside if file.is_file()), None)
    # SB3 keeps observations as they were before VecNormalize, where there is one.
    if found is None and data.get("_last_original_obs") is not None:
        raise UserError(
            f"{path} was trained with VecNormalize, whose statistics are in a file of their own: "
            "give it with --normalizer vecnormalize.pkl, or --normalizer none"
        )
    return found


def _statistics(file: Path | None) -> Statistics | None:
    if file is None:
        return None
    return normalizer.read(files.read(file, normalizer.MOST), str(file))


def _normalizing(statistics: Statistics | None) -> dict[str, Any]:
    """Return the recipe's fields of what VecNormalize did."""
    if statistics is None:
        return {}
    fields: dict[str, Any] = {
        "normalize_observations": statistics.observations is not None,
        "observation_clip": 0.0 if math.isinf(statistics.clip_obs) else statistics.clip_obs,
        "normalize_epsilon": statistics.epsilon,
        "update_statistics": "step",
    }
    if statistics.rewards is None:
        return fields
    return fields | {
        "normalize_rewards": True,
        "reward_gamma": statistics.gamma,
        "reward_clip": statistics.clip_reward,
    }


def _layers(weights: Mapping[str, Tensor]) -> Layers:
    return SB3._replace(trunk=SB3_TRUNK) if f"{SB3_TRUNK}0.weight" in weights else SB3


def _optimizer(archive: Archive, recipe: Recipe, notes: list[str]) -> OptimizerState | None:
    """Return what the optimiser remembers of each parameter, None where that cannot be told."""
    kept = REMEMBERED.get(recipe.optimizer.optimizer)
    found = archive.optimizer if isinstance(archive.optimizer, dict) else {}
    if found.get("state") == {}:
        return None  # It has taken no step.
    try:
        state, groups = found["state"], found["param_groups"]
        # PyTorch counts parameters in the order in which a module names them, each once.
        aliases = SB3_ALIASES if recipe.model.architecture == "shared" else SB3_ALIASES[:1]
        names = [name for name in archive.weights if not name.startswith(aliases)]
        numbers = [number for group in groups for number in group["params"]]
        counts = {int(state[number]["step"]) for number in numbers}
        if kept is None or len(numbers) != len(names) or len(counts) != 1:
            raise ValueError
        parts = {
            ours: {
                name: torch.as_tensor(state[number][theirs])
                for name, number in zip(names, numbers, strict=True)
            }
            for ours, theirs in kept.items()
        }
        for part in parts.values():
            for name, value in part.items():
                if value.shape != archive.weights[name].shape:
                    raise ValueError
        return OptimizerState(parts, counts.pop())
    except (LookupError, TypeError, ValueError, RuntimeError):
        notes.append("the optimiser's averages could not be matched to weights: begun anew")
        return None


def _last_rate(optimizer: Any) -> float | None:
    """Return the step size of the last update, None where there was none, or it was 0."""
    try:
        rate = float(optimizer["param_groups"][0]["lr"])
    except (LookupError, TypeError, ValueError, RuntimeError):
        return None
    return rate if 0 < rate < math.inf else None


def _steps(data: dict[str, Any], name: str) -> int:
    value = data.get(name)
    return value if isinstance(value, int) and value > 0 else 0
