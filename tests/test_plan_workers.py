"""The model of iterations with several workers, by numbers worked out by hand."""

from dataclasses import replace

import pytest

from benchmarks.plan_workers import (
    Costs,
    Network,
    Work,
    efficiencies,
    fitted,
    grown,
    iteration,
    loopback,
    most,
    pays_up_to,
)
from benchmarks.workers import Way, summary

WORK = Work(8, 10, 2, 3, shards=4, parameters=100, row_bytes=30)
COSTS = Costs(step=0.001, row=0.002, call=0.003, gradient_row=0.0005, rest_row=0.1 / 80)
NETWORK = Network(latency=0.001, bandwidth=1e6)
FREE = Network(latency=0.0, bandwidth=1e30)


def test_who_owns_and_sends_most():
    assert most(4, 1) == (4, 1)
    assert most(4, 2) == (2, 1)
    assert most(4, 4) == (1, 1)
    # 0-1, 2-4, 5-7: the second sends the sums of 2-3 and of 4, the third those of 5 and of 6-7.
    assert most(8, 3) == (3, 2)


def test_what_is_exchanged():
    assert WORK.exchanges(1) == (0, 0)
    # A rollout of 2 shards of 2 environments, 6 gradients of 100 + 12 numbers, two messages.
    assert WORK.exchanges(2) == (2 + 3 + 6, 2 * 2 * 10 * 30 + 6 * 112 * 4 + 2 * 500)
    assert replace(WORK, normalizes=True).exchanges(2)[0] == 2 + 3 + 3 + 6


def test_an_iteration_is_the_slowest_worker_and_the_exchanges():
    collect, learn = 10 * (0.001 + 2 * 0.002), 6 * (0.003 + 10 * 0.0005)
    assert COSTS.compute(WORK, 2) == pytest.approx(2 * (collect + learn) + 0.1)
    assert COSTS.compute(WORK, 2) == pytest.approx(0.296)
    assert NETWORK.seconds(*WORK.exchanges(2), 2) == pytest.approx(0.011 + 0.004888)
    assert NETWORK.seconds(11, 4888, 3) == pytest.approx(2 * 0.015888)
    assert iteration(WORK, COSTS, NETWORK, 2) == pytest.approx(0.311888)
    assert iteration(WORK, COSTS, NETWORK, 2, cores=2) == pytest.approx(0.311888)
    assert iteration(WORK, COSTS, NETWORK, 2, cores=1) == pytest.approx(2 * 0.311888)


def test_a_wire_adds_to_loopback():
    wired = NETWORK.with_wire(0.0005, 1e6)
    assert wired.latency == pytest.approx(0.0015)
    assert wired.bandwidth == pytest.approx(5e5)


def test_rows_alone_are_shared_without_loss_and_calls_are_not():
    rows = Costs(0, 0.002, 0, 0.0005, 0)
    assert efficiencies(WORK, rows, FREE) == pytest.approx({1: 1, 2: 1, 4: 1, 8: 1})
    assert grown(WORK, rows, FREE)[64] == pytest.approx(1)
    steps = Costs(0.001, 0, 0, 0, 0)
    found = efficiencies(WORK, steps, FREE)
    assert found == pytest.approx({1: 1, 2: 1 / 2, 4: 1 / 4, 8: 1 / 8})
    assert pays_up_to(found) == 2
    by_everyone = Costs(0, 0, 0, 0, 0.001)
    assert grown(WORK, by_everyone, FREE)[64] == pytest.approx(1 / 64)
    assert grown(WORK, steps, FREE)[64] == pytest.approx(1)


def way(workers, shards):
    """What `benchmarks.workers` would take down where `COSTS` held."""
    work = replace(WORK, shards=shards)
    envs, rows = 8 / shards, 8 * 10 / 2 / shards
    cpu = {
        "collect": shards / workers * 10 * (COSTS.step + envs * COSTS.row),
        "gradient": shards / workers * 6 * (COSTS.call + rows * COSTS.gradient_row),
        "exchange": 0.05 if workers > 1 else 0.0,
        "iteration": COSTS.compute(work, workers) + (0.05 if workers > 1 else 0.0),
    }
    return {"workers": workers, "shards": shards, "cpu": cpu}


CASE = {"batch": [8, 10, 2, 3], "parameters": 100, "row_bytes": 30, "normalizes": False}


def test_costs_are_found_again():
    case = CASE | {"ways": [way(1, 2), way(2, 2), way(1, 8)]}
    assert vars(fitted(case)) == pytest.approx(vars(COSTS))


def test_costs_by_row_where_one_number_of_shards_was_measured():
    found = fitted(CASE | {"ways": [{"workers": 1, "shards": 1}, way(2, 2)]})
    assert (found.step, found.call) == (0, 0)
    assert found.row == pytest.approx(COSTS.row + COSTS.step / 4)
    assert found.gradient_row == pytest.approx(COSTS.gradient_row + COSTS.call / 20)
    assert found.rest_row == pytest.approx(COSTS.rest_row)


def test_loopback_from_a_small_and_a_large_exchange():
    rows = [
        {"kind": "gradient", "numbers": 1_000, "fastest": 0.001},
        {"kind": "gradient", "numbers": 1_001_000, "fastest": 0.003},
        {"kind": "rollout", "numbers": 1_000, "fastest": 9.0},
    ]
    found = loopback({"2": {"rows": rows}})
    assert (found.latency, found.bandwidth) == (0.001, pytest.approx(2e9))


def test_the_slowest_worker_counts_and_the_least_waiting():
    def took(seconds, exchange):
        parts = {"iteration": seconds, "exchange": exchange}
        return {"seconds": parts, "cpu": parts, "calls": {"exchange": 7}, "sent_bytes": 9}

    trials = [
        {"load": 0.53, "workers": [[took(2, 1), took(4, 1)], [took(3, 0.5), took(4, 2)]]},
        {"load": 1.0, "workers": [[took(5, 3)], [took(5, 4)]]},
    ]
    found = summary(trials)
    assert (found["seconds"], found["fastest"]) == (4, 3)
    assert found["exchange_seconds"] == 1
    assert (found["exchanges"], found["sent_bytes"], found["load"]) == (7, 9, [0.5, 1.0])
    assert Way(2, 4).title == "2 of 1 thread, 4 shards"
