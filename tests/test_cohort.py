"""Runs trained together are each what they would be alone."""

import os
import signal
import subprocess
import sys
import time
from typing import Any, ClassVar

import gymnasium
import pytest
import torch
from busy import soon
from gymnasium.envs.classic_control import CartPoleEnv

import isobatch
from isobatch import UserError
from isobatch.algos import learner_class
from isobatch.algos.learner import awaits
from isobatch.algos.ppo import Ppo
from isobatch.errors import DamagedFile, InUse
from isobatch.presets import preset
from isobatch.run import cohort, memory
from isobatch.run.cohort import alike, why_alone
from isobatch.run.evaluation import Due, play_due
from isobatch.run.examine import examine
from isobatch.run.interrupt import Abandoned
from isobatch.run.seeds import begun_in, seed_paths, train_seeds
from isobatch.run.store import CLOCK_COLUMNS, RunDirectory, read_metrics, read_policy
from isobatch.run.training import Run
from isobatch.state import TrainState
from isobatch.update.partition import minibatches

SMALL: dict[str, Any] = {
    "n_envs": 4, "n_steps": 16, "n_minibatches": 2, "n_epochs": 2, "hidden_sizes": (16,),
    "compile": "off", "threads": 1, "env_threads": 1, "total_timesteps": 640, "keep_policies": 0,
}  # fmt: skip
CASES: dict[str, dict[str, Any]] = {
    "ppo": {"normalize_observations": True, "normalize_rewards": True, "ent_coef": 0.01},
    "ppo-ewma": {"algo": "ppo-ewma"},
    "a2c": {"algo": "a2c", "n_minibatches": 1, "n_epochs": 1},
    "pqn": {"algo": "pqn", "layer_norm": True},
    "stale": {"staleness": 2},
    "value epochs": {"n_value_epochs": 2},
    "shared": {"architecture": "shared"},
    "kl-adaptive": {"algo": "ppo-ewma", "learning_rate_schedule": "kl-adaptive"},
    "kl": {"objective": "kl", "kl_estimator": "exact"},
    "pendulum": {"env": "Pendulum-v1"},
    "gSDE": {"env": "Pendulum-v1", "use_sde": True, "sde_sample_freq": 3},
    "gymnasium": {"env": "gymnasium:CartPole-v1"},
    "by envs": {"minibatches_by": "envs"},
    "evaluated": {"eval_marks": 4, "eval_episodes": 2},
    "own layers": {
        "architecture": "shared",
        "policy_hidden_sizes": (8,),
        "value_hidden_sizes": (8, 4),
    },
    "clipped values": {
        "env": "Pendulum-v1",
        "clip_range_vf": 0.2,
        "activation": "silu",
        "hidden_sizes": (),
        "value_hidden_sizes": (8,),
        "log_std_init": -1.0,
        "init": "torch",
    },
}
FREE = (*CLOCK_COLUMNS, "resumed", "cohort_width")


def recipe_of(case="ppo", **settings):
    chosen = {**SMALL, **CASES[case], **settings}
    env, algo = chosen.pop("env", "CartPole-v1"), chosen.pop("algo", "ppo")
    return preset(env, algo, **chosen)


def together(tmp_path, recipe, count=3, **options):
    return train_seeds(seed_paths(recipe, count, tmp_path), quiet=True, **options)


def weights(path):
    tensors, _ = read_policy(path)
    return torch.cat([tensors[name].double().flatten() for name in sorted(tensors)])


def close(row, other):
    assert row.keys() - set(FREE) == other.keys() - set(FREE)
    for name in row.keys() - set(FREE):
        wanted = other[name]
        if isinstance(wanted, float):
            wanted = pytest.approx(wanted, rel=2e-3, abs=2e-4)
        assert row[name] == wanted, name


def without_clock(row):
    return {name: value for name, value in row.items() if name not in FREE}


