"""The page of a run, or of several overlaid: findings, curves, diagnostics, time, batch, recipe."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from isobatch import files
from isobatch.report.course import Course, read
from isobatch.report.page import render

__all__ = ["PAGE", "Course", "read", "render", "write"]

PAGE = "report.html"


def write(courses: Sequence[Course], out: Path) -> None:
    """Write the page of one run, or of several overlaid."""
    files.save(out, render(courses).encode(errors="replace"), "the report")
