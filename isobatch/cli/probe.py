"""isobatch probe."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from isobatch import files
from isobatch.cli.flags import Parser, add_env_flag, usage, whole_between
from isobatch.errors import UserError, shown
from isobatch.probe import probing
from isobatch.probe.laboratory import Progress
from isobatch.probe.page import render
from isobatch.registry import ALGORITHMS
from isobatch.text import say

MOST_BATCHES, MOST_SEED = 1_000, 1 << 62


def probe(arguments: list[str]) -> int:
    """Measure bias and variance of a policy's gradient."""
    parser = Parser(
        prog="isobatch probe",
        description="Measure bias and variance of the gradient. Answers which shape N x T "
        "(environments x steps) has the smallest error, and whether the batch is too small.",
        usage=usage("isobatch probe RUN [options]", "isobatch probe ENV --policy random"),
    )
    parser.add_argument("source", metavar="RUN|ENV", help="run directory, or environment id")
    parser.add_argument(
        "--at",
        metavar="FRACTION,...",
        help="policies of the run to probe, as fractions of its budget (default: the one nearest "
        "to half; earlier or later ones if that has no measurable gradient)",
    )
    parser.add_argument(
        "--policy", choices=["random"], help="with ENV: the preset's networks, untrained"
    )
    parser.add_argument(
        "--algo", choices=list(ALGORITHMS), default="ppo", help="with ENV: the algorithm"
    )
    parser.add_argument(
        "--shapes", metavar="NxT,...", help="shapes to compare (default: the recipe's)"
    )
    parser.add_argument(
        "--batches",
        type=whole_between(1, MOST_BATCHES),
        metavar="K",
        help="independent batches of each shape (default: 5, for images 2)",
    )
    parser.add_argument(
        "--loss",
        choices=["policy", "value"],
        default="policy",
        help="whose gradient: the policy loss's or the value loss's (default: policy)",
    )
    # Its name until 0.2.0.
    parser.add_argument(
        "--of", dest="loss", choices=["policy", "value"], default="policy", help=argparse.SUPPRESS
    )
    parser.add_argument(
        "--lambdas", metavar="X,...", help="further GAE lambdas to measure the bias for"
    )
    parser.add_argument(
        "--no-speed", dest="speed", action="store_false", help="do not time the shapes"
    )
    parser.add_argument(
        "--seed",
        type=whole_between(0, MOST_SEED),
        default=0,
        metavar="N",
        help="seed of the probe's environments (default: 0)",
    )
    add_env_flag(parser)
    parser.add_argument("--verbose", action="store_true", help="also print details and tables")
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="results (default: probe.json in the run)"
    )
    parser.add_argument(
        "--page", type=Path, metavar="FILE", help="HTML page (default: probe.html in the run)"
    )
    parsed = parser.parse_args(arguments)
    with _progress_bar() as progress:
        found = probing.run(
            parsed.source,
            shapes=parsed.shapes or (),
            at=_fractions(parsed.at, "--at"),
            batches=parsed.batches,
            loss=parsed.loss,
            lambdas=_fractions(parsed.lambdas, "--lambdas") or (),
            speed=parsed.speed,
            seed=parsed.seed,
            policy=parsed.policy,
            algo=parsed.algo,
            env=parsed.env,
            progress=progress,
        )
    say(found.verbose() if parsed.verbose else str(found))
    folder = Path(parsed.source) if found.run else Path()
    json_path, page = parsed.json or folder / "probe.json", parsed.page or folder / "probe.html"
    _write(found.to_dict(), json_path, page)
    return 0


def _fractions(text: str | None, flag: str) -> tuple[float, ...] | None:
    if text is None:
        return None
    try:
        values = tuple(float(part) for part in text.split(","))
    except ValueError:
        raise UserError(f"{flag} must be numbers such as 0.5,1.0, got {shown(text)}") from None
    for value in values:
        if not 0 <= value <= 1:
            raise UserError(f"{flag} must lie in [0, 1], got {value:g}", field=flag)
    return values


def _write(data: dict[str, Any], path: Path, page: Path) -> None:
    for each in (path, page):
        if not each.parent.is_dir():
            raise UserError(f"there is no folder {each.parent} to write {each.name} to")
    files.save(path, json.dumps(data, allow_nan=False).encode())
    files.save(page, render(data).encode(errors="replace"))
    say(f"saved to {path} and {page}")


@contextmanager
def _progress_bar() -> Iterator[Progress]:
    """Show the progress of the probe: a bar in a terminal, nothing elsewhere."""
    if not sys.stderr.isatty():
        yield lambda what, done, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars

    with Bars(
        TextColumn("{task.description:22}"),
        BarColumn(bar_width=20),
        TextColumn("{task.fields[count]}"),
        TimeElapsedColumn(),
        console=Console(stderr=True),
    ) as bars:
        task = bars.add_task("starting", total=None, count="")
        most = 0

        def show(what: str, done: int, total: int) -> None:
            nonlocal most
            most = max(most, done)
            count = f"{done:,} of {total:,}" if total else f"{done:,}"
            bars.update(task, description=what, completed=done, total=total or None, count=count)

        yield show
        bars.update(task, description="done", completed=most, total=most or 1, count="")
