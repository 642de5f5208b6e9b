"""Evaluation at fixed environment steps, beside training."""

import json

import numpy as np
import pytest
import torch
from torch import nn

import isobatch
from isobatch import evaluate, load
from isobatch.cli import main
from isobatch.errors import UserError
from isobatch.recipe import Recipe
from isobatch.run.store import CLOCK_COLUMNS, read_policy, read_sealed
from isobatch.study.stats import area_under_curve

TINY = {"n_envs": 4, "n_steps": 16, "total_timesteps": 400, "quiet": True, "eval_episodes": 3}


def trained(out, **settings):
    return isobatch.train("CartPole-v1", out=out, **{**TINY, **settings})


def without_clock(rows, *dropped):
    return [{k: v for k, v in row.items() if k not in (*CLOCK_COLUMNS, *dropped)} for row in rows]


class TestMarks:
    def test_marks_are_parts_of_the_budget_or_so_many_steps_apart(self):
        recipe = Recipe(env="x", total_timesteps=1000)
        assert recipe.evaluation.marks(1000) == []
        assert recipe.replace(eval_marks=3).evaluation.marks(1000) == [0, 333, 667, 1000]
        assert recipe.replace(eval_every=400).evaluation.marks(1000) == [0, 400, 800]
        with pytest.raises(UserError, match="eval_marks or eval_every, not both"):
            recipe.replace(eval_every=1, eval_marks=1)

    @pytest.mark.parametrize("shape", [(4, 16), (2, 32), (16, 4), (8, 64)])
    def test_every_shape_is_evaluated_at_the_same_steps_by_the_policy_that_acts_there(
        self, shape, tmp_path
    ):
        run = trained(tmp_path / "r", n_envs=shape[0], n_steps=shape[1], total_timesteps=1024,
                      eval_marks=8)  # fmt: skip
        rows = run.evaluations
        assert [row["mark"] for row in rows] == [round(k * 1024 / 8) for k in range(9)]
        steps = {0: 0} | {row["iterations"]: row["env_steps"] for row in run.metrics}
        for row in rows:
            # Its policy had learned from all before the rollout under way, and from no more.
            assert row["env_steps"] == steps[row["iterations"]] <= row["mark"]
            after = steps.get(row["iterations"] + 1, 1024)
            assert row["mark"] == 0 or row["mark"] <= max(after, 1024 - shape[0])
            assert row["episodes"] == len(row["returns"]) == len(row["lengths"]) == 3
            assert row["episode_return"] == pytest.approx(np.mean(row["returns"]))

    @pytest.mark.parametrize("algo", ["ppo", "ppo-ewma", "pqn", "ppg", "reinforce"])
    def test_training_does_not_notice(self, algo, tmp_path):
        settings = {"algo": algo, "normalize_observations": True, "compile": "off"}
        plain = trained(tmp_path / "plain", **settings)
        marked = trained(tmp_path / "marked", eval_marks=5, **settings)
        assert without_clock(marked.metrics) == without_clock(plain.metrics)
        # Action values are evaluated without random moments.
        how = "deterministic" if algo == "pqn" else "sampled"
        assert {row["actions"] for row in marked.evaluations} == {how}
        assert evaluate(marked.path, 2).actions == how
        assert evaluate(marked.path, 2, deterministic=True).actions == "deterministic"
        one, two = (read_policy(run.path)[0] for run in (plain, marked))
        assert all(torch.equal(one[name], two[name]) for name in one)

    def test_a_layer_that_draws_random_numbers_is_left_as_it_was(self, tmp_path):
        runs = []
        for marks in (0, 4):
            torch.manual_seed(3)
            own = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.BatchNorm1d(8))
            runs.append(trained(tmp_path / str(marks), encoder=own, eval_marks=marks))
        assert without_clock(runs[0].metrics) == without_clock(runs[1].metrics)

    def test_a_resumed_run_has_the_marks_it_would_have_had(self, tmp_path):
        whole = trained(tmp_path / "whole", eval_marks=6)
        stopped = trained(
            tmp_path / "stopped", eval_marks=6, on_iteration=lambda row: row["iterations"] < 3
        )
        before = stopped.evaluations
        # A row that a kill left behind the checkpoint is played again, not doubled.
        with open(stopped.path / "evaluations.jsonl", "a") as file:
            file.write(json.dumps(before[-1] | {"mark": 399}) + "\n")
        done = isobatch.resume(stopped.path, quiet=True)
        assert [row["mark"] for row in done.evaluations] == [r["mark"] for r in whole.evaluations]
        kept = [row for row in before if row["mark"] <= stopped.metrics[2]["env_steps"]]
        assert without_clock(done.evaluations[: len(kept)]) == without_clock(kept)
        assert without_clock(kept) == without_clock(whole.evaluations[: len(kept)])

    def test_a_run_that_fell_short_of_its_budget_plays_its_last_mark_once(self, tmp_path):
        short = {"n_envs": 3, "n_steps": 5, "n_minibatches": 1, "total_timesteps": 32}
        run = trained(tmp_path / "run", **short, eval_marks=1)
        assert run.metrics[-1]["env_steps"] < 32
        before = run.evaluations
        assert before[-1]["mark"] == 32
        assert isobatch.resume(run.path, quiet=True).evaluations == before

    def test_the_best_policy_is_kept(self, tmp_path):
        run = trained(tmp_path / "r", eval_marks=5, total_timesteps=4000, n_steps=64)
        best = max(run.evaluations, key=lambda row: row["episode_return"])
        _, data = read_sealed(run.path / "policies" / "best.safetensors")
        assert data["env_steps"] == best["env_steps"]
        assert read_policy(run.path)[1]["env_steps"] == run.metrics[-1]["env_steps"]

    def test_the_best_policy_can_be_played(self, tmp_path, capsys):
        run = trained(tmp_path / "r", eval_marks=5, total_timesteps=4000, n_steps=64)
        best = max(run.evaluations, key=lambda row: row["episode_return"])
        assert load(run.path, best=True).env_steps == best["env_steps"]
        assert main(["eval", str(run.path), "--best", "--episodes", "3"]) == 0
        assert "over 3 episodes with sampled actions" in capsys.readouterr().out
        plain = trained(tmp_path / "plain")
        assert main(["eval", str(plain.path), "--best"]) == 2
        assert "was not evaluated while training (--eval-marks)" in capsys.readouterr().err

    def test_the_number_of_episodes_goes_by_the_budget(self):
        recipe = Recipe(env="x").replace(eval_marks=16)
        counts = [recipe.evaluation.episodes(total) for total in (10_000, 100_000, 200_000, 10**8)]
        assert counts == [4, 5, 11, 16]
        assert recipe.replace(eval_episodes=3).evaluation.episodes(10**8) == 3

    def test_the_cost_is_said_first(self, tmp_path):
        notes = []

        class Heard(isobatch.Sink):
            def note(self, text):
                notes.append(text)

        run = trained(tmp_path / "r", eval_marks=5, sinks=[Heard()])
        share = 6 * sum(run.evaluations[0]["lengths"]) / 400
        assert notes[0].startswith("6 evaluations of 3 episodes each")
        assert f"{share:.0%} as many steps as training" in notes[0]

    def test_a_users_own_environment_is_evaluated_too(self, tmp_path):
        import gymnasium

        run = isobatch.train(
            make_env=lambda: gymnasium.make("CartPole-v1"), out=tmp_path / "r", eval_marks=2, **TINY
        )
        assert len(run.evaluations) == 3
        assert all(row["episode_length"] > 5 for row in run.evaluations)


