"""What several workers gain on this machine, and what their exchanges cost.

    python -m benchmarks.workers --out docs/results/workers.json
    python -m benchmarks.workers --out FILE --parts cartpole exchanges --repeats 5

The ways to train one case go by turns, each in fresh processes. Of every process the iterations but
the first are taken down: seconds, and of these collecting, differentiating and exchanging (which is
mostly waiting, where one worker is slower); and CPU seconds, which other programs on the machine
change little. The load of the machine stands beside each timing: where it is not idle, workers wait
for cores. `benchmarks.plan_workers` reads the file.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import wraps
from pathlib import Path
from typing import Any

from isobatch.presets import preset
from isobatch.recipe import Recipe
from isobatch.text import columns, counted

QUIET = 1.0
"""A load above this, before a timing begins, is said beside it."""
RESULT = "result-{}.json"
SIZES = (1_000, 10_000, 100_000, 1_000_000)
"""Of exchanges: float32 numbers."""
EXCHANGES = 20


@dataclass(frozen=True)
class Way:
    """How a case is trained: by so many workers and shards, with so many threads each."""

    workers: int
    shards: int
    threads: int = 1

    @property
    def title(self) -> str:
        """The way as tables name it."""
        if self.shards == 1:
            return f"one process, {counted(self.threads, 'thread')}, no shards"
        return f"{self.workers} of 1 thread, {self.shards} shards"


@dataclass(frozen=True)
class Case:
    """What is trained, and in which ways; the others are held against the first."""

    recipe: Recipe
    iterations: int
    """All of them, the first included."""
    ways: tuple[Way, ...]


def cases() -> dict[str, Case]:
    """Return what is measured, by name."""
    by_workers = tuple(Way(workers, 4) for workers in (1, 2, 4))
    # Two shard sizes tell the cost of a call from that of a row: see `plan_workers.fitted`.
    more_shards = (Way(1, 16),)
    return {
        "procgen": Case(
            preset("StarpilotHard-v0", "ppo", n_envs=64, n_steps=16, n_minibatches=8, n_epochs=3),
            2,
            (Way(1, 1, threads=2), Way(2, 2), Way(1, 2), Way(1, 8)),
        ),
        "procgen-64x256": Case(
            preset("StarpilotHard-v0", "ppo", n_envs=64, n_steps=256, n_minibatches=8, n_epochs=3),
            2,
            (Way(1, 1, threads=2), Way(2, 2)),
        ),
        "cartpole": Case(
            preset("CartPole-v1", "ppo", n_envs=64, n_steps=128, n_epochs=4, compile="off"),
            4,
            (*by_workers, *more_shards),
        ),
        "halfcheetah": Case(
            preset("HalfCheetah-v4", "ppo", n_envs=16, n_steps=128, compile="off"),
            2,
            (*by_workers, *more_shards),
        ),
    }


@dataclass
class Timers:
    """Time within functions, and the bytes that went out, since they were last read."""

    seconds: dict[str, float] = field(default_factory=dict)
    cpu: dict[str, float] = field(default_factory=dict)
    calls: dict[str, int] = field(default_factory=dict)
    sent_bytes: int = 0

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that takes down its time."""

        @wraps(function)
        def call(*given: Any, **settings: Any) -> Any:
            began, cpu = time.perf_counter(), time.process_time()
            try:
                return function(*given, **settings)
            finally:
                self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - began
                self.cpu[name] = self.cpu.get(name, 0.0) + time.process_time() - cpu
                self.calls[name] = self.calls.get(name, 0) + 1

        return call

    def read(self) -> dict[str, Any]:
        """Return what was taken down, and begin anew."""
        found = vars(self).copy()
        self.__init__()
        return found


def train_one(folder: Path) -> None:
    """Train the recipe in `folder` as one of the workers, or alone; leave what it took there."""
    from isobatch import train
    from isobatch.run.sharded_environments import ShardedEnvironments
    from isobatch.update import Stepper
    from isobatch.workers.membership import Group, join, membership

    timers, rows, before = Timers(), list[dict[str, Any]](), [(0.0, 0.0)]
    Stepper.backward = timers.timed("gradient", Stepper.backward)
    ShardedEnvironments._collected = timers.timed("collect", ShardedEnvironments._collected)
    gather = Group.gather_bytes

    def counted_gather(group: Group, own: Any) -> Any:
        timers.sent_bytes += own.numel()
        return gather(group, own)

    Group.gather_bytes = timers.timed("exchange", counted_gather)
    Group._numbers = timers.timed("exchange", Group._numbers)

    def note(row: dict[str, Any]) -> None:
        now = time.perf_counter(), time.process_time()
        found = timers.read()
        found["seconds"]["iteration"], found["cpu"]["iteration"] = (
            after - earlier for after, earlier in zip(now, before[0], strict=True)
        )
        rows.append(found)
        before[0] = now

    member = membership()
    group = None if member is None else join(member)
    rank = 0 if member is None else member.rank
    recipe = Recipe.load(folder / "recipe.toml")
    train(recipe=recipe, out=folder / "run", quiet=True, on_iteration=note, group=group)
    if group is not None:
        group.close()
    (folder / RESULT.format(rank)).write_text(json.dumps(rows[1:]))


