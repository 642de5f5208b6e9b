"""The arithmetic of the comparison with other libraries, and Isobatch's own part in it."""

import json
import sys
from dataclasses import replace

import numpy as np
import pytest

import isobatch
from benchmarks import scaling
from benchmarks.peers import cleanrl
from benchmarks.peers.cases import CASES, Case
from benchmarks.peers.isobatch import flags, read_together, settings
from benchmarks.peers.record import Watch, mean_or_none
from benchmarks.peers.run import PEERS, combine, measure, shares, turns
from benchmarks.peers.summary import summarize, table
from benchmarks.probe_prediction import slower

TINY = replace(CASES["cartpole-8x128"], n_envs=2, n_steps=16, total_timesteps=160, warm_up=1)


def found(rate: float, cold: float, peak: float, reached: float | None = 1.0) -> dict:
    return {
        "warm_rate": rate,
        "cold_seconds": cold,
        "cold_rate": 100 / cold,
        "start_up_seconds": 1.0,
        "compile_seconds": None,
        "peak_mb": peak,
        "return": reached,
    }


def test_turns_alternate():
    assert turns(["a", "b", "c"], 3) == [["a", "b", "c"], ["c", "b", "a"], ["a", "b", "c"]]


def test_seeds_are_dealt_out_once_each():
    assert shares([1, 2, 3, 4, 5], 2) == [[1, 3, 5], [2, 4]]
    assert shares([1], 2) == [[1]]


def test_the_watch_leaves_out_start_up_and_warm_up():
    watch = Watch(started=10.0)
    watch.begin(warm_up=1, at=13.0)
    for steps, at in ((100, 18.0), (200, 19.0), (300, 20.5)):
        watch.mark(steps, at)
    assert watch.start_up == 3.0
    assert watch.warm == (200, 2.5)
    watch.begin(warm_up=1, at=30.0)  # a second seed
    watch.mark(100, 31.0)
    with pytest.raises(ValueError, match="1 iterations, of which 1 warm up"):
        _ = watch.warm
    watch.mark(200, 33.0)
    assert watch.warm == (300, 4.5)
    assert watch.env_steps == 500
    assert watch.start_up == 3.0


def test_processes_side_by_side_add_up():
    def process(seconds: float, cold: float, peak: float, returns: list) -> dict:
        return {
            "start_up_seconds": 1.0,
            "compile_seconds": None,
            "cold_seconds": cold,
            "env_steps": 500,
            "warm_steps": 400,
            "warm_seconds": seconds,
            "peak_mb": peak,
            "returns": returns,
            "versions": {},
        }

    both = combine([process(2.0, 8.0, 300, [10.0, None]), process(4.0, 10.0, 200, [20.0])])
    assert both["warm_rate"] == 300
    assert both["cold_rate"] == 100
    assert both["peak_mb"] == 500
    assert both["return"] == 15.0
    assert both["returns"] == [10.0, None, 20.0]
    assert combine([{"cannot": "why"}]) == {"cannot": "why"}


def test_ratios_are_taken_within_a_repeat():
    """The second repeat is slow for both: the ratio of medians would be 300 / 150."""
    repeats = [
        {"isobatch": found(400, 10, 200), "sb3": found(100, 30, 400)},
        {"isobatch": found(200, 20, 200), "sb3": found(100, 60, 400)},
        {"isobatch": found(300, 10, 200), "sb3": found(300, 10, 400)},
    ]
    ratios = summarize(repeats)["sb3"]["ratios"]
    assert ratios["warm_rate"] == {"median": 2.0, "low": 1.0, "high": 4.0}
    assert ratios["cold_rate"]["median"] == pytest.approx(3.0)
    assert ratios["peak_mb"]["median"] == 0.5


