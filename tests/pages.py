"""Pages as tests read them: as text, or in Chromium."""

import json
from html.parser import HTMLParser

import pytest

from benchmarks.browser import CHROMIUM, PATIENCE, Browser

__all__ = ["PATIENCE", "Browser", "Elements", "needs_chromium", "plot"]

needs_chromium = pytest.mark.skipif(
    CHROMIUM is None, reason="no chromium found: the page is not tested in a browser"
)


class Elements(HTMLParser):
    """A page as a browser reads it: its elements, each script, and the text of the rest."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.text = ""
        self._inside: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag in ("script", "style"):
            self._inside.append(tag)
            self.scripts.append("")

    def handle_endtag(self, tag):
        if tag in ("script", "style"):
            self._inside.pop()

    def handle_data(self, data):
        if self._inside:
            self.scripts[-1] += data
        else:
            self.text += f" {data}"

    @property
    def words(self) -> str:
        return " ".join(self.text.split())

    @property
    def data(self) -> dict:
        return json.loads(next(text for text in self.scripts if text.startswith('{"name"')))


def plot(name: str) -> str:
    return f"document.querySelector('[data-figure=\"{name}\"] .drawing')"
