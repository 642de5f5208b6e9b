"""isobatch study and isobatch report."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isobatch.cli.flags import Parser, whole_number
from isobatch.errors import UserError

if TYPE_CHECKING:
    from isobatch.study.design import Study
    from isobatch.study.executors import Executor


def study(arguments: list[str]) -> int:
    """isobatch study: run arms x environments x seeds, then report."""
    parser = Parser(
        prog="isobatch study",
        description="Compare batch shapes at one data budget. The same command goes on where it "
        "stopped.",
        usage="isobatch study NAME|FILE.toml [options], or isobatch study --list",
    )
    parser.add_argument("source", nargs="?", metavar="NAME|FILE", help="a preset or a TOML file")
    parser.add_argument("--list", action="store_true", help="list the presets and their claims")
    parser.add_argument("--scale", metavar="laptop|paper", help="a preset's size (default: laptop)")
    parser.add_argument("--seeds", type=whole_number, metavar="N", help="this many seeds instead")
    parser.add_argument(
        "--workers", type=whole_number, metavar="N", help="runs at once (default: one a core)"
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="default: studies/NAME")
    parser.add_argument(
        "--dry-run", action="store_true", help="say what it would cost, run nothing"
    )
    parser.add_argument(
        "--cluster", choices=["local", "ray", "slurm"], default="local",
        help="where the workers run (default: processes of this machine)",
    )  # fmt: skip
    parser.add_argument(
        "--slurm", nargs="*", default=[], metavar="NAME=VALUE",
        help="submitit's parameters, e.g. slurm_partition=cpu timeout_min=600",
    )  # fmt: skip
    parser.add_argument(
        "--retry-failed", action="store_true", help="begin runs that were given up anew"
    )
    parser.add_argument(
        "--env", action="append", default=[], metavar="MODULE:ID",
        help="confirm that a module the study names may be imported",
    )  # fmt: skip
    parser.add_argument("--quiet", action="store_true", help="show nothing but the verdicts")
    parsed = parser.parse_args(arguments)
    if parsed.list:
        return _list()
    if parsed.source is None:
        raise UserError("which study? isobatch study --list names the presets, or give a TOML file")
    return _conduct(parsed)


def _conduct(parsed: Any) -> int:
    from isobatch.study.design import load, with_seeds
    from isobatch.study.driver import conduct
    from isobatch.study.live import choose_view
    from isobatch.study.queue import Queue

    chosen = load(parsed.source, parsed.scale)
    if parsed.seeds is not None:
        chosen = with_seeds(chosen, parsed.seeds)
    chosen.check(tuple(parsed.env))
    workers = parsed.workers if parsed.workers is not None else _cores()
    if workers < 1:
        raise UserError(f"--workers must be at least 1, got {workers}")
    root = parsed.out or Path("studies") / chosen.name
    begun = (root / "study.json").exists()
    if parsed.dry_run or not (begun or parsed.quiet):
        _show_plan(chosen, workers, root, parsed.quiet)
    if parsed.dry_run:
        return 0
    queue = Queue.create(root, chosen)
    for line in queue.set_aside_damaged():
        print(f"damaged, to be run again: {line}")
    if parsed.retry_failed:
        print(f"{queue.retry_failed()} failed runs begin anew")
    outcome = conduct(queue, _executor(parsed, root, workers), workers, choose_view(parsed.quiet))
    for cell, reason in outcome.failed.items():
        print(f"failed: {cell}: {reason}")
    if outcome.left:
        print(f"stopped with {outcome.left} runs to go; the same command goes on")
        return 130
    return _finish(root, bool(outcome.failed))


def report(arguments: list[str]) -> int:
    """isobatch report: write a study's page."""
    parser = Parser(prog="isobatch report", description="Write the page of a study: report.html.")
    parser.add_argument("study", type=Path, help="study directory")
    parser.add_argument("--out", type=Path, metavar="FILE", help="default: report.html in it")
    parsed = parser.parse_args(arguments)
    return _finish(parsed.study, False, parsed.out)


def _finish(root: Path, failed: bool, out: Path | None = None) -> int:
    """Write the page and say what the study found."""
    from isobatch.study.report import write
    from isobatch.study.results import Results
    from isobatch.study.verdict import verdicts

    results = Results.load(root)
    page = write(root, out)
    for outcome in ("failed", "damaged", "missing"):
        records = results.having(outcome)
        if records:
            first = records[0]
            print(
                f"{len(records)} runs {outcome}, left out; the first: {first.cell}: {first.problem}"
            )
    for verdict in verdicts(results):
        print(f"{verdict.claim.text}\n  {verdict.sentence}")
    print(f"{len(results.having('done'))} runs of {len(results.records)} are in {page}")
    return 1 if failed else 0


def _list() -> int:
    from isobatch.study.design import load, preset_names

    for name in preset_names():
        laptop = load(name)
        print(f"{name}: {laptop.title}")
        shape = (
            f"{len(laptop.arms)} arms x {len(laptop.envs)} environments x {len(laptop.seeds)} seeds"
        )
        print(f"  {shape}, {laptop.budget:,} steps each: {', '.join(laptop.arms)}")
        for claim in laptop.claims:
            print(f"  claim: {claim.text} ({claim.source})")
    return 0


def _show_plan(chosen: Study, workers: int, root: Path, quiet: bool) -> None:
    from isobatch.study.plan import estimate
    from isobatch.text import duration

    costs = estimate(chosen)
    count = len(chosen.seeds)
    seconds = sum(cost.seconds for cost in costs.values()) * count / workers
    size = sum(cost.bytes for cost in costs.values()) * count
    if not quiet:
        print(f"{chosen.name}: {len(chosen.cells)} runs of {chosen.budget:,} environment steps")
        for (arm, env), cost in costs.items():
            print(f"  {arm:24} {env:24} {count} seeds, about {duration(cost.seconds)} each")
        print(
            f"about {duration(seconds)} with {workers} at once and {size / 1e6:,.0f} MB in {root} "
            "(measured on this machine in a few steps of each)"
        )
    free = shutil.disk_usage(_existing(root)).free
    if size > free:
        raise UserError(
            f"the study needs about {size / 1e9:.1f} GB; the disk of {root} has "
            f"{free / 1e9:.1f} GB free"
        )


def _existing(path: Path) -> Path:
    path = path.resolve()
    return path if path.exists() else _existing(path.parent)


def _executor(parsed: Any, root: Path, workers: int) -> Executor:
    from isobatch.study.executors import LocalExecutor, RayExecutor, SlurmExecutor

    if parsed.cluster == "ray":
        return RayExecutor(workers)
    if parsed.cluster == "slurm":
        from isobatch.recipe import literal

        pairs = (option.partition("=") for option in parsed.slurm)
        return SlurmExecutor(root, {name: literal(value) for name, _, value in pairs})
    return LocalExecutor()


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
