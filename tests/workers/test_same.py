"""The number of workers changes who computes, never what is computed."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from workers import several

import isobatch
from isobatch.run.store import CLOCK_COLUMNS, read_policy
from isobatch.run.training import train

HERE = Path(__file__).parent
LAUNCH = """
import sys
from isobatch.workers.agent import launch
sys.exit(launch(int(sys.argv[1]), sys.argv[2:], 0, module="several"))
"""


def work(workers: int, task: str, folder: Path) -> None:
    """Have a task of `several` done by so many processes."""
    env = os.environ | {"PYTHONPATH": f"{HERE}:{HERE.parents[1]}"}
    command = [sys.executable, "-c", LAUNCH, str(workers), task, str(folder)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr


def rows(path: Path) -> list[dict[str, Any]]:
    """Return a run's metrics, but for the clock's columns and what marks a resume."""
    left_out = {*CLOCK_COLUMNS, "resumed"}
    return [
        {name: value for name, value in row.items() if name not in left_out}
        for row in isobatch.Run(path).metrics
    ]


def weights(path: Path) -> dict[str, torch.Tensor]:
    """Return a run's policy and statistics."""
    return read_policy(path)[0]


def same(one: Path, other: Path) -> None:
    """Compare two runs bit by bit."""
    assert rows(one) == rows(other)
    first, second = weights(one), weights(other)
    assert first.keys() == second.keys()
    for name, tensor in first.items():
        assert torch.equal(tensor, second[name]), name


@pytest.fixture(scope="module")
def alone(tmp_path_factory) -> Path:
    """The runs of `several` by one process that owns all shards."""
    folder = tmp_path_factory.mktemp("alone")
    several.train(None, folder)
    return folder


# Three own 1, 1 and 2 of four shards; of five one owns none.
@pytest.mark.parametrize(
    "workers", [3, *(pytest.param(each, marks=pytest.mark.long) for each in (2, 4, 5, 8))]
)
def test_any_number_of_workers_gives_the_same_bits(workers, alone, tmp_path):
    work(workers, "train", tmp_path)
    for name in several.RECIPES:
        same(alone / name, tmp_path / name)
    assert any(row.get("stopped_early") for row in rows(tmp_path / "ppo"))
    assert any(row.get("reshaped") for row in rows(tmp_path / "ppo"))
    ours, theirs = (isobatch.Run(each / "ppo").evaluations for each in (alone, tmp_path))
    assert [row["returns"] for row in ours] == [row["returns"] for row in theirs]
    assert len(theirs) == 3


def test_a_run_resumes_with_other_workers_as_if_it_had_not_stopped(tmp_path):
    work(3, "begin", tmp_path)
    work(2, "go_on", tmp_path)
    several.finish(None, tmp_path)
    for name, recipe in several.exactly().items():
        train(recipe=recipe, out=tmp_path / "whole" / name, quiet=True)
        same(tmp_path / "whole" / name, tmp_path / name)
        resumed = sum("resumed" in row for row in isobatch.Run(tmp_path / name).metrics)
        assert resumed == 2, name


def test_moments_of_a_workers_own_rows_change_what_is_learned(tmp_path):
    """Of advantages, as CleanRL and rsl_rl have them, and of observations."""
    work(2, "wrong", tmp_path)
    right = weights(tmp_path / "right")
    for other in ("advantages", "observations"):
        moved = max(
            float((right[name] - each).abs().max())
            for name, each in weights(tmp_path / other).items()
            if name.startswith("model.")
        )
        assert moved > 1e-3, other
