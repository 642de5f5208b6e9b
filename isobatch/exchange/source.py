"""Files of other libraries as plain data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from isobatch import files, plain
from isobatch.errors import UserError

FILES = (".json", ".yaml", ".yml")


def load(path: Path) -> dict[str, Any]:
    """Read a JSON or YAML file that holds a dictionary."""
    text = files.read_text(path)
    if not text.strip():
        raise UserError(f"{path} is empty")
    read = plain.from_json if path.suffix == ".json" else plain.from_yaml
    content = read(text, str(path))
    if not isinstance(content, dict):
        raise UserError(f"{path} does not contain a dictionary")
    return {str(name): value for name, value in content.items()}
