"""From a run directory to its history, without PyTorch: advice comes at once."""

from __future__ import annotations

import json
import math
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any

from isobatch import origin
from isobatch.advice.history import Actions, History
from isobatch.errors import DamagedFile, UserError
from isobatch.files import Folder
from isobatch.origin import Origin
from isobatch.recipe import Recipe
from isobatch.rows import EVALUATIONS, METRICS, read_rows

MOST_ROWS = 20_000
"""Rows read of a run; of a longer one about as many, evenly spread."""
MOST_HEADER = 2**24
"""Bytes of a policy file's header."""


def read(path: str | Path) -> History:
    """Return the history of a run directory; one that has only begun has no rows."""
    path = Path(path)
    if not (path / "recipe.toml").is_file():
        raise UserError(_no_run(path))
    recipe = Recipe.load(path / "recipe.toml")
    with Folder(path) as folder:
        rows = read_rows(folder, METRICS, MOST_ROWS) if folder.has(METRICS) else []
        played = read_rows(folder, EVALUATIONS) if folder.has(EVALUATIONS) else []
        return History(recipe, rows, played, read_actions(folder))


def read_origin(path: str | Path) -> Origin | None:
    """Return where a run's policy comes from, None of one that was trained here."""
    with Folder(path) as folder:
        return origin.read(folder)


def read_actions(folder: Folder) -> Actions | None:
    """Return the action space of a run, from the header of its policy; None where it is not told.

    Of tensors nothing is read, so the file may be damaged: advice is no check of files.
    """
    with suppress(OSError, DamagedFile, LookupError, TypeError, ValueError, RecursionError):
        with folder.reading("policy.safetensors") as file:
            length = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(min(length, MOST_HEADER)))["__metadata__"]
        seal = json.loads(header["isobatch"]) if "isobatch" in header else header
        return _actions(json.loads(seal["data"])["actions"])
    return None


def _actions(layout: dict[str, Any]) -> Actions:
    counts, shape = layout["counts"], layout["shape"]
    if layout["kind"] == "gaussian":
        return Actions(math.prod(shape), None)
    if layout["kind"] == "binary":
        return Actions(math.prod(shape), math.prod(shape) * math.log(2))
    return Actions(sum(counts), sum(math.log(count) for count in counts))


def _no_run(path: Path) -> str:
    """Say that there is no run here, and where one is."""
    if not path.exists():
        return f"{path} does not exist"
    near = chain(path.glob("*/recipe.toml"), path.glob("*/*/recipe.toml"))
    within = next(near, None) if path.is_dir() else None
    hint = f"; one of those in it: isobatch advise {within.parent}" if within else ""
    return f"{path} holds no run (there is no recipe.toml in it){hint}"
