"""Docstrings as Markdown: equations, which they hold as plain text, keep their lines."""

from __future__ import annotations

import re

import griffe

EQUATION = re.compile(r"^\S.{0,40}?\s(=|<-|->)\s|\S {2,}\S")


class Equations(griffe.Extension):
    """Fences every paragraph of a docstring that is an equation."""

    def on_object(self, *, obj: griffe.Object, **kwargs: object) -> None:
        """Rewrite an object's docstring."""
        if obj.docstring:
            obj.docstring.value = fenced(obj.docstring.value)


def fenced(text: str) -> str:
    """Return a docstring with its equations fenced."""
    paragraphs = re.split(r"\n\s*\n", text)
    return "\n\n".join(
        f"```text\n{each}\n```" if number and _is_equation(each) else each
        for number, each in enumerate(paragraphs)
    )


def _is_equation(paragraph: str) -> bool:
    lines = paragraph.splitlines()
    if paragraph.startswith((" ", "```")):
        return False  # It is fenced already.
    # A line of its own that is no sentence has nothing but symbols in it.
    alone = len(lines) == 1 and not paragraph.endswith((".", ":"))
    return alone or EQUATION.search(lines[0]) is not None