def exchange_one(folder: Path) -> None:
    """Time exchanges with the other workers; worker 0 leaves the medians."""
    import torch

    from isobatch.workers.membership import join, membership
    from isobatch.world import World

    member = membership()
    assert member is not None
    group = join(member)
    world, found = World(group.size, group), []

    def one(kind: str, size: int) -> float:
        own = torch.rand(size)
        group.gather_objects(b"")  # All begin together.
        began = time.perf_counter()
        if kind == "gradient":
            world.folded([own], own)
        else:
            world.gather([own])
        return time.perf_counter() - began

    for kind in ("gradient", "rollout"):
        for size in SIZES:
            one(kind, size)
            seconds = [one(kind, size) for _ in range(EXCHANGES)]
            middle = statistics.median(seconds)
            found.append(
                {"kind": kind, "numbers": size, "seconds": middle, "fastest": min(seconds)}
            )
    group.close()
    if group.rank == 0:
        (folder / RESULT.format(0)).write_text(json.dumps(found))


def launched(task: str, workers: int, folder: Path) -> list[Any]:
    """Run a task of this module as so many workers, or alone; return what each left."""
    words = [task, str(folder)]
    if workers > 1:
        program = "import sys; from isobatch.workers.agent import launch; "
        program += (
            "sys.exit(launch(int(sys.argv[1]), sys.argv[2:], 0, module='benchmarks.workers'))"
        )
        command = [sys.executable, "-c", program, str(workers), *words]
    else:
        command = [sys.executable, "-m", "benchmarks.workers", *words]
    subprocess.run(command, check=True)
    return [json.loads(path.read_text()) for path in sorted(folder.glob(RESULT.format("*")))]


def measure(case: Case, way: Way) -> dict[str, Any]:
    """Train a case in one way, and return what its iterations took."""
    load = os.getloadavg()[0]
    recipe = case.recipe.replace(
        shards=way.shards,
        threads=way.threads,
        total_timesteps=case.iterations * case.recipe.batch.rollout_size,
        diagnostics="off",
    )
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "recipe.toml").write_text(recipe.to_toml())
        found = launched("train", way.workers, folder)
    return {"load": load, "workers": [each[: case.iterations - 1] for each in found]}


