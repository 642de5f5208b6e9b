"""Runs that collect while they learn are those of staleness 1, to the bit."""

import signal
import threading
import time
from typing import Any

import pytest
import torch
from busy import soon
from failing_envs import Failing
from probe_envs import Both, Counter

import isobatch
from isobatch import Recipe, UserError, algos
from isobatch.algos.ppo import Ppo
from isobatch.presets import preset
from isobatch.run import interrupt, overlap
from isobatch.run.cohort import why_alone
from isobatch.run.overlap import Times, gain, usual
from isobatch.run.store import CLOCK_COLUMNS, read_policy, read_sealed

SMALL: dict[str, Any] = {
    "n_envs": 4, "n_steps": 16, "n_minibatches": 2, "n_epochs": 2, "hidden_sizes": (8,),
    "compile": "off", "threads": 1, "env_threads": 1, "total_timesteps": 704, "keep_policies": 0,
}  # fmt: skip
NORMAL = {"normalize_observations": True, "normalize_rewards": True}
FREE = (*CLOCK_COLUMNS, "resumed")
WAYS: dict[str, dict[str, Any]] = {"late": {"staleness": 1}, "both": {"overlap": True}}


def rows(run):
    return [{k: v for k, v in row.items() if k not in FREE} for row in run.metrics]


def weights(run):
    return {name: each.numpy().tobytes() for name, each in read_policy(run.path)[0].items()}


def played(run):
    return [{k: v for k, v in row.items() if k != "seconds"} for row in run.evaluations]


def no_thread_is_left():
    return not any(each.name == "isobatch-collect" for each in threading.enumerate())


@pytest.fixture
def overlapped(monkeypatch):
    """Count the turns in which a rollout was collected while another was learned from."""
    turns, turn = list[overlap.Turn](), overlap.Overlap.turn

    async def counted(*given):
        turns.append(await turn(*given))
        return turns[-1]

    monkeypatch.setattr(overlap.Overlap, "turn", counted)
    yield turns
    assert no_thread_is_left()


CASES: dict[str, dict[str, Any]] = {
    "ppo": NORMAL,
    "ppo-ewma": {"algo": "ppo-ewma", **NORMAL},
    "pqn": {"algo": "pqn", **NORMAL},
    "ppg": {"algo": "ppg", "n_policy_iterations": 3, "n_aux_epochs": 2, "n_epochs": 1, **NORMAL},
    "by step": {"update_statistics": "step", "stagger": True, **NORMAL},
    "behavior": {"staleness_loss": "behavior"},
    "shared": {"architecture": "shared", "target_kl": 1e-4},
    "gSDE": {"env": "Pendulum-v1", "use_sde": True, "sde_sample_freq": 3, **NORMAL},
    "kl-adaptive": {"learning_rate_schedule": "kl-adaptive", "desired_kl": 1e-4},
    "threads": {"threads": 2},
    "scheduled": {"batch_schedule": "0:4x16, 200:8x8, 400:8x16", **NORMAL},
    "adaptive": {"batch_schedule": "adaptive", "probe_every": 2, **NORMAL},
    "evaluated": {"eval_marks": 4, "eval_episodes": 2},
    "re-made": {"remake_steps": 40, "env_options": ("max_episode_steps=2",)},
    "gymnasium": {"env": "gymnasium:CartPole-v1", "diagnostics": "full"},
    "budget": {"total_timesteps": 731},
}


@pytest.mark.parametrize("case", CASES)
def test_it_computes_what_staleness_1_does(tmp_path, overlapped, case):
    settings = {"env": "CartPole-v1", **SMALL, **CASES[case]}
    env = settings.pop("env")
    late = isobatch.train(env, **settings, staleness=1, out=tmp_path / "late", quiet=True)
    assert not overlapped
    both = isobatch.train(env, **settings, overlap=True, out=tmp_path / "both", quiet=True)
    assert len(overlapped) >= (3 if case == "evaluated" else 5)
    assert rows(both) == rows(late)
    assert weights(both) == weights(late)
    assert played(both) == played(late)
    aged = [row["age_env_steps"] for row in both.metrics if row["age_iterations"]]
    assert {row["age_iterations"] for row in both.metrics[1:]} >= {1}
    assert aged


