"""Environments that fail, signals that come at a bad time, numbers that are none."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from busy import soon
from failing_envs import Failing
from probe_envs import Counter, TensorCounter

import isobatch
from isobatch import UserError
from isobatch.envs import supervised
from isobatch.envs.faults import EnvironmentFailed
from isobatch.envs.supervised import SupervisedEnv
from isobatch.run import interrupt
from isobatch.run.store import CLOCK_COLUMNS, read_checkpoint, read_sealed

TESTS = Path(__file__).parent
HOWS = ("sync", "async", "supervised")
TINY: dict[str, Any] = {
    "n_envs": 2, "n_steps": 8, "n_minibatches": 2, "n_epochs": 1, "total_timesteps": 96,
    "compile": "off", "quiet": True,
}  # fmt: skip


def tiny(**changes: Any) -> dict[str, Any]:
    return TINY | changes


def iterations_saved(path):
    return [int(file.stem) for file in sorted((path / "checkpoints").glob("*.safetensors"))]


def children(pid):
    """Return the processes that `pid` has started."""
    found = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True)
    return [int(line) for line in found.stdout.split()]


def wait_until(holds, seconds=60.0):
    deadline = time.monotonic() + soon(seconds)
    while not holds():
        assert time.monotonic() < deadline, "it does not come"
        time.sleep(0.05)


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.fixture
def out(tmp_path):
    return tmp_path / "run"


@pytest.fixture
def started(tmp_path):
    """Start a training command whose environment 0 or 1 fails at its 20th step."""
    commands = []

    def start(how, vectorization):
        told = tmp_path / "failing"
        words = [
            *["train", "failing_envs:Failing-v0", "--n-envs", 2, "--n-steps", 8],
            *["--n-minibatches", 2, "--compile", "off", "--vectorization", vectorization],
            *["--env-options", f"how={how}", f"told={told}", "--out", tmp_path / "run"],
        ]
        path = os.pathsep.join([str(TESTS.parent), str(TESTS)])
        commands.append(
            subprocess.Popen(
                [sys.executable, "-m", "isobatch", *map(str, words)],
                env=os.environ | {"PYTHONPATH": path},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
        wait_until(told.exists)
        return commands[-1]

    yield start
    for command in commands:
        command.kill()
        command.communicate()


class TestSignals:
    @pytest.mark.parametrize(
        ("how", "vectorization", "number"),
        [
            ("hang", "async", signal.SIGINT),
            pytest.param("deaf", "supervised", signal.SIGTERM, marks=pytest.mark.long),
            pytest.param("hang", "sync", signal.SIGTERM, marks=pytest.mark.long),
        ],
    )
    def test_a_hung_environment_does_not_keep_a_run(self, started, out, how, vectorization, number):
        command = started(how, vectorization)
        crew = children(command.pid)
        assert len(crew) == (0 if vectorization == "sync" else 2)
        command.send_signal(number)
        output, complaint = command.communicate(timeout=soon(10))
        assert command.returncode == 130
        assert "isobatch resume" in output
        assert complaint == ""
        assert not any(alive(pid) for pid in crew)
        # 8 steps an iteration of each environment, and the 20th failed.
        assert iterations_saved(out)[-1] == 2

    def test_what_no_exception_ends_is_ended_by_the_process(self, started, out):
        command = started("deaf", "sync")
        command.send_signal(signal.SIGTERM)
        _, complaint = command.communicate(timeout=soon(10))
        assert command.returncode == 128 + signal.SIGTERM
        assert len(complaint.splitlines()) == 1
        assert "checkpoint" in complaint
        assert iterations_saved(out) == [0]

    @pytest.mark.parametrize("vectorization", ["async", "supervised"])
    def test_a_killed_run_leaves_no_process(self, started, vectorization):
        command = started("hang", vectorization)
        crew = children(command.pid)
        assert len(crew) == 2
        command.kill()
        command.wait()
        wait_until(lambda: not any(alive(pid) for pid in crew), 5)

    def test_a_rollout_that_takes_too_long_is_abandoned_and_the_run_resumes(self, out, monkeypatch):
        monkeypatch.setattr(interrupt, "GRACE", 0.2)

        class Stopped(Counter):
            def step(self, action):
                if self.journal.transitions == 14:
                    signal.raise_signal(signal.SIGTERM)
                    time.sleep(60)
                return super().step(action)

        run = isobatch.train(make_env=Stopped, **tiny(n_envs=1), out=out)
        assert run.interrupted
        assert [row["iterations"] for row in run.metrics] == [1, 2]
        assert iterations_saved(out) == [0, 2]
        before = run.metrics
        again = isobatch.resume(out, make_env=Counter, quiet=True)
        assert not again.interrupted
        assert again.metrics[:2] == before

    def test_an_abandoned_rollout_leaves_no_trace_in_what_is_saved(self, out, monkeypatch):
        monkeypatch.setattr(interrupt, "GRACE", 0.2)

        class Stopped(Counter):
            def step(self, action):
                if self.journal.transitions == 14:
                    signal.raise_signal(signal.SIGINT)
                    time.sleep(60)
                return super().step(action)

        one = tiny(n_envs=1)
        isobatch.train(make_env=Stopped, **one, out=out)
        plain = out.with_name("plain")
        isobatch.train(make_env=Counter, **one, out=plain, on_iteration=second)
        abandoned, whole = read_checkpoint(out), read_checkpoint(plain)
        assert abandoned is not None
        assert whole is not None
        assert all(torch.equal(abandoned[name], whole[name]) for name in whole)

    def test_an_update_that_takes_too_long_is_not_saved_half_done(self, out, monkeypatch):
        from isobatch.algos.ppo import Ppo

        monkeypatch.setattr(interrupt, "GRACE", 0.2)
        learn = Ppo.learn

        def slow(self, rollout):
            learned = learn(self, rollout)
            if self.state.counters.iterations == 2:
                signal.raise_signal(signal.SIGINT)
                time.sleep(60)
            return learned

        monkeypatch.setattr(Ppo, "learn", slow)
        run = isobatch.train(make_env=Counter, **TINY, checkpoint_seconds=0, out=out)
        assert run.interrupted
        assert iterations_saved(out) == [1, 2]
        monkeypatch.setattr(Ppo, "learn", learn)
        isobatch.resume(out, make_env=Counter, quiet=True)

    def test_a_write_is_finished_before_it_is_abandoned(self, monkeypatch):
        monkeypatch.setattr(interrupt, "GRACE", 0.1)
        done = []

        def write():
            with interrupt.stop_requests() as stop:
                with stop.held():
                    signal.raise_signal(signal.SIGTERM)
                    time.sleep(0.4)
                    done.append("written")
                done.append("too much")

        with pytest.raises(interrupt.Abandoned):
            write()
        assert done == ["written"]

    def test_a_second_ctrl_c_ends_at_once(self):
        def stop_twice():
            with interrupt.stop_requests():
                signal.raise_signal(signal.SIGINT)
                signal.raise_signal(signal.SIGINT)
                time.sleep(60)

        with pytest.raises(KeyboardInterrupt):
            stop_twice()

    def test_a_signal_to_a_forked_process_is_its_own(self, monkeypatch):
        monkeypatch.setattr(interrupt, "GRACE", 0.1)
        with interrupt.stop_requests() as stop:
            pid = os.fork()
            if pid == 0:
                time.sleep(60)
                os._exit(0)
            os.kill(pid, signal.SIGTERM)
            _, status = os.waitpid(pid, 0)
            time.sleep(0.5)
        assert os.WTERMSIG(status) == signal.SIGTERM
        assert not stop.requested


def second(row):
    return row["iterations"] < 2


class TestFailures:
    @pytest.mark.parametrize("vectorization", ["sync", "async"])
    def test_an_exception_is_named_and_the_run_resumes(self, out, vectorization):
        words = tiny(vectorization=vectorization, out=out)
        with pytest.raises(EnvironmentFailed) as caught:
            isobatch.train(make_env=Failing, **words)
        said = str(caught.value)
        # The reset row after each of four episodes of 5 steps is a step too.
        assert "environment " in said
        assert "step 23" in said
        assert said.endswith("RuntimeError: a wheel came off")
        assert isinstance(caught.value.__cause__, RuntimeError)
        assert iterations_saved(out) == [0, 2]
        run = isobatch.resume(out, make_env=Counter2, quiet=True)
        assert run.metrics[-1]["env_steps"] > 94

    def test_an_exception_of_a_tensor_environment_too(self, out):
        class Breaking(TensorCounter):
            taken = 0

            def step(self, actions):
                self.taken += 1
                if self.taken == 20:
                    raise RuntimeError("a wheel came off")
                return super().step(actions)

        with pytest.raises(EnvironmentFailed, match=r"step 20\): RuntimeError: a wheel came off"):
            isobatch.train(make_env=lambda: Breaking(2), **TINY, out=out)
        assert iterations_saved(out) == [0, 2]

    def test_the_whole_traceback_is_there_for_the_asking(self, out, monkeypatch, capfd):
        monkeypatch.setenv("ISOBATCH_TRACEBACK", "1")
        with pytest.raises(EnvironmentFailed):
            isobatch.train(make_env=Failing, **TINY, out=out)
        assert "in broken" in capfd.readouterr().err

    @pytest.mark.parametrize("vectorization", HOWS)
    @pytest.mark.parametrize(
        ("how", "part"),
        [("shape", "(3,)"), ("text", "environment"), ("reward", "much"), ("nan", "not finite")],
    )
    def test_what_no_run_can_use_is_refused_with_its_place(self, out, vectorization, how, part):
        def make_env():
            return Failing(how)

        with pytest.raises(UserError) as caught:
            isobatch.train(make_env=make_env, **TINY, vectorization=vectorization, out=out)
        said = str(caught.value)
        assert part in said
        assert "environment " in said
        assert "step 23" in said
        assert iterations_saved(out) == [0, 2]
        assert children(os.getpid()) == []

    @pytest.mark.parametrize("vectorization", HOWS)
    def test_a_first_reset_that_fails_leaves_nothing(self, out, vectorization, tmp_path):
        def make_env():
            return Failing("reset", at=0)

        with pytest.raises(EnvironmentFailed, match="no reset"):
            isobatch.train(make_env=make_env, **TINY, vectorization=vectorization, out=out)
        assert list(tmp_path.iterdir()) == []
        assert children(os.getpid()) == []


def Counter2():
    return Failing("raise", at=10**9)


class TestSupervised:
    def test_it_is_the_same_run_where_nothing_fails(self, tmp_path):
        clock = {*CLOCK_COLUMNS, "env_faults"}
        sync, supervised = (
            isobatch.train(make_env=Counter2, **TINY, vectorization=how, out=tmp_path / how).metrics
            for how in ("sync", "supervised")
        )
        assert all(row["env_faults"] == 0 for row in supervised)
        assert [without(row, clock) for row in sync] == [without(row, clock) for row in supervised]
        assert children(os.getpid()) == []

    @pytest.mark.parametrize(
        ("how", "text"),
        [
            ("raise", "RuntimeError: a wheel came off"),
            ("crash", "SIGSEGV"),
            ("exit", "exited with code 7"),
            ("leave", "SystemExit: 3"),
            ("hang", "did not answer within 2 s"),
        ],
    )
    def test_a_failing_environment_is_replaced_and_counted(self, out, tmp_path, how, text):
        once, notes = str(tmp_path / "once"), Notes()
        run = isobatch.train(
            make_env=lambda: Failing(how, once=once),
            **TINY,
            vectorization="supervised",
            env_timeout=2,
            sinks=[notes],
            out=out,
        )
        rows = run.metrics
        assert [row["env_faults"] for row in rows].count(1) == 1
        assert sum(row["env_faults"] for row in rows) == 1
        assert text in next(row["env_fault"] for row in rows if row["env_faults"])
        assert len(notes.texts) == 1
        assert text in notes.texts[0]
        # Whole episodes only: the one that was lost is none, and its steps are in no other.
        assert rows[-1]["episode_return"] == rows[-1]["episode_length"] == 5
        assert rows[-1]["env_steps"] == sum(row["rows"] for row in rows)
        assert children(os.getpid()) == []
        made = read_sealed(max((out / "checkpoints").glob("*")))[1]["counters"]["environments"]
        assert made == 3, "the seed of the new one is used up"

    def test_the_row_of_a_fault_is_no_transition(self, tmp_path):
        once = str(tmp_path / "once")
        env = SupervisedEnv(lambda: Failing(at=3, once=once, length=9), "F", [1], 10)
        try:
            env.reset()
            steps = [env.step(torch.zeros(1, 1, dtype=torch.int64)) for _ in range(5)]
        finally:
            env.close()
        assert [bool(step.valid) for step in steps] == [True, True, False, True, True]
        assert [bool(step.dropped) for step in steps] == [False, False, True, False, False]
        assert [float(step.observation["vector"][0, 0]) for step in steps] == [1, 2, 0, 1, 2]
        assert not any(bool(step.terminated | step.truncated) for step in steps)

    def test_the_last_transition_before_a_fault_is_bootstrapped_as_a_truncation(self, tmp_path):
        from isobatch.experience import Collector
        from isobatch.state import TrainState

        once = str(tmp_path / "once")
        env = SupervisedEnv(lambda: Failing(at=3, once=once, length=9), "F", [1], 10)
        recipe = isobatch.Recipe("python:make_env").replace(n_envs=1, n_minibatches=1)
        cpu = torch.device("cpu")
        state = TrainState.begin(recipe, env.observation_layout, env.action_layout, cpu)
        try:
            rollout = Collector(env, cpu, 64).collect(state.actor, 6)
        finally:
            env.close()
        assert rollout.valid[:, 0].tolist() == [True, True, False, True, True, True]
        assert rollout.truncated[:, 0].tolist() == [False, True, False, False, False, False]
        assert rollout.first[:, 0].tolist() == [True, False, False, True, False, False]
        assert not bool(rollout.over.any())
        assert float(rollout.observations["vector"][2, 0, 0]) == 2, "what followed that transition"

    def test_one_that_only_fails_ends_the_run(self, out):
        with pytest.raises(EnvironmentFailed, match=r"failed 11 times within 1,000 steps.*wheel"):
            isobatch.train(
                make_env=lambda: Failing(at=1),
                **tiny(n_envs=1, n_minibatches=1),
                vectorization="supervised",
                out=out,
            )

    @pytest.mark.parametrize(("every", "ends"), [(6, True), (8, False)])
    def test_one_that_fails_often_ends_the_run_and_a_rare_fault_does_not(
        self, out, monkeypatch, every, ends
    ):
        # Of 4 faults the last is 3 x 6 or 3 x 8 steps after the first.
        monkeypatch.setattr(supervised, "MOST_FAULTS", 3)
        monkeypatch.setattr(supervised, "FAULT_STEPS", 20)

        def train():
            return isobatch.train(
                make_env=lambda: Failing(at=every, length=10**6),
                **tiny(n_envs=1, n_minibatches=1, total_timesteps=56),
                vectorization="supervised",
                out=out,
            )

        if ends:
            with pytest.raises(EnvironmentFailed, match=r"4 times within 20 steps.*step 24.*wheel"):
                train()
            assert iterations_saved(out)[-1] == 2, "8 steps an iteration, and the 24th failed"
        else:
            assert sum(row["env_faults"] for row in train().metrics) >= 7

    def test_evaluations_replace_them_too(self, out, tmp_path):
        once = str(tmp_path / "once")
        run = isobatch.train(make_env=Counter2, **TINY, out=out)
        scores = isobatch.evaluate(run.path, episodes=4, make_env=Counter2)
        assert scores.returns == [5.0] * 4
        env = SupervisedEnv(lambda: Failing(at=3, once=once), "F", [1, 2], 10)
        policy = isobatch.load(run.path)
        from isobatch.experience import play

        try:
            assert play(policy.actor(False), env, 4).returns == [5.0] * 4
            assert len(env.faults) == 1
        finally:
            env.close()

    def test_a_script_needs_no_guard(self, tmp_path):
        script = tmp_path / "script.py"
        script.write_text(
            "import gymnasium, isobatch\n"
            "def make_env():\n    return gymnasium.make('CartPole-v1')\n"
            "run = isobatch.train(make_env=make_env, n_envs=2, n_steps=8, n_minibatches=2,\n"
            "    total_timesteps=32, vectorization='supervised', quiet=True)\n"
            "print(len(run.metrics))\n"
        )
        done = subprocess.run(
            [sys.executable, script.name],
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": str(TESTS.parent)},
            capture_output=True,
            text=True,
        )
        assert done.stdout.strip() in ("2", "3"), done.stderr


class Notes(isobatch.Sink):
    """Keeps the notes of a run."""

    def __init__(self):
        self.texts = []

    def note(self, text):
        self.texts.append(text)


def without(row, names):
    return {key: value for key, value in row.items() if key not in names}


def explode(monkeypatch, times):
    """Let the updates of some iterations leave weights that are no numbers."""
    from isobatch.algos.ppo import Ppo

    learn = Ppo.learn

    def exploding(self, rollout):
        learned = learn(self, rollout)
        if self.state.counters.iterations in times:
            self.state.parameters.vector.data.fill_(torch.nan)
        return learned

    monkeypatch.setattr(Ppo, "learn", exploding)


class TestDivergence:
    def test_the_batch_is_kept_and_the_run_stops(self, out, monkeypatch):
        explode(monkeypatch, [2])
        with pytest.raises(UserError, match="a weight is not finite") as caught:
            isobatch.train(make_env=Counter, **TINY, out=out)
        tensors, data = read_sealed(out / "diverged.safetensors")
        assert "diverged.safetensors" in str(caught.value)
        assert data["not_finite"] == "a weight"
        assert tensors["rewards"].shape == (8, 2)
        assert tensors["observations.vector"].shape == (9, 2, 1)
        assert iterations_saved(out) == [0]

    @pytest.mark.parametrize("shards", [1, 2])
    def test_the_batch_is_there_even_of_the_first_iteration(self, out, shards):
        with pytest.raises(UserError, match="diverged"):
            isobatch.train(make_env=Counter, **TINY, vf_coef=1e38, shards=shards, out=out)
        tensors, _ = read_sealed(out / "diverged.safetensors")
        assert tensors["observations.vector"].shape == (9, 2, 1)

    @pytest.mark.parametrize("algo", ["ppo", "ppo-ewma"])
    def test_an_update_may_be_undone(self, out, monkeypatch, algo):
        explode(monkeypatch, [2])
        weights = {}

        def remember(row):
            tensors = read_checkpoint(out)
            assert tensors is not None
            weights[row["iterations"]] = tensors

        run = isobatch.train(
            make_env=Counter,
            algo=algo,
            **TINY,
            normalize_rewards=True,
            on_divergence="skip",
            checkpoint_seconds=0,
            on_iteration=remember,
            out=out,
        )
        rows = run.metrics
        assert [row["skipped_updates"] for row in rows] == [0, 0, 1] + [0] * (len(rows) - 3)
        assert rows[2]["grad_steps"] == rows[1]["grad_steps"] < rows[3]["grad_steps"]
        assert rows[2]["env_steps"] > rows[1]["env_steps"]
        assert rows[2]["episodes"] > rows[1]["episodes"]
        changed = [
            name
            for name, before in weights[2].items()
            if not torch.equal(before, weights[3][name])
            and not name.startswith(("generator", "seen"))
        ]
        assert changed == []
        assert any(not torch.equal(weights[3][name], after) for name, after in weights[4].items())

    def test_undoing_has_an_end(self, out, monkeypatch):
        explode(monkeypatch, range(1, 100))
        words = tiny(total_timesteps=1000, on_divergence="skip")
        with pytest.raises(UserError, match="11 times in a row"):
            isobatch.train(make_env=Counter, **words, out=out)
        assert len(isobatch.Run(out).metrics) == 11
        monkeypatch.undo()
        isobatch.resume(out, make_env=Counter, quiet=True)


class TestSizes:
    @pytest.mark.parametrize(
        ("fields", "complaint"),
        [
            ({"learning_rate": 1e308}, "learning_rate must be positive and at most 100"),
            ({"threads": 100_000}, "threads must lie in"),
            ({"env_threads": 100_000}, "env_threads must lie in"),
            (
                {"n_envs": 10**6, "n_steps": 10**6, "total_timesteps": 10**12},
                r"1,000,000,000,000 rows .* of memory or more",
            ),
            ({"hidden_sizes": (10**7, 10**7)}, "hidden_sizes 10000000 10000000 take"),
            ({"value_hidden_sizes": (10**7, 10**7)}, "hidden_sizes 64 64 10000000 10000000 take"),
        ],
    )
    def test_what_cannot_be_right_is_refused_before_anything_is_made(
        self, tmp_path, monkeypatch, fields, complaint
    ):
        monkeypatch.chdir(tmp_path)
        with pytest.raises(UserError, match=complaint):
            isobatch.train("CartPole-v1", **tiny(**fields))
        assert list(tmp_path.iterdir()) == []

    def test_observations_count_where_they_are_known(self, out, monkeypatch):
        from isobatch import machine

        small = out.with_name("meminfo")
        small.write_text("MemTotal: 9 kB\nMemAvailable: 1 kB\n")
        assert machine.available_memory()
        monkeypatch.setattr(machine, "MEMORY", small)
        assert machine.available_memory() == 1024
        with pytest.raises(UserError, match=r"20 rows .* needs 1.12 kB"):
            # 20 rows of 40 bytes and one number would just fit, of four numbers not.
            isobatch.train("CartPole-v1", **tiny(n_steps=10, hidden_sizes=(4, 4)), out=out)

    @pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0, 0.0])
    def test_a_noise_scale_is_a_number(self, value):
        with pytest.raises(UserError, match="noise_scale"):
            isobatch.preset("CartPole-v1").rescale(n_envs=16, noise_scale=value)

    def test_an_evaluations_seed_is_not_negative(self, out):
        run = isobatch.train(make_env=Counter, **TINY, out=out)
        with pytest.raises(UserError, match="seed must not be negative"):
            isobatch.evaluate(run.path, seed=-1, make_env=Counter)