@pytest.mark.parametrize("case", CASES)
def test_each_run_begins_as_it_would_alone(tmp_path, case):
    recipe = recipe_of(case)
    found = together(tmp_path / "together", recipe)
    assert [each.failure for each in found] == [None] * 3
    for seed, outcome in enumerate(found, start=recipe.seed):
        alone = isobatch.train(
            recipe=recipe.replace(seed=seed), out=tmp_path / f"{seed}", quiet=True
        )
        rows = outcome.run.metrics
        assert len(rows) == len(alone.metrics)
        assert rows[-1]["env_steps"] == alone.metrics[-1]["env_steps"]
        for mine, its in list(zip(rows, alone.metrics, strict=True))[:4]:
            close(mine, its)
        assert all(each.is_whole for each in examine(outcome.run.path))
        played, its = outcome.run.evaluations, alone.evaluations
        assert [row["mark"] for row in played] == [row["mark"] for row in its]
        assert [without_clock(row) for row in played[:1]] == [without_clock(row) for row in its[:1]]


@pytest.mark.parametrize(
    "settings",
    [
        {"n_minibatches": 3},
        {"stagger": True},
        {"stagger": True, "env": "Pendulum-v1"},
        {"stagger": True, "env": "gymnasium:CartPole-v1"},
    ],
)
def test_a_run_does_not_depend_on_its_companions(tmp_path, settings):
    recipe = recipe_of(**settings)
    many = together(tmp_path / "many", recipe, 3)
    (jobs,) = [seed_paths(recipe, 2, tmp_path / "few")[1:]]
    (one,) = train_seeds(jobs, width=3, quiet=True)
    assert one.failure is None
    assert [row.get("cohort_width") for row in one.run.metrics[:2]] == [3, None]
    assert torch.equal(weights(one.run.path), weights(many[1].run.path))
    counts = [each.run.metrics[0].get("warmup_steps") for each in (one, many[1])]
    assert counts[0] == counts[1]
    assert (counts[0] is not None) == ("stagger" in settings)


@pytest.fixture
def played(monkeypatch):
    """How many evaluations were played at a time."""
    counts, real = [], cohort.play_due

    def play(due):
        counts.append(len(due))
        return real(due)

    monkeypatch.setattr(cohort, "play_due", play)
    return counts


