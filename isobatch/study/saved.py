"""The design that a study directory holds, and whether a directory is free for one."""

from __future__ import annotations

from pathlib import Path

from isobatch.errors import UserError, one_line
from isobatch.files import MOST_TEXT, UNFINISHED, Folder
from isobatch.study.design import Study


def read_study(root: str | Path) -> Study:
    """Return the design of a study directory."""
    file = Path(root) / "study.json"
    try:
        with Folder(root) as folder:
            return Study.from_json(folder.read("study.json", MOST_TEXT).decode())
    except FileNotFoundError:
        raise UserError(f"{root} holds no study (there is no study.json in it)") from None
    except (OSError, ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise UserError(f"{file} cannot be read: {one_line(error)}") from None


def holds_nothing(root: Path) -> bool:
    """Say whether a directory is empty, or has only what a kill before study.json leaves."""
    if not root.is_dir():
        return False
    with Folder(root) as folder:
        names = {name for name in folder.names() if not UNFINISHED.fullmatch(name)}
        if names != {"queue"}:
            return not names
        with folder.folder("queue") as queue:
            return set(queue.names()) <= {".lock"}
