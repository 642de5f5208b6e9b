"""isobatch advise, and how it reads runs that are not as they should be."""

import html
import json
import math
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from recorded_runs import history_of, recipe_of

import isobatch
from isobatch import advice
from isobatch.advice import Actions, Advice
from isobatch.advice.history import History
from isobatch.advice.verdict import verdict
from isobatch.cli import main
from isobatch.cli.flags import Parser, add_recipe_flags, given
from isobatch.presets import preset
from isobatch.recipe import Recipe
from isobatch.run import throughput
from isobatch.run.store import RunDirectory
from isobatch.run.throughput import Rate, Rates

TINY: dict[str, Any] = {
    "n_envs": 2,
    "n_steps": 8,
    "n_minibatches": 2,
    "n_epochs": 1,
    "total_timesteps": 64,
}


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def command(capsys):
    def run(*words):
        capsys.readouterr()
        return main([*map(str, words)]), *capsys.readouterr()

    return run


def saved(name, path="run"):
    """Write a recorded run's rows as a run directory."""
    directory = RunDirectory.create(Path(path), recipe_of(name))
    for row in history_of(name)._columns._rows:
        directory.append(dict(row))
    directory.release()
    return Path(path)


def test_a_run_in_trouble_is_told_worst_first(command):
    code, said, complaint = command("advise", saved("shared-network"), "--verbose")
    lines = said.splitlines()
    assert (code, complaint) == (0, "")
    assert lines[0] == "run: Not learning: the mean return is -497.1, and was -500 at the start."
    assert lines[1] == (
        "It took 40 iterations and 1,570 gradient steps, in 39,997 of 40,000 env steps."
    )
    assert "PROBLEM value-scale" in lines
    assert "     --normalize-rewards" in said
    assert "source: ours." in said
    assert max(map(len, lines)) <= 80
    words = ("PROBLEM", "WARNING", "NOTE")
    severities = [line.split()[0] for line in lines if line.startswith(words)]
    assert severities == sorted(severities, key=["PROBLEM", "WARNING", "NOTE"].index)


def test_it_ends_with_the_command_to_type_next(command):
    said = command("advise", saved("shared-network"))[1]
    words = shlex.split(said.partition("Next, with the first of these:")[2].replace("\\\n", " "))
    assert words[:3] == ["isobatch", "train", "Acrobot-v1"]
    assert words[-1] == "--normalize-rewards"
    base = preset("Acrobot-v1")
    parser = Parser(prog="train")
    add_recipe_flags(parser, base)
    fields = given(parser.parse_args(words[3:]), base)
    assert base.replace(**fields) == recipe_of("shared-network").replace(normalize_rewards=True)


def test_a_flag_that_is_the_presets_is_named_all_the_same():
    recipe = recipe_of("acrobot").replace(n_minibatches=1)
    RunDirectory.create(Path("run"), recipe).release()
    assert isobatch.advise("run").next == "isobatch train Acrobot-v1 --n-minibatches 4"


def test_an_environment_of_ones_own_is_trained_from_its_file():
    own = recipe_of("acrobot").replace(env="my_module:Own-v0", n_minibatches=1)
    RunDirectory.create(Path("run"), own).release()
    assert isobatch.advise("run").next == (
        "isobatch train --recipe run/recipe.toml --env my_module:Own-v0 --n-minibatches 4"
    )


def test_a_collapse_is_told_with_its_iteration_and_what_the_policy_did(command):
    said = " ".join(command("advise", saved("large-steps-relu"))[1].split())
    assert said.startswith(
        "run: Had learned and lost it at iteration 26: the mean return rose from 0.5551 to 0.946 "
        "and fell to 0. It fell at iteration 26 (49,698 env steps): approximate KL 0.0094 -> "
        "2.4e-11 (at most 1.2, in iteration 23), clip fraction 3% -> 0%, entropy 0.055 -> 0.00069."
    )


def test_a_policy_that_collapsed_before_it_learned_is_told_too():
    found = Advice("run", history_of("step-size-100x"), [])
    assert found.verdict.state == "not learning"
    assert found.verdict.collapse.startswith("The policy collapsed at iteration 2 (")
    assert "entropy 0.068 -> " in found.verdict.collapse


