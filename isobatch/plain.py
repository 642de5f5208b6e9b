"""Text that anyone may have written, TOML, JSON or YAML, as plain data, or one line on its fault.

Plain data is tables by name, lists, texts, whole numbers of 64 bits, floating-point numbers, true,
false and none. What a parser cannot read, what is too long, too deep or there twice, and numbers
that nothing here can use are refused before anybody looks at a value.
"""

from __future__ import annotations

import ast
import json
import re
import tomllib
import warnings
from collections.abc import Iterator
from typing import Any

from isobatch.errors import UserError, one_line, shown

MOST_TOML, MOST_JSON, MOST_YAML = 2**17, 2**22, 2**16
"""Characters that are parsed: the slowest text of this length takes a few seconds."""
MOST_DOTS = 200
"""Dots on a line of TOML: each part of a dotted key costs as much as all parts before it."""
MOST_VALUES = 20_000
"""Values of a YAML text once its aliases are written out."""
MOST_LITERAL = 10_000
"""Characters of a Python literal."""
DEEPEST = 32
"""Tables and lists in each other."""
LARGEST = 1 << 63
"""Whole numbers are below, and not below its negative: TOML's own range."""
YAML_TAGS = ("map", "seq", "str", "int", "float", "bool", "null", "merge", "value")
"""Of tag:yaml.org,2002; others ask for objects."""
PYTHON_TABLE, PYTHON_TUPLE = "python/object/apply:collections.OrderedDict", "python/tuple"
"""How Python's yaml.dump writes two kinds of plain data: read as a table and a list."""


def from_toml(text: str, source: str) -> dict[str, Any]:
    """Return the tables of a TOML text; `source` names it in an error."""
    _refuse_long(text, MOST_TOML, source)
    for number, line in enumerate(text.split("\n"), start=1):
        if line.count(".") > MOST_DOTS:
            raise UserError(f"{source}, line {number}: more than {MOST_DOTS} dots on one line")
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise _malformed(source, "TOML", error, _toml_line(error, text)) from None
    except RecursionError:
        raise _too_deep(source) from None
    except ValueError:  # Python makes no number of thousands of digits.
        raise _too_large(_long_line(source, text)) from None
    return checked(data, source, text)


def from_json(text: str, source: str, most: int = MOST_JSON) -> Any:
    """Return what a JSON text of at most `most` characters holds."""
    _refuse_long(text, most, source)
    try:
        data = json.loads(text, object_pairs_hook=_each_once, parse_int=_integer)
    except json.JSONDecodeError as error:
        raise _malformed(source, "JSON", error.msg, error.lineno) from None
    except RecursionError:
        raise _too_deep(source) from None
    except ValueError as error:
        raise _malformed(source, "JSON", error) from None
    return checked(data, source)


