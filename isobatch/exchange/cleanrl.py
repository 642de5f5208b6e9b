"""CleanRL: the arguments of its on-policy scripts, from args.json or the command line."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from isobatch.batch import Batch
from isobatch.errors import UserError, nearest, shown
from isobatch.exchange import atari, procgen
from isobatch.exchange.cleanrl_scripts import FIXED, SCRIPTS, Script, absent
from isobatch.exchange.table import Format, Key, Table
from isobatch.exchange.values import anything
from isobatch.recipe import Recipe


class CleanRl(Format):
    """The Args of its PPO, PPG and PQN scripts.

    The script, whose defaults and networks hold, is `script` or else `exp_name`.
    """

    name = "cleanrl"
    summary = "CleanRL: arguments of its PPO, PPG and PQN scripts, with script=NAME or its file"
    budget = "total_timesteps"
    always = ("exp_name", "env_id", "total_timesteps", "num_envs", "num_steps", "num_minibatches",
              "update_epochs", "e_policy", "learning_rate")  # fmt: skip
    derived = ("batch_size", "minibatch_size", "num_iterations", "num_phases",
               "aux_batch_rollouts", "local_batch_size", "local_minibatch_size")  # fmt: skip
    script = "script"
    also = ("pqn",)

    def frame_skip(self, flat: Mapping[str, Any]) -> int:
        """That of the scripts' MaxAndSkipEnv."""
        return atari.SKIP

    def word(self, name: str, known: Table) -> tuple[str, Any] | None:
        """A switch of any script."""
        every = {key: each for script in SCRIPTS.values() for key, each in script.keys.items()}
        return super().word(name, every)

    def table(self, flat: Mapping[str, Any]) -> Table:
        """The arguments, with the script's defaults."""
        script = SCRIPTS[_script(flat)]
        table = {
            name: key._replace(default=script.defaults.get(name, key.default))
            for name, key in script.keys.items()
        }
        return table | {name: Key(anything, table[name].default) for name in script.unread}

    def fields(self, values: dict[str, Any], lost: list[str]) -> dict[str, Any]:
        """Read what the script fixes, and check what it works out itself."""
        script = SCRIPTS[_script(values)]
        values, fixed = values | dict.fromkeys(script.unread), FIXED | script.fixed
        if fixed["normalize_observations"] and values["num_envs"] > 1:
            lost.append(
                f"num_envs {values['num_envs']}: each environment is normalised by statistics of "
                "its own; in Isobatch all by the same"
            )
        if fixed["normalize_rewards"]:
            fixed |= {"reward_gamma": values["gamma"], "reward_clip": 10.0}
        env, read = values["env_id"], {"ppo": _ppo, "ppg": _ppg, "pqn": _pqn}[fixed["algo"]]
        fields = {
            "env": procgen.env_id(env, "easy") if script.maker == "procgen" else env,
            "learning_rate_schedule": "linear" if values["anneal_lr"] else "constant",
            "device": "auto" if values["cuda"] else "cpu",
            **read(values, lost),
        }
        _check(values, fields.get("n_envs", values["num_envs"]))
        lost += script.differs
        return fixed | fields

    def values(self, recipe: Recipe, like: Mapping[str, Any]) -> dict[str, Any]:
        """Say the script that fixes most of the recipe, and the switches."""
        name = _script(like) if like else _closest(recipe)
        script, env = SCRIPTS[name], recipe.env
        if script.maker == "procgen":
            env = (procgen.parts(env) or (env,))[0]
        elif script.maker == "gymnasium":
            env = atari.there(recipe)
        normalized = recipe.objective.advantage_normalization != "none"
        anneals = recipe.optimizer.learning_rate_schedule == "linear"
        said = ({} if env.startswith("python:") else {"env_id": env}) | {
            "exp_name": name,
            # PPG's begins anew with each phase, which is no schedule of a recipe's.
            "anneal_lr": anneals and script.fixed.get("algo") != "ppg",
            "clip_vloss": recipe.objective.clip_range_vf is not None,
            "norm_adv": normalized,
            "adv_norm_fullbatch": normalized,
            "cuda": recipe.machine.device != "cpu",
            **_shared(recipe, script, like),
        }
        return {key: each for key, each in said.items() if key in script.keys and key not in
                script.unread}  # fmt: skip

    def text(self, flat: dict[str, Any], given: dict[str, Any], env: str) -> str:
        """Return the command that runs the script."""
        script = _script(flat)
        words = ["python", f"cleanrl/{script}.py"]
        for name, value in flat.items():
            dashed = name.replace("_", "-")
            if isinstance(value, bool):
                words.append(f"--{dashed}" if value else f"--no-{dashed}")
            elif value not in (None, "", script) and name != "script":
                words += [f"--{dashed}", shlex.quote(str(value))]
        return " ".join(words)


