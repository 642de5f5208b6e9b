"""CONTRIBUTING's tree is the tree: one line a file."""

import re
from pathlib import Path

import isobatch

ROOT = Path(isobatch.__file__).parent
PAGE = Path(__file__).parent.parent / "CONTRIBUTING.md"


def listed() -> set[str]:
    """Return the files that the page's tree names, as paths."""
    (tree,) = re.findall(r"```\nisobatch/\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S)
    folders: list[str] = []
    found = set()
    for line in tree.splitlines():
        name, _, text = line.strip().partition(" ")
        depth = (len(line) - len(line.lstrip())) // 2 - 1
        folders = folders[:depth]
        assert text.strip(), f"{name} has no line that says what it is"
        if name.endswith("/"):
            folders.append(name)
        else:
            found.add("".join(folders) + name)
    return found


def test_the_tree_names_every_module_and_no_other():
    there = {
        path.relative_to(ROOT).as_posix()
        for path in ROOT.rglob("*.py")
        if path.name != "__init__.py" or path.parent == ROOT
    }
    assert listed() == there
