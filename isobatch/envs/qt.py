"""Procgen draws with Qt 5; the pip package PyQt5-Qt5 carries it, so no system package is needed."""

from __future__ import annotations

import ctypes
import importlib.util
import sys
from functools import cache
from pathlib import Path

# In the order they need each other.
LIBRARIES = (
    "libicudata.so.56",
    "libicuuc.so.56",
    "libicui18n.so.56",
    "libQt5Core.so.5",
    "libQt5Gui.so.5",
)


@cache
def preload_qt() -> None:
    """Load Qt 5 for the whole process; it must happen before `import envpool`."""
    package = importlib.util.find_spec("PyQt5")
    if sys.platform != "linux" or package is None or not package.submodule_search_locations:
        return
    folder = Path(next(iter(package.submodule_search_locations)), "Qt5", "lib")
    for library in LIBRARIES:
        if (folder / library).exists():
            ctypes.CDLL(str(folder / library), ctypes.RTLD_GLOBAL)
