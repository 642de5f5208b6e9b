"""The page of changes: CHANGELOG.md from the top of the repository, once there is one."""

from __future__ import annotations

import re
from pathlib import Path

LINK = re.compile(r"\[([^\]]+)\]\((?!https?:|#)([^)]+)\)")
NONE_YET = "# Changelog\n\nNo release has been recorded yet.\n"


def on_page_markdown(markdown: str, page, config, **kwargs: object) -> str:
    """Put the file in the page's place."""
    if page.file.src_uri != "changelog.md":
        return markdown
    root = Path(config.config_file_path).parent
    file = root / "CHANGELOG.md"
    if not file.is_file():
        return NONE_YET
    return LINK.sub(_link, file.read_text(encoding="utf-8"))


def _link(found: re.Match[str]) -> str:
    """Links are written for readers of the repository: docs/ is the site, the rest is not in it."""
    text, target = found[1], found[2]
    if target.startswith("docs/"):
        return f"[{text}]({target.removeprefix('docs/')})"
    return text
