"""rl-baselines3-zoo: an environment's entry in its hyperparameter files."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from isobatch.errors import UserError, nearest, shown
from isobatch.exchange import atari, others, source
from isobatch.exchange.sb3 import A2C, PPO, Sb3
from isobatch.exchange.table import Key, Table
from isobatch.exchange.values import Reader, anything, flag, number, optional, options, whole
from isobatch.presets import listed_family
from isobatch.recipe import Recipe

ATARI_WRAPPER = "stable_baselines3.common.atari_wrappers.AtariWrapper"
ATARI_FRAMES = 4
"""Frames that an Atari observation stacks, there by frame_stack and here always."""
OWN: Table = {
    "normalize": Key(anything, False),
    "env_wrapper": Key(optional(anything), None),
    "frame_stack": Key(optional(whole), None),
    "vec_env_wrapper": Key(
        optional(anything),
        lacks="a wrapper of the vector environment; here the environment is as without it",
    ),
    "env_kwargs": Key(optional(anything), lacks="arguments of the environment (see env_options)"),
    "callback": Key(
        optional(anything), lacks="a training callback; here nothing is done in its place"
    ),
    "monitor_kwargs": Key(anything),
}


GENERAL = ("default", "atari")
"""Entries that are not an environment's."""
SAMPLED = ("atari", "minigrid")
"""Families whose published scores are of sampled actions (rl_zoo3/enjoy.py)."""
ELSEWHERE = ("total_timesteps", "seed", "device", "verbose", "tensorboard_log")
"""SB3's arguments that the zoo has under another name, or on its own command line."""


def _own(table: Table) -> Table:
    budget = {"n_timesteps": table["total_timesteps"]}
    return {**budget, **{k: v for k, v in table.items() if k not in ELSEWHERE}, **OWN}


TABLES = {"ppo": _own(PPO), "a2c": _own(A2C)}


