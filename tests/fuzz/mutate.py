"""Good files made bad: bytes flipped, cut and repeated, and values swapped for nasty ones."""

import json
import re
import tomllib
from typing import Any

import tomli_w
import yaml
from hypothesis import strategies as st

WORDS = [
    b"0", b"-1", b"1e999", b"nan", b"-inf", b"NaN", b"Infinity", b"1e308", b"5e-324",
    b"9" * 19, b"9" * 25, b"9" * 400, b"9" * 5000, b"0x" + b"f" * 5000, b"1_000", b"1__0",
    b"true", b"null", b"''", b'""', b'"\\u0000"', b'"\\ud800"', b'"\\u001b[2J"', b'"lin_x"',
    b"[]", b"{}", b"[[]]", b"{a = 1}", b'{"a": 1}', b"[1, 'a', {}]", b"1979-05-27",
    b"07:32:00", b"1979-05-27T07:32:00Z", b"[" * 2000, b"{a=" * 2000, b'{"a":' * 2000,
    b"- " * 2000, b"(" * 500, b"-" * 9000 + b"1", b"dict(a=" * 300, b"{[]: 1}", b"{{}}", b"1j",
    b"&a [*a]", b"*a", b"<<: *defaults", b"!!python/object:os.system x", b"!!bool maybe",
    b"!!int ''", b"!!set {a}", b"!!binary aGk=", b"? [a]\n: b", b"1:59:59.5", b"%", b"\t",
    b"\x00", b"\xff", b"\xed\xa0\x80", b"\x1b[31m", b"\r", b"\n", b"\xe2\x80\xa8", b"=", b":",
    b'"' + b"x" * 300 + b'"', b'"' + b"y" * 20000 + b'"', b"a." * 300 + b"a", b"../../etc", b"self",
    b"algo", b"env", b"batch_size", b"rescale_from", b"0:8x128", b"adaptive", b"_:1x1",
]  # fmt: skip
VALUES: list[Any] = [
    None, True, False, 0, -1, 1, 2**31, 2**63 - 1, 2**63, 10**30, 10**400, 0.5, -0.0, 1e-320, 1e308,
    float("nan"), float("inf"), "", "x", "1", "nan", "\x00", "\x1b]0;t\x07", "\ud800", "x" * 300,
    "x" * 20000, [], [[]], {}, {"a": {}}, [None], [1, "a"], {"": 1}, {"self": 1}, "-" * 9000 + "1",
    "{[]: 1}", "dict(a=1, a=2)", "lin_", "lin_nan", "none", "a2c", "ppo-ewma", "1" * 5000,
    [0] * 300, {"pi": 1}, [{"pi": "x"}], "_:8x8", "0:8x8x0", "9" * 400 + "GB",
]  # fmt: skip
TOKEN = re.compile(rb"[\w.+-]+|\"[^\"\n]*\"|\[[^\[\]\n]*\]|\{[^{}\n]*\}")


def _one_of(listed: list[Any]) -> st.SearchStrategy[Any]:
    # By its place: what a failure prints would be as long as the list.
    return st.integers(0, len(listed) - 1).map(lambda place: listed[place])


def _place(content: bytes, part: float) -> int:
    return min(len(content), int(part * (len(content) + 1)))


def _bytes(content: bytes, how: str, part: float, other: float, word: bytes) -> bytes:
    """Return the content with one thing done to it."""
    at, to = sorted((_place(content, part), _place(content, other)))
    if how == "flip":
        flipped = bytes([content[at] ^ 1 << to % 8]) if at < len(content) else b""
        return content[:at] + flipped + content[at + 1 :]
    if how == "insert":
        return content[:at] + word + content[at:]
    if how == "cut":
        return content[:at]
    if how == "drop":
        return content[:at] + content[to:]
    if how == "repeat":
        return content[:to] + content[at:]
    tokens = list(TOKEN.finditer(content))
    if not tokens:
        return content + word
    token = tokens[min(len(tokens) - 1, int(part * len(tokens)))]
    if how == "nest":
        return content[: token.start()] + b"[" + token[0] + b"]" + content[token.end() :]
    return content[: token.start()] + word + content[token.end() :]


def damaged(good: bytes) -> st.SearchStrategy[bytes]:
    """Return strategies for a good file with one to four things done to its bytes."""
    step = st.tuples(
        st.sampled_from(
            ["swap", "swap", "swap", "insert", "flip", "cut", "drop", "repeat", "nest"]
        ),
        st.floats(0, 1),
        st.floats(0, 1),
        _one_of(WORDS),
    )

    def apply(steps: list[tuple[str, float, float, bytes]]) -> bytes:
        content = good
        for how, part, other, word in steps:
            content = _bytes(content, how, part, other, word)
        return content

    return st.lists(step, min_size=1, max_size=4).map(apply)


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path]
    if isinstance(value, dict | list):
        for key, each in value.items() if isinstance(value, dict) else enumerate(value):
            found += _places(each, (*path, key))
    return found


def _put(value: Any, path: tuple[Any, ...], how: str, new: Any) -> Any:
    """Return the value with what stands at the path replaced, dropped, or joined by another."""
    if not path:
        return new
    copy: Any = dict(value) if isinstance(value, dict) else list(value)
    first, *rest = path
    if rest:
        copy[first] = _put(copy[first], tuple(rest), how, new)
    elif how == "drop":
        del copy[first]
    elif how == "rename" and isinstance(copy, dict):
        copy[new if isinstance(new, str) else str(type(new))] = copy.pop(first)
    else:
        copy[first] = new
    return copy


def misshapen(good: Any) -> st.SearchStrategy[Any]:
    """Return strategies for data with one to three values swapped, dropped or renamed."""
    step = st.tuples(
        st.sampled_from(["swap", "swap", "swap", "drop", "rename"]),
        st.floats(0, 1),
        _one_of(VALUES),
    )

    def apply(steps: list[tuple[str, float, Any]]) -> Any:
        data = good
        for how, part, new in steps:
            places = _places(data)
            data = _put(data, places[min(len(places) - 1, int(part * len(places)))], how, new)
        return data

    return st.lists(step, min_size=1, max_size=3).map(apply)


def written(data: Any, suffix: str) -> bytes:
    """Return data as a file of that kind has it, or, where that cannot say it, as JSON."""
    if suffix == ".toml":
        try:
            return tomli_w.dumps(data).encode()
        except (TypeError, ValueError, AttributeError):
            pass
    if suffix == ".jsonl":
        rows = data if isinstance(data, list) else [data]
        return "".join(json.dumps(row) + "\n" for row in rows).encode()
    return json.dumps(data).encode()


def parsed(content: bytes, suffix: str) -> Any:
    """Return what a good file holds."""
    if suffix == ".toml":
        return tomllib.loads(content.decode())
    if suffix == ".jsonl":
        return [json.loads(line) for line in content.splitlines()]
    return yaml.safe_load(content)
