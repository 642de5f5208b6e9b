"""Runs of other versions: they go on, or are refused in a line that names the version."""

import shutil
from pathlib import Path

import pytest

import isobatch
from isobatch.errors import UserError
from isobatch.run.store import read_sealed, write_sealed

LAST = Path(__file__).parent / "golden" / "run-0.1.0"
"""PPO-EWMA on CartPole-v1 with normalised observations and rewards, 96 steps, by version 0.1.0."""


@pytest.fixture
def run(tmp_path):
    return Path(shutil.copytree(LAST, tmp_path / "run"))


def test_a_run_of_the_last_version_is_read_and_goes_on(run):
    before = isobatch.Run(run).metrics
    assert isobatch.evaluate(run, 2).returns
    assert isobatch.load(run).env_steps == 96
    done = isobatch.resume(run, total_timesteps=192, quiet=True)
    assert done.metrics[: len(before)] == before
    last = done.metrics[-1]
    assert (last["env_steps"], last["iterations"], last["grad_steps"]) == (191, 8, 12)
    # What version 0.1.0 itself had after as many steps, where it went on with the same run.
    assert last["episode_return"] == pytest.approx(19.555555555555557)


@pytest.mark.parametrize(
    ("change", "named"),
    [({"version": "9.9.0"}, "9.9.0"), ({"batch": None}, "an early 0.1.0")],
)
def test_a_checkpoint_it_cannot_read_is_refused_with_both_versions(run, change, named):
    for file in (run / "checkpoints").iterdir():
        tensors, numbers = read_sealed(file)
        numbers = {k: v for k, v in (numbers | change).items() if v is not None}
        write_sealed(file, tensors, numbers)
    with pytest.raises(UserError, match=f"written by Isobatch {named}; this is 0"):
        isobatch.resume(run, total_timesteps=192, quiet=True)


def test_a_checkpoint_says_which_version_wrote_it(tmp_path):
    path = tmp_path / "run"
    isobatch.train("CartPole-v1", out=path, quiet=True, n_envs=2, n_steps=8, total_timesteps=32)
    for file in (path / "checkpoints").iterdir():
        assert read_sealed(file)[1]["version"] == isobatch.__version__
