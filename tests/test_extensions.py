"""Doors for other people: objectives with coefficients, algorithms, sinks, modules to import."""

import json
import os
import subprocess
import sys
import textwrap

import pytest
from hand_made import PLAIN

import isobatch
from isobatch import objectives, registry
from isobatch.algos.learner import Learned
from isobatch.algos.ppo import Ppo
from isobatch.cli import main
from isobatch.errors import UserError

TINY = {"n_envs": 4, "n_steps": 32, "total_timesteps": 512, "quiet": True}


def register_leaning():
    """An objective whose own coefficient weighs a pull towards less likely actions."""

    @isobatch.objective("leaning", coefficients={"lean": 0.5, "tilt": 0})
    def leaning(current, samples, settings):
        pull = settings.coefficients["lean"] * current.logp
        return -samples.advantages * current.logp + pull

    return leaning


class TestObjectives:
    def test_its_coefficients_are_fields_of_the_recipe(self):
        register_leaning()
        recipe = PLAIN.replace(objective="leaning", lean=2)
        assert recipe.objective.coefficients == {"lean": 2.0, "tilt": 0}
        assert recipe.values["lean"] == 2.0
        assert recipe.replace(tilt=1.0).values["lean"] == 2.0
        assert "lean" not in recipe.replace(objective="clip").values
        assert isobatch.Recipe.from_toml(recipe.to_toml()) == recipe
        assert hash(recipe) != hash(recipe.replace(lean=3))

    def test_the_function_reads_what_the_recipe_says(self, tmp_path):
        register_leaning()
        weights = []
        for lean in (0.0, 3.0):
            out = tmp_path / str(lean)
            run = isobatch.train("CartPole-v1", objective="leaning", lean=lean, out=out, **TINY)
            weights.append(run.metrics[-1]["policy_loss"])
        assert weights[0] != weights[1]

    def test_a_misspelt_coefficient_is_refused(self):
        register_leaning()
        recipe = PLAIN.replace(objective="leaning")
        with pytest.raises(UserError, match=r"unknown recipe field 'leen'.*Did you mean lean"):
            recipe.replace(leen=1.0)
        with pytest.raises(UserError, match="lean must be a finite number") as caught:
            recipe.replace(lean="much")
        assert caught.value.field == "lean"
        text = recipe.to_toml().replace("lean =", "leen =")
        with pytest.raises(UserError, match="leaning has no coefficient 'leen'"):
            isobatch.Recipe.from_toml(text)

    @pytest.mark.parametrize(
        "coefficients", [{"gamma": 1.0}, {"minibatch_size": 1.0}, {"a b": 1.0}, {"x": "1"}]
    )
    def test_coefficients_that_cannot_be_are_refused(self, coefficients):
        with pytest.raises(UserError):
            isobatch.objective("other", coefficients=coefficients)

    def test_a_run_is_read_without_the_function(self, tmp_path, capsys):
        register_leaning()
        run = isobatch.train("CartPole-v1", objective="leaning", out=tmp_path / "r", **TINY)
        del objectives._LOSSES["leaning"], registry.OBJECTIVES["leaning"]
        assert run.recipe.values["lean"] == 0.5
        path = str(run.path)
        for command in (
            ["eval", path, "--episodes", "2"], ["show", path], ["rescale", path, "--n-envs", "8"],
            ["query", "select lean from runs", "--runs", path],
            ["probe", path, "--batches", "2"],
        ):  # fmt: skip
            assert main(command) == 0, command
        shown = capsys.readouterr()
        assert "shapes are not timed: objective 'leaning' is not registered" in shown.out
        assert main(["resume", path, "--total-timesteps", "1024"]) == 2
        said = capsys.readouterr().err
        assert "objective 'leaning' is not registered" in said
        assert said.count("\n") == 1
        register_leaning()
        assert main(["resume", path, "--total-timesteps", "1024", "--quiet"]) == 0

    def test_losses_of_another_shape_are_refused(self, tmp_path):
        @isobatch.objective("summed")
        def summed(current, samples, settings):
            return (samples.advantages * current.logp).sum()

        with pytest.raises(UserError, match="'summed' must return a loss for each sample"):
            isobatch.train("CartPole-v1", objective="summed", out=tmp_path / "r", **TINY)
        assert not (tmp_path / "r").exists()


MODULE = """
import isobatch

@isobatch.objective("leaning", coefficients={"lean": 0.5})
def leaning(current, samples, settings):
    pull = settings.coefficients["lean"] * current.logp
    return -samples.advantages * current.logp + pull
"""


