"""How long an iteration takes with more workers than there are here: a model, and its check.

    python -m benchmarks.plan_workers docs/results/workers.json

An iteration of W workers takes

    t(W) = o (T (a + b N/S) + G (c + d R/S)) + s N T + (W - 1) (X l + B / w)

o: shards of the worker that has most; N, T, S: environments, steps, shards; G = minibatches x
epochs gradients of R = N T / minibatches rows; a, c: seconds of a call, b, d: of a row, measured;
s: of a row, what every worker does by itself; X exchanges in which a worker sends B bytes in all,
passed on W - 1 times around a ring, as gloo does: l seconds and w bytes per second. Waiting for a
slower worker, the diagnostics' exchanges and checkpoints are not in it.
"""

import argparse
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from isobatch.text import columns
from isobatch.world import cover, share

FLOAT = 4
STATISTICS = 12
"""Numbers that go with a gradient: sums of a loss's statistics, a few."""
SAID = 500
"""Bytes of what workers say beside numbers: names, types and shapes, requests to stop."""
WIRES = {"10 Gbit/s": (50e-6, 1.25e9), "100 Gbit/s": (20e-6, 12.5e9)}
"""Assumed of networks: seconds and bytes per second that the wire adds to what loopback costs."""
WORKERS = (1, 2, 4, 8, 16, 32, 64)
PAYS = 0.5
"""Below this efficiency a worker is said not to pay."""
FITTED_BY = {"procgen-64x256": "procgen"}
"""Cases whose costs are taken from those of a smaller one: the model is checked beyond its fit."""


@dataclass(frozen=True)
class Work:
    """What an iteration computes and exchanges, as its recipe says."""

    n_envs: int
    n_steps: int
    n_minibatches: int
    n_epochs: int
    shards: int
    parameters: int
    """Numbers in a gradient."""
    row_bytes: int
    """Of a row of the rollout, without its observation."""
    normalizes: bool = False
    """Whether moments of observations are exchanged too."""

    @property
    def gradients(self) -> int:
        """Gradient steps of an iteration."""
        return self.n_minibatches * self.n_epochs

    def exchanges(self, workers: int) -> tuple[int, float]:
        """Return how many exchanges an iteration has, and the bytes that a worker sends in all.

        A rollout: what workers say (its length, then itself), the names of its columns (likewise),
        its numbers. A gradient: the sums of the subtrees that are wholly a worker's.
        """
        if workers == 1:
            return 0, 0.0
        owned, sums = most(self.shards, workers)
        numbers = owned * self.n_envs / self.shards * self.n_steps * self.row_bytes
        gradient = sums * (self.parameters + STATISTICS) * FLOAT
        told = 2 if self.normalizes else 1
        count = 2 + 3 * told + self.gradients
        return count, numbers + self.gradients * gradient + (1 + told) * SAID


def most(shards: int, workers: int) -> tuple[int, int]:
    """Return the most shards that a worker owns, and the most subtrees whose sums one sends."""
    owned = [share(shards, rank, workers) for rank in range(workers)]
    sums = [len(cover((0, shards), (each.start, each.stop))) for each in owned]
    return max(map(len, owned)), max(sums)


@dataclass(frozen=True)
class Costs:
    """Seconds of computing, measured on one core."""

    step: float
    """Of a shard's step, whatever its environments."""
    row: float
    """And of each of its rows."""
    call: float
    """Of a shard's gradient, whatever its rows."""
    gradient_row: float
    """And of each of its rows."""
    rest_row: float
    """Of each row of the whole rollout, which every worker does by itself: advantages, metrics.
    Optimiser steps are in it too, though more rows do not make them longer."""

    def compute(self, work: Work, workers: int) -> float:
        """Return the seconds of the worker that has most to do."""
        owned, _ = most(work.shards, workers)
        envs = work.n_envs / work.shards
        rows = envs * work.n_steps / work.n_minibatches
        collect = work.n_steps * (self.step + self.row * envs)
        learn = work.gradients * (self.call + self.gradient_row * rows)
        rest = self.rest_row * work.n_envs * work.n_steps
        return owned * (collect + learn) + rest


@dataclass(frozen=True)
class Network:
    """What it costs to pass bytes on to the next worker."""

    latency: float
    """Seconds of each time."""
    bandwidth: float
    """Bytes per second."""

    def with_wire(self, latency: float, bandwidth: float) -> "Network":
        """Return loopback with a wire between: the same copying, and the wire's own time."""
        return Network(self.latency + latency, 1 / (1 / self.bandwidth + 1 / bandwidth))

    def seconds(self, exchanges: int, sent: float, workers: int) -> float:
        """Return what exchanges take, in each of which everyone's bytes go around the ring."""
        return (workers - 1) * (exchanges * self.latency + sent / self.bandwidth)


def iteration(
    work: Work, costs: Costs, network: Network, workers: int, cores: int | None = None
) -> float:
    """Return the seconds of an iteration; workers that outnumber `cores` take turns on them."""
    turns = max(1.0, workers / cores) if cores else 1.0
    exchange = network.seconds(*work.exchanges(workers), workers)
    return turns * (costs.compute(work, workers) + exchange)


def efficiencies(work: Work, costs: Costs, network: Network) -> dict[int, float]:
    """Return t(1) / (W t(W)) of one run at a fixed batch, a core and a shard to each worker."""
    alone = iteration(replace(work, shards=1), costs, network, 1)
    return {
        workers: alone
        / (workers * iteration(replace(work, shards=workers), costs, network, workers))
        for workers in WORKERS
        if workers <= work.n_envs
    }


