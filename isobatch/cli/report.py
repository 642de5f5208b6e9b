"""isobatch report."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from isobatch.cli.flags import Parser, usage
from isobatch.errors import UserError
from isobatch.text import counted, say

MOST_RUNS = 50
"""On one page: beyond it lines cannot be told apart."""


def report(arguments: list[str]) -> int:
    """Write the HTML page of a study, of a run, or of several runs overlaid."""
    parser = Parser(
        prog="isobatch report",
        description="Write one HTML page that needs no network: of a study, a run, or several "
        "runs compared.",
        usage=usage(
            "isobatch report STUDY [--out FILE]", "isobatch report RUN [RUN ...] [--out FILE]"
        ),
    )
    parser.add_argument(
        "sources",
        nargs="+",
        type=Path,
        metavar="STUDY|RUN",
        help="study directory, run directories, or that of train --seeds",
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help="default: report.html in the given directory, for several runs in the working one",
    )
    parsed = parser.parse_args(arguments)
    sources: list[Path] = parsed.sources
    if len(sources) == 1 and (sources[0] / "study.json").exists():
        from isobatch.cli.study import finish

        return finish(sources[0], False, parsed.out)
    for path in sources:
        if (path / "study.json").exists():
            raise UserError(f"{path} is a study, which has its own page: report it alone")
    return _runs(sources, parsed.out)


def _runs(sources: list[Path], out: Path | None) -> int:
    paths = [run for path in sources for run in _runs_in(path)]
    paths = list({path.resolve(): path for path in paths}.values())
    if len(paths) > MOST_RUNS:
        raise UserError(f"{len(paths)} runs are too many for one page: at most {MOST_RUNS}")

    from isobatch import report

    courses = [report.read(path, name) for path, name in zip(paths, names(paths), strict=True)]
    out = out or (sources[0] if len(sources) == 1 else Path()) / report.PAGE
    report.write(courses, out)
    for course in courses:
        for finding in course.findings:
            run = f"{course.name}: " if len(courses) > 1 else ""
            say(f"{run}{finding.severity}: {finding.sentence}")
    say(f"report of {counted(len(courses), 'run')} saved to {out}")
    return 0


def _runs_in(path: Path) -> list[Path]:
    """Return the run in a directory, or those that `train --seeds` made there."""
    from isobatch.run.seeds import begun_in

    if (path / "recipe.toml").is_file():
        return [path]
    seeds = [run for _, run in begun_in(path)]
    if not seeds:
        raise UserError(
            f"{path} holds no study and no run: there is neither study.json nor recipe.toml in it"
        )
    return seeds


def names(paths: Sequence[Path]) -> list[str]:
    """Return runs by the last part of their paths, or by as many as tell them apart."""
    parts = [path.resolve().parts for path in paths]
    for count in range(1, max(map(len, parts))):
        found = ["/".join(each[-count:]) for each in parts]
        if len(set(found)) == len(found):
            return found
    return [str(path) for path in paths]
