"""SIGTERM and SIGINT at a certain moment: in a rollout, an update, a save, an auxiliary phase."""

import os
import signal
import time

import pytest
from busy import soon
from inside import command, here

from isobatch.algos import ppg
from isobatch.envs.pool import PoolEnv
from isobatch.files import Folder
from isobatch.run.store import CLOCK_COLUMNS, read_metrics, read_policy
from isobatch.update import Stepper


class HalfWritten(Folder):
    """Writes in two halves."""

    def write(self, name, content):
        with self.replacing(name) as file:
            file.write(content[:100])
            file.flush()
            HalfWritten.pause(name)
            file.write(content[100:])

    @staticmethod
    def pause(name):
        pass


TRAIN = [
    "train", "CartPole-v1", "--algo", "ppg", "--n-envs", "2", "--n-steps", "8", "--n-minibatches",
    "1", "--n-policy-iterations", "3", "--n-aux-epochs", "1", "--hidden-sizes", "4",
    "--total-timesteps", "112", "--compile", "off", "--threads", "1", "--env-threads", "1",
    "--checkpoint-seconds", "3600", "--keep-policies", "0", "--n-epochs", "1", "--quiet",
]  # fmt: skip
MOMENTS = {
    "rollout": (PoolEnv, "step", 20),
    "update": (Stepper, "step", 3),
    "save": (HalfWritten, "pause", 4),
    "auxiliary phase": (ppg, "_gathering", 1),
}
"""What is called then, and the number of the call. The 4th write is the first checkpoint's."""


def interrupted(run, moment, number, *more, seconds=0.0):
    """Train until a signal at a moment, which takes so many seconds from then on.

    Return the seconds from the signal to the end of the process.
    """
    noted = run.with_name("signalled")
    owner, name, call = MOMENTS[moment]
    original, calls = getattr(owner, name), []

    def signalling(*arguments, **named):
        calls.append(name)
        if len(calls) == call:
            noted.write_text(str(time.monotonic()))
            os.kill(os.getpid(), number)
            time.sleep(seconds)
        return original(*arguments, **named)

    def prepare():
        setattr(Folder, "write", HalfWritten.write)  # noqa: B010
        setattr(owner, name, signalling)

    ended = command(*TRAIN, *more, "--out", run, before=prepare)
    took = time.monotonic() - float(noted.read_text())
    print(f"{signal.Signals(number).name} in {moment}: ended after {took:.2f} s")
    assert ended.code == 130, ended
    assert ended.said == []
    assert took < soon(10)
    assert here("check", run) == 0
    assert not list(run.rglob("*.new"))
    return took


def saved(run):
    return max(int(path.stem) for path in (run / "checkpoints").iterdir())


def essence(run):
    rows = [
        {k: v for k, v in row.items() if k not in (*CLOCK_COLUMNS, "resumed")}
        for row in read_metrics(run)
    ]
    return rows, {name: each.numpy().tobytes() for name, each in read_policy(run)[0].items()}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    run = tmp_path_factory.mktemp("whole") / "run"
    assert here(*TRAIN, "--exact-resume", "--out", run) == 0
    return essence(run)


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize(
    "number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.long)]
)
def test_the_iteration_is_finished_and_saved_and_the_run_resumes(tmp_path, whole, moment, number):
    run = tmp_path / "run"
    interrupted(run, moment, number, "--exact-resume")
    rows = read_metrics(run)
    assert len(rows) == {"rollout": 3, "update": 3, "save": 1, "auxiliary phase": 3}[moment]
    assert saved(run) == len(rows)
    assert here("resume", run, "--quiet") == 0
    assert essence(run) == whole


@pytest.mark.long
@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_what_takes_too_long_is_abandoned_and_the_run_resumes(tmp_path, moment, number):
    run = tmp_path / "run"
    took = interrupted(run, moment, number, seconds=5 if moment == "save" else 60)
    assert took > 4
    before = read_metrics(run)
    assert len(before) == {"rollout": 2, "update": 2, "save": 0, "auxiliary phase": 2}[moment]
    # Nothing of an update that was begun is saved: the checkpoint there was is gone on from.
    assert saved(run) == {"rollout": 2}.get(moment, 0)
    assert here("resume", run, "--quiet") == 0
    after = read_metrics(run)
    assert [row["iterations"] for row in after] == list(range(1, len(after) + 1))
    assert after[-1]["env_steps"] == sum(row["rows"] for row in after) > 110
    assert after[: saved_rows(moment)] == before[: saved_rows(moment)]


def saved_rows(moment):
    return 2 if moment == "rollout" else 0