class TestEvaluations:
    @pytest.mark.parametrize("episodes", [3, 40])
    @pytest.mark.parametrize("case", ["ppo", "pqn", "shared", "pendulum", "gymnasium", "ppo-ewma"])
    def test_policies_play_together_what_each_plays_alone(self, case, episodes):
        recipe = recipe_of(case, eval_marks=4, eval_episodes=episodes)
        pool = cohort.Pool([recipe], [0], torch.device("cpu"))
        layouts = pool.env.observation_layout, pool.env.action_layout
        pool.env.close()
        due = []
        for place in range(4):
            own = recipe.replace(seed=place)
            state = TrainState.begin(own, *layouts, torch.device("cpu"))
            with torch.no_grad():  # Policies that prefer something.
                state.parameters.vector.mul_(3)
            if state.observation_normalizer.moments is not None:
                state.observation_normalizer.update(torch.randn(9, layouts[0].vector or 0))
            due.append(Due(state, place))
        found = [each.scores for each in play_due(due)]
        assert found == [play_due([each])[0].scores for each in due]
        assert [len(each.returns) for each in found] == [episodes] * 4
        assert len({tuple(each.returns) for each in found}) == 4

    def test_they_do_not_depend_on_companions(self, tmp_path, played):
        """Nor on one that diverges, or has another budget or other marks."""
        recipe = recipe_of("evaluated", optimizer="sgd", max_grad_norm=None)
        others = [
            {"seed": 7, "learning_rate": 100.0},
            {"seed": 8, "total_timesteps": 320},
            {"seed": 9, "eval_episodes": 3},
        ]
        jobs = [(recipe, tmp_path / "own")]
        jobs += [(recipe.replace(**each), tmp_path / f"{each['seed']}") for each in others]
        many = train_seeds(jobs, width=4, quiet=True)
        assert [each.failure is None for each in many] == [True, False, True, True]
        assert max(played) == 3  # Of two episodes each.
        (one,) = train_seeds([(recipe, tmp_path / "alone")], width=4, quiet=True)
        rows = [without_clock(row) for row in one.run.evaluations]
        assert [row["mark"] for row in rows] == [0, 160, 320, 480, 640]
        assert rows == [without_clock(row) for row in many[0].run.evaluations]
        assert [row["mark"] for row in many[1].run.evaluations][:1] == [0]
        assert [row["mark"] for row in many[2].run.evaluations] == [0, 80, 160, 240, 320]
        assert {row["episodes"] for row in many[3].run.evaluations} == {3}
        for (own, path), outcome in zip(jobs, many, strict=True):
            alone = isobatch.train(recipe=own, out=path / "alone", quiet=True, on_iteration=stop)
            first = alone.evaluations[0]
            assert without_clock(first) == without_clock(outcome.run.evaluations[0])

    def test_each_has_its_share_of_the_time(self, tmp_path, monkeypatch):
        recipe, taken, real = recipe_of("evaluated"), [], cohort.play_due

        def play(due):
            began = time.perf_counter()
            answers = real(due)
            taken.append(time.perf_counter() - began)
            return answers

        monkeypatch.setattr(cohort, "play_due", play)
        found = together(tmp_path, recipe)
        said = sum(row["seconds"] for each in found for row in each.run.evaluations)
        assert said == pytest.approx(sum(taken), rel=0.1)

    def test_vectors_with_one_seed_for_all_are_not_joined(self, tmp_path, played):
        recipe = recipe_of("evaluated", env="tensor:CartPole-v1")
        found = together(tmp_path / "together", recipe, 2)
        assert played == []
        for outcome in found:
            own = outcome.run.recipe
            alone = isobatch.train(
                recipe=own, out=tmp_path / f"{own.seed}", quiet=True, on_iteration=stop
            )
            first = without_clock(alone.evaluations[0])
            assert without_clock(outcome.run.evaluations[0]) == first
            assert len(outcome.run.evaluations) == 5

    def test_a_cohort_stopped_while_it_evaluates_goes_on(self, tmp_path, monkeypatch):
        recipe = recipe_of("evaluated")
        jobs, real, left = seed_paths(recipe, 3, tmp_path / "stopped"), cohort.play_due, [3]

        def play(due):
            left[0] -= 1
            if not left[0]:
                raise Abandoned
            return real(due)

        monkeypatch.setattr(cohort, "play_due", play)
        for outcome in train_seeds(jobs, quiet=True):
            assert outcome.run.interrupted
            assert 0 < len(outcome.run.evaluations) < 5
        for outcome in train_seeds(jobs, quiet=True):
            rows = outcome.run.metrics
            assert [row["iterations"] for row in rows] == list(range(1, len(rows) + 1))
            marks = [row["mark"] for row in outcome.run.evaluations]
            assert marks == [0, 160, 320, 480, 640]
            assert all(each.is_whole for each in examine(outcome.run.path))

    def test_one_whose_environment_fails_leaves_the_others(self, tmp_path, monkeypatch):
        recipe = recipe_of("evaluated", env="gymnasium:CartPole-v1")
        recipe = recipe.replace(env="gymnasium:Unlucky-v0")
        jobs, real = seed_paths(recipe, 3, tmp_path), cohort.play_due

        def play(due):
            # Its environments are made for the mark, so that none has begun.
            Unlucky.seeds.update(*(each.seeds for each in due if bad(each)))
            return real(due)

        def bad(due):
            return due.place == 2 and due.state.recipe.seed == jobs[1][0].seed

        monkeypatch.setattr(cohort, "play_due", play)
        gymnasium.register("Unlucky-v0", entry_point=lambda **given: Unlucky(**given))
        try:
            found = train_seeds(jobs, quiet=True)
        finally:
            del gymnasium.registry["Unlucky-v0"]
        assert "out of luck" in (found[1].failure or "")
        assert [row["mark"] for row in found[1].run.evaluations] == [0, 160]
        for outcome in (found[0], found[2]):
            assert outcome.failure is None
            assert len(outcome.run.evaluations) == 5


class Unlucky(CartPoleEnv):
    """Does not begin with some seeds."""

    seeds: ClassVar[set[int]] = set()

    def reset(self, *, seed=None, options=None):
        if seed in self.seeds:
            raise RuntimeError("out of luck")
        return super().reset(seed=seed, options=options)


def stop(row):
    return False