def test_an_update_that_diverges_is_undone_as_ever(tmp_path, overlapped):
    @algos.algorithm("diverging")
    class Diverging(Ppo):
        def learn(self, rollout):
            learned = super().learn(rollout)
            if self.state.counters.iterations in (7, 8):
                self.state.parameters.vector.data[3] = torch.nan
            return learned

    settings: dict[str, Any] = {**SMALL, **NORMAL, "algo": "diverging", "quiet": True}
    found = []
    for name, how in WAYS.items():
        out = tmp_path / name
        run = isobatch.train("CartPole-v1", **settings, **how, on_divergence="skip", out=out)
        assert [row["skipped_updates"] for row in run.metrics[6:10]] == [0, 1, 1, 0]
        stopped = tmp_path / f"{name} stopped"
        with pytest.raises(UserError, match="a weight is not finite"):
            isobatch.train("CartPole-v1", **settings, **how, out=stopped)
        kept = read_sealed(stopped / "diverged.safetensors")[0]
        batch = {name: each.numpy().tobytes() for name, each in kept.items()}
        found.append((rows(run), weights(run), batch))
    assert found[0] == found[1]


IMAGES: dict[str, Any] = {
    "encoder": "nature", "n_envs": 2, "n_steps": 8, "n_minibatches": 2, "n_epochs": 1,
    "total_timesteps": 160,
}  # fmt: skip


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("algo", ["ppo", "pqn"])
def test_images_too_with_any_number_of_threads(tmp_path, overlapped, algo, threads):
    settings: dict[str, Any] = {**SMALL, **NORMAL, **IMAGES, "threads": threads, "algo": algo}
    late = isobatch.train(make_env=Both, **settings, staleness=1, out=tmp_path / "l", quiet=True)
    both = isobatch.train(make_env=Both, **settings, overlap=True, out=tmp_path / "b", quiet=True)
    assert len(overlapped) >= 4
    assert (rows(both), weights(both)) == (rows(late), weights(late))


def stop_after(count):
    seen = []

    def on_iteration(row):
        seen.append(row)
        return len(seen) < count

    return on_iteration


@pytest.mark.parametrize("exact", [False, True])
def test_a_resumed_run_is_that_of_staleness_1_too(tmp_path, overlapped, exact):
    settings = {**SMALL, **NORMAL, "total_timesteps": 1280, "exact_resume": exact}
    found = []
    for name, how in WAYS.items():
        out = tmp_path / name
        isobatch.train(
            "CartPole-v1", **settings, **how, out=out, quiet=True, on_iteration=stop_after(8)
        )
        found.append(isobatch.resume(out, quiet=True))
    late, both = found
    assert len(overlapped) >= 8
    assert (rows(both), weights(both)) == (rows(late), weights(late))
    if exact:
        whole = isobatch.train(
            "CartPole-v1", **settings, staleness=1, out=tmp_path / "whole", quiet=True
        )
        assert (rows(both), weights(both)) == (rows(whole), weights(whole))


def test_times_that_overlap_count_for_both_and_other_for_neither(tmp_path, overlapped):
    run = isobatch.train("CartPole-v1", **SMALL, overlap=True, out=tmp_path / "run", quiet=True)
    whole = run.metrics[-1]["seconds"]
    names = ("env_seconds", "acting_seconds", "learning_seconds", "other_seconds")
    assert all(row[name] >= -1e-9 for row in run.metrics for name in names)
    together = sum(turn.together for turn in overlapped)
    assert together > 0
    parts = sum(row[name] for row in run.metrics for name in names)
    assert parts == pytest.approx(whole + together, abs=1e-4)


def test_an_environment_that_raises_ends_the_run_as_ever(tmp_path, overlapped):
    """One line, and a checkpoint of the last whole iteration."""
    settings: dict[str, Any] = {**SMALL, "make_env": lambda: Failing(at=132), "quiet": True}
    found = {}
    for name, how in WAYS.items():
        out = tmp_path / name
        with pytest.raises(UserError, match=r"step 158.*a wheel came off") as raised:
            isobatch.train(**settings, **how, out=out)
        assert "\n" not in str(raised.value)
        again = isobatch.resume(out, make_env=Failing, quiet=True, on_iteration=stop_after(1))
        assert [row["iterations"] for row in again.metrics] == list(range(1, 11))  # 9 of 16, and 1.
        found[name] = rows(again)
    assert len(overlapped) == 4
    assert found["late"] == found["both"]


class Slow(Counter):
    """A counter that waits in its steps, once it has taken so many."""

    after, seconds = 112, 0.0

    def step(self, action):
        if self.journal.transitions >= self.after and self.seconds:
            reached.set()
            time.sleep(self.seconds)
        return super().step(action)


reached = threading.Event()