class TestIdenticalLearning:
    """The null: learning that depends on environment steps alone, the same at every N.

    An agent of skill s(t) plays CartPole-like episodes, whose length is its return, drawn around
    20 + 480 s(t) and at most 500. Only how it is looked at differs between the shapes.
    """

    TOTAL = 100_000
    SHAPES = ((4, 256), (16, 64), (64, 16), (256, 4))

    @staticmethod
    def lengths(steps, random):
        mean = 20 + 480 * min(1.0, steps / 60_000)
        return int(min(500, max(5, random.gamma(4.0, mean / 4))))

    def training_area(self, n_envs, n_steps, random):
        """The area under the mean of the last 100 finished training episodes."""
        ages = np.zeros(n_envs, int)
        ends = np.array([self.lengths(0, random) for _ in range(n_envs)])
        window, steps, curve = [], [], []
        for begin in range(0, self.TOTAL, n_envs * n_steps):
            for t in range(n_steps):
                ages += 1
                for n in np.flatnonzero(ages >= ends):
                    window.append(int(ages[n]))
                    ages[n], ends[n] = 0, self.lengths(begin + t * n_envs, random)
            steps.append(begin + n_envs * n_steps)
            curve.append(float(np.mean(window[-100:])) if window else None)
        return area_under_curve(steps, curve, self.TOTAL)

    def marked_area(self, n_envs, n_steps, random):
        """The area under evaluations at marks, each by the policy that acts there."""
        marks = Recipe(env="x").replace(eval_marks=16).evaluation.marks(self.TOTAL)
        rollout = n_envs * n_steps
        curve = [
            float(np.mean([self.lengths(max(0, mark - 1) // rollout * rollout, random)
                           for _ in range(16)]))
            for mark in marks
        ]  # fmt: skip
        return area_under_curve(marks, curve, self.TOTAL)

    def test_training_returns_bend_the_area_and_evaluations_at_marks_do_not(self):
        seeds = range(8)
        trained, marked = (
            np.array([
                [area(*shape, np.random.default_rng(seed)) for seed in seeds]
                for shape in self.SHAPES
            ])
            for area in (self.training_area, self.marked_area)
        )  # fmt: skip
        # The widest shape looks far worse than the narrowest though it learns the same.
        assert trained[-1].mean() < 0.75 * trained[0].mean()
        means = marked.mean(1)
        error = marked.std(1, ddof=1).max() / len(seeds) ** 0.5
        assert np.ptp(means) < 4 * error
        assert np.ptp(means) < 0.02 * means.mean()