def test_warm_up_steps_are_counted_as_alone(tmp_path):
    """Of Pendulum, whose episodes are all of 200 steps, they are as many, to a few resets."""
    recipe = recipe_of("pendulum", stagger=True)
    alone = isobatch.train(recipe=recipe, out=tmp_path / "alone", quiet=True)
    wanted = alone.metrics[0]["warmup_steps"]
    for outcome in together(tmp_path, recipe):
        rows = outcome.run.metrics
        assert rows[0]["warmup_steps"] == pytest.approx(wanted, abs=4 * recipe.batch.n_envs)
        assert all("warmup_steps" not in row for row in rows[1:])
        assert rows[0]["env_steps"] == rows[0]["rows"]


def test_warm_up_steps_may_be_part_of_the_budget(tmp_path):
    recipe = recipe_of(stagger=True, count_warmup=True, total_timesteps=3000)
    for outcome in together(tmp_path, recipe, 2):
        first = outcome.run.metrics[0]
        assert first["env_steps"] == first["warmup_steps"] + first["rows"]
    refused = together(tmp_path / "refused", recipe.replace(total_timesteps=130), 2)
    assert ["more than the budget" in (each.failure or "") for each in refused] == [True, True]
    assert not list((tmp_path / "refused").glob("seed-*"))


def test_a_resumed_member_is_staggered_again(tmp_path):
    recipe = recipe_of("evaluated", stagger=True)
    jobs = seed_paths(recipe, 2, tmp_path)
    own, path = jobs[0]
    isobatch.train(recipe=own, out=path, quiet=True, on_iteration=lambda row: row["iterations"] < 3)
    begun, new = train_seeds(jobs, quiet=True)
    assert [row["iterations"] for row in begun.run.metrics if "warmup_steps" in row] == [1, 4]
    assert [row["iterations"] for row in new.run.metrics if "warmup_steps" in row] == [1]
    for outcome in (begun, new):
        assert [row["mark"] for row in outcome.run.evaluations] == [0, 160, 320, 480, 640]


def test_vectors_that_cannot_be_staggered_are_refused(tmp_path):
    recipe = recipe_of(env="tensor:CartPole-v1", stagger=True)
    found = together(tmp_path, recipe, 2)
    assert ["a TensorEnv cannot" in (each.failure or "") for each in found] == [True, True]
    assert not list(tmp_path.glob("seed-*"))


def test_numbers_may_differ_between_runs(tmp_path):
    recipe = recipe_of(ent_coef=0.0)
    numbers = [
        {"learning_rate": 1e-3, "ent_coef": 0.05, "vf_coef": 1.0, "gamma": 0.9},
        {"learning_rate": 1e-4, "clip_range": 0.1, "max_grad_norm": 0.1, "gae_lambda": 0.5},
        {"total_timesteps": 320, "target_kl": 1e-4},
    ]
    jobs = [(recipe.replace(**own), tmp_path / f"{place}") for place, own in enumerate(numbers)]
    assert len({alike(each) for each, _ in jobs}) == 1
    for (own, path), outcome in zip(jobs, train_seeds(jobs, quiet=True), strict=True):
        assert outcome.failure is None
        alone = isobatch.train(recipe=own, out=path.with_name(f"{path.name}-alone"), quiet=True)
        assert len(outcome.run.metrics) == len(alone.metrics)
        for mine, its in list(zip(outcome.run.metrics, alone.metrics, strict=True))[:3]:
            close(mine, its)


@pytest.mark.parametrize("by", ["traced_only", pytest.param(None, marks=pytest.mark.long)])
def test_a_compiled_cohort_computes_what_runs_alone_do(tmp_path, request, by):
    if by:
        request.getfixturevalue(by)
    recipe = recipe_of()
    jobs = [
        (recipe.replace(ent_coef=coefficient, seed=seed, compile="on"), tmp_path / f"{seed}")
        for seed, coefficient in ((1, 0.05), (2, 0.0))
    ]
    for (own, path), outcome in zip(jobs, train_seeds(jobs, width=3, quiet=True), strict=True):
        alone = isobatch.train(
            recipe=own.replace(compile="off"), out=path.with_suffix(".alone"), quiet=True
        )
        for mine, its in list(zip(outcome.run.metrics, alone.metrics, strict=True))[:3]:
            close(mine, its)


