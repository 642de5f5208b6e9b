"""What a terminal shows while a slow package is imported: its name, until that is done."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import TextIO

NAMES = {
    "numpy": "NumPy",
    "torch": "PyTorch",
    "envpool": "EnvPool",
    "gymnasium": "Gymnasium",
    "duckdb": "DuckDB",
    "plotly": "Plotly",
}
"""Packages that take a good part of a second to import, or several."""
ERASE = "\r\x1b[K"


@contextmanager
def shown() -> Iterator[None]:
    """Within the block name on standard error, if a terminal, what is being imported.

    Packages are imported where they are used, deep in commands: a finder sees each import begin.
    """
    if not sys.stderr.isatty():
        yield
        return
    finder = Finder(sys.stderr)
    sys.meta_path.insert(0, finder)  # type: ignore[arg-type]
    try:
        yield
    finally:
        sys.meta_path.remove(finder)  # type: ignore[arg-type]


class Finder:
    """Finds the packages named above where Python does, and says while they are executed.

    Not while a progress bar has taken standard error: it shows that something is being done, and
    what is erased from beside it would be spelled out.
    """

    def __init__(self, terminal: TextIO) -> None:
        self._terminal = terminal
        self._is_shown = False

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of a slow package, its loader told to say so; of others None."""
        if name not in NAMES or self._is_shown:
            return None
        spec = PathFinder.find_spec(name, path, target)
        loader = spec.loader if spec else None
        if loader is None:
            return None
        execute = loader.exec_module

        def execute_shown(module: ModuleType) -> None:
            # Once: a module that is reloaded is executed as usual.
            del loader.exec_module
            with self._showing(f"loading {NAMES[name]} ..."):
                execute(module)

        loader.exec_module = execute_shown
        return spec

    @contextmanager
    def _showing(self, text: str) -> Iterator[None]:
        if sys.stderr is not self._terminal:
            yield
            return
        self._is_shown = True
        self._show(text)
        try:
            yield
        finally:
            self._show(ERASE)
            self._is_shown = False

    def _show(self, text: str) -> None:
        """Write to the terminal as it is: `say` would spell out what erases a line."""
        self._terminal.write(text)
        self._terminal.flush()