@pytest.mark.parametrize("seconds", [0.01, 1.0])
def test_ctrl_c_ends_the_run_soon_and_saved(tmp_path, monkeypatch, overlapped, seconds):
    """After its iteration where that is short, otherwise within the rollout."""
    monkeypatch.setattr(interrupt, "GRACE", 0.5)
    monkeypatch.setattr(interrupt, "LAST", soon(60.0))
    monkeypatch.setattr(Slow, "seconds", seconds)
    reached.clear()

    def press():
        assert reached.wait(60)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    pressing = threading.Thread(target=press)
    pressing.start()
    settings = {**SMALL, "n_envs": 1, "total_timesteps": 6400, "overlap": True}
    run = isobatch.train(make_env=Slow, **settings, out=tmp_path / "run", quiet=True)
    pressing.join()
    assert run.interrupted
    done = len(run.metrics)
    assert 7 <= done <= 10
    deadline = time.monotonic() + soon(5)
    while not no_thread_is_left():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    monkeypatch.setattr(Slow, "seconds", 0.0)
    again = isobatch.resume(tmp_path / "run", make_env=Slow, quiet=True, on_iteration=stop_after(2))
    assert [row["iterations"] for row in again.metrics] == list(range(1, done + 3))


def test_a_learner_that_fails_leaves_no_thread(tmp_path, overlapped):
    @algos.algorithm("brittle")
    class Brittle(Ppo):
        def learn(self, rollout):
            if self.state.counters.iterations == 8:
                raise UserError("no more")
            return super().learn(rollout)

    settings: dict[str, Any] = {**SMALL, "algo": "brittle", "overlap": True, "quiet": True}
    with pytest.raises(UserError, match="no more"):
        isobatch.train("CartPole-v1", **settings, out=tmp_path / "run")
    assert len(overlapped) == 3


def test_overlap_sets_staleness_to_1_and_refuses_others():
    recipe = preset("CartPole-v1", overlap=True)
    assert recipe.objective.staleness == 1
    assert recipe.replace(overlap=False).objective.staleness == 1
    assert Recipe.from_toml(recipe.to_toml()) == recipe
    for staleness in (0, 2):
        with pytest.raises(UserError, match="staleness must be 1 with overlap"):
            preset("CartPole-v1", overlap=True, staleness=staleness)
    with pytest.raises(UserError, match="staleness must be 1 with overlap"):
        preset("CartPole-v1", staleness=4).replace(overlap=True)
    with pytest.raises(UserError, match=r"line 3.*staleness must be 1|staleness must be 1"):
        Recipe.from_toml('env = "CartPole-v1"\n[machine]\noverlap = true\n')


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"algo": "a2c"}, "staleness is for ppo"),
        ({"algo": "reinforce"}, "staleness is for ppo"),
        (
            {"algo": "ppg", "normalize_observations": True, "update_statistics": "step"},
            "update_statistics must be rollout for ppg with overlap",
        ),
    ],
)
def test_what_cannot_be_overlapped_is_refused(settings, why):
    with pytest.raises(UserError, match=why) as raised:
        preset("CartPole-v1", overlap=True, **settings)
    assert "\n" not in str(raised.value)


class Own(torch.nn.Linear):
    """An encoder without a name here."""

    def __init__(self):
        super().__init__(4, 8)


def test_networks_of_ones_own_are_refused_before_anything_is_written(tmp_path):
    settings: dict[str, Any] = {**SMALL, "encoder": Own(), "overlap": True, "quiet": True}
    with pytest.raises(UserError, match="overlap: networks of your own"):
        isobatch.train("CartPole-v1", **settings, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_such_runs_are_trained_alone():
    assert why_alone(preset("CartPole-v1", overlap=True)) == "it collects while it learns"


def test_the_gain_is_the_time_in_turn_over_the_longer_side():
    said = gain(Times(2.0, 1.0), Times(2.2, 1.5))
    assert said.startswith("overlap: up to 1.36x the steps/s: collecting 2 s and learning 1 s")
    assert "gains nothing here (1.07x)" in gain(Times(2.0, 1.0), Times(2.5, 2.8))
    assert gain(Times(97.0, 3.0), Times(97.0, 3.0)) == (
        "overlap: collecting takes 97% of the time: overlapping gains nothing here"
    )
    assert "learning takes 95% of the time" in gain(Times(1.0, 19.0), Times(1.0, 19.0))


def test_one_slow_iteration_does_not_count():
    assert usual([Times(2.0, 1.0), Times(9.0, 1.1), Times(2.1, 7.0)]) == Times(2.1, 1.1)


def test_it_says_once_what_overlapping_gains(tmp_path, capsys, overlapped):
    heard = []

    class Listens(isobatch.Sink):
        def announce(self, text):
            heard.append(text)

    isobatch.train("CartPole-v1", **SMALL, overlap=True, out=tmp_path / "a", sinks=[Listens()])
    assert len(heard) == 1
    assert capsys.readouterr().out.count(heard[0]) == 1
    isobatch.train("CartPole-v1", **SMALL, overlap=True, out=tmp_path / "b", quiet=True)
    assert "overlap" not in capsys.readouterr().out
