"""A run that several processes train, when what can go wrong does.

Each test trains a small run with the command line's own words, and leaves no process behind.
"""

import multiprocessing
import os
import random
import re
import resource
import shutil
import signal
import socket
import sys
import time
from contextlib import suppress
from itertools import pairwise

import pytest
from busy import soon
from runs import PATHS, alive, descendants, numbers, rows_of, wait_until, workers_of

from isobatch.cli import main
from isobatch.errors import UserError
from isobatch.presets import preset
from isobatch.run.training import refuse_inelastic, with_workers

# A server with the imports done forks a command in milliseconds; its workers begin from nothing.
SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(["isobatch.cli.flags", "isobatch.run.loop", "isobatch.workers.agent"])
SMALL = ["--n-envs", 8, "--n-steps", 32, "--n-epochs", 2, "--checkpoint-seconds", 0.1]
CARTPOLE = ["train", "CartPole-v1", *SMALL]
KILLS = int(os.environ.get("ISOBATCH_WORKER_KILLS", "20"))


def run_command(words, folder, most_bytes):
    """Run a command in a session of its own; what it prints goes to files."""
    for number, name in ((1, "out"), (2, "err")):
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND
        os.dup2(os.open(folder / name, flags), number)
    os.setsid()
    os.environ["PYTHONPATH"] = PATHS
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if most_bytes is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, most_bytes))
    sys.exit(main([str(word) for word in words]))


class Command:
    """An isobatch command, its workers and the run directory that it writes."""

    def __init__(self, folder, words, most_bytes=None):
        self.folder, self.run = folder, folder / "run"
        self.began = time.monotonic()
        self.process = SERVER.Process(target=run_command, args=(words, folder, most_bytes))
        self.process.start()

    @property
    def pid(self):
        assert self.process.pid is not None
        return self.process.pid

    def rows(self):
        return rows_of(self.run)

    def workers(self):
        """Return the pids of the workers by rank, as many as there are."""
        return workers_of(self.pid)

    def wait_for_rows(self, count, seconds=60.0):
        wait_until(lambda: len(self.rows()) >= count or not self.process.is_alive(), seconds)
        assert len(self.rows()) >= count, self.said()

    def said(self):
        return (self.folder / "err").read_text()

    def printed(self):
        return (self.folder / "out").read_text()

    def code(self, seconds=60.0):
        self.process.join(soon(seconds))
        assert self.process.exitcode is not None, f"it does not end: {self.said()}"
        return self.process.exitcode


@pytest.fixture
def run(tmp_path):
    return tmp_path / "run"


@pytest.fixture
def start(tmp_path):
    commands = []

    def started(*words, **options):
        commands.append(Command(tmp_path, [*words, "--quiet"], **options))
        return commands[-1]

    yield started
    left = []
    for command in commands:
        left += descendants(command.pid)
        command.process.kill()
        command.process.join()
    with suppress(AssertionError):
        wait_until(lambda: not any(alive(pid) for pid in left), 10)
    orphans = [pid for pid in left if alive(pid)]
    for pid in orphans:
        os.kill(pid, signal.SIGKILL)
    assert not orphans, "workers outlived their agent"


def check_whole(run, budget, resumed=1):
    """Assert that a run is complete, with every row once and as many resumes as there were."""
    rows = rows_of(run)
    assert [row["iterations"] for row in rows] == list(range(1, len(rows) + 1))
    steps = [0, *(row["env_steps"] for row in rows)]
    assert [after - before for before, after in pairwise(steps)] == [row["rows"] for row in rows]
    assert budget - 8 < steps[-1] <= budget
    assert sum("resumed" in row for row in rows) == resumed
    return rows


def test_a_worker_that_is_killed_is_restarted_and_the_run_completes(start, run):
    command = start(*CARTPOLE, "--total-timesteps", 8000, "--workers", 2, "--out", run)
    command.wait_for_rows(4)
    victim = command.workers()[1]
    os.kill(victim, signal.SIGKILL)
    assert command.code() == 0, command.said()
    check_whole(run, 8000)
    said = command.said().splitlines()
    host = socket.gethostname()
    assert f"isobatch: worker 1 (pid {victim} on {host}) was killed by SIGKILL" in said
    assert said[-1] == "isobatch: starting all 2 workers again, restart 1 of 3"
    assert len(said) <= 3, "worker 0 may say that an exchange failed, and nothing else"
    assert command.printed().count("\n") == 1


