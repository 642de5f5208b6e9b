"""rl-baselines3-zoo: an environment's entry in its hyperparameter files."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from isobatch.errors import UserError, nearest, shown
from isobatch.exchange import atari, others, source
from isobatch.exchange.sb3 import A2C, PPO, Sb3
from isobatch.exchange.table import SAME, Key, Table
from isobatch.exchange.values import anything, number, optional, whole
from isobatch.exchange.wrappers import (
    frame_skip,
    read_arguments,
    read_normalization,
    read_wrappers,
    write_arguments,
    write_normalization,
    write_wrappers,
)
from isobatch.presets import listed_family
from isobatch.recipe import Recipe

OWN: Table = {
    "normalize": Key(anything, False),
    "env_wrapper": Key(optional(anything), None),
    "frame_stack": Key(optional(whole), None),
    "vec_env_wrapper": Key(
        optional(anything),
        lacks="a wrapper of the vector environment; here the environment is as without it",
    ),
    "env_kwargs": Key(optional(anything), None),
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
    gamma = table["gamma"]
    # VecNormalize has it from the algorithm, but where the entry leaves it to SB3's default.
    left_out = SAME._replace(here=lambda there: gamma.default if there is None else there)
    own: Table = {**OWN, "gamma": Key(optional(number), None, "gamma", left_out)}
    return {**budget, **{k: v for k, v in table.items() if k not in ELSEWHERE}, **own}


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
        return frame_skip(flat.get("env_wrapper"))

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
        """Read what is put around the environment as well."""
        fields = super().fields(values, lost)
        fields |= read_normalization(values["normalize"], values["gamma"], lost)
        around, extra = read_wrappers(values["env_wrapper"], values["frame_stack"], lost)
        if fields["normalize_observations"] and around["frame_stack"] > 1:
            lost.append(
                f"frame_stack {values['frame_stack']}: observations are normalised before they are "
                "stacked, in Isobatch after; zeros before an episode are then no mean observation"
            )
        options = read_arguments(values["env_kwargs"], lost) + extra
        return fields | around | {"env_options": tuple(options)}

    def values(self, recipe: Recipe, like: Mapping[str, Any]) -> dict[str, Any]:
        """Say what is put around the environment as well."""
        around, apart = write_wrappers(recipe)
        around["env_kwargs"] = write_arguments(recipe, apart)
        return super().values(recipe, like) | write_normalization(recipe) | around

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


def _yaml(value: Any) -> str:
    if isinstance(value, float):
        shown = {"inf": ".inf", "-inf": "-.inf"}.get(repr(value), repr(value))
        # Without the point YAML 1.1 takes 1e-05 for a text.
        return re.sub(r"^(-?\d+)e", r"\1.0e", shown)
    if isinstance(value, str) and re.fullmatch(r"[A-Za-z][\w./-]*", value):
        return value
    return json.dumps(value)
