"""Code blocks of the documentation's pages."""

import re
import shlex
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
SHELLS = ("sh", "console", "bash")
FENCE = re.compile(r"^( *)```(\w+)(?: title=\"([^\"]+)\")?\n(.*?)^\1```$", re.M | re.S)


class Block(NamedTuple):
    page: Path
    language: str
    title: str
    text: str

    @property
    def place(self):
        return f"{self.page.relative_to(ROOT)}: {self.text.strip().splitlines()[0]}"


def blocks(page, *languages):
    found = FENCE.findall(page.read_text(encoding="utf-8"))
    every = [Block(page, language, title, text) for _, language, title, text in found]
    return [each for each in every if each.language in languages]


def all_blocks(*languages):
    return [block for page in PAGES for block in blocks(page, *languages)]


def commands(block):
    """Return a shell block's commands as words; a backslash goes on in the next line."""
    lines = block.text.replace("\\\n", " ").splitlines()
    return [words for line in lines if (words := shlex.split(line, comments=True))]
