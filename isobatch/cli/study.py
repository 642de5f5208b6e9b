"""isobatch study."""

from __future__ import annotations

import argparse
import os
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isobatch.cli.flags import Parser, usage, whole_between
from isobatch.errors import UserError
from isobatch.study.checks import MOST_SEEDS
from isobatch.text import columns, counted, duration, say, size

if TYPE_CHECKING:
    from isobatch.study.design import Study
    from isobatch.study.executors import Executor
    from isobatch.study.plan import Cost
    from isobatch.study.results import Results

MOST_JOBS = 10_000


def study(arguments: list[str]) -> int:
    """isobatch study: run arms x environments x seeds, then report."""
    parser = Parser(
        prog="isobatch study",
        description="Compare arms (recipes) over environments and seeds, all at the same budget of "
        "environment steps. Run the same command again to resume a stopped study.",
        usage=usage("isobatch study NAME|FILE.toml [options]", "isobatch study --list"),
    )
    parser.add_argument("source", nargs="?", metavar="NAME|FILE", help="a preset or a TOML file")
    parser.add_argument("--list", action="store_true", help="list the presets and their claims")
    parser.add_argument(
        "--scale", metavar="laptop|paper", help="size of a preset (default: laptop)"
    )
    parser.add_argument(
        "--seeds",
        type=whole_between(1, MOST_SEEDS),
        metavar="N",
        help="number of seeds, instead of the study's",
    )
    parser.add_argument(
        "--jobs",
        type=whole_between(1, MOST_JOBS),
        metavar="N",
        help="parallel processes (default: one per core)",
    )
    parser.add_argument(
        "--workers", type=whole_between(1, MOST_JOBS), help=argparse.SUPPRESS
    )  # What --jobs was called before a run could have workers.
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="study directory (default: studies/NAME)"
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="print the estimated cost and run nothing"
    )
    parser.add_argument(
        "--cluster", choices=["local", "ray", "slurm"], default="local",
        help="where the jobs run (default: local processes)",
    )  # fmt: skip
    parser.add_argument(
        "--slurm", nargs="*", default=[], metavar="NAME=VALUE",
        help="parameters of submitit, e.g. slurm_partition=cpu timeout_min=600",
    )  # fmt: skip
    parser.add_argument(
        "--retry-failed", action="store_true", help="retry failed runs, from scratch"
    )
    parser.add_argument(
        "--env", action="append", default=[], metavar="MODULE:ID",
        help="allow importing a module that an environment of the study names",
    )  # fmt: skip
    parser.add_argument("--no-cohorts", action="store_true", help="train the runs one at a time")
    parser.add_argument("--quiet", action="store_true", help="print only the verdicts")
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
    from isobatch.study.results import Results

    chosen = load(parsed.source, parsed.scale)
    if parsed.seeds is not None:
        chosen = with_seeds(chosen, parsed.seeds)
    if parsed.no_cohorts:
        chosen = replace(chosen, cohorts=False)
    chosen.check(tuple(parsed.env))
    if parsed.workers is not None:
        if parsed.jobs is not None:
            raise UserError("--workers is now --jobs: give one of them")
        say("--workers is now --jobs", error=True)
    jobs = parsed.jobs or parsed.workers or _cores()
    root = parsed.out or Path("studies") / chosen.name
    _say_unscaled(Results(chosen, []))
    begun = (root / "study.json").exists()
    if parsed.dry_run or not (begun or parsed.quiet):
        _show_plan(chosen, jobs, root, parsed.quiet)
    if parsed.dry_run:
        return 0
    queue = Queue.create(root, chosen)
    for line in queue.set_aside_damaged():
        say(f"damaged, will be run again: {line}")
    if parsed.retry_failed:
        say(f"retrying {counted(queue.retry_failed(), 'failed run')} from scratch")
    outcome = conduct(queue, _executor(parsed, root, jobs), jobs, choose_view(parsed.quiet))
    for cell, reason in outcome.failed.items():
        say(f"failed: {cell}: {reason}")
    if outcome.left:
        say(f"stopped with {counted(outcome.left, 'run')} left; resume with the same command")
        return 130
    return finish(root, bool(outcome.failed))