def grown(work: Work, costs: Costs, network: Network) -> dict[int, float]:
    """Return the same where each worker brings `n_envs` of its own: minibatches grow with them."""
    alone = iteration(replace(work, shards=1), costs, network, 1)
    return {
        workers: alone
        / iteration(
            replace(work, n_envs=work.n_envs * workers, shards=workers), costs, network, workers
        )
        for workers in WORKERS
    }


def pays_up_to(found: dict[int, float]) -> int:
    """Return the most workers of which each is used to half at least."""
    return max(workers for workers, each in found.items() if each >= PAYS)


def work_of(case: dict[str, Any], shards: int) -> Work:
    """Return the work of a case that `benchmarks.workers` measured."""
    return Work(*case["batch"], shards, case["parameters"], case["row_bytes"], case["normalizes"])


def fitted(case: dict[str, Any]) -> Costs:
    """Return the costs that a measured case has, in CPU seconds.

    From one worker with few and with many shards, which tells calls from rows. Where that was not
    measured, all is taken to be by row.
    """
    ways = sorted((way for way in case["ways"] if way["shards"] > 1), key=lambda way: way["shards"])
    alone = [way for way in ways if way["workers"] == 1]
    few, many = (alone[0], alone[-1]) if alone else (ways[0], ways[0])
    work = work_of(case, few["shards"])

    def split(name: str) -> tuple[float, float]:
        """Return the seconds of a shard's calls and of all rows."""
        if few is many:
            return 0.0, few["cpu"][name] * few["workers"]
        call = (many["cpu"][name] - few["cpu"][name]) / (many["shards"] - few["shards"])
        call = min(max(0.0, call), few["cpu"][name] / few["shards"])
        return call, few["cpu"][name] - few["shards"] * call

    (steps, rows), (calls, differentiated) = split("collect"), split("gradient")
    total = work.n_envs * work.n_steps
    parts = sum(few["cpu"][name] for name in ("collect", "gradient", "exchange"))
    return Costs(
        step=steps / work.n_steps,
        row=rows / total,
        call=calls / work.gradients,
        gradient_row=differentiated / (total * work.n_epochs),
        rest_row=max(0.0, few["cpu"]["iteration"] - parts) / total,
    )


def loopback(exchanges: dict[str, Any]) -> Network:
    """Return the network that the fastest exchanges of two workers show."""
    rows = [row for row in exchanges["2"]["rows"] if row["kind"] == "gradient"]
    small, large = min(rows, key=lambda row: row["fastest"]), rows[-1]
    sent = FLOAT * (large["numbers"] - small["numbers"])
    return Network(small["fastest"], sent / (large["fastest"] - small["fastest"]))


def checked(
    case: dict[str, Any], costs: Costs, network: Network, cores: int
) -> list[tuple[str, ...]]:
    """Return what the model says of the ways that were measured, beside what they took."""
    rows = [("workers", "CPU s", "model", "s", "fastest s", "model", "exchanges", "model", "load")]
    for way in case["ways"]:
        if way["shards"] == 1:
            continue
        work = work_of(case, way["shards"])
        count, _ = work.exchanges(way["workers"])
        busy = way["cpu"]["iteration"] - way["cpu"]["exchange"]
        rows.append(
            (
                way["title"],
                f"{busy:.3f}",
                f"{costs.compute(work, way['workers']):.3f}",
                f"{way['seconds']:.3f}",
                f"{way['fastest']:.3f}",
                f"{iteration(work, costs, network, way['workers'], cores):.3f}",
                f"{way['exchanges']}",
                f"{count}",
                f"{max(way['load'])}",
            )
        )
    return rows


def predicted(case: dict[str, Any], costs: Costs, network: Network) -> list[tuple[str, ...]]:
    """Return the efficiency of 1 to 64 workers, by network."""
    work = work_of(case, 1)
    networks = {"loopback": network} | {
        wire: network.with_wire(*numbers) for wire, numbers in WIRES.items()
    }
    rows = [("network", "batch", *map(str, WORKERS), f"pays up to (>= {PAYS})")]
    for label, each in networks.items():
        for batch, found in (
            (f"{work.n_envs}x{work.n_steps}", efficiencies(work, costs, each)),
            (f"{work.n_envs}Wx{work.n_steps}", grown(work, costs, each)),
        ):
            cells = [f"{found[w]:.2f}" if w in found else "-" for w in WORKERS]
            rows.append((label, batch, *cells, f"{pays_up_to(found)}"))
    return rows


def main() -> None:
    """Print the check of the model and what it predicts."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("measured", type=Path, help="what benchmarks.workers wrote")
    report = json.loads(parser.parse_args().measured.read_text())
    network = loopback(report["exchanges"])
    print(
        f"loopback: {1e3 * network.latency:.2f} ms and {network.bandwidth / 1e6:.0f} MB/s "
        "for each pass"
    )
    for name, case in report["cases"].items():
        n_envs, n_steps, n_minibatches, n_epochs = case["batch"]
        costs = fitted(report["cases"][FITTED_BY.get(name, name)])
        print(f"\n{case['env']} {n_envs}x{n_steps}, M {n_minibatches}, E {n_epochs}: {costs}")
        print("\n".join(columns(checked(case, costs, network, report["machine"]["cores"]))))
        print("\n".join(columns(predicted(case, costs, network))))


if __name__ == "__main__":
    main()
