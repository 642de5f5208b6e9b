"""Training with several seeds: in cohorts, one to a core, or one after the other where need be."""

from __future__ import annotations

import gc
import os
import signal
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, NamedTuple

from isobatch import algos
from isobatch.envs.catalog import require_trusted
from isobatch.errors import UserError, one_line, understanding
from isobatch.files import refuse_links
from isobatch.parent import end_with
from isobatch.recipe import Recipe, check_budget
from isobatch.run import ending, store, trackers
from isobatch.run.cohort import (
    Member,
    Pool,
    alike,
    has_large_networks,
    train_cohort,
    why_alone,
)
from isobatch.run.divergence import Diverged
from isobatch.run.loop import OnIteration
from isobatch.run.sinks import LINE_SECONDS, Sink, environments_by_steps
from isobatch.run.training import (
    Run,
    check_version,
    choose_device,
    default_path,
    refuse_other_budget,
    restore,
    resume,
    train,
)
from isobatch.state import TrainState
from isobatch.text import counted, say

STOPPED, FAILED = 130, 1


class Outcome(NamedTuple):
    """How the run of one seed ended."""

    run: Run
    error: UserError | None = None
    """What ended it, where it did not end well."""

    @property
    def failure(self) -> str | None:
        """That in a line."""
        return None if self.error is None else one_line(self.error)


def seed_paths(recipe: Recipe, count: int, out: str | Path | None) -> list[tuple[Recipe, Path]]:
    """Return a recipe and a directory for each of `count` seeds, from the recipe's own on.

    Under `out` they are named by their seed.
    """
    recipes = [recipe.replace(seed=recipe.seed + k) for k in range(count)]
    if out is None:
        return [(each, default_path(each)) for each in recipes]
    return [(each, Path(out) / f"seed-{each.seed}") for each in recipes]


def refuse_taken(jobs: Sequence[tuple[Recipe, Path]]) -> None:
    """Refuse directories that hold something already."""
    for _, path in jobs:
        store.refuse_taken(path)


def begun_in(folder: str | Path) -> list[tuple[Recipe, Path]]:
    """Return the recipes and directories of the runs, one a seed, that a folder has."""
    found = list(Path(folder).glob("seed-*/recipe.toml"))
    for file in found:
        refuse_links(Path(folder), file)
    jobs = [(Recipe.load(file), file.parent) for file in found]
    return sorted(jobs, key=lambda job: job[0].seed)


def train_seeds(
    jobs: Sequence[tuple[Recipe, Path]],
    *,
    width: int | None = None,
    quiet: bool = False,
    track: Iterable[str] = (),
    on_iteration: OnIteration | None = None,
) -> list[Outcome]:
    """Train runs of one recipe with different seeds, in this process; go on with those begun.

    They are trained as a cohort where they can be, whose stack is `width` wide. Each has trackers
    of its own, of the kinds that `track` names. `on_iteration` is given the rows of all, and stops
    a run by returning False.
    """
    track = trackers.check(track)
    if why_alone(jobs[0][0]) is None:
        found = _train_cohort(jobs, width or len(jobs), quiet, track, on_iteration)
        if found is not None:
            return found
    outcomes: list[Outcome] = []
    for recipe, path in jobs:
        outcomes.append(_train_alone(recipe, path, track, on_iteration))
        if outcomes[-1].run.interrupted:
            break
    return outcomes