def finish(root: Path, failed: bool, out: Path | None = None) -> int:
    """Write the report and print the verdicts."""
    from isobatch.study.report import write
    from isobatch.study.results import Results
    from isobatch.study.verdict import verdicts

    results = Results.load(root)
    page = write(root, out)
    for outcome in ("failed", "damaged", "missing"):
        records = results.having(outcome)
        if records:
            first = records[0]
            say(
                f"{counted(len(records), 'run')} {outcome}, not in the results; the first: "
                f"{first.cell}: {first.problem}"
            )
    _say_unscaled(results)
    for verdict in verdicts(results):
        say("\n  ".join([verdict.claim.text, verdict.sentence, *verdict.pulls]))
    done = len(results.having("done"))
    say(f"report of {done} of {counted(len(results.records), 'run')} saved to {page}")
    return 1 if failed else 0


def _say_unscaled(results: Results) -> None:
    """Say which environments' scores cannot be normalised, before and after the study."""
    from isobatch.scores import not_normalised

    if results.unscaled:
        say(f"{not_normalised(results.unscaled)}. Until then arms are compared by rank.")


def _list() -> int:
    from isobatch.study.design import load, preset_names

    for name in preset_names():
        laptop = load(name)
        say(f"{name}: {laptop.title}")
        runs = (
            f"{counted(len(laptop.arms), 'arm')} x {counted(len(laptop.envs), 'environment')} x "
            f"{counted(len(laptop.seeds), 'seed')}"
        )
        budget = counted(laptop.budget, "env step")
        say(f"  {runs}, {budget} each: {', '.join(laptop.arms)}")
        for claim in laptop.claims:
            say(f"  claim: {claim.text} ({claim.source})")
    return 0


def _show_plan(chosen: Study, jobs: int, root: Path, quiet: bool) -> None:
    from isobatch.study.plan import estimate

    costs = estimate(chosen, jobs)
    count = len(chosen.seeds)
    seconds = sum(cost.seconds for cost in costs.values()) * count / jobs
    needed = sum(cost.bytes for cost in costs.values()) * count
    if not quiet:
        runs = counted(len(chosen.cells), "run")
        each = counted(chosen.budget, "env step")
        say(f"{chosen.name}: {runs} of {each}, {counted(count, 'seed')} per arm and environment")
        for line in _plan(costs):
            say(line)
        say(
            f"estimated cost: {duration(seconds)} with {counted(jobs, 'job')}, "
            f"{size(needed)} in {root} (from a few timed steps of every arm on this machine)"
        )
    free = shutil.disk_usage(_existing(root)).free
    if needed > free:
        raise UserError(
            f"the study needs about {size(needed)}; the disk of {root} has {size(free)} free"
        )


def _plan(costs: Mapping[tuple[str, str], Cost]) -> list[str]:
    """Lay out what a run of each arm takes and how it is trained, then why some are alone."""
    rows = [("arm", "environment", "per run", "trained")]
    for (arm, env), cost in costs.items():
        how = f"{cost.together} together" if cost.together > 1 else "one at a time"
        rows.append((arm, env, duration(cost.seconds), how))
    alone: dict[str, dict[str, None]] = {}
    for (arm, _), cost in costs.items():
        if cost.why_alone:
            alone.setdefault(cost.why_alone, {})[arm] = None
    reasons = [f"one at a time ({', '.join(arms)}): {why}" for why, arms in alone.items()]
    return [f"  {line}" for line in (*columns(rows), *reasons)]


def _existing(path: Path) -> Path:
    path = path.resolve()
    return path if path.exists() else _existing(path.parent)


def _executor(parsed: Any, root: Path, jobs: int) -> Executor:
    from isobatch.study.executors import LocalExecutor, RayExecutor, SlurmExecutor

    if parsed.cluster == "ray":
        return RayExecutor(jobs)
    if parsed.cluster == "slurm":
        from isobatch.recipe import literal

        pairs = (option.partition("=") for option in parsed.slurm)
        return SlurmExecutor(root, {name: literal(value) for name, _, value in pairs})
    return LocalExecutor()


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
