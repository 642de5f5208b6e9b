"""Command-line flags for every field of a recipe: flat names, its docstring as help."""

from __future__ import annotations

import argparse
import ast
import dataclasses
import inspect
import math
import re
import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, NoReturn, get_args, get_origin, get_type_hints

from isobatch.errors import UserError, shown
from isobatch.plain import LARGEST
from isobatch.recipe import Recipe
from isobatch.registry import ALGORITHMS, OBJECTIVES
from isobatch.text import plain

GROUPED = re.compile(r"[+-]?[0-9_]+(,[0-9]{3})+")
"""A number with commas between its thousands."""


class Parser(argparse.ArgumentParser):
    """An argument parser whose mistakes are one-line `UserError`s."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(allow_abbrev=False, formatter_class=_Help, **settings)

    def error(self, message: str) -> NoReturn:
        """Raise instead of printing the usage."""
        raise UserError(f"{message} (see {self.prog} --help)")

    def _print_message(self, message: str, file: Any = None) -> None:
        """Print the help; the defaults in it may come from a recipe's file."""
        super()._print_message(plain(message), file)


class _Help(argparse.HelpFormatter):
    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=30, width=80)


def usage(*forms: str) -> str:
    """Return the usage of a command, each form on a line: argparse wraps no usage it is given."""
    return "\n   or: ".join(forms)


def add_recipe_flags(parser: argparse.ArgumentParser, base: Recipe) -> None:
    """Add a flag for each field of the recipe but its environment, `base`'s values in the help.

    Flags not given are absent from the parsed namespace, so that what is there was asked for.
    """
    _add_fields(parser.add_argument_group("the run"), base, skipped=("env",))
    _add_coefficients(parser, base)
    for field in dataclasses.fields(base):
        table = getattr(base, field.name)
        if dataclasses.is_dataclass(table):
            title = (type(table).__doc__ or "").strip().splitlines()[0].rstrip(".")
            # An abbreviation keeps its capitals.
            begins = title[0].lower() + title[1:] if title[1].islower() else title
            group = parser.add_argument_group(f"{field.name}: {begins}")
            _add_fields(group, table)
            if field.name == "batch":
                group.add_argument(
                    "--minibatch-size",
                    type=whole_number,
                    metavar="N",
                    default=argparse.SUPPRESS,
                    help=f"instead of --n-minibatches: transitions per gradient step "
                    f"(default: {base.batch.minibatch_size})",
                )


def add_env_flag(parser: argparse.ArgumentParser) -> None:
    """Add the flag by which a user confirms a module that a file names."""
    parser.add_argument(
        "--env", metavar="MODULE:ID", help="allow importing the module that the run's env names"
    )


def _add_coefficients(parser: argparse.ArgumentParser, base: Recipe) -> None:
    """Add a flag for each setting that a registered algorithm or objective has of its own."""
    owners = [(f"algorithm {name}", each.coefficients) for name, each in ALGORITHMS.items()]
    owners += [(f"objective {name}", each) for name, each in OBJECTIVES.items()]
    known: dict[str, str] = {}
    for owner, coefficients in owners:
        for name, default in coefficients.items():
            if name not in known:
                known[name] = owner
                group = parser.add_argument_group(f"{owner}: its own coefficients")
                shown = base.values.get(name, default)
                group.add_argument(
                    "--" + name.replace("_", "-"),
                    dest=name,
                    type=_number,
                    metavar="X",
                    default=argparse.SUPPRESS,
                    help=f"(default: {shown})",
                )


def given(arguments: argparse.Namespace, base: Recipe) -> dict[str, Any]:
    """Return the recipe fields among parsed arguments."""
    own = [each.coefficients for each in ALGORITHMS.values()] + list(OBJECTIVES.values())
    names = {*base.values, "minibatch_size", *(name for each in own for name in each)} - {"env"}
    return {name: value for name, value in vars(arguments).items() if name in names}


def _add_fields(group: Any, table: Any, skipped: tuple[str, ...] = ()) -> None:
    hints, documents = get_type_hints(type(table)), field_documents(type(table))
    for field in dataclasses.fields(table):
        value = getattr(table, field.name)
        if field.name in skipped or dataclasses.is_dataclass(value) or isinstance(value, Mapping):
            continue
        shown = " ".join(map(str, value)) if isinstance(value, tuple) else str(value)
        if isinstance(value, float):
            shown = str(float(f"{value:.6g}"))
        if value is None or isinstance(value, bool):
            shown = shown.lower()
        group.add_argument(
            "--" + field.name.replace("_", "-"),
            dest=field.name,
            default=argparse.SUPPRESS,
            help=f"{documents[field.name]} (default: {shown or 'none'})".replace("%", "%%"),
            **_kind(hints[field.name]),
        )


def _kind(hint: Any) -> dict[str, Any]:
    """Return how argparse reads a field of this type."""
    if get_origin(hint) is Literal:
        return {"choices": list(get_args(hint))}
    if get_origin(hint) is tuple:
        kind = get_args(hint)[0]
        return {
            "nargs": "*",
            "type": whole_number if kind is int else str,
            "metavar": "N" if kind is int else "NAME=VALUE",
        }
    if hint is bool:
        return {"action": argparse.BooleanOptionalAction}
    if hint is int:
        return {"type": whole_number, "metavar": "N"}
    if hint is float:
        return {"type": _number, "metavar": "X"}
    if type(None) in get_args(hint):
        return {"type": _number_or_none, "metavar": "X|none"}
    return {"type": str}


def field_documents(kind: type) -> dict[str, str]:
    """Return the docstring under each field of a dataclass, on one line."""
    body = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
    assert isinstance(body, ast.ClassDef)
    documents = {}
    for field, below in zip(body.body, body.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            documents[field.target.id] = " ".join(_text(below).split())
    return documents


def _text(node: ast.stmt) -> str:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return str(node.value.value)
    return ""


def whole_number(text: str) -> int:
    """Read a whole number of 64 bits; 1e6, 1_000_000 and 1,000,000 are all a million."""
    # A list such as 1,2,3 is no number.
    if "," in text and not GROUPED.fullmatch(text.strip()):
        raise argparse.ArgumentTypeError(f"expected a whole number, got {shown(text)}")
    try:
        value = int(text.replace("_", "").replace(",", ""))
    except ValueError:
        value = _float(text)
    if not -LARGEST <= value < LARGEST or value != int(value):
        raise argparse.ArgumentTypeError(f"expected a whole number, got {shown(text)}")
    return int(value)


def whole_between(least: int, most: int) -> Callable[[str], int]:
    """Return what reads a whole number of at least `least` and at most `most`."""

    def read(text: str) -> int:
        value = whole_number(text)
        if value < least:
            raise argparse.ArgumentTypeError(f"must be at least {least}, got {shown(text)}")
        if value > most:
            raise argparse.ArgumentTypeError(f"must be at most {most:,}, got {shown(text)}")
        return value

    return read


def positive_number(text: str) -> float:
    """Read a finite number above 0."""
    value = _number(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"must be a positive number, got {shown(text)}")
    return value


def _float(text: str) -> float:
    """Return a number, or NaN where the text is none."""
    try:
        return float(text)
    except ValueError:
        return math.nan


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected a number, got {shown(text)}") from None


def _number_or_none(text: str) -> float | None:
    return None if text.lower() == "none" else _number(text)


def load_recipe(path: Path) -> Recipe:
    """Read a recipe file, or the recipe of a run directory."""
    return Recipe.load(path / "recipe.toml" if path.is_dir() else path)
