"""Where a run comes from whose policy was not trained here from the start: imported.json."""

from __future__ import annotations

import json
from typing import NamedTuple

from isobatch.errors import understanding
from isobatch.files import MOST_TEXT, Folder
from isobatch.plain import from_json

IMPORTED = "imported.json"


class Origin(NamedTuple):
    """The file a run's weights were read from."""

    library: str
    """Whose it is, with its version: Stable-Baselines3 2.9.2."""
    file: str
    """Its name."""
    sha256: str
    env_steps: int
    """Environment steps it was trained for there."""

    def __str__(self) -> str:
        return f"{self.file} ({self.library}), trained there for {self.env_steps:,} env steps"

    def write(self, folder: Folder) -> None:
        """Keep it in a run directory."""
        folder.write(IMPORTED, json.dumps(self._asdict(), indent=2).encode() + b"\n")


def read(folder: Folder) -> Origin | None:
    """Return where a run directory's policy comes from, None where it was trained here."""
    if not folder.has(IMPORTED):
        return None
    path = str(folder.path / IMPORTED)
    data = from_json(folder.read(IMPORTED, MOST_TEXT).decode(errors="replace"), path)
    with understanding(path):
        library, file, sha256 = (str(data[name]) for name in ("library", "file", "sha256"))
        return Origin(library, file, sha256, int(data["env_steps"]))