def test_a_run_that_learns_is_said_to():
    learned = history_of("cartpole")
    assert verdict(learned).sentence == "Learned: the mean return rose from 25.08 to 500."
    assert verdict(learned.until_part(0.5)).sentence.startswith("Learning: the mean return rose")
    assert verdict(learned.until(2)).state == "too early to say"


@pytest.mark.parametrize(
    ("env", "first", "last", "state", "said"),
    [
        ("InvertedPendulum-v4", 8.9, 9.9, "not learning", "random actions score 6.2, the refer"),
        ("InvertedPendulum-v4", 8.9, 60, "learning", "rose from 8.9 to 60"),
        ("InvertedPendulum-v4", 930, 940, "learning", "is 940, and was 930 at the start"),
        ("Unheard-of-v0", 8.9, 9.9, "learning", "rose from 8.9 to 9.9"),
    ],
)
def test_a_rise_counts_on_the_scale_of_the_environment(env, first, last, state, said):
    rows = [
        {"env_steps": 1_000 * (k + 1), "episode_return": first if k < 10 else last}
        for k in range(40)
    ]
    found = verdict(History(Recipe(env=env), rows))
    assert found.state == state
    assert said in found.sentence


def test_notes_are_named_and_shown_when_asked(command):
    path = saved("step-size-20x")
    short, long = command("advise", path)[1], command("advise", path, "--verbose")[1]
    named = "3 notes: kl-high, clip-high, many-epochs (shown by --verbose)."
    assert named in " ".join(short.split())
    assert "NOTE many-epochs" not in short
    assert "NOTE many-epochs" in long


def test_a_healthy_run_is_told_in_a_few_lines(command):
    code, said, _ = command("advise", saved("acrobot"))
    assert code == 0
    assert said.splitlines() == [
        "run: Learned: the mean return rose from -384.9 to -82.04.",
        "It took 99 iterations and 3,950 gradient steps, in 99,995 of 100,000 env steps.",
        "Found: nothing above a note.",
    ]


def test_a_trained_run_is_read_with_its_actions(command):
    run = isobatch.train("CartPole-v1", out="run", quiet=True, **TINY)
    history = advice.read(run.path)
    assert history.rows == 4
    assert history.actions == Actions(2, math.log(2))
    assert {each.rule for each in isobatch.advise(run)} >= {"few-updates"}
    assert command("advise", run.path)[0] == 0


def test_continuous_actions_have_dimensions():
    run = isobatch.train("Pendulum-v1", out="run", quiet=True, **TINY)
    assert advice.read(run.path).actions == Actions(1, None)


def test_advice_from_python_is_what_the_command_prints(command):
    path = saved("shared-network")
    found = isobatch.advise(path)
    assert command("advise", path)[1] == f"{found}\n"
    assert isobatch.advise(str(path))[0].rule == "value-scale"
    assert [each.rule for each in found] == [each.rule for each in found[:]]
    assert len(found) == len(found.findings)
    assert repr(found).startswith("<Advice on run: not learning, 1 problem")
    assert html.unescape(found._repr_html_()) == f"<pre>{found}</pre>"


def test_a_torn_last_line_is_left_out(command):
    path = saved("shared-network")
    _, before, _ = command("advise", path)
    with (path / "metrics.jsonl").open("a") as file:
        file.write('{"env_steps": 99999, "iter')
    assert command("advise", path) == (0, before, "")


def test_unknown_columns_and_those_of_older_versions_change_nothing(command):
    path = saved("shared-network")
    _, before, _ = command("advise", path)
    file = path / "metrics.jsonl"
    old = ("rollout_size", "minibatch_size", "updates_per_sample", "env_seconds", "weight_norm")
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    rows = [{"of_my_own": {"x": 1}} | {k: row[k] for k in row if k not in old} for row in rows]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert command("advise", path) == (0, before, "")


def test_a_run_without_rows_is_not_called_healthy(command):
    RunDirectory.create(Path("run"), recipe_of("acrobot")).release()
    code, said, _ = command("advise", "run")
    assert code == 0
    assert said.splitlines() == [
        "run: No rows yet: only the recipe was looked at.",
        "Found: nothing above a note.",
    ]