def test_a_run_whose_agent_was_killed_goes_on_with_one_worker_and_with_two(start, run, tmp_path):
    words = ["--total-timesteps", 4000, "--workers", 2, "--shards", 4, "--out", run]
    command = start(*CARTPOLE, *words)
    command.wait_for_rows(4)
    workers = command.workers()
    assert len(workers) == 2
    command.process.kill()
    wait_until(lambda: not any(alive(pid) for pid in workers.values()), 5)
    shutil.copytree(run, tmp_path / "copy")
    assert start("resume", run, "--workers", 1).code() == 0
    together = start("resume", tmp_path / "copy", "--workers", 2)
    assert together.code() == 0, together.said()
    alone = check_whole(run, 4000)
    assert numbers(alone) == numbers(check_whole(tmp_path / "copy", 4000))
    assert not together.said()


@pytest.mark.parametrize("whom", [pytest.param("agent", marks=pytest.mark.long), "group"])
def test_ctrl_c_saves_and_says_how_to_go_on(start, run, whom):
    command = start(*CARTPOLE, "--total-timesteps", 500_000, "--workers", 2, "--out", run)
    command.wait_for_rows(3)
    began = time.monotonic()
    (os.kill if whom == "agent" else os.killpg)(command.pid, signal.SIGINT)
    assert command.code() == 130, command.said()
    assert time.monotonic() - began < soon(10)
    last = command.rows()[-1]
    expected = f"stopped after {last['env_steps']:,} env steps; resume with: isobatch resume {run}"
    assert command.printed() == f"{expected}\n"
    assert command.said() == ""
    saved = sorted((run / "checkpoints").glob("*.safetensors"))[-1]
    assert int(saved.stem) == last["iterations"], "what was learned last is not saved"


def test_an_environment_that_raises_in_one_worker_ends_all_in_a_line(start, run, tmp_path):
    once = tmp_path / "once"
    words = ["train", "failing_envs:Failing-v0", *SMALL, "--n-minibatches", 4]
    options = ["--env-options", "at=100", f"once={once}", "--total-timesteps", 2000]
    command = start(*words, *options, "--workers", 2, "--shards", 4, "--out", run)
    assert command.code() == 2
    (line,) = command.said().splitlines()
    found = re.fullmatch(
        r"isobatch: failing_envs:Failing-v0 failed \(environment [01], step (\d+)\): "
        "RuntimeError: a wheel came off",
        line,
    )
    assert found is not None, line
    assert len(command.rows()) == (int(found[1]) - 1) // 32 == 3
    again = start("resume", run, "--env", "failing_envs:Failing-v0")
    assert again.code() == 0, again.said()
    check_whole(run, 2000)


@pytest.mark.long
def test_a_disk_that_is_full_is_said_in_a_line(start, run):
    # The rows of 30 iterations are larger than such a checkpoint: what was saved is whole.
    words = ["--hidden-sizes", 8, "--total-timesteps", 25_600, "--workers", 2, "--out", run]
    command = start(*CARTPOLE, *words, most_bytes=40_000)
    assert command.code() == 2, command.said()
    assert command.said() == "isobatch: the disk is full; files written so far are intact\n"
    assert 20 < len(command.rows()) < 50
    assert main(["check", str(run)]) == 0


@pytest.mark.long
def test_an_output_that_cannot_be_written_is_said_in_a_line(start):
    command = start(*CARTPOLE, "--workers", 2, "--out", "/dev/null/run")
    assert command.code() == 2
    assert command.said() == "isobatch: cannot make the run directory /dev/null/run: File exists\n"


