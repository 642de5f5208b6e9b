"""A command line's words, a YAML or JSON file or a shell script, as dotted keys. Nothing is run."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from isobatch import files
from isobatch.errors import UserError, shown
from isobatch.exchange.source import load

FILES = (".yaml", ".yml", ".json", ".sh")
PAIR = re.compile(r"[+]{0,2}([A-Za-z_][\w.]*)=(.*)", re.S)
VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)(?:\[@\])?(?::-([^}]*))?\})")
ASSIGNED = re.compile(r"(?:export\s+)?([A-Za-z_]\w*)=(?!\()(.*)", re.S)
ARITHMETIC = re.compile(r"\$\(\((.*?)\)\)(?!\))")
ARRAY = re.compile(r"^\s*([A-Za-z_]\w*)=\((.*?)^\s*\)", re.M | re.S)
LAUNCHERS = ("accelerate", "torchrun", "torch.distributed.run", "deepspeed")
LAUNCHED = ("num_processes",)
"""Flags of a launcher that say how many devices train."""
MOST = 2**16
"""Characters of a script."""


class Given(NamedTuple):
    """What was given, in one library's keys."""

    flat: dict[str, Any]
    program: str = ""
    """What the command runs, '' where no command was given."""

    def over(self, other: Given) -> Given:
        """Return both, the other's values where both have one."""
        return Given(self.flat | other.flat, other.program or self.program)


def parse(words: Sequence[str]) -> Given:
    """Read key=value, --key value, files of keys, and commands that have them."""
    before, program, rest = _command(list(words))
    if not program:
        return _pairs(rest)
    launcher = _pairs(before, lenient=True).flat
    found = {name: launcher[name] for name in LAUNCHED if name in launcher}
    return Given(found, program).over(_pairs(rest, lenient=True))


def flatten(tree: Any, prefix: str = "") -> dict[str, Any]:
    """Return nested tables as dotted keys; lists and empty tables are values."""
    if not isinstance(tree, dict) or not tree:
        return {prefix: tree} if prefix else {}
    found: dict[str, Any] = {}
    for name, each in tree.items():
        found |= flatten(each, f"{prefix}.{name}" if prefix else str(name))
    return found


def script(path: Path) -> Given:
    """Read the command of a shell script that has the most settings, its variables filled in."""
    text = files.read_text(path)
    if len(text) > MOST:
        raise UserError(f"{path} has {len(text):,} characters, more than the {MOST:,} it may")
    commands = [parse(words) for words in _lines(text) if _command(words)[1]]
    if not commands:
        raise UserError(f"{path}: no command that runs a Python module or script")
    return max(commands, key=lambda each: len(each.flat))


def _command(words: list[str]) -> tuple[list[str], str, list[str]]:
    """Return (what stands before the program, the program, what stands after it)."""
    for place, word in enumerate(words):
        before = words[place - 1] if place else ""
        runs = before in ("-m", "--module", "trl") or word.endswith(".py")
        is_module = re.fullmatch(r"\w+(\.\w+){2,}", word) and not place
        if (runs or is_module) and not word.startswith(LAUNCHERS):
            name = f"trl {word}" if before == "trl" else word
            return words[:place], name, words[place + 1 :]
    return [], "", words


def _pairs(words: list[str], lenient: bool = False) -> Given:
    """Read settings. Of a command (`lenient`), words that are none are passed over."""
    given = Given({})
    said: dict[str, Any] = {}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word.startswith("--") and len(word) > 2:
            name, equals, value = word[2:].partition("=")
            values = [value] if equals else []
            while not equals and rest and not _begins(rest[0], lenient):
                values.append(rest.pop(0))
            name = name.replace("-", "_")
            if name == "config" and len(values) == 1 and values[0].endswith(FILES[:3]):
                given = given.over(_file(values[0]))
            else:
                said[name] = True if not values else values[0] if len(values) == 1 else values
        elif match := PAIR.fullmatch(word):
            said[match[1]] = match[2]
        elif word.endswith(FILES) and not lenient:
            given = given.over(_file(word))
        elif not lenient:
            raise UserError(
                f"cannot read {shown(word)}: give KEY=VALUE, --KEY VALUE or a file "
                f"({', '.join(FILES)})"
            )
    return given.over(Given(said))


def _file(name: str) -> Given:
    path = Path(name)
    return script(path) if path.suffix == ".sh" else Given(flatten(load(path)))


def _begins(word: str, lenient: bool) -> bool:
    """Say whether a word is one of its own, not the value of the flag before it."""
    is_file = word.endswith(FILES) and not lenient  # A command's flags have files as values.
    return word.startswith("--") or bool(PAIR.fullmatch(word)) or is_file


def _lines(text: str) -> Iterator[list[str]]:
    """Return the words of a script's commands, variables that it sets filled in."""
    whole = "\n".join(line for line in text.split("\n") if not line.lstrip().startswith("#"))
    whole = re.sub(r'"(\$\{\w+\[@\]\})"', r"\1", whole)  # An array is its words, in quotes too.
    whole = ARITHMETIC.sub(lambda each: each[0].replace(" ", ""), whole)
    known = {name: " ".join(body.split()) for name, body in ARRAY.findall(whole)}
    whole = ARRAY.sub("", whole).replace("\\\n", " ")
    for line in whole.split("\n"):
        if match := ASSIGNED.fullmatch(line.strip()):
            words = _split(match[2])
            if len(words) == 1:
                known[match[1]] = _filled(words[0], known)
                continue
        words = _split(_filled(line, known))
        if words:
            yield words


def _filled(text: str, known: dict[str, str]) -> str:
    """Return the text with the variables that are known, or have a default, in place."""

    def value(match: re.Match[str]) -> str:
        name = match[1] or match[2]
        return known.get(name, match[0] if match[3] is None else match[3])

    for _ in range(3):  # Of arrays, whose words have variables.
        text = VARIABLE.sub(value, text)
    return ARITHMETIC.sub(lambda match: _product(match, known), text)


def _product(match: re.Match[str], known: dict[str, str]) -> str:
    """Return the value of $((a * b)); other arithmetic is left as it is."""
    terms = [term.strip("$ ") for term in match[1].split("*")]
    values = [known.get(term, term) for term in terms]
    if not all(re.fullmatch(r"\d{1,9}", each) for each in values):
        return match[0]
    return str(math.prod(map(int, values)))


def _split(line: str) -> list[str]:
    try:
        return shlex.split(line, comments=True)
    except ValueError:  # A quotation over several lines: no command of settings.
        return []