def test_the_table_has_a_row_for_each_and_a_reason_for_who_cannot():
    repeats = [
        {
            "isobatch": {"cannot": "no --seeds"},
            "isobatch-processes": found(400, 10, 200, None),
            "sb3": found(100, 30, 400, 12.345),
        }
    ]
    lines = table(summarize(repeats)).splitlines()
    assert lines[0].count("|") == lines[1].count("|") == lines[2].count("|") == lines[3].count("|")
    assert lines[2].startswith("| isobatch-processes | 400 |  | 10.0 |")
    assert lines[2].endswith("| - |")
    assert "| sb3 | 100 | **4.00** (4.00 to 4.00) | 30.0 |" in lines[3]
    assert lines[3].endswith("| **0.50** (0.50 to 0.50) | 12.35 |")
    assert lines[4:] == ["", "isobatch: no --seeds"]


def test_the_return_reached_is_that_of_the_last_episodes():
    assert mean_or_none([]) is None
    assert mean_or_none([0.0] * 50 + [1.0] * 100) == 1.0


def test_every_case_cuts_into_whole_minibatches_and_has_warm_iterations():
    points = [case for sweep in scaling.SWEEPS.values() for case in sweep.points.values()]
    for case in [*CASES.values(), *points]:
        assert case.rollout_size % case.n_minibatches == 0
        assert case.total_timesteps // case.rollout_size > case.warm_up
        assert Case.from_json(json.loads(json.dumps(case.to_json()))) == case


def test_every_case_is_a_recipe():
    for case in CASES.values():
        recipe = isobatch.preset(case.env, **settings(case, "auto"))
        assert recipe.batch.rollout_size == case.rollout_size
        assert recipe.total_timesteps == case.total_timesteps


def test_isobatch_trains_a_tiny_case_in_a_process_of_its_own():
    result = measure(sys.executable, PEERS["isobatch"], TINY)
    assert "cannot" not in result, result
    assert 160 - 2 * 5 <= result["env_steps"] <= 160  # EnvPool's resets are no steps
    assert 0 < result["start_up_seconds"] < result["cold_seconds"]
    assert result["warm_rate"] > 0
    assert result["peak_mb"] > 50
    assert set(result["versions"]) >= {"isobatch", "torch"}


def test_an_adapter_that_fails_says_so():
    result = measure(sys.executable, PEERS["isobatch"], replace(TINY, n_minibatches=1000))
    assert result["cannot"].startswith("failed: isobatch.errors.UserError")


def test_runs_trained_together_are_read_as_one(tmp_path):
    case = replace(TINY, n_seeds=2)
    for seed in (1, 2):
        isobatch.train(
            case.env, seed=seed, out=tmp_path / f"{seed}", quiet=True, **settings(case, "auto")
        )
    watch = Watch(started=0.0)
    returns = read_together(tmp_path, case.warm_up, watch)
    assert len(returns) == 2
    assert 2 * (160 - 2 * 5) <= watch.env_steps <= 320
    steps, seconds = watch.warm
    assert 0 < steps < watch.env_steps
    assert seconds > 0


def test_recipe_fields_become_flags():
    words = flags({"n_envs": 8, "hidden_sizes": [64, 64], "episodic_life": False, "stagger": True})
    assert words == [
        "--n-envs", "8", "--hidden-sizes", "64", "64", "--no-episodic-life", "--stagger",
    ]  # fmt: skip


def test_cleanrl_s_output_is_read():
    watch, returns, marks = Watch(started=0.0), [], 0
    lines = ["global_step=64, episodic_return=[23.5]", "SPS: 32", "episodic_return=-7.0", "SPS: 40"]
    for line in lines:
        marks = cleanrl.read(line, TINY, marks, watch, returns)
    assert (marks, returns) == (2, [23.5, -7.0])
    assert watch.env_steps == 2 * TINY.rollout_size
    steps, _ = watch.warm
    assert steps == TINY.rollout_size


def test_steps_to_the_same_progress_are_counted_from_mean_curves():
    grid = np.linspace(0, 100, 201)
    noise = np.random.default_rng(0).normal(size=(10, 1))
    own, half_as_fast = grid + noise, grid / 2 + noise
    assert slower(grid, own, own) == 1
    assert slower(grid, own, half_as_fast) == 2
    assert slower(grid, half_as_fast, own) == 0.5
    assert slower(grid, own, own * 0) == np.inf  # Never there, rather than late.