REFUSED = {
    "--workers 0": "argument --workers: must be at least 1, got '0'",
    "--workers -1": "argument --workers: must be at least 1, got '-1'",
    "--workers 1000": "argument --workers: must be at most 256, got '1000'",
    "--workers 2 --max-restarts -1": "argument --max-restarts: must be at least 0, got '-1'",
    "--workers 2 --seeds 3": "--workers train one run together: leave --seeds or --workers out",
    "--workers 2 --profile": "--profile times one process: leave --profile or --workers out",
    "--workers 2 --shards 4 --n-envs 10": "n_envs 10 cannot be dealt to 4 equal shards",
    "--workers 2 --normalize-observations --update-statistics step": "shards 2: update_statistics ",
    "--workers 2 --batch-schedule adaptive": "shards 2: batch_schedule adaptive changes n_envs",
    "--workers 2 --compile on": "shards 2: compile on is for updates of one process",
    "--workers 2 --shards 3 --n-envs 9 --elastic rescale": "n_envs 9 is not as many for each of 2",
    "--workers 2 --shards 3 --n-envs 6 --elastic rescale": "shards 3 is not as many for each of 2",
    "--workers 2 --elastic rescale --batch-schedule 0:8x32,50%:16x32": "rescale: batch_schedule ",
    "--workers 2 --elastic rescale --exact-resume": "exact_resume keeps environments, ",
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_workers_cannot_train_is_refused_before_any_is_started(words, run, tmp_path, capsys):
    assert main(["train", "CartPole-v1", *words.split(), "--out", str(run)]) == 2
    printed, said = capsys.readouterr()
    assert REFUSED[words] in said
    assert said.count("\n") == 1
    assert not printed
    assert not list(tmp_path.iterdir())


def test_resuming_with_what_the_run_cannot_have_is_refused(run, capsys):
    words = ["--n-envs", "8", "--n-steps", "8", "--total-timesteps", "64", "--out", str(run)]
    assert main(["train", "CartPole-v1", *words, "--quiet"]) == 0
    capsys.readouterr()
    for options, expected in (
        (["--workers", "2"], "is computed by 1 shard, as it began: resume it with --workers 1"),
        (["--workers", "2", "--profile"], "--profile times one process"),
        (["--workers", "2", "--from-scratch"], "--from-scratch is for one process"),
    ):
        assert main(["resume", str(run), *options]) == 2
        said = capsys.readouterr().err
        assert expected in said
        assert said.count("\n") == 1


ELASTIC = preset(
    "CartPole-v1", "ppo-ewma", n_envs=24, n_steps=128, n_minibatches=4, shards=12, elastic="rescale"
)  # fmt: skip
MOVES = ("n_envs", "shards", "learning_rate", "proximal_decay")


def of_workers(count):
    """Return what a checkpoint says of a run that began with so many workers."""
    return {"counters": {"workers": count}}


def test_a_batch_that_follows_the_workers_comes_back_with_them():
    begun = of_workers(4)
    fewer = with_workers(ELASTIC, begun, 3)
    assert (fewer.batch.n_envs, fewer.machine.shards) == (18, 9)
    # A minibatch of 3/4 as many rows: Adam's step goes by the square root; the average of the
    # policy looks back over as much data, of gradient steps each of which sees less.
    value, other = ELASTIC.values, fewer.values
    assert other["learning_rate"] == pytest.approx(value["learning_rate"] * 0.75**0.5)
    assert (1 - other["proximal_decay"]) / (1 - value["proximal_decay"]) == pytest.approx(
        0.75, rel=0.05
    )
    assert {name for name, each in other.items() if each != value[name]} >= set(MOVES)
    assert with_workers(ELASTIC, begun, 4) is ELASTIC, "as it began, to the bit"
    more = with_workers(ELASTIC, begun, 8)
    assert (more.batch.n_envs, more.machine.shards) == (48, 24)
    # There and back by the rules alone, as when the first to be seen again is the smaller one.
    back = with_workers(fewer, of_workers(3), 4).values
    moved = {name: each for name, each in value.items() if back[name] != each}
    assert {name: back[name] for name in moved} == pytest.approx(moved, rel=1e-12)


def test_a_run_without_a_checkpoint_began_with_the_workers_there_are():
    assert with_workers(ELASTIC, None, 3) is ELASTIC
    assert with_workers(ELASTIC.replace(elastic="hold"), of_workers(4), 3).batch.n_envs == 24


def test_a_batch_that_cannot_follow_the_workers_is_refused():
    with pytest.raises(UserError, match="n_envs 24 is not as many for each of 5 workers"):
        refuse_inelastic(ELASTIC, 5)
    with pytest.raises(UserError, match="shards 12 is not as many for each of 8 workers"):
        with_workers(ELASTIC, of_workers(8), 4)


EXACT = [*CARTPOLE, "--total-timesteps", 6000, "--shards", 4, "--exact-resume"]


class TestKills:
    """SIGKILL at random moments: as workers start, as they train, in a checkpoint, at the end."""

    @pytest.mark.long
    def test_a_run_killed_at_any_moment_gives_the_rows_of_one_that_was_not(self, tmp_path):
        whole = Command(tmp_path, [*EXACT, "--workers", 2, "--out", tmp_path / "run"])
        assert whole.code(300) == 0, whole.said()
        seconds, rows = time.monotonic() - whole.began, whole.rows()
        chance, report = random.Random(0), []
        for kill in range(KILLS):
            folder = tmp_path / str(kill)
            folder.mkdir()
            words = [*EXACT, "--workers", 2, "--out", folder / "run", "--quiet"]
            command = Command(folder, words)
            try:
                report.append(self.killed(command, kill, chance, seconds, len(rows)))
            finally:
                command.process.kill()
            found = numbers(command.rows())
            assert [row | {"resumed": None} for row in found] == [
                row | {"resumed": None} for row in numbers(rows)
            ], report[-1]
            assert sum("resumed" in row for row in found) <= 1
        print(f"undisturbed: {seconds:.1f} s", *report, sep="\n")
        assert sum("killed" in line for line in report) >= KILLS - 2, "kills came too late"

    def killed(self, command, kill, chance, seconds, count):
        """Kill one of its workers; return what became of it, in a line."""
        moment, rank = ("start", "checkpoint", "end", "any", "any")[kill % 5], chance.randrange(2)
        wait_until(lambda: len(command.workers()) == 2)
        if moment == "start":
            time.sleep(chance.uniform(0, 0.4 * seconds))
        elif moment == "any":
            command.wait_for_rows(chance.randrange(count - 2))
            time.sleep(chance.uniform(0, 0.2))
        elif moment == "checkpoint":
            command.wait_for_rows(chance.randrange(1, 8))
            folder, rank = command.run / "checkpoints", 0
            wait_until(lambda: any(name.endswith(".new") for name in os.listdir(folder)))
        else:
            command.wait_for_rows(count - chance.randrange(2))
        had, began = len(command.rows()), time.monotonic()
        victim = command.workers().get(rank)
        if victim is None:
            return f"{kill}: {moment}, too late; exit code {command.code()}"
        os.kill(victim, signal.SIGKILL)
        wait_until(lambda: len(command.rows()) > had or not command.process.is_alive(), 120)
        lost = time.monotonic() - began
        assert command.code(300) == 0, command.said()
        assert "Traceback" not in command.said()
        return f"{kill}: {moment}, worker {rank} killed after {had} rows; {lost:.1f} s lost"


@pytest.mark.long
def test_a_worker_that_is_stopped_is_named_within_30_seconds_and_replaced(start, run):
    command = start(*CARTPOLE, "--total-timesteps", 8000, "--workers", 2, "--out", run)
    command.wait_for_rows(4)
    victim = command.workers()[1]
    os.kill(victim, signal.SIGSTOP)
    began = time.monotonic()
    name = f"worker 1 (pid {victim} on {socket.gethostname()}) has not been heard from for 2"
    wait_until(lambda: name in command.said(), 60)
    assert time.monotonic() - began < soon(32)
    assert command.code(120) == 0, command.said()
    check_whole(run, 8000)


@pytest.mark.long
def test_uneven_shares_more_shards_and_idle_workers_train_the_same_run(start, run, tmp_path):
    words = [*CARTPOLE, "--total-timesteps", 2000]
    uneven = start(*words, "--workers", 3, "--shards", 8, "--out", run)
    assert uneven.code() == 0, uneven.said()
    alone = start(*words, "--shards", 8, "--out", tmp_path / "alone")
    assert alone.code() == 0
    assert numbers(rows_of(run)) == numbers(rows_of(tmp_path / "alone"))

    raised = Command(tmp_path, [*words, *["--workers", 4, "--shards", 2, "--out", tmp_path / "4"]])
    assert raised.code() == 0, raised.said()
    assert raised.printed().startswith("4 shards, for 4 workers: the last bits are those of ")
    four = start(*words, "--shards", 4, "--out", tmp_path / "4-alone")
    assert four.code() == 0
    assert numbers(rows_of(tmp_path / "4")) == numbers(rows_of(tmp_path / "4-alone"))
