"""isobatch verify."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from isobatch.cli.flags import Parser, add_env_flag, whole_between
from isobatch.errors import shown
from isobatch.plain import LARGEST
from isobatch.text import counted, say

if TYPE_CHECKING:
    from isobatch.run.verify import Verdict


def verify(arguments: list[str]) -> int:
    """Train a run again and say whether its rows are the same."""
    parser = Parser(
        prog="isobatch verify",
        description="Train a run's recipe again in a temporary directory, for about a minute, and "
        "compare its metrics with the run's, bit by bit, except for times. The exit code is 0 "
        "if they are identical, otherwise 1.",
    )
    parser.add_argument("run", type=Path, help="run directory")
    much = parser.add_mutually_exclusive_group()
    much.add_argument(
        "--iterations",
        type=whole_between(1, LARGEST - 1),
        metavar="K",
        help="compare the first K iterations (default: those that took about a minute)",
    )
    much.add_argument("--all", action="store_true", help="compare the whole run")
    add_env_flag(parser)
    parser.add_argument("--quiet", action="store_true", help="print only the verdict")
    parsed = parser.parse_args(arguments)

    from isobatch.run import verify as verifying

    verdict = verifying.verify(
        parsed.run,
        iterations=parsed.iterations,
        everything=parsed.all,
        env=parsed.env,
        note=(lambda text: None) if parsed.quiet else say,
    )
    _tell(parsed.run, verdict)
    return 0 if verdict.difference is None else 1


def _tell(path: Path, verdict: Verdict) -> None:
    found, rows = verdict.difference, counted(verdict.rows, "iteration")
    if found is None:
        say(f"{path}: identical in {verdict.compared:,} of {rows}, bit for bit")
    else:
        say(
            f"{path}: iteration {found.iteration:,} differs in {found.column}: "
            f"{shown(found.was)} then, {shown(found.now)} now"
        )
    if verdict.resumed_after is not None:
        say(
            f"the run was resumed after iteration {verdict.resumed_after:,}, in new environments: "
            "later iterations cannot be compared"
        )
    if verdict.uncompared:
        names = ", ".join(sorted(verdict.uncompared))
        say(f"not compared, since only one of the two runs has it: {names}")
    if verdict.machine is None:
        say("versions, CPU and threads of the run are not recorded")
    for name, (was, now) in (verdict.machine or {}).items():
        say(f"{name}: {was} then, {now} now")
    if found is not None and verdict.machine == {}:
        say("versions, CPU and threads are the same as then")