class Zoo(Sb3):
    """One entry, or a file of entries by environment id."""

    name = "zoo"
    summary = "rl-baselines3-zoo: an environment's entry of ppo.yml or, with algo=a2c, a2c.yml"
    budget = "n_timesteps"
    always = ("n_envs", "n_timesteps", "policy", "n_steps", "batch_size", "n_epochs",
              "learning_rate")  # fmt: skip
    aliases = {"total_timesteps": "n_timesteps"}  # noqa: RUF012

    def flatten(self, given: Mapping[str, Any], env: str | None = None) -> dict[str, Any]:
        """Choose the environment's entry; keys beside the entries replace what it says."""
        entries = _entries(given)
        rest = {name: value for name, value in given.items() if name not in entries}
        if not entries:
            return super().flatten(rest)
        wanted, named = env or rest.get("env"), rest.pop("entry", None)
        if wanted is not None and not isinstance(wanted, str):
            raise UserError(f"zoo: env must be an environment's id, got {shown(wanted)}")
        for name in itertools.chain(*entries.values()):
            others.refuse_key(name, self.name)
        chosen = _choose(entries, wanted, named)
        own = {"env": wanted or chosen}
        return super().flatten({**own, **entries[chosen], **rest})

    def restore(
        self, flat: dict[str, Any], given: Mapping[str, Any] | None, env: str
    ) -> dict[str, Any]:
        """Put the entry under its environment's id, but where it was given without."""
        apart = ("env", "algo")
        entry = {name: value for name, value in flat.items() if name not in apart}
        algo = {"algo": flat["algo"]} if flat.get("algo") == "a2c" else {}
        if given is not None and not _entries(given):
            return {name: flat[name] for name in apart if name in given} | entry
        entries = list(_entries(given or {}))
        unnamed = env.startswith("python:")
        name = entries[0] if unnamed and len(entries) == 1 else env.removeprefix("python:")
        return {name: entry, **algo}

    def load(self, path: Path, said: dict[str, Any]) -> dict[str, Any]:
        """Read a file of entries, which is named after its algorithm, or a run's config.yml."""
        others.refuse_algorithm(path.stem, str(path))
        if path.suffix == ".py":
            return _python(path)
        content = super().load(path, said)
        if path.stem == "config":
            content |= _run(path.with_name("args.yml"))
        return content | ({"algo": "a2c"} if path.stem == "a2c" else {})

    def table(self, flat: Mapping[str, Any]) -> Table:
        """SB3's keys and the zoo's own."""
        return TABLES["a2c" if flat.get("algo") == "a2c" else "ppo"]

    def frame_skip(self, flat: Mapping[str, Any]) -> int:
        """That of AtariWrapper, where there is one."""
        for name, arguments in _each_wrapper(flat.get("env_wrapper")):
            if name == ATARI_WRAPPER:
                return _take(dict(arguments), "frame_skip", whole, atari.SKIP)
        return 1

    def notes(self, given: Mapping[str, Any], recipe: Recipe) -> list[str]:
        """Say which entry it is, and how the zoo's scores were played."""
        lines, entries = [], _entries(given)
        if entries and "entry" not in given and _choose(entries, recipe.env) == "default":
            hint = nearest(recipe.env, [name for name in entries if name not in GENERAL], 1)
            lines.append(f"the file has no entry for {recipe.env}: its default is used.{hint}")
        if listed_family(recipe.env) in SAMPLED:
            return [
                *lines,
                "the zoo's published scores here are of sampled actions, as isobatch eval's",
            ]
        return [
            *lines,
            "the zoo's published scores are of deterministic actions: compare them with "
            "isobatch eval RUN --deterministic",
        ]

    def fields(self, values: dict[str, Any], lost: list[str]) -> dict[str, Any]:
        """Read the wrappers as well."""
        fields = super().fields(values, lost)
        fields |= _normalization(values["normalize"], values["gamma"], lost)
        return fields | _wrappers(values["env_wrapper"], values["frame_stack"], lost)

    def values(self, recipe: Recipe, like: Mapping[str, Any]) -> dict[str, Any]:
        """Say the wrappers as well."""
        values = super().values(recipe, like)
        values["normalize"] = _say_normalization(recipe)
        life, sign = recipe.environment.episodic_life, recipe.environment.sign_rewards
        if not (life or sign):
            return values | {"env_wrapper": None, "frame_stack": None}
        arguments = {} if life else {"terminal_on_life_loss": False}
        arguments |= {} if sign else {"clip_reward": False}
        wrapper = {ATARI_WRAPPER: arguments} if arguments else ATARI_WRAPPER
        return values | {"env_wrapper": [wrapper], "frame_stack": ATARI_FRAMES}

    def text(self, flat: dict[str, Any], given: dict[str, Any], env: str) -> str:
        """Return the entry as YAML."""
        entry = {name: value for name, value in flat.items() if name not in ("env", "algo")}
        lines = [f"  {name}: {_yaml(value)}" for name, value in entry.items()]
        return "\n".join([f"{_yaml(env)}:", *lines])


def _python(path: Path) -> dict[str, Any]:
    """Return the entries of a Python file, which the zoo takes from its `hyperparams`."""
    entries = source.load_python(path)[0].get("hyperparams")
    if not isinstance(entries, dict):
        raise UserError(f"{path} has no hyperparams = {{...}}, the zoo's entries by environment")
    return entries


def _run(path: Path) -> dict[str, Any]:
    """Return what the arguments saved beside a run's config.yml add to it, if they are there."""
    if not path.is_file():
        return {}
    arguments = source.load(path)
    found = {name: arguments[name] for name in ("algo", "env") if arguments.get(name)}
    if isinstance(steps := arguments.get("n_timesteps"), int) and steps > 0:
        found["n_timesteps"] = steps  # Given by -n; what the entry says is not used.
    if arguments.get("env_kwargs"):
        found["env_kwargs"] = arguments["env_kwargs"]
    return found


