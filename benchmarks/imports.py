"""Import what other libraries ship: which of it is read, what is left out, whether numbers agree.

python -m benchmarks.imports --zoo ZOO --cleanrl CLEANRL --isaaclab ISAACLAB --rsl-rl RSL_RL \\
    --out docs/results/imports.md

The folders are checkouts of DLR-RM/rl-baselines3-zoo, vwxyzjn/cleanrl, isaac-sim/IsaacLab and
leggedrobotics/rsl_rl; Stable-Baselines3 must be installed. Nothing of the checkouts is run: their
defaults are read by `ast`. What each recipe should hold is worked out from the library's own
defaults and the entry by `benchmarks.meanings`, without `isobatch.exchange`.
"""

import argparse
import ast
import inspect
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.meanings import NUM_ENVS, from_cleanrl, from_rsl_rl, from_sb3
from isobatch import exchange
from isobatch.errors import UserError
from isobatch.exchange.source import load_python
from isobatch.recipe import Recipe

Expect = Callable[[Mapping[str, Any]], dict[str, Any]]


@dataclass
class Tally:
    """What came of a library's configurations."""

    name: str
    entries: int = 0
    imported: int = 0
    complete: int = 0
    """Imported with nothing left out."""
    fields: int = 0
    agreeing: int = 0
    lost: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    differing: list[str] = field(default_factory=list)
    defaults: int = 0
    """Defaults compared with the library's own."""
    wrong: list[str] = field(default_factory=list)
    """Defaults that are not the library's."""

    def take(self, label: str, read: Callable[[], exchange.Imported], expect: Expect | None,
             effective: Mapping[str, Any]) -> None:  # fmt: skip
        """Import one configuration and compare it field by field."""
        self.entries += 1
        try:
            imported = read()
        except UserError as error:
            self.refused[_reason(str(error))] += 1
            return
        self.imported += 1
        self.complete += not imported.unknown
        self.lost.update({_setting(line) for line in imported.unknown})
        for name, value in (expect(effective) if expect else {}).items():
            self.fields += 1
            found = _held(imported.recipe, name)
            if _alike(found, value):
                self.agreeing += 1
            else:
                self.differing.append(f"{label}: {name} {found}, should be {value}")

    def compare(self, theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> None:
        """Compare defaults by name."""
        for name in theirs.keys() & ours.keys():
            self.defaults += 1
            if not _alike(theirs[name], ours[name]):
                self.wrong.append(f"{name} {ours[name]}, theirs {theirs[name]}")


def _held(recipe: Recipe, name: str) -> Any:
    """Return a field, or all layers of the policy or the value function."""
    model = recipe.model
    if name == "policy_layers":
        return model.hidden_sizes + model.policy_hidden_sizes
    if name == "value_layers":
        return model.hidden_sizes + model.value_hidden_sizes
    return recipe.values[name]


def _alike(one: Any, other: Any) -> bool:
    if isinstance(one, float | int) and isinstance(other, float | int):
        return math.isclose(one, other, rel_tol=1e-9)
    return one == other


def _setting(line: str) -> str:
    """Return which setting a line is about, without its value."""
    words = line.partition(":")[0].split()
    if words[0] in ("policy_kwargs", "normalize") and len(words) > 1:
        return " ".join(words[:2])
    if words[0] == "env_wrapper" and (name := re.search(r"(\w+)(?=['\"]|:|$)", line)):
        return f"env_wrapper {name[1]}"
    named = "_" in words[0] or "." in words[0] or not words[1][0].islower()
    return words[0] if named else line.partition(";")[0]


def _reason(message: str) -> str:
    """Return why a configuration is refused, without where it stands."""
    said = re.sub(r"^\S+\.(py|yml)(, \w+)? ", "", message)
    said = re.sub(r"^cleanrl: \w+\.py ", "", said)
    return said.partition(": Isobatch imports")[0]


# ---------------------------------------------------------------- Stable-Baselines3 and its zoo


def zoo(root: Path) -> Tally:
    """Every entry of the zoo's ppo.yml and a2c.yml."""
    from stable_baselines3 import A2C, PPO

    tally = Tally("RL Zoo: ppo.yml and a2c.yml")
    for algo, kind in (("ppo", PPO), ("a2c", A2C)):
        own = _signature(kind)
        tally.compare(own, _ours("sb3", {"algo": algo}))
        given = exchange.arguments("zoo", [str(root / "hyperparams" / f"{algo}.yml")])
        for name, entry in given.items():
            if not isinstance(entry, Mapping):
                continue
            env = {"default": "Other-v0", "atari": "PongNoFrameskip-v4"}.get(name, name)
            effective = {"n_envs": 1, "algo": algo, **own, **entry}
            tally.take(
                f"{algo}.yml {name}",
                lambda given=given, env=env: exchange.read("zoo", given, env),
                from_sb3,
                effective,
            )
    return tally


def others(root: Path) -> Tally:
    """Every entry of the zoo's files of other algorithms, which are to be refused."""
    tally = Tally("RL Zoo: other algorithms")
    for path in sorted((root / "hyperparams").glob("*.yml")):
        if path.stem in ("ppo", "a2c"):
            continue
        for name in re.findall(r"^([\w-]+):", path.read_text(encoding="utf-8"), re.MULTILINE):
            tally.take(
                f"{path.stem} {name}",
                lambda path=path, name=name: exchange.read(
                    "zoo", exchange.arguments("zoo", [str(path)]), name
                ),
                None,
                {},
            )
    return tally


def _signature(kind: type) -> dict[str, Any]:
    parameters = inspect.signature(kind).parameters.values()
    return {
        each.name: each.default
        for each in parameters
        if each.default is not inspect.Parameter.empty
    }


# ---------------------------------------------------------------- CleanRL


def cleanrl(root: Path) -> Tally:
    """Every script, with the defaults of its own Args."""
    tally = Tally("CleanRL: every script")
    folder = root / "cleanrl"
    paths = [*folder.glob("*.py"), *folder.glob("ppo_*/ppo_*.py")]
    for path in sorted(paths):
        given = _args(path)
        tally.take(
            path.stem,
            lambda path=path: exchange.read("cleanrl", exchange.arguments("cleanrl", [str(path)])),
            from_cleanrl,
            given,
        )
        try:
            tally.compare(given, _ours("cleanrl", {"script": path.stem}))
        except UserError:
            continue  # Refused, and counted as such.
    return tally


def _args(path: Path) -> dict[str, Any]:
    """Return the literal defaults of a script's Args."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef) and node.name == "Args":
            found = {}
            for each in node.body:
                if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
                    value = _literal(each.value)
                    if value is not _literal:
                        found[each.target.id] = value
            return found
    return {}


def _literal(node: ast.expr | None) -> Any:
    """Return a literal, int(25e6) as well; itself where there is none."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "int":
        return int(_literal(node.args[0]))
    try:
        return ast.literal_eval(node) if node is not None else _literal
    except ValueError:
        return _literal


# ---------------------------------------------------------------- rsl_rl and Isaac Lab


def isaaclab(root: Path, rsl_rl: Path) -> Tally:
    """Every runner class of Isaac Lab's rsl_rl configurations."""
    tally = Tally("Isaac Lab: rsl_rl configurations")
    own = _rsl_rl(rsl_rl)
    newest = {"num_envs": 1, "num_steps_per_env": 1, "actor": {}, "algorithm": {}}
    ours = _ours("rsl_rl", exchange.FORMATS["rsl_rl"].flatten(newest))
    tally.compare(own, {name.removeprefix("algorithm."): each for name, each in ours.items()})
    for path in sorted(root.rglob("rsl_rl_*_cfg.py")):
        for name in load_python(path)[1]:
            words = [str(path), f"class={name}", f"num_envs={NUM_ENVS}"]

            def read(words: list[str] = words) -> exchange.Imported:
                return exchange.read("rsl_rl", exchange.arguments("rsl_rl", words), "Ant-v4")

            try:
                given = exchange.arguments("rsl_rl", words)
            except UserError:
                given = {}
            tally.take(name, read, from_rsl_rl, own | given | given.get("algorithm", {}))
    return tally


def _rsl_rl(root: Path) -> dict[str, Any]:
    """Return the defaults of PPO's arguments."""
    text = (root / "rsl_rl" / "algorithms" / "ppo.py").read_text(encoding="utf-8")
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef) and node.name == "__init__":
            names = [each.arg for each in node.args.args][-len(node.args.defaults) :]
            pairs = zip(names, map(_literal, node.args.defaults), strict=True)
            return {name: value for name, value in pairs if name != "device"}
    return {}


