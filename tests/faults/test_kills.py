"""A process killed at any file operation leaves a run that resumes to the same bits."""

import io
import os
import shutil
import sys

import pytest

import isobatch
from isobatch import files
from isobatch.run.examine import examine
from isobatch.run.store import CLOCK_COLUMNS, read_metrics, read_policy

SMALL = {
    "n_envs": 2, "n_steps": 8, "n_minibatches": 1, "n_epochs": 1, "hidden_sizes": (4,),
    "compile": "off", "threads": 1, "env_threads": 1, "total_timesteps": 64, "keep_policies": 2,
    "eval_marks": 1, "eval_episodes": 1, "checkpoint_seconds": 1e-9, "exact_resume": True,
}  # fmt: skip
ALGOS = {
    "ppo": {},
    "ppg": {"algo": "ppg", "n_policy_iterations": 2, "n_aux_epochs": 1},
    "reinforce": {"algo": "reinforce"},
}
STRIDE = int(os.environ.get("ISOBATCH_KILL_STRIDE", "29"))
"""Every so many operations; 1 in `make test-faults`."""
KILLED, OVER = 9, 0


class Deadly:
    """The os module for files.py, in which the `fatal`-th change of the disk is the last."""

    CHANGES = ("open", "replace", "rename", "unlink", "mkdir", "ftruncate", "fsync")

    def __init__(self, fatal):
        self.fatal, self.count = fatal, 0

    def __getattr__(self, name):
        found = getattr(os, name)
        if name not in self.CHANGES:
            return found

        def counted(*arguments, **named):
            self.tick()
            return found(*arguments, **named)

        return counted

    def tick(self):
        self.count += 1
        if self.count == self.fatal:
            os._exit(KILLED)

    def fdopen(self, descriptor, mode="rb", buffering=-1):
        if "r" in mode:
            return os.fdopen(descriptor, mode, buffering)
        return HalfWritten(descriptor, mode.replace("b", ""), self)


class HalfWritten(io.BufferedWriter):
    """A file whose last write stops half-way."""

    def __init__(self, descriptor, mode, deadly):
        super().__init__(io.FileIO(descriptor, mode))
        self._deadly = deadly

    def write(self, content):
        if self._deadly.count + 1 == self._deadly.fatal:
            super().write(content[: len(content) // 2])
            self.flush()
        self._deadly.tick()
        return super().write(content)


def in_child(act, fatal):
    """Run `act` in a process that dies at a file operation; return how it ended, and the count."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        deadly = files.os = Deadly(fatal)
        code = 1
        try:
            act()
            code = OVER
            os.write(writing, str(deadly.count).encode())
        except BaseException as error:
            print(repr(error), file=sys.stderr)
        finally:
            os._exit(code)
    os.close(writing)
    _, status = os.waitpid(child, 0)
    with os.fdopen(reading) as file:
        count = file.read()
    return os.waitstatus_to_exitcode(status), int(count or 0)


def essence(path):
    rows = [
        {k: v for k, v in row.items() if k not in (*CLOCK_COLUMNS, "resumed")}
        for row in read_metrics(path)
    ]
    tensors, _ = read_policy(path)
    return rows, {name: each.numpy().tobytes() for name, each in tensors.items()}


@pytest.mark.parametrize(
    "algo", ["ppg", *(pytest.param(each, marks=pytest.mark.long) for each in ("ppo", "reinforce"))]
)
def test_old_or_new_never_neither(tmp_path, algo):
    settings = SMALL | ALGOS[algo]

    def train(out):
        isobatch.train("CartPole-v1", **settings, out=out, quiet=True)

    train(tmp_path / "whole")
    expected = essence(tmp_path / "whole")
    code, operations = in_child(lambda: train(tmp_path / "counted"), fatal=-1)
    assert code == OVER
    assert operations > 100
    for fatal in range(1 + operations % STRIDE, operations + 1, STRIDE):
        out = tmp_path / "killed"
        assert in_child(lambda out=out: train(out), fatal)[0] == KILLED, fatal
        if (out / "recipe.toml").exists():
            again, _ = in_child(lambda out=out: isobatch.resume(out, quiet=True), fatal // 2 + 1)
            assert again in (KILLED, OVER), fatal
            isobatch.resume(out, quiet=True)
        else:
            train(out)
        assert essence(out) == expected, f"killed at operation {fatal} of {operations}"
        assert all(each.is_whole for each in examine(out)), fatal
        litter = [name for name in os.listdir(tmp_path) if name.startswith(".")]
        assert not litter, f"killed at operation {fatal} of {operations}"
        shutil.rmtree(out)
