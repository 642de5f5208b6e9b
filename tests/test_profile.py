"""Where the time went: parts that exclude each other and add up to the whole."""

import json
import os
import signal
import threading
import time
from typing import Any

import pytest
from probe_envs import Counter, Faulty

import isobatch
from isobatch import UserError, clock
from isobatch.cli import main
from isobatch.clock import OFF, OTHER, Clock, process_seconds
from isobatch.run.profile import LABELS, table
from isobatch.run.store import CLOCK_COLUMNS

SMALL: dict[str, Any] = {
    "n_envs": 4, "n_steps": 32, "n_minibatches": 2, "n_epochs": 2, "compile": "off",
}  # fmt: skip


def small(**changes: Any) -> dict[str, Any]:
    return SMALL | changes


LEARNING = {"environments", "acting", "rollout", "advantages", "gather", "gradient", "optimizer"}


@pytest.fixture
def ticks(monkeypatch):
    """Let the clock tick once each time it is read."""
    readings = iter(range(1000))
    monkeypatch.setattr(clock.time, "perf_counter", lambda: float(next(readings)))


class TestClock:
    def test_what_is_within_a_section_is_not_its_own(self, ticks):
        watch = Clock()  # Reads 0.
        with watch.section("outer"):  # 1: one tick of nothing.
            with watch.section("inner"):  # 2: one of outer.
                pass  # 3: one of inner.
            with watch.section("inner"):  # 4: outer.
                pass  # 5: inner.
        # 6: outer; the lap reads 7.
        assert watch.lap() == {OTHER: 2, "outer": 3, "inner": 2}
        assert watch.lap() == {OTHER: 1}

    def test_seconds_before_it_count(self, ticks):
        assert Clock({"imports": 3.0}).lap() == {"imports": 3.0, OTHER: 1}

    def test_parts_add_up_to_what_passed(self):
        before = time.perf_counter()
        watch = Clock()
        inner = watch.timing("inner", lambda: time.sleep(0.02))
        with watch.section("outer"):
            time.sleep(0.01)
            inner()
        parts = watch.lap()
        assert sum(parts.values()) <= time.perf_counter() - before
        assert parts["inner"] >= 0.02
        assert parts["outer"] >= 0.01
        assert sum(parts.values()) - parts["inner"] - parts["outer"] == pytest.approx(parts[OTHER])

    def test_an_exception_ends_its_sections(self, ticks):
        watch = Clock()

        def fails():
            raise KeyError

        for _ in range(2):
            with pytest.raises(KeyError), watch.section("outer"):
                watch.timing("inner", fails)()
        watch.lap()
        assert watch.lap() == {OTHER: 1}

    def test_other_threads_are_not_timed(self, ticks):
        watch = Clock()
        timed = watch.timing("gather", lambda: None)
        thread = threading.Thread(target=timed)
        thread.start()
        thread.join()
        assert watch.lap() == {OTHER: 1}

    def test_a_method_of_one_object(self, ticks):
        class Thing:
            def double(self, x):
                return 2 * x

        thing, watch = Thing(), Clock()
        watch.watch(thing, "doubling", "double", "missing")
        assert thing.double(x=3) == 6
        assert Thing().double(2) == 4
        assert watch.lap() == {OTHER: 2, "doubling": 1}

    def test_what_a_gpu_is_at_is_waited_for(self, ticks):
        waited = []
        watch = Clock()
        watch.wait_for(lambda: waited.append(True))
        watch.timing("gradient", lambda: None)()
        assert len(waited) == 2

    def test_off_it_wraps_nothing(self):
        def function():
            pass

        thing = type("Thing", (), {"step": function})()
        OFF.watch(thing, "environments", "step")
        assert vars(thing) == {}
        assert OFF.timing("any", function) is function
        with OFF.section("any"):
            assert OFF.lap() == {}

    def test_the_process_began_a_while_ago(self):
        first = process_seconds()
        time.sleep(0.05)
        assert 0 < first < process_seconds() < 24 * 3600


def of(run):
    """Return a run's profile, which it has."""
    profile = run.profile
    assert profile is not None
    return profile