def _entries(given: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the environments' entries: what holds a dictionary and is no key of an entry."""
    known = {*TABLES["ppo"], *TABLES["a2c"]}
    return {
        str(name): {str(key): each for key, each in value.items()}
        for name, value in given.items()
        if name not in known and isinstance(value, Mapping)
    }


def _choose(entries: dict[str, dict[str, Any]], env: str | None, named: Any = None) -> str:
    """Return the environment's own entry, or as the zoo does that of Atari games or the default.

    `named` is an entry that was asked for by its name, whatever the environment.
    """
    own = [name for name in entries if name not in GENERAL]
    if env in GENERAL:
        what = "all Atari games" if env == "atari" else "environments without one of their own"
        raise UserError(f"zoo: {env} is no environment but the entry of {what}: name one of those")
    if named is not None or env in entries:
        wanted = str(env if named is None else named)
        if wanted not in entries:
            raise UserError(f"zoo: the file has no entry {wanted}.{nearest(wanted, list(entries))}")
        return wanted
    if env is None and len(entries) == len(own) == 1:
        return own[0]
    if env is None:
        listed = ", ".join(own)
        raise UserError(f"zoo: the file has several environments, choose one of {listed}")
    if played := atari.game(env):
        same = (name for name in own if (other := atari.game(name)) and other.id == played.id)
        if found := next(same, "atari" if "atari" in entries else None):
            return found
    if "default" in entries:
        return "default"
    raise UserError(f"zoo: the file has no {env}; it has {', '.join(own)}.{nearest(env, own)}")


def _each_wrapper(value: Any) -> Iterator[tuple[Any, Mapping[str, Any]]]:
    """Yield each wrapper's name and its arguments."""
    for wrapper in [] if value is None else value if isinstance(value, list) else [value]:
        if isinstance(wrapper, Mapping) and len(wrapper) == 1:
            name, arguments = next(iter(wrapper.items()))
            yield name, arguments if isinstance(arguments, Mapping) else {}
        else:
            yield wrapper, {}


def _normalization(value: Any, gamma: float, lost: list[str]) -> dict[str, Any]:
    """Read VecNormalize's settings; the zoo gives it the algorithm's gamma."""
    settings: dict[str, Any] = {}
    try:
        on = flag(value)
    except ValueError:
        try:
            settings, on = options(value), True
        except ValueError as error:
            raise UserError(f"normalize {error}, got {shown(value)}") from None
    rewards = on and _take(settings, "norm_reward", flag, True)
    fields = {
        "normalize_observations": on and _take(settings, "norm_obs", flag, True),
        "normalize_rewards": rewards,
    }
    settings.pop("gamma", None)
    clip = _take(settings, "clip_reward", number, 10.0)
    lost += [
        f"normalize {name} {each}: an argument of VecNormalize" for name, each in settings.items()
    ]
    return fields | ({"reward_gamma": gamma, "reward_clip": clip} if rewards else {})


def _take(settings: dict[str, Any], name: str, read: Reader, default: Any) -> Any:
    value = settings.pop(name, default)
    try:
        return read(value)
    except ValueError as error:
        raise UserError(f"{name} {error}, got {shown(value)}") from None


def _say_normalization(recipe: Recipe) -> Any:
    settings = recipe.normalize
    observations, rewards = settings.normalize_observations, settings.normalize_rewards
    if not (observations or rewards):
        return False
    said: dict[str, Any] = {}
    if not (observations and rewards):
        said |= {"norm_obs": observations, "norm_reward": rewards}
    if rewards and settings.reward_clip != 10.0:
        said["clip_reward"] = settings.reward_clip
    return f"dict({', '.join(f'{k}={v!r}' for k, v in said.items())})" if said else True


def _wrappers(value: Any, frames: int | None, lost: list[str]) -> dict[str, Any]:
    """Read the Atari wrapper; others are the environment's own affair."""
    fields = {"episodic_life": False, "sign_rewards": False}
    atari = False
    wrappers = [] if value is None else value if isinstance(value, list) else [value]
    for wrapper in wrappers:
        name, arguments = wrapper, {}
        if isinstance(wrapper, Mapping) and len(wrapper) == 1:
            name, arguments = next(iter(wrapper.items()))
        if name != ATARI_WRAPPER or not isinstance(arguments, Mapping):
            lost.append(f"env_wrapper {wrapper}: a wrapper of each environment")
            continue
        atari, rest = True, dict(arguments)
        fields["episodic_life"] = _take(rest, "terminal_on_life_loss", flag, True)
        fields["sign_rewards"] = _take(rest, "clip_reward", flag, True)
        lost += [f"env_wrapper {each} {rest[each]}: an argument of AtariWrapper" for each in rest]
    if frames != (ATARI_FRAMES if atari else None):
        lost.append(f"frame_stack {frames}: frame stacking (in Isobatch always 4 for Atari)")
    return fields


def _yaml(value: Any) -> str:
    if isinstance(value, float):
        shown = {"inf": ".inf", "-inf": "-.inf"}.get(repr(value), repr(value))
        # Without the point YAML 1.1 takes 1e-05 for a text.
        return re.sub(r"^(-?\d+)e", r"\1.0e", shown)
    if isinstance(value, str) and re.fullmatch(r"[A-Za-z][\w./-]*", value):
        return value
    return json.dumps(value)
