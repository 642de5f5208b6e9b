"""The page of a study: one HTML file that holds its verdicts, figures, tables and recipes."""

from __future__ import annotations

from pathlib import Path

from isobatch.errors import UserError


def write(root: str | Path, out: Path | None = None) -> Path:
    """Write a study directory's page, `report.html` in it unless `out` says where; return it."""
    from isobatch.run.store import write_atomically
    from isobatch.study.report.page import render

    path = Path(root) / "report.html" if out is None else Path(out)
    page = render(root)
    try:
        write_atomically(path, page.encode(errors="replace"))
    except OSError as error:
        raise UserError(f"cannot write the report {path}: {error.strerror}") from None
    return path
