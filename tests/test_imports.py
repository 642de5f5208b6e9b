"""The way of the data: arrows point one way.

Rooms in the order a batch of experience passes them. A room may import only rooms above it, its
own modules in any order without a cycle. What is imported late, inside a function, counts too.
"""

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import isobatch

ROOT = Path(isobatch.__file__).parent
ROOMS = [
    "errors", "files", "plain", "rows", "origin", "estimate", "text", "machine", "parent",
    "workers", "world", "turns", "clock", "registry", "batch", "recipe", "scaling", "envs",
    "scores", "presets", "reproduce", "exchange", "importing", "language", "normalize", "models",
    "experience", "advantages", "losses", "diagnostics", "objectives", "proximal", "update",
    "noise", "state", "algos", "advice", "run", "weights", "pages", "probe", "report", "rescaling",
    "study", "cli",
]  # fmt: skip
ALLOWED = {
    # Where people look for it: recipe.rescale(n_envs=16).
    ("isobatch.recipe.tables", "isobatch.scaling"),
    # And the figure of a run's page: run.plot().
    ("isobatch.run.result", "isobatch.report.course"),
    ("isobatch.run.result", "isobatch.report.figures"),
}
FRONT = {"isobatch", "isobatch.__main__"}
"""The package itself and `python -m isobatch`: they open the doors, and belong to no room."""


def modules() -> dict[str, Path]:
    found = {}
    for path in ROOT.rglob("*.py"):
        parts = ["isobatch", *path.relative_to(ROOT).with_suffix("").parts]
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(name: str, path: Path, known: dict[str, Path]) -> set[str]:
    """Return the modules of the package that a module imports, anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name} imports by dots"
            origin = node.module or ""
            for alias in node.names:
                inner = f"{origin}.{alias.name}"
                found.add(inner if inner in known else origin)
    return {each for each in found if each in known and each not in FRONT}


def graph() -> dict[str, set[str]]:
    known = modules()
    return {
        name: {each for each in imports(name, path, known) - {name} if (name, each) not in ALLOWED}
        for name, path in known.items()
        if name not in FRONT
    }


def room(module: str) -> str:
    return module.split(".")[1]


def test_every_module_is_in_a_room():
    assert {room(name) for name in graph()} == set(ROOMS)


def test_no_arrow_points_back():
    order = {name: place for place, name in enumerate(ROOMS)}
    back = [
        f"{name} -> {each}"
        for name, targets in graph().items()
        for each in targets
        if order[room(each)] > order[room(name)]
    ]
    assert back == []


def test_no_modules_import_each_other_in_a_circle():
    # A package's __init__ gathers its modules; importing one of them does not need the gathering.
    found = {
        name: {each for each in targets if not name.startswith(f"{each}.")}
        for name, targets in graph().items()
    }
    try:
        list(TopologicalSorter(found).static_order())
    except CycleError as error:
        raise AssertionError(" -> ".join(error.args[1])) from None


def test_the_exceptions_are_still_needed():
    known = modules()
    for name, target in ALLOWED:
        assert target in imports(name, known[name], known)


def test_the_walk_sees_an_arrow_back(tmp_path):
    """The walk itself: a late import, a package's member and a plain one are all seen."""
    path = tmp_path / "late.py"
    path.write_text(
        "import isobatch.batch\nfrom isobatch.run import loop\n"
        "def late():\n    from isobatch.study.stats import iqm\n"
    )
    found = imports("isobatch.late", path, modules())
    assert found == {"isobatch.batch", "isobatch.run.loop", "isobatch.study.stats"}
