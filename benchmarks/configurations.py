"""Other libraries' own example configurations, read: what was read, refused, and left out.

    python -m benchmarks.configurations rl_games=DIR isaaclab=DIR verl=DIR trl=DIR openrlhf=DIR \
        areal=DIR > docs/results/configurations.md

Each DIR is a git directory of that library, whose newest commit is read. The page is written whole.
"""

from __future__ import annotations

import ast
import shlex
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from benchmarks.language_defaults import Source
from isobatch import exchange, language
from isobatch.errors import UserError
from isobatch.text import number

ISAAC_ENVS = 4096
"""Isaac Lab's configurations leave the number of environments to its scripts."""
TASKS = "source/isaaclab_tasks/isaaclab_tasks"
RL_GAMES = {
    "rl_games": (
        "ppo_cartpole", "mujoco/ant_envpool", "mujoco/humanoid_envpool", "dm_control/walker_run",
        "atari/ppo_breakout_envpool", "atari/ppo_pacman_torch_rnn", "mujoco/sac_ant",
    ),
    "isaaclab": (
        f"{TASKS}/direct/ant/agents/rl_games_ppo_cfg.yaml",
        f"{TASKS}/direct/allegro_hand/agents/rl_games_ppo_cfg.yaml",
        f"{TASKS}/manager_based/classic/humanoid/agents/rl_games_ppo_cfg.yaml",
    ),
}  # fmt: skip
LANGUAGE = {
    "verl": (
        "examples/grpo_trainer/run_qwen3-8b.sh",
        "examples/ppo_trainer/run_qwen2-7b_rm_seq_balance.sh",
        "examples/rloo_trainer/run_qwen2-7b.sh",
        "examples/sft/gsm8k/run_qwen_05_sp2.sh",
    ),
    "trl": (
        "examples/scripts/gspo.py",
        "examples/scripts/rloo_vlm.py",
        "examples/scripts/ppo/ppo_tldr.py",
        "examples/scripts/bco.py",
    ),
    "openrlhf": (
        "examples/scripts/train_ppo_ray_hybrid_engine.sh",
        "examples/scripts/train_reinforce_baseline_ray_agent_async.sh",
        "examples/scripts/train_dpo_llama.sh",
    ),
    "areal": (
        "examples/math/gsm8k_grpo.yaml",
        "examples/math/boba_grpo.yaml",
        "examples/math/gsm8k_sft.yaml",
    ),
}
HEAD = """# Configurations of other libraries

Every example configuration that rl_games, Isaac Lab, verl, TRL, OpenRLHF and AReaL ship is read \
or refused with one line; what has no counterpart here is told. Nothing was trained for this page. \
`python -m benchmarks.configurations` writes it from the libraries' sources.
"""


def files(source: Source, *ends: str, under: str = "") -> list[str]:
    """Return the files of a commit."""
    names = source.run("ls-tree", "-r", "--name-only", "HEAD").split("\n")
    return [name for name in names if name.startswith(under) and name.endswith(ends)]


def row(*cells: Any) -> str:
    """Return a line of a Markdown table."""
    return "| " + " | ".join(str(each).replace("|", "\\|") for each in cells) + " |"


def table(head: Sequence[str], rows: Sequence[str]) -> list[str]:
    """Return a Markdown table."""
    return [row(*head), "|" + "---|" * len(head), *rows, ""]


def rl_games(source: Source, path: str, isaac: bool) -> exchange.Imported:
    """Read one of rl_games' files."""
    given = yaml.safe_load(source.text(path))
    return exchange.read("rl_games", given | ({"num_actors": ISAAC_ENVS} if isaac else {}))


def rl_games_part(sources: dict[str, Source]) -> list[str]:
    """Return rl_games' tables."""
    rows, read, refused, left = [], 0, Counter[str](), Counter[str]()
    for name, listed in RL_GAMES.items():
        isaac, source = name == "isaaclab", sources[name]
        found = [each for each in files(source, ".yaml") if "rl_games" in each]
        for path in found:
            short = path.removeprefix("rl_games/configs/").removeprefix(f"{TASKS}/")
            shown = path in listed or short.removesuffix(".yaml") in listed
            if "params" not in yaml.safe_load(source.text(path)):
                continue
            try:
                recipe, lost, _ = rl_games(source, path, isaac)
            except UserError as error:
                refused[_kind(str(error))] += 1
                if shown:
                    rows.append(row(f"`{short}`", f"refused: {error}", "", ""))
                continue
            read += 1
            left.update({line.split(":")[0].rsplit(" ", 1)[0] for line in lost})
            if shown:
                batch = recipe.batch
                rows.append(
                    row(
                        f"`{short}`",
                        f"{batch.shape} in {batch.n_minibatches} of {batch.minibatch_size}, "
                        f"{batch.n_epochs} epochs",
                        number(recipe.optimizer.learning_rate),
                        ", ".join(f"`{line.split(':')[0]}`" for line in lost) or "nothing",
                    )
                )
    count = read + sum(refused.values())
    return [
        "## rl_games", "",
        f"{read} of {count} files are read; {_counted(refused)} are refused. Isaac Lab's files are "
        f"read with `num_actors={ISAAC_ENVS}`. Ten of them:", "",
        *table(("file", "N x T, minibatches", "learning rate", "left out"), rows),
        f"Left out, of {read}:", "",
        *table(("setting", "files"), [row(f"`{name}`", n) for name, n in left.most_common(20)]),
    ]  # fmt: skip