def summary(trials: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the medians over trials and iterations, of the slowest worker where they differ."""
    iterations = [
        tuple(worker[k] for worker in trial["workers"])
        for trial in trials
        for k in range(len(trial["workers"][0]))
    ]

    def median(kind: str, name: str) -> float:
        return statistics.median(
            max(each[kind].get(name, 0.0) for each in workers) for workers in iterations
        )

    first = iterations[-1][0]
    return {
        "seconds": median("seconds", "iteration"),
        "fastest": min(
            max(each["seconds"]["iteration"] for each in workers) for workers in iterations
        ),
        # The worker that waits least is the one that the others wait for.
        "exchange_seconds": statistics.median(
            min(each["seconds"].get("exchange", 0.0) for each in workers) for workers in iterations
        ),
        "cpu": {
            name: median("cpu", name) for name in ("iteration", "collect", "gradient", "exchange")
        },
        "exchanges": first["calls"].get("exchange", 0),
        "sent_bytes": first["sent_bytes"],
        "load": [round(trial["load"], 1) for trial in trials],
    }


def measured(case: Case, repeats: int) -> dict[str, Any]:
    """Measure all ways by turns: forwards, then backwards."""
    trials: dict[Way, list[dict[str, Any]]] = {way: [] for way in case.ways}
    for turn in range(repeats):
        for way in case.ways[:: 1 if turn % 2 == 0 else -1]:
            trials[way].append(measure(case, way))
            last = trials[way][-1]
            seconds, cpu = (
                [round(each[kind]["iteration"], 3) for each in last["workers"][0]]
                for kind in ("seconds", "cpu")
            )
            say = f"{case.recipe.env}, {way.title}: {seconds} s, CPU {cpu} s, load "
            say += f"{last['load']:.1f} before"
            print(say, file=sys.stderr, flush=True)
    batch = case.recipe.batch
    found = {way: summary(each) for way, each in trials.items()}
    reference = trials[case.ways[0]]
    for way, each in found.items():
        ratios = [_middle(a) / _middle(b) for a, b in zip(reference, trials[way], strict=True)]
        each["speed"] = statistics.median(ratios)
        each["speeds"] = [round(ratio, 3) for ratio in ratios]
    return {
        "env": case.recipe.env,
        "batch": [batch.n_envs, batch.n_steps, batch.n_minibatches, batch.n_epochs],
        "parameters": parameters(case.recipe),
        "row_bytes": row_bytes(case.recipe),
        "normalizes": case.recipe.normalize.normalize_observations,
        "ways": [vars(way) | {"title": way.title} | each for way, each in found.items()],
    }


def _middle(trial: dict[str, Any]) -> float:
    """Return the median iteration of a trial."""
    return statistics.median(each["seconds"]["iteration"] for each in trial["workers"][0])


def parameters(recipe: Recipe) -> int:
    """Return how many numbers a gradient has."""
    import torch

    from isobatch import envs
    from isobatch.envs.seeds import env_seeds
    from isobatch.state import TrainState

    env = envs.make(recipe.replace(n_envs=1), env_seeds(1, 1))
    layouts = env.observation_layout, env.action_layout
    state = TrainState.begin(recipe, *layouts, torch.device("cpu"))
    env.close()
    return state.parameters.vector.numel()


def row_bytes(recipe: Recipe) -> int:
    """Return the bytes of a row of a rollout that are gathered: all but its observation."""
    import torch

    from isobatch.run.sharded_environments import ShardedEnvironments, _columns
    from isobatch.state import TrainState
    from isobatch.world import World

    small = recipe.replace(n_envs=2, n_steps=2, n_minibatches=1, shards=2, stagger=False)
    sharded = ShardedEnvironments(World(2), small, None, torch.device("cpu"))
    layouts = sharded.env.observation_layout, sharded.env.action_layout
    state = TrainState.begin(small, *layouts, torch.device("cpu"))
    rollout = sharded._collected(0, state)
    sharded.close()
    found = _columns(rollout)
    return sum(each[0, 0].numel() * each.element_size() for each in found.values())


def exchanges() -> dict[str, Any]:
    """Return what exchanges take, by their size and the number of workers."""
    found = {}
    for workers in (2, 4):
        load = os.getloadavg()[0]
        with tempfile.TemporaryDirectory() as name:
            (rows,) = launched("exchange", workers, Path(name))
        found[str(workers)] = {"load": round(load, 1), "rows": rows}
    return found


def table(report: dict[str, Any]) -> list[str]:
    """Lay out what was measured."""
    lines = []
    for name, case in report["cases"].items():
        n_envs, n_steps, n_minibatches, n_epochs = case["batch"]
        lines.append(f"{name}: {case['env']} {n_envs}x{n_steps}, M {n_minibatches}, E {n_epochs}")
        rows = [("workers", "s/iteration", "fastest", "speed", "exchanging", "CPU s", "load")]
        for way in case["ways"]:
            busy = max(way["load"])
            rows.append(
                (
                    way["title"],
                    f"{way['seconds']:.3f}",
                    f"{way['fastest']:.3f}",
                    f"{way['speed']:.2f} ({min(way['speeds']):.2f} to {max(way['speeds']):.2f})",
                    f"{way['exchange_seconds']:.3f}",
                    f"{way['cpu']['iteration']:.3f}",
                    f"{busy}{' (busy)' if busy > QUIET else ''}",
                )
            )
        lines += [f"  {line}" for line in columns(rows)]
    for workers, each in report.get("exchanges", {}).items():
        busy = " (busy)" if each["load"] > QUIET else ""
        lines.append(f"exchanges of {workers} workers, load {each['load']} before{busy}")
        lines += [
            f"  {row['kind']} of {row['numbers']:,} numbers: {1000 * row['seconds']:.2f} ms, "
            f"the fastest {1000 * row['fastest']:.2f} ms"
            for row in each["rows"]
        ]
    return lines


def main() -> None:
    """Measure, and write down what there is after every part."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parts = [*cases(), "exchanges"]
    parser.add_argument("--parts", nargs="+", choices=parts, default=parts)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, required=True, help="parts not measured now stay")
    args = parser.parse_args()
    report: dict[str, Any] = {"cases": {}}
    if args.out.exists():
        report = json.loads(args.out.read_text())
    report |= {
        "measured": datetime.now(UTC).date().isoformat(),
        "machine": {"python": platform.python_version(), "cores": os.cpu_count()},
    }
    for part in args.parts:
        if part == "exchanges":
            report["exchanges"] = exchanges()
        else:
            report["cases"][part] = measured(cases()[part], args.repeats)
        args.out.write_text(json.dumps(report, indent=1) + "\n")
    print("\n".join(table(report)))


if __name__ == "__main__":
    if sys.argv[1:2] == ["train"]:
        train_one(Path(sys.argv[2]))
    elif sys.argv[1:2] == ["exchange"]:
        exchange_one(Path(sys.argv[2]))
    else:
        main()
