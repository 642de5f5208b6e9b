"""What every adapter shares: a watch, and the one line of JSON in which it reports."""

import json
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from benchmarks.peers.cases import Case

LAST_EPISODES = 100
"""The return reached is the mean of this many last training episodes."""


class Cannot(Exception):
    """The library has no such case; the text says why."""


@dataclass
class Watch:
    """When each iteration ended, on the clock that all processes of a machine share."""

    started: float
    """When the command was given."""
    compile_seconds: float | None = None
    child_peak_mb: float = 0.0
    """The most memory of a process that the adapter started, where one did the training."""
    ended: float | None = None
    _series: list[tuple[int, list[tuple[int, float]]]] = field(default_factory=list)

    def begin(self, warm_up: int, at: float | None = None) -> None:
        """A training's first iteration begins; its `warm_up` first ones do not count as warm."""
        self._series.append((warm_up, [(0, time.monotonic() if at is None else at)]))

    def mark(self, env_steps: int, at: float | None = None) -> None:
        """An iteration has ended, after `env_steps` in all."""
        self._series[-1][1].append((env_steps, time.monotonic() if at is None else at))

    def finish(self) -> None:
        """All training has ended; what follows, such as a last evaluation, does not count."""
        self.ended = self.ended or time.monotonic()

    @property
    def start_up(self) -> float:
        """Seconds from the command to the first iteration."""
        return self._series[0][1][0][1] - self.started

    @property
    def env_steps(self) -> int:
        """Environment steps of all trainings."""
        return sum(marks[-1][0] for _, marks in self._series)

    @property
    def warm(self) -> tuple[int, float]:
        """Environment steps and seconds of all iterations after the warm-up."""
        steps, seconds = 0, 0.0
        for warm_up, marks in self._series:
            if len(marks) < warm_up + 2:
                raise ValueError(f"{len(marks) - 1} iterations, of which {warm_up} warm up")
            (first, begin), (last, end) = marks[warm_up], marks[-1]
            steps, seconds = steps + last - first, seconds + end - begin
        return steps, seconds


@dataclass(frozen=True)
class Task:
    """What an adapter is asked to do."""

    case: Case
    seeds: list[int]
    watch: Watch
    options: dict[str, Any]


Train = Callable[[Task], list[float | None]]
"""Trains a task's seeds and returns, for each, the return reached."""


def one_by_one(train: Callable[[Task, int], float | None]) -> Train:
    """Return the training of several seeds by a function that trains one."""
    return lambda task: [train(task, seed) for seed in task.seeds]


def mean_or_none(values: list[float]) -> float | None:
    """Return the mean of the last episodes' returns; None where no episode has ended."""
    last = [float(value) for value in values[-LAST_EPISODES:]]
    return sum(last) / len(last) if last else None


def versions(packages: tuple[str, ...]) -> dict[str, str]:
    """Return the versions of those packages that are installed."""
    found = {}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def report(task: Task, returns: list[float | None], packages: tuple[str, ...]) -> dict[str, Any]:
    """Return what one process measured. Linux counts memory in KiB."""
    watch = task.watch
    steps, seconds = watch.warm
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {
        "start_up_seconds": watch.start_up,
        "compile_seconds": watch.compile_seconds,
        "cold_seconds": (watch.ended or time.monotonic()) - watch.started,
        "env_steps": watch.env_steps,
        "warm_steps": steps,
        "warm_seconds": seconds,
        "peak_mb": watch.child_peak_mb or own,
        "returns": returns,
        "versions": versions(packages),
    }


def serve(train: Train, packages: tuple[str, ...]) -> None:
    """Do the task that the command line holds as JSON, and print the report as the last line."""
    words = json.loads(sys.argv[1])
    task = Task(
        case=Case.from_json(words["case"]),
        seeds=words["seeds"],
        watch=Watch(words["started"]),
        options=words["options"],
    )
    try:
        returns = train(task)
        task.watch.finish()
        result = report(task, returns, packages)
    except Cannot as reason:
        result = {"cannot": str(reason)}
    print(json.dumps(result), flush=True)


def request(case: Case, seeds: list[int], options: dict[str, Any]) -> str:
    """Return the words that `serve` reads; the clock starts now."""
    words = {
        "case": asdict(case),
        "seeds": seeds,
        "started": time.monotonic(),
        "options": options,
    }
    return json.dumps(words)