def check(profile):
    """Assert that a run's profile adds up and that its parts have names."""
    for name in ("start_up", "first_iteration", "later_iterations", "end"):
        lap = profile[name]
        assert sum(lap["parts"].values()) == pytest.approx(lap["seconds"], rel=1e-12, abs=1e-12)
        assert set(lap["parts"]) <= set(LABELS)
        assert min(lap["parts"].values(), default=0) >= 0


CASES: dict[str, tuple[dict[str, Any], set[str]]] = {
    "ppo": ({}, set()),
    "ppo-ewma": ({"algo": "ppo-ewma"}, {"proximal"}),
    "ppg": ({"algo": "ppg", "n_policy_iterations": 2}, {"auxiliary"}),
    "ppg-ewma": ({"algo": "ppg-ewma", "n_policy_iterations": 2}, {"auxiliary", "proximal"}),
    "a2c": ({"algo": "a2c", "n_minibatches": 1, "n_epochs": 1}, set()),
    "reinforce": ({"algo": "reinforce", "n_minibatches": 1, "n_epochs": 1}, set()),
    "pqn": ({"algo": "pqn"}, set()),
    "stale": ({"staleness": 1}, set()),
    "probed": ({"probe_every": 1}, {"probe"}),
    "gymnasium": ({"env": "gymnasium:CartPole-v1"}, set()),
    "async": ({"env": "gymnasium:CartPole-v1", "vectorization": "async"}, set()),
    "tensor": ({"env": "tensor:CartPole-v1"}, set()),
    "evaluated": ({"eval_marks": 2, "eval_episodes": 2}, {"evaluation"}),
    "reshaped": ({"batch_schedule": "0:4x32, 200:8x32"}, {"making"}),
}


@pytest.mark.parametrize("case", CASES)
def test_every_algorithm_and_maker(tmp_path, case):
    changes, sections = CASES[case]
    settings = {"env": "CartPole-v1", **SMALL, "total_timesteps": 640, "quiet": True} | changes
    run = isobatch.train(**settings, out=tmp_path / "timed", profile=True)
    plain = isobatch.train(**settings, out=tmp_path / "plain")
    assert plain.profile is None
    profile = of(run)
    check(profile)
    assert profile["iterations"] == len(run.metrics)
    parts = profile["later_iterations"]["parts"]
    assert parts.keys() >= LEARNING | sections
    assert ("auxiliary" in parts) == ("auxiliary" in sections)
    assert parts[OTHER] < 0.1 * profile["later_iterations"]["seconds"]
    for one, other in zip(run.metrics, plain.metrics, strict=True):
        assert {k: v for k, v in one.items() if k not in CLOCK_COLUMNS} == {
            k: v for k, v in other.items() if k not in CLOCK_COLUMNS
        }


def test_the_mean_iteration_is_training_time_and_what_follows_it(tmp_path):
    run = isobatch.train(
        "CartPole-v1", **SMALL, total_timesteps=1280, quiet=True, profile=True, out=tmp_path / "a"
    )
    first, *later = run.metrics
    seconds = later[-1]["seconds"] - first["seconds"]
    # The rows' time begins when the row before is made and ends with learning.
    assert of(run)["later_iterations"]["seconds"] == pytest.approx(seconds, rel=0.25, abs=0.02)


def test_images_whose_rows_are_gathered_by_threads(tmp_path):
    run = isobatch.train(
        "StarpilotEasy-v0",
        **small(n_steps=8),
        threads=2,
        total_timesteps=96,
        quiet=True,
        profile=True,
        out=tmp_path / "run",
    )
    check(of(run))
    parts = of(run)["later_iterations"]["parts"]
    assert parts.keys() >= LEARNING - {"gather"}
    assert "gather" not in parts


def test_compiling_is_a_part_of_its_own(tmp_path, traced_only):
    run = isobatch.train(
        "CartPole-v1", **small(compile="on"), total_timesteps=384, quiet=True, profile=True,
        out=tmp_path / "run",
    )  # fmt: skip
    check(of(run))
    first, later = (of(run)[each]["parts"] for each in ("first_iteration", "later_iterations"))
    assert first["compiling"] > first["gradient"]
    assert "compiling" not in later