def test_one_that_diverges_leaves_the_others(tmp_path):
    recipe = recipe_of(optimizer="sgd", max_grad_norm=None)
    jobs = [
        (recipe.replace(learning_rate=rate), tmp_path / f"{place}")
        for place, rate in enumerate((1e-3, 100.0, 1e-3))
    ]
    found = train_seeds(jobs, quiet=True)
    assert [each.failure is None for each in found] == [True, False, True]
    assert "diverged" in (found[1].failure or "")
    assert found[0].run.metrics[-1]["env_steps"] > 600
    assert found[2].run.metrics[-1]["env_steps"] > 600


def test_a_stopped_cohort_goes_on(tmp_path):
    """Stopped at different places, too: each goes on from its own checkpoint."""
    recipe = recipe_of()
    jobs = seed_paths(recipe, 3, tmp_path)
    for (own, path), count in zip(jobs[:2], (2, 5), strict=True):
        isobatch.train(
            recipe=own,
            out=path,
            quiet=True,
            on_iteration=lambda row, count=count: row["iterations"] < count,
        )
    for outcome in train_seeds(jobs, quiet=True):
        rows = outcome.run.metrics
        assert [row["iterations"] for row in rows] == list(range(1, len(rows) + 1))
        assert not outcome.run.interrupted
        assert all(each.is_whole for each in examine(outcome.run.path))


def test_a_run_that_cannot_be_gone_on_with_leaves_the_others(tmp_path):
    jobs = seed_paths(recipe_of(), 3, tmp_path)
    for own, path in jobs[:2]:
        isobatch.train(recipe=own, out=path, quiet=True, on_iteration=lambda row: False)
    for file in (jobs[0][1] / "checkpoints").iterdir():
        file.write_bytes(b"?")
    held = RunDirectory.open(jobs[1][1])
    found = train_seeds(jobs, quiet=True)
    held.release()
    assert isinstance(found[0].error, DamagedFile)
    assert isinstance(found[1].error, InUse)
    assert found[2].failure is None
    assert [each.run.path for each in found] == [path for _, path in jobs]
    assert all(path.exists() for _, path in jobs)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"algo": "ppg", "n_policy_iterations": 2}, "ppg is trained alone"),
        ({"batch_schedule": "0:4x16, 200:8x8"}, "its batch changes"),
        ({"exact_resume": True}, "exact_resume"),
        ({"objective": "own"}, "objective is your own"),
    ],
)
def test_what_cannot_be_stacked_is_trained_alone_and_says_why(tmp_path, settings, reason):
    @isobatch.objective("own")
    def _across_rows(current, samples, settings):
        return -(samples.advantages - samples.advantages.mean()) * current.logp

    recipe = recipe_of(**settings)
    assert reason in (why_alone(recipe) or "")
    found = together(tmp_path, recipe, 2)
    assert [each.failure for each in found] == [None, None]
    assert all(each.run.metrics for each in found)


def test_environments_that_take_much_memory_are_counted(monkeypatch):
    """EnvPool's DM Control takes 12 MB an environment: five runs of 256 took 16 GB."""
    heavy = preset("FingerSpin-v1", "ppo", n_envs=256)
    assert "memory" in (why_alone(heavy) or "")
    assert why_alone(heavy.replace(n_envs=64)) is None
    assert why_alone(heavy.replace(env="HalfCheetah-v4")) is None
    monkeypatch.setattr(memory, "available_memory", lambda: 2 * 10**9)
    with pytest.raises(UserError, match=r"n_envs 256 of FingerSpin-v1 need 3\.\d+ GB of memory"):
        memory.refuse_too_large(heavy)
    memory.refuse_too_large(heavy.replace(n_envs=64))


def test_environments_that_fail_at_once_leave_no_directory(tmp_path):
    recipe = recipe_of().replace(env="gymnasium:Nothing-v0")
    (tmp_path / "free").mkdir()
    with pytest.raises(UserError):
        train_seeds(seed_paths(recipe, 2, tmp_path / "free"))
    assert list((tmp_path / "free").iterdir()) == []


def test_images_found_late_are_trained_alone(tmp_path):
    """The encoder follows from the observations, which only the environments show."""
    own = {"n_envs": 2, "n_steps": 4, "n_minibatches": 1, "n_epochs": 1, "total_timesteps": 8}
    recipe = preset("Breakout-v5", "ppo", **{**SMALL, **own}, encoder="auto")
    assert why_alone(recipe) is None
    (found,) = together(tmp_path, recipe, 1)
    assert found.failure is None
    assert len(found.run.metrics) == 1