def test_a_run_that_has_only_begun_is_told_by_its_recipe(command):
    recipe = recipe_of("acrobot").replace(n_minibatches=1)
    RunDirectory.create(Path("run"), recipe).release()
    code, said, _ = command("advise", "run")
    assert code == 0
    assert said.startswith(
        "run: No rows yet: only the recipe was looked at.\nFound: nothing above a note, 1 note.\n"
    )
    assert "NOTE few-minibatches" in said
    Path("run/metrics.jsonl").unlink(missing_ok=True)
    assert command("advise", "run") == (0, said, "")


@pytest.mark.parametrize(
    ("prepare", "said"),
    [
        (lambda: None, "nowhere does not exist"),
        (lambda: Path("nowhere").mkdir(), "holds no run (there is no recipe.toml in it)"),
        (lambda: Path("nowhere").write_text("x"), "holds no run"),
        (lambda: saved("no-reward", "nowhere/inner"), "isobatch advise nowhere/inner"),
    ],
)
def test_what_is_no_run_is_refused_in_a_line(command, prepare, said):
    prepare()
    code, _, complaint = command("advise", "nowhere")
    assert code == 2
    assert complaint.count("\n") == 1
    assert said in complaint


def test_damage_is_refused_in_a_line(command):
    path = saved("no-reward")
    file = path / "metrics.jsonl"
    file.write_text("{\n" + file.read_text())
    code, _, complaint = command("advise", path)
    assert code == 2
    assert complaint.count("\n") == 1
    assert "metrics.jsonl, line 1 is not JSON" in complaint


def test_a_damaged_policy_hides_only_the_actions(command):
    path = saved("no-reward")
    (path / "policy.safetensors").write_bytes(b"\xff" * 64)
    assert advice.read(path).actions is None
    assert command("advise", path)[0] == 0


def test_it_starts_without_pytorch():
    code = (
        "import sys, isobatch.cli.advise; "
        "sys.exit(any(n in sys.modules for n in ('torch', 'numpy')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# How many environments pay.


def rates(*steps_per_second):
    return [Rate(2**k, 0.5 / rate, 0.5 / rate, 3e8) for k, rate in enumerate(steps_per_second)]


def test_the_answer_names_where_more_environments_stop_paying():
    found = Rates(rates(100, 200, 400, 600, 610, 605), "")
    first, second = throughput.answer(found, 2)
    assert first == (
        "8 environments: 3.0x the steps/s of the recipe's 2; no gain beyond 8 (tried up to 32)"
    )
    assert "--n-envs 8" in second


def test_the_answer_says_where_the_recipes_own_is_best_or_no_end_was_found():
    (own,) = throughput.answer(Rates(rates(100, 200, 201, 202), ""), 2)
    assert own.startswith("2 environments, the recipe's own: 200 steps/s; no gain beyond 2")
    (rising, _) = throughput.answer(Rates(rates(100, 200, 400), "50 s are over"), 1)
    assert rising == (
        "4 environments: 4.0x the steps/s of the recipe's 1; it still rises there, but 50 s are "
        "over"
    )


def test_throughput_is_measured(command, monkeypatch):
    monkeypatch.setattr(throughput, "LARGEST", 4)
    words = ["--n-envs", "2", "--n-steps", "8", "--n-minibatches", "1", "--n-epochs", "1"]
    code, said, _ = command("advise", "--throughput", "CartPole-v1", *words)
    assert code == 0
    lines = said.splitlines()
    assert "environment" in lines[0]
    table = [line.split() for line in lines if line[:1].isdigit() and line.endswith(("MB", "GB"))]
    assert [row[0] for row in table] == ["1", "2", "4"]
    assert all(float(row[1].replace(",", "")) > 0 for row in table)


def test_sizes_beyond_memory_are_not_tried(monkeypatch):
    from isobatch.run import memory

    monkeypatch.setattr(memory, "available_memory", lambda: 150_000)
    found = throughput.measure(recipe_of("acrobot").replace(n_steps=1000, n_envs=1))
    assert [rate.n_envs for rate in found.rates] == [1, 2]
    assert "is available" in found.stopped


def test_throughput_needs_an_environment(command):
    code, _, complaint = command("advise", "--throughput")
    assert code == 2
    assert complaint == (
        "isobatch: --throughput needs an environment: isobatch advise --throughput ENV\n"
    )