def from_yaml(text: str, source: str) -> Any:
    """Return what a YAML text holds. Dates are text, and tags that ask for objects are refused.

    All but Python's own for an OrderedDict and a tuple, which are read as the data they hold.
    """
    import yaml

    _refuse_long(text, MOST_YAML, source)

    class Loader(yaml.SafeLoader):
        depth = 0

        def compose_node(self, parent: Any, index: Any) -> Any:
            # Here and not afterwards: each level costs as much as all levels above it.
            self.depth += 1
            if self.depth > DEEPEST:
                raise RecursionError
            node = super().compose_node(parent, index)
            self.depth -= 1
            return node

    Loader.yaml_implicit_resolvers = {
        first: [each for each in pairs if not each[0].endswith(":timestamp")]
        for first, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    Loader.add_constructor(f"tag:yaml.org,2002:{PYTHON_TABLE}", _table)
    Loader.add_constructor(f"tag:yaml.org,2002:{PYTHON_TUPLE}", _tuple)
    try:
        loader = Loader(text)
        node = loader.get_single_node()
        if node is None:
            return None
        _refuse_bombs(node, source)
        data = loader.construct_document(node)
    except UserError:
        raise
    except RecursionError:
        raise _too_deep(source) from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        said = getattr(error, "problem", None) or getattr(error, "reason", None) or error
        raise _malformed(source, "YAML", said, mark.line + 1 if mark else None) from None
    except (ValueError, LookupError, ArithmeticError, TypeError, AttributeError) as error:
        # What PyYAML's own constructors meet in `!!bool perhaps` or a number of 5,000 digits.
        if "int_max_str_digits" in str(error):
            raise _too_large(_long_line(source, text)) from None
        raise _malformed(source, "YAML", error) from None
    return checked(data, source, text)


def _table(loader: Any, node: Any) -> dict[str, Any]:
    """Read the arguments of an OrderedDict, which are one list of pairs, as a table."""
    arguments = loader.construct_sequence(node, deep=True)
    pairs = arguments[0] if len(arguments) == 1 else None
    if not isinstance(pairs, list) or not all(
        isinstance(pair, list) and len(pair) == 2 and isinstance(pair[0], str) for pair in pairs
    ):
        raise ValueError("an OrderedDict must hold one list of pairs")
    return _each_once([(name, value) for name, value in pairs])


def _tuple(loader: Any, node: Any) -> list[Any]:
    return loader.construct_sequence(node, deep=True)


def literal(text: str) -> Any:
    """Read a Python literal, or else take the text as it is."""
    if len(text) > MOST_LITERAL:
        return text
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # On escapes such as \d, which are text.
            return checked(ast.literal_eval(text), "a literal")
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        return text


def _refuse_long(text: str, most: int, source: str) -> None:
    if len(text) > most:
        raise UserError(f"{source} has {len(text):,} characters, more than the {most:,} it may")


def _malformed(source: str, kind: str, said: object, line: int | None = None) -> UserError:
    place = source if line is None else f"{source}, line {line}"
    return UserError(f"{place}: not valid {kind}: {one_line(said)}")


def _too_deep(source: str) -> UserError:
    return UserError(f"{source}: more than {DEEPEST} tables or lists in each other")


def _too_large(place: str, name: str = "") -> UserError:
    return UserError(f"{place}: {name}a number of more than 64 bits")


def _long_line(source: str, text: str) -> str:
    """Return where a number too long for 64 bits stands."""
    for number, line in enumerate(text.split("\n"), start=1):
        if re.search(r"[\da-fA-F][\da-fA-F_]{15}", line):
            return f"{source}, line {number}"
    return source


def _toml_line(error: Exception, text: str) -> int:
    """Return the line of a parser's message, which ends '(at line 3, column 5)' or at the end."""
    match = re.search(r"\(at line (\d+), column \d+\)$", str(error))
    return int(match[1]) if match else text.count("\n") + 1


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) < len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))
        raise ValueError(f"{shown(twice)} appears twice")
    return table


def _integer(text: str) -> int:
    if len(text) > 20:
        raise ValueError(f"the number {shown(text)} has more than 64 bits")
    return int(text)


def checked(data: Any, source: str, text: str = "") -> Any:
    """Return the data if it is plain: walked without recursion, whatever it holds."""
    left: list[tuple[Any, int, str]] = [(data, 0, "")]
    while left:
        value, depth, name = left.pop()
        if depth > DEEPEST:
            raise _too_deep(source)
        if isinstance(value, dict):
            left.extend((each, depth + 1, str(key)) for key, each in value.items())
        elif isinstance(value, list | tuple):
            left.extend((each, depth + 1, name) for each in value)
        elif isinstance(value, int) and not -LARGEST <= value < LARGEST:
            raise _too_large(_long_line(source, text), f"{shown(name)} is " if name else "")
    return data


def _refuse_bombs(root: Any, source: str) -> None:
    """Refuse a YAML document whose aliases make it endless or very large, tags and doubles."""
    sizes: dict[int, int] = {}
    left: list[tuple[Any, bool]] = [(root, False)]
    open_nodes: set[int] = set()
    while left:
        node, done = left.pop()
        children = list(_children(node))
        if done:
            open_nodes.discard(id(node))
            sizes[id(node)] = 1 + sum(sizes[id(each)] for each in children)
            if sizes[id(node)] > MOST_VALUES:
                raise UserError(f"{source}: it expands to more than {MOST_VALUES:,} values")
            continue
        if id(node) in sizes:
            continue
        place = f"{source}, line {node.start_mark.line + 1}"
        _refuse_tag(node, place)
        open_nodes.add(id(node))
        left.append((node, True))
        for each in children:
            if id(each) in open_nodes:
                raise UserError(f"{place}: an alias that contains itself")
            left.append((each, False))


def _children(node: Any) -> Iterator[Any]:
    if isinstance(node.value, list):
        for each in node.value:
            yield from each if isinstance(each, tuple) else (each,)


def _refuse_tag(node: Any, place: str) -> None:
    tag = node.tag.removeprefix("tag:yaml.org,2002:")
    if tag not in (*YAML_TAGS, PYTHON_TABLE, PYTHON_TUPLE):
        raise UserError(f"{place}: not valid YAML: the tag {shown(tag)} is not read")
    if tag != "map" or not isinstance(node.value, list):
        return
    seen: set[str] = set()
    for key, _ in node.value:
        if isinstance(key.value, str) and key.value != "<<":
            if key.value in seen:
                line = f"{place.rpartition(' ')[0]} {key.start_mark.line + 1}"
                raise UserError(f"{line}: {shown(key.value)} appears twice")
            seen.add(key.value)