def test_a_linked_run_is_not_resumed(tmp_path):
    (own, path), *_ = seed_paths(recipe_of(), 1, tmp_path / "elsewhere")
    isobatch.train(recipe=own, out=path, quiet=True, on_iteration=lambda row: False)
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "seed-1").symlink_to(path)
    with pytest.raises(UserError, match="link"):
        begun_in(tmp_path / "folder")


def test_a_learner_with_an_improve_of_its_own_is_not_bypassed():
    class Own(Ppo):
        def improve(self, rollout, advantages, targets, weights=None):
            return super().improve(rollout, 2 * advantages, targets, weights)

    assert awaits(learner_class(recipe_of()))
    assert not awaits(Own)


COMMAND = [
    sys.executable, "-m", "isobatch", "train", "CartPole-v1", "--seeds", "4", "--n-envs", "4",
    "--n-steps", "16", "--n-minibatches", "2", "--hidden-sizes", "16", "--compile", "off",
]  # fmt: skip


def test_the_command_trains_a_run_for_each_seed(tmp_path):
    arguments = [*COMMAND, "--total-timesteps", "640", "--out", str(tmp_path / "runs")]
    ended = subprocess.run(arguments, capture_output=True, text=True, check=True, timeout=soon(120))
    head, *lines = ended.stdout.splitlines()
    assert "4 runs, seeds 1 to 4" in head
    assert "together" in head or "one run in each" in head
    assert len(lines) == 4
    for seed in range(1, 5):
        run = Run(tmp_path / "runs" / f"seed-{seed}")
        assert run.recipe.seed == seed
        assert run.metrics[-1]["env_steps"] > 600


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_no_process_outlives_the_command(tmp_path, number):
    arguments = [*COMMAND, "--total-timesteps", "10000000", "--out", str(tmp_path / "runs")]
    process = subprocess.Popen(
        arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
    )
    files = [tmp_path / "runs" / f"seed-{seed}" / "metrics.jsonl" for seed in range(1, 5)]
    deadline = time.monotonic() + soon(60)
    while not all(file.exists() and file.stat().st_size for file in files):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    process.send_signal(number)
    code = process.wait(soon(30))
    assert code == (130 if number == signal.SIGTERM else -signal.SIGKILL)
    while _group(process.pid):
        assert time.monotonic() < deadline + soon(30)
        time.sleep(0.1)
    for file in files:
        assert all(each.is_whole for each in examine(file.parent))
        assert read_metrics(file.parent)


def test_the_runs_of_a_folder_are_resumed_together(tmp_path):
    jobs = seed_paths(recipe_of(), 3, tmp_path)
    own, path = jobs[0]
    isobatch.train(recipe=own, out=path, quiet=True, on_iteration=lambda row: False)
    for own, path in jobs[1:]:
        isobatch.train(
            recipe=own, out=path, quiet=True, on_iteration=lambda row: row["iterations"] < 3
        )
    arguments = [sys.executable, "-m", "isobatch", "resume", str(tmp_path)]
    ended = subprocess.run(arguments, capture_output=True, text=True, check=True, timeout=soon(120))
    assert "3 runs, seeds 1 to 3" in ended.stdout
    for _, path in jobs:
        rows = read_metrics(path)
        assert [row["iterations"] for row in rows] == list(range(1, len(rows) + 1))
        assert rows[-1]["env_steps"] > 600
    refused = subprocess.run(
        [*arguments, "--from-scratch"],
        capture_output=True,
        text=True,
        check=False,
        timeout=soon(60),
    )
    assert refused.returncode == 2
    assert "one at a time" in refused.stderr


def _group(leader):
    """Return whether a process of the group lives."""
    try:
        os.killpg(leader, 0)
    except ProcessLookupError:
        return False
    return True


def test_minibatches_larger_than_the_stack_are_computed_by_themselves(tmp_path):
    """The budget's last rollout may be one minibatch of more rows than usual."""
    recipe = recipe_of(n_minibatches=4, total_timesteps=64 + 24)
    sizes = [len(rows) for rows in minibatches(torch.ones(6, 4) > 0, 1, torch.Generator())]
    assert sizes == [24]  # More than the 16 of a usual one.
    for outcome in together(tmp_path, recipe, 2):
        assert outcome.failure is None
