"""Files of other libraries as plain data: JSON, YAML, and Python read by its syntax, never run.

Of Python are read literals, calls with keywords, names of imports as their text, classes with such
attributes and those they inherit from classes of the same file, and what `__post_init__` assigns
to them. Anything else is refused, with its line.
"""

from __future__ import annotations

import ast
import copy
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from isobatch import files, plain
from isobatch.errors import UserError, one_line, shown
from isobatch.exchange.values import Name

FILES = (".json", ".yaml", ".yml")
MOST_PYTHON = 2**17
"""Characters of a Python file."""


def load(path: Path) -> dict[str, Any]:
    """Read a JSON or YAML file that holds a dictionary."""
    read = plain.from_json if path.suffix == ".json" else plain.from_yaml
    content = read(_text(path), str(path))
    if not isinstance(content, dict):
        raise UserError(f"{path} does not contain a dictionary")
    return {str(name): value for name, value in content.items()}


class Called(dict[str, Any]):
    """The keywords of a call of something that the file imports, `name`."""

    def __init__(self, name: str, keywords: dict[str, Any]) -> None:
        super().__init__(keywords)
        self.name = name


@dataclass
class Class:
    """A class's attributes, its own and those it inherits within the file."""

    fields: dict[str, Any] = field(default_factory=dict)
    after: list[tuple[list[str], Any]] = field(default_factory=list)
    """What `__post_init__` assigns: names from the instance down, and a value."""
    foreign: list[str] = field(default_factory=list)
    """Its bases that are not in the file, and those of its bases."""

    def values(self, place: str) -> dict[str, Any]:
        """Return what an instance has."""
        found = copy.deepcopy(self.fields)
        for names, value in self.after:
            home = found
            for name in names[:-1]:
                home = home.get(name) if isinstance(home, dict) else None
            if not isinstance(home, dict):
                raise UserError(f"{place}: {'.'.join(names)} is assigned, but not there")
            home[names[-1]] = copy.deepcopy(value)
        return found


