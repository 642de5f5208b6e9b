"""The keys and defaults of language-model RL libraries, read from their sources.

    python benchmarks/language_defaults.py verl=DIR trl=DIR transformers=DIR openrlhf=DIR areal=DIR

Each DIR is a git directory (bare or not) of that library; the newest commit is read. The result is
`isobatch/language/defaults.json`. Sources are parsed and never run: a default that is not a literal
is null.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

TARGET = Path(__file__).parent.parent / "isobatch" / "language" / "defaults.json"
VERL = ("_generated_ppo_megatron_trainer.yaml", "_generated_ppo_trainer.yaml")
TRL = {
    "grpo": ("GRPOConfig", "trl/trainer/grpo_config.py"),
    "rloo": ("RLOOConfig", "trl/trainer/rloo_config.py"),
    "ppo": ("PPOConfig", "trl/experimental/ppo/ppo_config.py"),
}
BESIDE = {
    "ModelConfig": "trl/trainer/model_config.py",
    "ScriptArguments": "trl/scripts/utils.py",
}
"""What TRL's scripts take beside a trainer's settings."""


class Source:
    """A library's newest commit."""

    def __init__(self, git: str) -> None:
        inner = Path(git) / ".git"
        self.git = str(inner if inner.exists() else git)

    def run(self, *words: str) -> str:
        """Return what git prints."""
        command = ["git", f"--git-dir={self.git}", *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    def text(self, path: str) -> str:
        """Return a file."""
        return self.run("show", f"HEAD:{path}")

    @property
    def version(self) -> str:
        """The commit and its day."""
        return self.run("log", "-1", "--format=%h, %ad", "--date=short").strip()


def flat(tree: Any, prefix: str = "") -> dict[str, Any]:
    """Return nested tables as dotted keys; lists and empty tables are values."""
    if not isinstance(tree, dict) or not tree:
        return {prefix: tree}
    found: dict[str, Any] = {}
    for name, each in tree.items():
        found |= flat(each, f"{prefix}.{name}" if prefix else str(name))
    return found


def literal(node: ast.expr | None) -> Any:
    """Return a default that is a literal, None for any other."""
    try:
        value = ast.literal_eval(node) if node is not None else None
    except ValueError:
        return None
    return value if isinstance(value, bool | int | float | str | list | tuple | dict) else None


def default_of(node: ast.expr | None) -> Any:
    """Return the default of a dataclass's field: a literal, or that of `field(default=...)`."""
    if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "field":
        given = {each.arg: each.value for each in node.keywords}
        return literal(given.get("default"))
    return literal(node)


def classes(*texts: str) -> dict[str, ast.ClassDef]:
    """Return the dataclasses of sources by name."""
    nodes = [node for text in texts for node in ast.walk(ast.parse(text))]
    return {
        node.name: node
        for node in nodes
        if isinstance(node, ast.ClassDef)
        and any("dataclass" in ast.unparse(each) for each in node.decorator_list)
    }


def fields(name: str, known: dict[str, ast.ClassDef], prefix: str = "") -> dict[str, Any]:
    """Return a dataclass's fields with those of its bases; fields of its own classes are dotted."""
    found: dict[str, Any] = {}
    for base in known[name].bases:
        if getattr(base, "id", "") in known:
            found |= fields(base.id, known, prefix)  # pyright: ignore[reportAttributeAccessIssue]
    for node in known[name].body:
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
            continue
        key = f"{prefix}{node.target.id}"
        inner = [each.id for each in ast.walk(node.annotation) if isinstance(each, ast.Name)]
        tables = [each for each in inner if each in known and "tuple" not in inner]
        if tables and "list" not in inner:
            found |= fields(tables[0], known, f"{key}.")
        else:
            found[key] = default_of(node.value)
    return found


def arguments(text: str) -> dict[str, Any]:
    """Return argparse's flags; names made with a loop's variable are those of actor and critic."""
    found: dict[str, Any] = {}
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.Call) or getattr(node.func, "attr", "") != "add_argument":
            continue
        given = {each.arg: each.value for each in node.keywords}
        for who in ("actor", "critic"):
            name = _flag(node.args[0], who)
            value = given.get("default")
            if isinstance(value, ast.IfExp):  # `a if prefix == "actor" else b`.
                value = value.body if who == "actor" else value.orelse
            if "dest" not in given:
                found[name.removeprefix("--")] = literal(value)
    return found


def _flag(node: ast.expr, who: str) -> str:
    if isinstance(node, ast.JoinedStr):
        return "".join(
            str(each.value) if isinstance(each, ast.Constant) else who for each in node.values
        )
    return str(ast.literal_eval(node))


def main(words: list[str]) -> None:
    """Write the keys of the libraries that are given."""
    sources = {name: Source(path) for name, _, path in (word.partition("=") for word in words)}
    verl, trl, openrlhf, areal = (sources[name] for name in ("verl", "trl", "openrlhf", "areal"))
    keys: dict[str, dict[str, Any]] = {"verl": {}}
    for name in VERL:
        tree = yaml.safe_load(verl.text(f"verl/trainer/config/{name}"))
        keys["verl"] |= flat(tree)
    training = sources["transformers"].text("src/transformers/training_args.py")
    base = trl.text("trl/trainer/base_config.py")
    beside = classes(*map(trl.text, BESIDE.values()))
    scripts = {key: value for name in BESIDE for key, value in fields(name, beside).items()}
    for name, (config, path) in TRL.items():
        keys[f"trl {name}"] = scripts | fields(config, classes(training, base, trl.text(path)))
    keys["openrlhf"] = arguments(openrlhf.text("openrlhf/cli/train_ppo_ray.py"))
    keys["areal"] = fields("PPOConfig", classes(areal.text("areal/api/cli_args.py")))
    content = {
        "versions": {name: source.version for name, source in sorted(sources.items())},
        "keys": {
            library: {
                name: value for name, value in sorted(found.items()) if "_target_" not in name
            }
            for library, found in keys.items()
        },
    }
    TARGET.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