def isobatch_command(folder, *words):
    """Run the command line in a process of its own, as a user in a folder would."""
    environment = {k: v for k, v in os.environ.items() if k != registry.IMPORTS}
    return subprocess.run(
        [sys.executable, "-m", "isobatch", *words],
        cwd=folder, capture_output=True, text=True, env=environment, check=False,
    )  # fmt: skip


class TestImport:
    def test_a_module_named_on_the_command_line_brings_its_objective_and_flags(self, tmp_path):
        (tmp_path / "my_leaning.py").write_text(MODULE)
        batch = ["--n-envs", "4", "--n-steps", "32", "--total-timesteps", "512", "--quiet"]
        done = isobatch_command(
            tmp_path, "train", "CartPole-v1", "--import", "my_leaning", "--objective", "leaning",
            "--lean", "2", "--out", "run", *batch,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        recipe = isobatch.Recipe.load(tmp_path / "run" / "recipe.toml")
        assert recipe.objective.coefficients == {"lean": 2.0}
        refused = isobatch_command(tmp_path, "resume", "run", "--total-timesteps", "1024")
        assert refused.returncode == 2
        assert "--import MODULE" in refused.stderr

    def test_workers_of_a_study_import_it_too(self, tmp_path):
        (tmp_path / "my_leaning.py").write_text(MODULE)
        (tmp_path / "mine.toml").write_text(
            textwrap.dedent("""
            [study]
            envs = ["CartPole-v1"]
            budget = 512
            seeds = 1
            evaluate = 2
            [base]
            objective = "leaning"
            n_envs = 4
            n_steps = 32
            [arms]
            little = { lean = 0.1 }
            much = { lean = 2.0 }
            """)
        )
        missing = isobatch_command(tmp_path, "study", "mine.toml", "--dry-run")
        assert missing.returncode == 2
        assert "'leaning' is not registered: pass --import MODULE" in missing.stderr
        done = isobatch_command(
            tmp_path, "study", "mine.toml", "--import", "my_leaning", "--quiet", "--jobs", "1"
        )
        assert done.returncode == 0, done.stderr
        assert "2 of 2 runs" in done.stdout
        for command in (["report", "studies/mine"], ["query", "select lean from runs", "--runs",
                        "studies/mine"]):  # fmt: skip
            assert isobatch_command(tmp_path, *command).returncode == 0

    @pytest.mark.parametrize("words", [["--import"], ["--import", "no_such_module_there_is"]])
    def test_a_module_that_is_not_there_is_one_line(self, words, capsys):
        assert main(["show", "CartPole-v1", *words]) == 2
        assert capsys.readouterr().err.count("\n") == 1


def register_careful():
    """PPO that steps only on rollouts with enough rows, and says how often."""

    @isobatch.algorithm(
        "careful",
        like="ppo",
        coefficients={"least_rows": 16.0},
        presets={"n_epochs": 2, "learning_rate": 2e-4},
        fixes={"n_minibatches": 2},
    )
    class Careful(Ppo):
        """PPO for large rollouts."""

        columns: tuple[str, ...] = (*Ppo.columns, "skipped")

        def learn(self, rollout):
            if rollout.n_valid < self.state.recipe.values["least_rows"]:
                return Learned({"skipped": 1.0})
            return super().learn(rollout)

    return Careful


class TestAlgorithms:
    def test_one_file_is_an_algorithm(self, tmp_path, capsys):
        register_careful()
        recipe = isobatch.preset("CartPole-v1", "careful")
        assert (recipe.batch.n_epochs, recipe.optimizer.learning_rate) == (2, 2e-4)
        assert recipe.values["least_rows"] == 16.0
        run = isobatch.train(recipe=recipe, out=tmp_path / "r", **TINY)
        assert run.recipe.algo == "careful"
        assert all("skipped" in row for row in run.metrics)
        assert run.metrics[0]["grad_steps"] == 4
        assert main(["eval", str(run.path), "--episodes", "2"]) == 0
        words = ["--n-envs", "8", "--keep", "minibatches", "--verbose"]
        assert main(["rescale", str(run.path), *words]) == 0
        # PPO's limit holds for what is like it.
        assert "ppo-ewma with proximal_decay" in " ".join(capsys.readouterr().out.split())
        isobatch.resume(run.path, total_timesteps=1024, quiet=True)
        none = isobatch.train(recipe=recipe.replace(least_rows=1e6), out=tmp_path / "n", **TINY)
        assert none.metrics[-1]["grad_steps"] == 0
        assert none.metrics[-1]["skipped"] == 1.0

    def test_what_it_fixes_is_refused_with_any_other_value(self):
        register_careful()
        recipe = isobatch.preset("CartPole-v1", "careful")
        with pytest.raises(UserError, match="n_minibatches must be 2 for careful") as caught:
            recipe.replace(n_minibatches=4)
        assert caught.value.field == "n_minibatches"

    def test_a_run_of_it_says_what_it_needs_where_it_is_not_registered(self, tmp_path, capsys):
        register_careful()
        recipe = isobatch.preset("CartPole-v1", "careful")
        run = isobatch.train(recipe=recipe, out=tmp_path / "r", **TINY)
        del registry.ALGORITHMS["careful"]
        path = str(run.path)
        assert run.recipe.algo == "careful"
        assert main(["query", "select algo from runs", "--runs", path]) == 0
        assert "careful" in capsys.readouterr().out
        for command in (["eval", path], ["resume", path, "--total-timesteps", "1024"]):
            assert main(command) == 2
            said = capsys.readouterr().err
            assert "algorithm 'careful' is not registered" in said
            assert "--import MODULE" in said

    def test_names_are_given_once(self):
        with pytest.raises(UserError, match="there is an algorithm 'ppo' already"):
            isobatch.algorithm("ppo")(Ppo)
        with pytest.raises(UserError, match="algorithm 'pppo' is not registered"):
            isobatch.algorithm("mine", like="pppo")

    def test_a_model_of_its_own(self, tmp_path):
        from isobatch.models import ActorCritic

        made = []

        def model(recipe, observations, actions, encoder):
            made.append(recipe.algo)
            return ActorCritic(observations, actions, recipe.model, encoder)

        isobatch.algorithm("own-model", model=model)(type("Own", (Ppo,), {}))
        run = isobatch.train("CartPole-v1", algo="own-model", out=tmp_path / "r", **TINY)
        assert isobatch.load(run.path).predict([0.0, 0.0, 0.0, 0.0]) in (0, 1)
        assert made == ["own-model", "own-model"]


class Heard(isobatch.Sink):
    """Writes down all it is told."""

    def __init__(self):
        self.heard = []

    def start(self, recipe, path, env_steps):
        self.heard.append(("start", recipe.env, env_steps))

    def row(self, row):
        self.heard.append(("row", row["env_steps"]))

    def stop(self):
        self.heard.append(("stop",))


class TestSinks:
    def test_a_sink_hears_what_the_metrics_file_has(self, tmp_path):
        sink, rows = Heard(), []
        run = isobatch.train(
            "CartPole-v1", out=tmp_path / "r", sinks=[sink],
            on_iteration=lambda row: rows.append(row), **TINY,
        )  # fmt: skip
        assert sink.heard[0] == ("start", "CartPole-v1", 0)
        assert sink.heard[-1] == ("stop",)
        assert [each[1] for each in sink.heard[1:-1]] == [row["env_steps"] for row in run.metrics]
        assert json.loads(json.dumps(rows)) == run.metrics

    def test_one_that_raises_is_reported_once_and_never_stops_the_run(self, tmp_path, capsys):
        class Broken(Heard):
            def row(self, row):
                row.clear()
                raise RuntimeError("no\nspace")

        broken, after = Broken(), Heard()
        run = isobatch.train("CartPole-v1", out=tmp_path / "r", sinks=[broken, after], **TINY)
        assert not run.interrupted
        assert len(after.heard) == 2 + len(run.metrics)
        assert run.metrics[-1]["env_steps"] > 400
        assert broken.heard[-1] == ("stop",)
        said = capsys.readouterr().err
        assert said.count("the sink Broken failed (RuntimeError: no space)") == 1
        assert said.count("\n") == 1

    def test_what_is_no_sink_is_refused(self, tmp_path):
        with pytest.raises(UserError, match="the sink list has no method start"):
            isobatch.train("CartPole-v1", out=tmp_path / "r", sinks=[[]], **TINY)  # pyright: ignore[reportArgumentType]

    def test_returning_false_stops_the_run_saved(self, tmp_path):
        run = isobatch.train(
            "CartPole-v1", out=tmp_path / "r",
            on_iteration=lambda row: row["iterations"] < 2, **TINY,
        )  # fmt: skip
        assert run.interrupted
        assert [row["iterations"] for row in run.metrics] == [1, 2]
        sink = Heard()
        done = isobatch.resume(run.path, quiet=True, sinks=[sink])
        assert not done.interrupted
        assert sink.heard[0] == ("start", "CartPole-v1", done.metrics[1]["env_steps"])
        assert [row["iterations"] for row in done.metrics] == list(range(1, len(done.metrics) + 1))
        assert done.metrics[2]["resumed"]

    def test_an_error_in_on_iteration_is_the_callers(self, tmp_path):
        def fail(row):
            raise KeyError("mine")

        with pytest.raises(KeyError, match="mine"):
            isobatch.train("CartPole-v1", out=tmp_path / "r", on_iteration=fail, **TINY)