def test_a_single_iteration(tmp_path, capsys):
    isobatch.train(
        "CartPole-v1", **SMALL, total_timesteps=128, on_iteration=lambda row: False, profile=True,
        out=tmp_path / "run",
    )  # fmt: skip
    said = capsys.readouterr().out
    assert "the only one, with what is done once" in said
    assert "100.0%" in said


def test_an_interrupted_run_still_says_it(tmp_path, capsys):
    def stop(row):
        if row["iterations"] == 3:
            os.kill(os.getpid(), signal.SIGINT)

    run = isobatch.train(
        "CartPole-v1", **SMALL, total_timesteps=100_000, on_iteration=stop, profile=True,
        out=tmp_path / "run",
    )  # fmt: skip
    assert run.interrupted
    assert of(run)["iterations"] == len(run.metrics)
    assert f"mean of {len(run.metrics) - 1} iterations" in capsys.readouterr().out


def test_a_run_that_fails_later_still_says_it(tmp_path, capsys):
    with pytest.raises(UserError, match="not finite"):
        isobatch.train(
            make_env=lambda: Faulty(40, "reward"), **small(n_steps=16), total_timesteps=1000,
            profile=True, out=tmp_path / "run",
        )  # fmt: skip
    assert "where an iteration's time went" in capsys.readouterr().out
    check(json.loads((tmp_path / "run" / "profile.json").read_text()))


def test_a_run_that_comes_to_nothing_has_none(tmp_path, capsys):
    with pytest.raises(UserError, match="not finite"):
        isobatch.train(
            make_env=lambda: Faulty(4, "reward"), **SMALL, total_timesteps=1000, profile=True,
            out=tmp_path / "run",
        )  # fmt: skip
    assert "no iteration was completed" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_quiet_it_is_kept_and_not_printed(tmp_path, capsys):
    run = isobatch.train(
        make_env=lambda: Counter(5), **SMALL, total_timesteps=300, quiet=True, profile=True,
        out=tmp_path / "run",
    )  # fmt: skip
    assert capsys.readouterr().out == ""
    assert of(run)["iterations"] == len(run.metrics)


class TestCommand:
    def train(self, out, *more):
        batch = ["--n-envs", "4", "--n-steps", "32", "--n-minibatches", "2", "--n-epochs", "2"]
        budget = ["--total-timesteps", "512", "--out", str(out)]
        return main(["train", "CartPole-v1", *batch, *budget, *more])

    def test_train_and_resume(self, tmp_path, capsys):
        out = tmp_path / "run"
        assert self.train(out, "--profile") == 0
        said = capsys.readouterr().out
        profile = of(isobatch.Run(out))
        check(profile)
        assert "\n".join(table(profile)) in said
        assert profile["start_up"]["parts"]["imports"] > 0
        assert main(["check", str(out)]) == 0
        assert f"of {profile['iterations']} iterations" in capsys.readouterr().out

        assert main(["resume", str(out), "--total-timesteps", "1024", "--profile"]) == 0
        resumed = of(isobatch.Run(out))
        check(resumed)
        done = len(isobatch.Run(out).metrics)
        assert resumed["iterations"] == done - profile["iterations"]

    def test_from_scratch_it_is_set_aside(self, tmp_path):
        out = tmp_path / "run"
        assert self.train(out, "--profile", "--quiet") == 0
        with pytest.warns(UserWarning, match="has the previous files"):
            assert main(["resume", str(out), "--from-scratch", "--quiet"]) == 0
        assert not (out / "profile.json").exists()
        assert (out / "set-aside-1" / "profile.json").exists()

    def test_several_seeds_are_refused(self, tmp_path, capsys):
        out = tmp_path / "seeds"
        assert self.train(out, "--seeds", "2", "--profile") == 2
        assert "--profile times one run" in capsys.readouterr().err
        assert not out.exists()

    def test_a_damaged_one_is_found(self, tmp_path, capsys):
        out = tmp_path / "run"
        assert self.train(out, "--profile", "--quiet") == 0
        (out / "profile.json").write_text('{"iterations": ')
        assert main(["check", str(out)]) == 1
        assert "profile.json" in capsys.readouterr().out