def train_on_all_cores(
    jobs: Sequence[tuple[Recipe, Path]], quiet: bool = False, track: Iterable[str] = ()
) -> int:
    """Train runs with different seeds in as many processes as there are cores; say how they ended.

    To be called where nothing has been computed yet: the processes are forked. Returns the exit
    code: 0, 130 where they were stopped, 1 where one failed.
    """
    track = trackers.check(track)
    for recipe, _ in jobs:
        check_budget(recipe)
        algos.check(recipe)
    if len({alike(recipe) for recipe, _ in jobs}) > 1:
        raise UserError("these runs differ in more than their seeds: resume them one at a time")
    recipe = jobs[0][0]
    busy = has_large_networks(recipe) or recipe.machine.overlap  # By itself, with every core.
    cores = 1 if busy else len(os.sched_getaffinity(0))
    processes = min(cores, len(jobs))
    width = -(-len(jobs) // processes)
    first, *others = [jobs[k : k + width] for k in range(0, len(jobs), width)]
    if not quiet:
        _introduce(jobs, 1 + len(others), width)
    children = [_fork(each, width, track) for each in others]
    code = STOPPED  # As long as nothing else is known: an exception stops the others too.
    try:
        code = _tell(train_seeds(first, width=width, quiet=quiet, track=track))
    finally:
        if code == STOPPED:
            for child in children:
                with suppress(ProcessLookupError):
                    os.kill(child, signal.SIGTERM)
        codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    return max([code, *(FAILED if each < 0 else each for each in codes)])


def _fork(jobs: Sequence[tuple[Recipe, Path]], width: int, track: Sequence[str]) -> int:
    """Train some of the runs in a process of their own, which ends with this one."""
    parent = os.getpid()
    gc.freeze()  # What is this process's to clean up is not the other's.
    child = os.fork()
    if child:
        return child
    code = FAILED
    try:
        end_with(parent)
        code = _tell(train_seeds(jobs, width=width, quiet=True, track=track))
    except UserError as error:
        say(f"isobatch: {one_line(error)}", error=True)
        code = 2
    except KeyboardInterrupt:
        code = STOPPED
    finally:
        sys.stdout.flush()
        os._exit(code)


def _train_alone(
    recipe: Recipe, path: Path, track: Sequence[str], on_iteration: OnIteration | None
) -> Outcome:
    asked = {"quiet": True, "track": track, "on_iteration": on_iteration}
    try:
        if (path / "recipe.toml").exists():
            return Outcome(resume(path, env=recipe.env, **asked))
        return Outcome(train(recipe=recipe, out=path, **asked))
    except UserError as error:
        return Outcome(Run(path), error)


def _train_cohort(
    jobs: Sequence[tuple[Recipe, Path]],
    width: int,
    quiet: bool,
    track: Sequence[str],
    on_iteration: OnIteration | None,
) -> list[Outcome] | None:
    """Train them as a cohort; None where the observations turn out to be images.

    A run that was begun and cannot be gone on with does not keep the others from it.
    """
    with ExitStack() as held:
        opened, refused = list[Opened](), dict[Path, Outcome]()
        for recipe, path in jobs:
            try:
                opened.append(_open(recipe, path, held))
            except UserError as error:
                refused[path] = Outcome(Run(path), error)
        found: dict[Path, Outcome] | None = {}
        if opened:
            found = _train_opened(opened, width, quiet, track, on_iteration, held)
        if found is None:
            return None
        return [(refused | found)[path] for _, path in jobs]


class Opened(NamedTuple):
    """A run that is to be trained, with what it goes on from where it was begun."""

    recipe: Recipe
    path: Path
    directory: store.RunDirectory | None = None
    checkpoint: store.Checkpoint | None = None

    @property
    def made(self) -> int:
        """Environments that it has had."""
        return self.checkpoint.numbers["counters"]["environments"] if self.checkpoint else 0


def _open(recipe: Recipe, path: Path, held: ExitStack) -> Opened:
    """Open a run that has begun; of one that has not see that it can."""
    if not (path / "recipe.toml").exists():
        store.refuse_taken(path)
        return Opened(recipe, path)
    directory = store.RunDirectory.open(path)
    held.callback(directory.release)
    require_trusted(directory.recipe.env, recipe.env)
    checkpoint = directory.last_checkpoint()
    if checkpoint is not None:
        with understanding(f"{path}: the checkpoint"):
            check_version(path, checkpoint.numbers)
            refuse_other_budget(path, recipe, checkpoint.numbers)
    return Opened(recipe, path, directory, checkpoint)


def _train_opened(
    jobs: Sequence[Opened],
    width: int,
    quiet: bool,
    track: Sequence[str],
    on_iteration: OnIteration | None,
    held: ExitStack,
) -> dict[Path, Outcome] | None:
    """Train runs as a cohort; return how each ended, None where observations are images."""
    device = choose_device(jobs[0].recipe.machine.device)
    recipes = [each.recipe for each in jobs]
    pool = Pool(recipes, [each.made for each in jobs], device)
    held.callback(pool.env.close)
    if pool.env.observation_layout.image is not None:
        return None
    lines, members = Lines(recipes), list[Member]()
    for job in jobs:
        recipe, directory = job.recipe, job.directory
        layouts = pool.env.observation_layout, pool.env.action_layout
        state = TrainState.begin(recipe, *layouts, device)
        if directory is None:
            directory = store.RunDirectory.create(job.path, recipe)
            held.callback(directory.release)
        else:
            restore(state, directory, recipe, job.checkpoint)
        sinks = [*([] if quiet else [lines.of(recipe.seed)]), *trackers.make(track)]
        members.append(Member(state, directory, sinks, job.made, on_iteration))
    train_cohort(members, pool, width)
    for each, job in zip(members, jobs, strict=True):
        unusable = each.failure is not None and not isinstance(each.failure, Diverged)
        if unusable and job.directory is None and not each.directory.metrics():
            each.directory.discard()  # The environments' very first rollout failed.
    runs = [Run(each.directory.path, interrupted=each.stopped) for each in members]
    return {run.path: Outcome(run, each.failure) for run, each in zip(runs, members, strict=True)}


class Lines:
    """Plain lines on how a cohort is doing, about one every ten seconds."""

    def __init__(self, recipes: Sequence[Recipe]) -> None:
        self._total = recipes[0].total_timesteps
        self._seeds = [each.seed for each in recipes]
        self._rows: dict[int, dict[str, Any]] = {}
        self._last = time.monotonic()

    def of(self, seed: int) -> Sink:
        """Return what listens to one of the runs."""
        return _Listener(self, seed)

    def hear(self, seed: int, row: dict[str, Any]) -> None:
        """Take in a run's row; say how they all are doing if the last line is old enough."""
        self._rows[seed] = row
        now = time.monotonic()
        if now - self._last < LINE_SECONDS or len(self._rows) < len(self._seeds):
            return
        self._last = now
        rows = self._rows.values()
        done = min(row["env_steps"] for row in rows)
        speed = sum(row["steps_per_second"] for row in rows)
        returns = [row["episode_return"] for row in rows if row["episode_return"] is not None]
        learned = ""
        if returns:
            mean = sum(returns) / len(returns)
            learned = f"  return {mean:.4g} ({min(returns):.4g} to {max(returns):.4g})"
        say(
            f"{done:>10,} / {self._total:,} env steps  {_span(self._seeds)}: "
            f"{speed:,.0f} steps/s{learned}"
        )


class _Listener(Sink):
    def __init__(self, lines: Lines, seed: int) -> None:
        self._lines, self._seed = lines, seed

    def row(self, row: dict[str, Any]) -> None:
        self._lines.hear(self._seed, row)


def _introduce(jobs: Sequence[tuple[Recipe, Path]], processes: int, width: int) -> None:
    """Say what is trained, and how."""
    recipe, reason = jobs[0][0], why_alone(jobs[0][0])
    batch, seeds = recipe.batch, [each.seed for each, _ in jobs]
    how = f"up to {width} together in each" if width > 1 else "one run in each"
    if reason is not None:
        how = f"one at a time: {reason}"
    say(
        f"{recipe.algo} on {recipe.env}, {environments_by_steps(batch)}, "
        f"{counted(len(jobs), 'run')}, {_span(seeds)}, "
        f"{counted(processes, 'process', 'processes')}, {how}"
    )


def _tell(outcomes: Sequence[Outcome]) -> int:
    """Say in a line how each run ended; return the exit code."""
    code = 0
    for outcome in outcomes:
        run = outcome.run
        if outcome.failure is not None:
            say(f"{run.path}: failed: {outcome.failure}")
            code = max(code, FAILED)
            continue
        stopped = f"; stopped, resume with: isobatch resume {run.path}" if run.interrupted else ""
        for line in ending.batch_changes(run):
            say(line)
        say(f"{run.path}: {ending.learned(run)}{stopped}")
        if run.interrupted:
            code = STOPPED
    return code


def _span(seeds: Sequence[int]) -> str:
    """Return seed 1, or seeds 1 to 10."""
    return f"seed {seeds[0]}" if len(seeds) == 1 else f"seeds {seeds[0]} to {seeds[-1]}"
