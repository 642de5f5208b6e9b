"""The page of a study: one HTML file that holds its verdicts, figures, tables and recipes."""

from __future__ import annotations

from pathlib import Path

from isobatch import files
from isobatch.study.queue import Queue

PAGE, WHAT = "report.html", "the report"


def write(root: str | Path, out: Path | None = None) -> Path:
    """Write a study directory's page, `report.html` in it unless `out` says where; return it."""
    from isobatch.study.report.page import render

    page = render(root).encode(errors="replace")
    if out is not None:
        files.save(out, page, WHAT)
        return Path(out)
    path = Path(root) / PAGE
    with files.saving(path, WHAT):
        Queue.open(root).save(PAGE, page)
    return path