def _script(flat: Mapping[str, Any]) -> str:
    """Return the script whose defaults hold; one that is not known is not guessed."""
    key = "script" if flat.get("script") else "exp_name"
    named = flat.get(key)
    if named is None or named == "":
        return "ppo"
    if isinstance(named, str) and named in SCRIPTS:
        return named
    if isinstance(named, str) and (why := absent(named)):
        raise UserError(f"cleanrl: {named}.py {why}: Isobatch imports the PPO, PPG and PQN scripts")
    hint = nearest(str(named), list(SCRIPTS), 1)
    raise UserError(
        f"cleanrl: {key} {shown(named)} is none of its scripts: give script=NAME, the one whose "
        f"networks and defaults hold ({', '.join(SCRIPTS)}).{hint}"
    )


def _closest(recipe: Recipe) -> str:
    """Return the script that fixes most of what the recipe has, of its algorithm where it can."""
    here, game = recipe.values, procgen.parts(recipe.env)
    able = {
        name: each
        for name, each in SCRIPTS.items()
        if each.written and (game or each.maker != "procgen" or each.fixed.get("algo") != "ppg")
    }
    algos = {(FIXED | each.fixed)["algo"] for each in able.values()}
    wanted = recipe.algo if recipe.algo in algos else "ppo"

    def agreement(name: str) -> int:
        return sum(here[field] == value for field, value in able[name].fixed.items())

    return max((k for k in able if (FIXED | able[k].fixed)["algo"] == wanted), key=agreement)


def _ppo(values: dict[str, Any], lost: list[str]) -> dict[str, Any]:
    fields = _policy(values, lost) | {
        "advantage_normalization": "minibatch" if values["norm_adv"] else "none",
    }
    if "local_num_envs" not in values:
        return fields
    world = max(1, values["world_size"])
    if world > 1 and values["norm_adv"]:
        lost.append(
            f"world_size {world}: each process normalises the advantages of its part of a "
            "minibatch; here the whole minibatch's are normalised together, with less noise"
        )
    return fields | {"n_envs": values["local_num_envs"] * world}


def _ppg(values: dict[str, Any], lost: list[str]) -> dict[str, Any]:
    if values["v_value"] != 1:
        raise UserError(
            f"v_value must be 1, as ppg_procgen.py itself demands, got {values['v_value']}"
        )
    fields = _policy(values, lost) | {
        "advantage_normalization": "batch" if values["adv_norm_fullbatch"] else "none",
        # Gradients are accumulated over so many minibatches: one of their size together.
        "aux_segments": values["num_aux_rollouts"] * values["n_aux_grad_accum"],
    }
    if values["anneal_lr"]:
        lost.append(
            "anneal_lr: begins anew with each phase there and so hardly falls; here the learning "
            "rate is constant"
        )
        fields["learning_rate_schedule"] = "constant"
    return fields


def _pqn(values: dict[str, Any], lost: list[str]) -> dict[str, Any]:
    return {}


def _policy(values: dict[str, Any], lost: list[str]) -> dict[str, Any]:
    """Read what PPO and PPG share."""
    if values["target_kl"] is not None:
        lost.append(
            "target_kl: checked after each epoch; in Isobatch before each gradient step, so that "
            "updates may stop sooner"
        )
    return {"clip_range_vf": values["clip_coef"] if values["clip_vloss"] else None}


def _shared(recipe: Recipe, script: Script, like: Mapping[str, Any]) -> dict[str, Any]:
    """Say what a script counts for one process, or for one of several accumulated minibatches."""
    said: dict[str, Any] = {}
    if "local_num_envs" in script.keys:
        world = max(1, script.keys["world_size"].read(like.get("world_size", 1)))
        if recipe.batch.n_envs % world:
            raise UserError(f"n_envs {recipe.batch.n_envs} is not divisible by {world} processes")
        said |= {"local_num_envs": recipe.batch.n_envs // world}
    if "num_aux_rollouts" in script.keys:
        parts = max(1, script.keys["n_aux_grad_accum"].read(like.get("n_aux_grad_accum", 1)))
        segments = recipe.phasic.segments(recipe.batch.n_envs)
        if segments % parts:
            parts = 1
        said |= {"num_aux_rollouts": segments // parts, "n_aux_grad_accum": parts}
    return said


def _check(values: dict[str, Any], n_envs: int) -> None:
    """Refuse what cannot be: parts that do not divide, and sums that are not the script's."""
    batch = Batch.from_cleanrl(
        num_envs=n_envs,
        num_steps=values["num_steps"],
        num_minibatches=values["num_minibatches"],
        update_epochs=values["update_epochs" if "update_epochs" in values else "e_policy"],
    )
    if batch.rollout_size % batch.n_minibatches:
        raise UserError(
            f"num_minibatches {batch.n_minibatches} does not divide the {batch.rollout_size} rows "
            f"of a rollout (num_envs {batch.n_envs} x num_steps {batch.n_steps})"
        )
    due = {
        "num_envs": n_envs,
        "batch_size": batch.rollout_size,
        "minibatch_size": batch.minibatch_size,
        "num_iterations": values["total_timesteps"] // batch.rollout_size,
    }
    for name, value in due.items():
        if values[name] not in (0, value):
            raise UserError(
                f"{name} {values[name]} does not agree with the other arguments, "
                f"which make it {value}"
            )