def load_python(path: Path) -> tuple[dict[str, Any], dict[str, Class]]:
    """Return a Python file's constants and its classes."""
    text = _text(path)
    if len(text) > MOST_PYTHON:
        raise UserError(f"{path} has {len(text):,} characters, more than the {MOST_PYTHON:,}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # On escapes such as \d, which are text.
            body = ast.parse(text).body
        reader = _Reader(str(path))
        reader.module(body)
        plain.checked(
            [reader.constants, *(each.fields for each in reader.classes.values())], str(path), text
        )
    except SyntaxError as error:
        place = f"{path}, line {error.lineno}" if error.lineno else str(path)
        raise UserError(f"{place}: not valid Python: {error.msg}") from None
    except (ValueError, RecursionError, MemoryError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(f"{path}: not valid Python: {one_line(error) or 'too deep'}") from None
    return reader.constants, reader.classes


def _text(path: Path) -> str:
    text = files.read_text(path)
    if not text.strip():
        raise UserError(f"{path} is empty")
    return text


class _Reader:
    def __init__(self, source: str) -> None:
        self.source = source
        self.imports: set[str] = set()
        self.constants: dict[str, Any] = {}
        self.classes: dict[str, Class] = {}
        self.count = 0
        """Values so far: names and bases that repeat each other make a short text a long one."""

    def module(self, body: list[ast.stmt]) -> None:
        for node in _said(body):
            if isinstance(node, ast.Import | ast.ImportFrom):
                self.imports |= {(each.asname or each.name).split(".")[0] for each in node.names}
            elif isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
                self.module(node.body)
            elif isinstance(node, ast.ClassDef):
                self.classes[node.name] = self.read_class(node)
            else:
                for name, value in self.assigned(node):
                    self.constants[name] = value

    def read_class(self, node: ast.ClassDef) -> Class:
        if node.keywords:
            raise self.refused(node, "a class with keywords")
        found = Class()
        for base in reversed(node.bases):
            self.inherit(found, base)
        inherited, found.after = found.after, list(found.after)
        for each in _said(node.body):
            if isinstance(each, ast.ClassDef):
                inner = self.read_class(each)
                found.fields[each.name] = self.counted(inner.values(self.place(each)))
                found.foreign += inner.foreign
            elif isinstance(each, ast.FunctionDef) and each.name == "__post_init__":
                found.after = list(self.post_init(each, inherited))
            else:
                found.fields |= dict(self.assigned(each))
        return found

    def inherit(self, found: Class, base: ast.expr) -> None:
        """Take over what a base class has, where it is in this file."""
        name, _, rest = _dotted(base).partition(".")
        home = self.classes.get(name)
        if home is not None and not rest:
            found.fields |= copy.deepcopy(self.counted(home.fields))
            found.after += self.counted(home.after)
            found.foreign += home.foreign
        elif home is not None and isinstance(inner := home.fields.get(rest), dict):
            found.fields |= copy.deepcopy(self.counted(inner))
        elif name:
            found.foreign.append(_dotted(base))
        else:
            raise self.refused(base)

    def post_init(
        self, node: ast.FunctionDef, inherited: list[tuple[list[str], Any]]
    ) -> Iterator[tuple[list[str], Any]]:
        """Yield what `__post_init__` assigns to the instance, super's where it is called."""
        for each in _said(node.body):
            if isinstance(each, ast.Expr) and ast.unparse(each) == "super().__post_init__()":
                yield from self.counted(inherited)
                continue
            target = each.targets[0] if isinstance(each, ast.Assign) else None
            names = _dotted(target).split(".") if isinstance(target, ast.Attribute) else []
            if not isinstance(each, ast.Assign) or len(each.targets) > 1 or names[:1] != ["self"]:
                raise self.refused(each)
            yield names[1:], self.value(each.value)

    def assigned(self, node: ast.stmt) -> Iterator[tuple[str, Any]]:
        """Yield the name and value of an assignment; without a value it only declares."""
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            target = node.targets[0]
        elif isinstance(node, ast.AnnAssign):
            target = node.target
        else:
            raise self.refused(node)
        if not isinstance(target, ast.Name):
            raise self.refused(node)
        if node.value is not None:
            yield target.id, self.value(node.value)

    def value(self, node: ast.expr, depth: int = 0) -> Any:
        """Return what an expression says."""
        if depth > plain.DEEPEST:
            raise self.refused(node, "nested too deep")
        if isinstance(node, ast.List | ast.Tuple):
            return [self.value(each, depth + 1) for each in node.elts]
        if isinstance(node, ast.Dict):
            keys = [self.value(each, depth + 1) for each in node.keys if each is not None]
            if len(keys) < len(node.keys) or not all(isinstance(each, str) for each in keys):
                raise self.refused(node)
            values = [self.value(each, depth + 1) for each in node.values]
            return dict(zip(keys, values, strict=True))
        if isinstance(node, ast.Call):
            return self.call(node, depth)
        if dotted := _dotted(node):
            return self.named(node, dotted)
        try:
            found = ast.literal_eval(node)
        except (ValueError, TypeError):
            raise self.refused(node) from None
        if not isinstance(found, str | int | float | bool | None):
            raise self.refused(node)
        return found

    def call(self, node: ast.Call, depth: int) -> Any:
        """Return the keywords of a call, over the attributes of a class of this file."""
        name = _dotted(node.func)
        if not name or node.args or any(each.arg is None for each in node.keywords):
            raise self.refused(node)
        keywords = {str(each.arg): self.value(each.value, depth + 1) for each in node.keywords}
        if name == "dict":
            return keywords
        if name in self.classes:
            return self.counted(self.classes[name].values(self.place(node))) | keywords
        if name.split(".")[0] not in self.imports:
            raise self.refused(node)
        return Called(name, keywords)

    def named(self, node: ast.expr, dotted: str) -> Any:
        """Return a constant of the file, or the text of a name that it imports."""
        if dotted in self.constants:
            return copy.deepcopy(self.counted(self.constants[dotted]))
        if dotted.split(".")[0] not in self.imports:
            raise self.refused(node)
        return Name(dotted)

    def counted(self, value: Any) -> Any:
        """Return a value that is there once more, where there are not too many by now."""
        left = [value]
        while left:
            self.count += 1
            if self.count > plain.MOST_VALUES:
                raise UserError(
                    f"{self.source}: it expands to more than {plain.MOST_VALUES:,} values"
                )
            each = left.pop()
            if isinstance(each, dict):
                left += each.values()
            elif isinstance(each, list | tuple):
                left += each
        return value

    def place(self, node: ast.stmt | ast.expr) -> str:
        return f"{self.source}, line {node.lineno}"

    def refused(self, node: ast.stmt | ast.expr, why: str = "no literal") -> UserError:
        code = shown(one_line(ast.unparse(node)), 60)
        return UserError(f"{self.place(node)}: {code} is {why}: settings are read, not run")


def _said(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield statements but docstrings and `pass`."""
    for node in body:
        text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if not (text or isinstance(node, ast.Pass)):
            yield node


def _dotted(node: ast.expr | None) -> str:
    """Return a name such as a.b.c, '' where the expression is none."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (home := _dotted(node.value)):
        return f"{home}.{node.attr}"
    return ""
