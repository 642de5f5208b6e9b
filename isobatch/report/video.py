"""A run's video as a page can hold it: the newest file in `videos/`, as a data URI."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import NamedTuple

from isobatch.files import Folder
from isobatch.text import size

FOLDER = "videos"
KINDS = {".mp4": "video/mp4", ".webm": "video/webm", ".gif": "image/gif"}
MOST_BYTES = 8 * 2**20
"""Of a video in a page, which grows by a third more."""


class Video(NamedTuple):
    """A video, or why it is not there."""

    name: str
    uri: str
    """Empty where the file is too large."""
    is_image: bool
    others: int
    """Videos beside it."""
    size: str


def newest(run: Path) -> Video | None:
    """Return the newest video of a run directory, None where it has none."""
    with Folder(run) as root:
        if not root.has(FOLDER):
            return None
        with root.folder(FOLDER) as folder:
            names = [name for name in folder.names() if Path(name).suffix.lower() in KINDS]
            if not names:
                return None
            name = max(names, key=folder.changed)
            kind = KINDS[Path(name).suffix.lower()]
            with folder.reading(name) as file:
                content = file.read(MOST_BYTES + 1)
                total = file.seek(0, 2)
    fits = len(content) <= MOST_BYTES
    uri = f"data:{kind};base64,{base64.b64encode(content).decode()}" if fits else ""
    return Video(name, uri, kind.startswith("image"), len(names) - 1, size(total))