def _kind(message: str) -> str:
    kinds = {
        "network.rnn": "recurrent networks", "network.lstm": "recurrent networks",
        "algo.name": "another algorithm, SAC", "network.name": "networks of its own",
        "one agent per environment": "minibatches that need several agents or another num_actors",
        "must be given": "a network without an MLP", "rl_games has no": "unknown keys",
    }  # fmt: skip
    return next((kind for text, kind in kinds.items() if text in message), "other reasons")


def _counted(refused: Counter[str]) -> str:
    return ", ".join(f"{n} ({kind})" for kind, n in refused.most_common())


def given(source: Source, library: str, path: str) -> Iterator[language.Given]:
    """Return what a file gives: one configuration, or one for each command of a docstring."""
    text = source.text(path)
    if library == "trl":
        yield from _commands(source, text)
        return
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / Path(path).name
        file.write_text(text, encoding="utf-8")
        yield language.parse([str(file)])


def _commands(source: Source, text: str) -> Iterator[language.Given]:
    """Read the commands in a script's docstring, on the devices of its accelerate configuration."""
    nodes = [node.value for node in ast.parse(text).body if isinstance(node, ast.Expr)]
    said = "\n".join(str(node.value) for node in nodes if isinstance(node, ast.Constant))
    for line in said.replace("\\\n", " ").split("\n"):
        words = shlex.split(line, comments=True) if ".py " in line else []
        if not words or words[0] not in ("accelerate", "python"):
            continue
        found = language.parse(words)
        if "--config_file" in words:
            config = yaml.safe_load(source.text(words[words.index("--config_file") + 1]))
            found.flat.setdefault("num_processes", config["num_processes"])
        yield found


def language_part(sources: dict[str, Source]) -> list[str]:
    """Return the tables of language-model RL."""
    rows, counts = [], []
    for name, listed in LANGUAGE.items():
        source, read, refused = sources[name], 0, Counter[str]()
        ends = {"trl": (".py",), "areal": (".yaml",)}.get(name, (".sh",))
        for path in files(source, *ends, under="examples/"):
            try:
                for each in given(source, name, path):
                    line = _language_row(name, path, each)
                    read += 1
                    if path in listed:
                        rows.append(line)
            except UserError as error:
                refused[_reason(str(error))] += 1
                if path in listed:
                    said = f"refused: {error}"
                    rows.append(row(f"{name}: `{_short(path)}`", said, "", "", "", ""))
        library = language.find(name)
        counts.append(row(library.title, library.version, read, _counted(refused) or "none"))
    return [
        "## Language-model RL", "",
        "All files of the libraries' `examples` (TRL: the commands in its scripts' docstrings):",
        "",
        *table(("library", "commit", "read", "refused"), counts),
        "Some of them, and what happens with twice the devices if nothing else is touched:", "",
        *table(
            ("configuration", "sequences per generation", "per gradient step", "devices",
             "twice the devices", "keys not known"),
            rows,
        ),
    ]  # fmt: skip


def _short(path: str) -> str:
    return path.removeprefix("examples/").removeprefix("scripts/")


def _language_row(name: str, path: str, each: language.Given) -> str:
    found = language.find(name)
    settings = found.settings(each)
    batch = found.read(settings).batch
    late = f", up to {batch.staleness} generations late" if batch.staleness else ""
    passes = f", {batch.epochs} passes" if batch.epochs > 1 else ""
    return row(
        f"{name}: `{_short(path)}`",
        f"{batch.prompts} x {batch.samples} = {batch.sequences:,}{late}",
        f"{batch.minibatch:,} ({batch.steps_per_epoch} steps{passes})",
        batch.devices,
        _doubled(name, each, 2 * batch.devices),
        ", ".join(f"`{key}`" for key in settings.unknown()) or "none",
    )


def _doubled(name: str, each: language.Given, devices: int) -> str:
    """Say what twice the devices do, if nothing else is touched."""
    try:
        resized = language.rescale(name, each, devices=devices)
    except UserError as error:
        return str(error)
    if resized.factors.opt == 1:
        changes = ", ".join(f"`{key}` {value}" for key, value in resized.changes.items())
        return f"the batch stays; {changes}"
    (first, *_) = resized.moved
    move = f"{number(first.old)} -> {number(first.new)}"
    return f"the batch doubles (c_opt {resized.factors.opt:g}): `{first.key}` {move}"


def _reason(message: str) -> str:
    kinds = {
        "is no trainer": "another program", "supervised": "fine-tuning",
        "SFT, DPO or": "fine-tuning", "type must be rl": "fine-tuning",
        "is a setting of": "fine-tuning", "no command": "no command of a trainer",
        "which is not computed": "a value the shell computes",
        "do not divide": "sizes that do not divide", "does not divide": "sizes that do not divide",
        "lie across": "gradient steps across generations", "must be given": "no actor.backend",
        "at least 1": "a batch size of 0",
    }  # fmt: skip
    return next((kind for text, kind in kinds.items() if text in message), f"other: {message}")


def main(words: list[str]) -> None:
    """Print the page."""
    sources = {name: Source(path) for name, _, path in (word.partition("=") for word in words)}
    print("\n".join([HEAD, *rl_games_part(sources), *language_part(sources)]).rstrip())


if __name__ == "__main__":
    main(sys.argv[1:])
