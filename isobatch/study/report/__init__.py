"""The page of a study: one HTML file that holds its verdicts, figures, tables and recipes."""

from __future__ import annotations

from pathlib import Path

from isobatch import files


def write(root: str | Path, out: Path | None = None) -> Path:
    """Write a study directory's page, `report.html` in it unless `out` says where; return it."""
    from isobatch.study.report.page import render

    path = Path(root) / "report.html" if out is None else Path(out)
    page = render(root)
    files.save(path, page.encode(errors="replace"), "the report")
    return path