# ---------------------------------------------------------------- the page


def _ours(source: str, flat: Mapping[str, Any]) -> dict[str, Any]:
    """Return a format's defaults, schedules as their first number."""
    table = exchange.FORMATS[source].table(flat)
    found = {
        name: key.default
        for name, key in table.items()
        # Without default, field or effect it touches nothing that is learned.
        if type(key.default) is not object and (key.default is not None or key.field or key.lacks)
    }
    return {name: getattr(each, "start", each) for name, each in found.items()}


def page(tallies: list[Tally], revisions: list[str]) -> str:
    """Return the page."""
    lines = [
        "# Imports, counted",
        "",
        "What other libraries ship, read by `isobatch import`. Written by "
        "`python -m benchmarks.imports`, which works out what each recipe must hold from the "
        "library's own defaults (SB3's "
        "signatures, CleanRL's `Args`, rsl_rl's signature) and the entry, and compares."
        + (f" Checkouts: {', '.join(revisions)}." if revisions else ""),
        "",
        *_rows(
            ("", "configurations", "imported", "nothing left out", "refused",
             "fields compared", "agree", "defaults compared", "agree"),
            (
                (each.name, each.entries, each.imported, each.complete,
                 each.entries - each.imported, each.fields, each.agreeing, each.defaults,
                 each.defaults - len(each.wrong))
                for each in tallies
            ),
        ),
        "",
        "## Left out",
        "",
        *_rows(
            ("setting", "library", "configurations"),
            (
                (f"`{name}`" if " " not in name or "_" in name else name, each.name, count)
                for each in tallies
                for name, count in _most(each.lost)
            ),
        ),
        "",
        "`batch_size` is there where it is more than the rollout has rows: SB3 then takes the "
        "rollout as one minibatch, and so does the recipe. Isaac Lab's configurations do not say "
        f"how many environments there are; {NUM_ENVS} are assumed.",
        "",
        "## Refused",
        "",
        *_rows(
            ("why", "library", "configurations"),
            (
                (name, each.name, count)
                for each in tallies
                for name, count in _most(each.refused)
            ),
        ),
    ]  # fmt: skip
    differing = [line for each in tallies for line in (*each.differing, *each.wrong)]
    lines += ["", "## What does not agree", "", *(f"- {line}" for line in differing)]
    return "\n".join([*lines, *([] if differing else ["Nothing."])]) + "\n"


def _most(counts: Counter[str]) -> list[tuple[str, int]]:
    return sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))


def _rows(head: tuple[str, ...], rows: Iterator[tuple[Any, ...]]) -> list[str]:
    shown = [head, tuple("---" for _ in head), *rows]
    return ["| " + " | ".join(map(str, row)) + " |" for row in shown]


def main() -> None:
    """Import everything and write the page."""
    parser = argparse.ArgumentParser(description="Import what other libraries ship.")
    for name in ("zoo", "cleanrl", "isaaclab", "rsl-rl"):
        parser.add_argument(f"--{name}", type=Path, required=True, help="its checkout")
    parser.add_argument(
        "--revision", action="append", default=[], help="a checkout's, for the page"
    )
    parser.add_argument("--out", type=Path, required=True, help="the page")
    given = parser.parse_args()
    tallies = [
        zoo(given.zoo),
        isaaclab(given.isaaclab, given.rsl_rl),
        cleanrl(given.cleanrl),
        others(given.zoo),
    ]
    given.out.write_text(page(tallies, given.revision), encoding="utf-8")


if __name__ == "__main__":
    main()
