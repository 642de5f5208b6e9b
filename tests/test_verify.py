"""isobatch verify: a run is trained again, and the first value that differs is named."""

import json
from pathlib import Path
from typing import Any

import pytest

import isobatch
from isobatch.cli import main
from isobatch.run import exact, verify
from isobatch.run.reading import read_numbers
from isobatch.run.sealed import read_sealed, write_sealed
from isobatch.run.seeds import seed_paths, train_seeds
from isobatch.run.store import read_metrics

TINY: dict[str, Any] = {
    "n_envs": 2, "n_steps": 8, "n_minibatches": 2, "n_epochs": 1, "total_timesteps": 64,
}  # fmt: skip


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def run():
    return isobatch.train("CartPole-v1", out="run", quiet=True, **TINY).path


@pytest.fixture
def verified(capsys):
    """Return a function that runs the command: -> (exit code, lines, complaint)."""

    def run(*words):
        capsys.readouterr()
        code = main(["verify", *map(str, words)])
        said = capsys.readouterr()
        return code, said.out.splitlines(), said.err

    return run


def change(path, iteration, **values):
    """Change a row as a stranger might."""
    rows = read_metrics(path)
    rows[iteration - 1] |= values
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (path / "metrics.jsonl").write_text(text)


def test_a_run_is_what_its_recipe_gives(run, verified):
    code, lines, _ = verified(run)
    assert code == 0
    count = len(read_metrics(run))
    assert lines[0].startswith(f"training {count} of {count} iterations again, which took ")
    assert lines[1:] == [f"run: identical in {count} of {count} iterations, bit for bit"]
    assert sorted(path.name for path in Path().iterdir()) == ["run"]


def test_one_changed_digit_is_found_and_named(run, verified):
    was = read_metrics(run)[1]["approx_kl"]
    changed = float.fromhex(
        was.hex()[:-5] + ("1" if was.hex()[-5] != "1" else "2") + was.hex()[-4:]
    )
    assert changed != was
    change(run, 2, approx_kl=changed)
    code, lines, _ = verified(run, "--quiet")
    assert code == 1
    assert lines == [
        f"run: iteration 2 differs in approx_kl: {changed!r} then, {was!r} now",
        "versions, CPU and threads are the same as then",
    ]
    assert verified(run, "--iterations", 1)[0] == 0


def test_the_clock_is_not_compared(run, verified):
    change(run, 2, seconds=1.5, steps_per_second=2.0, time="yesterday", learning_seconds=3.0)
    assert verified(run)[0] == 0


def test_another_learning_rate_shows(run, verified):
    recipe = Path(run / "recipe.toml")
    text = recipe.read_text()
    assert "learning_rate = 0.001\n" in text
    recipe.write_text(text.replace("learning_rate = 0.001\n", "learning_rate = 0.002\n"))
    code, (line, *_), _ = verified(run, "--quiet")
    assert code == 1
    assert line == "run: iteration 1 differs in learning_rate: 0.001 then, 0.002 now"


def test_how_many_iterations_are_compared(run, verified):
    count = len(read_metrics(run))
    for place in range(1, count + 1):
        change(run, place, seconds=30.0 * place)
    assert verified(run, "--quiet")[1] == [
        f"run: identical in 2 of {count} iterations, bit for bit"
    ]
    for words, compared in ((["--iterations", 3], 3), (["--all"], count)):
        _, (line,), _ = verified(run, "--quiet", *words)
        assert line == f"run: identical in {compared} of {count} iterations, bit for bit"
    assert verified(run, "--all", "--iterations", 3)[0] == 2


def test_a_torn_last_line_is_left_out(run, verified):
    rows = (run / "metrics.jsonl").read_bytes()
    (run / "metrics.jsonl").write_bytes(rows[:-40])
    count = len(rows.splitlines())
    code, (line,), _ = verified(run, "--quiet")
    assert (code, line) == (
        0,
        f"run: identical in {count - 1} of {count - 1} iterations, bit for bit",
    )


def test_columns_of_other_versions_are_said_and_left_out(run, verified):
    change(run, 1, old_column=1.0)
    code, lines, _ = verified(run, "--quiet")
    assert code == 0
    assert lines[1:] == ["not compared, since only one of the two runs has it: old_column"]


@pytest.mark.parametrize("there", [False, True])
def test_a_directory_that_is_no_run_is_refused(there, verified):
    if there:
        Path("other").mkdir()
    code, lines, complaint = verified("other")
    assert (code, lines) == (2, [])
    assert complaint == "isobatch: other holds no run (there is no recipe.toml in it)\n"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "has no rows yet"),
        ("[1]\n", "line 1 is not a row"),
        ('{"iterations": 2, "seconds": 1}\n', "row 1 is that of iteration 2"),
        ('{"iterations": 1, "seconds": "x"}\n', "cannot be understood"),
        ('{"iterations": 1, "seconds": 1, "resumed": true}\n', "there is nothing to compare"),
        ('{"iterations": 1, "seconds": 1, "cohort_width": 9999}\n', "cohort_width 9,999 is not"),
    ],
)
def test_rows_that_cannot_be_compared_are_refused_in_a_line(text, why, run, verified):
    (run / "metrics.jsonl").write_text(text)
    code, lines, complaint = verified(run, "--quiet")
    assert (code, lines) == (2, [])
    assert complaint.startswith("isobatch: run")
    assert why in complaint
    assert complaint.count("\n") == 1


@pytest.mark.parametrize("changed", [{"env": "python:make_env"}, {"encoder": "custom"}])
def test_what_is_the_users_own_is_refused(run, changed, verified):
    recipe = isobatch.Recipe.load(run / "recipe.toml").replace(**changed)
    (run / "recipe.toml").write_text(recipe.to_toml())
    code, _, complaint = verified(run)
    assert code == 2
    assert "your own" in complaint


def test_a_run_of_a_cohort_is_trained_in_a_stack_as_wide(verified):
    jobs = seed_paths(isobatch.preset("CartPole-v1", **TINY), 3, "three")
    train_seeds(jobs, width=5, quiet=True)
    for _, path in jobs:
        assert read_metrics(path)[0]["cohort_width"] == 5
        assert verified(path, "--quiet")[0] == 0
    change(jobs[1][1], 3, value_loss=0.5)
    code, (line, *_), _ = verified(jobs[1][1], "--quiet")
    assert code == 1
    assert "iteration 3 differs in value_loss: 0.5 then" in line


def test_a_resumed_run_is_compared_up_to_there(run, verified):
    """Its first rows were trained with its first budget, which the schedule follows."""
    count = len(read_metrics(run))
    isobatch.resume(run, total_timesteps=128, quiet=True)
    total = len(read_metrics(run))
    code, lines, _ = verified(run, "--quiet", "--all")
    assert code == 0
    assert lines == [
        f"run: identical in {count} of {total} iterations, bit for bit",
        f"the run was resumed after iteration {count}, in new environments: later iterations "
        "cannot be compared",
    ]


def test_a_run_resumed_exactly_is_compared_as_a_whole(verified):
    asked: dict[str, Any] = TINY | {"exact_resume": True, "quiet": True}
    run = isobatch.train(
        "CartPole-v1", out="run", on_iteration=lambda row: row["iterations"] < 2, **asked
    )
    isobatch.resume(run.path, quiet=True)
    total = len(read_metrics(run.path))
    code, lines, _ = verified(run.path, "--quiet")
    assert (code, lines) == (0, [f"run: identical in {total} of {total} iterations, bit for bit"])


def test_evaluations_are_left_out_and_change_nothing(verified):
    run = isobatch.train("CartPole-v1", out="run", eval_marks=4, quiet=True, **TINY)
    assert verified(run.path, "--quiet")[0] == 0


def test_what_differs_of_the_machine_is_said(run, verified):
    for path in (run / "checkpoints").iterdir():
        tensors, data = read_sealed(path)
        data["machine"] |= {"torch": "1.0.0", "cpu": "NEON", "threads": 2}
        write_sealed(path, tensors, data)
    lines = verified(run, "--quiet")[1]
    here = exact.machine()
    assert f"torch: 1.0.0 then, {here['torch']} now" in lines
    assert f"cpu: NEON then, {here['cpu']} now" in lines
    assert not any("threads" in line for line in lines)  # As many are taken.


def test_a_run_of_an_earlier_version_has_no_machine(run, verified):
    for path in (run / "checkpoints").iterdir():
        tensors, data = read_sealed(path)
        del data["machine"]
        write_sealed(path, tensors, data)
    code, lines, _ = verified(run, "--quiet")
    assert code == 0
    assert lines[1] == "versions, CPU and threads of the run are not recorded"


def test_the_machine_is_that_of_the_start(run):
    begun = read_numbers(run)["machine"]
    assert {"isobatch", "torch", "cpu", "threads"} <= set(begun)
    for path in (run / "checkpoints").iterdir():
        tensors, data = read_sealed(path)
        data["machine"] = begun | {"torch": "1.0.0"}
        write_sealed(path, tensors, data)
    isobatch.resume(run, total_timesteps=128, quiet=True)
    assert read_numbers(run)["machine"]["torch"] == "1.0.0"


def test_an_objective_of_ones_own_comes_with_its_module(verified, monkeypatch):
    Path("my_objective.py").write_text(
        "import isobatch\n"
        "@isobatch.objective('mine')\n"
        "def mine(current, samples, settings):\n"
        "    return -(samples.advantages * current.logp)\n"
    )
    words = [f"--{name.replace('_', '-')}={value}" for name, value in TINY.items()]
    asked = ["--import", "my_objective", "--objective", "mine", "--quiet", "--out", "run"]
    assert main(["train", "CartPole-v1", *words, *asked]) == 0
    assert verified("run", "--import", "my_objective", "--quiet")[0] == 0


def test_signs_and_kinds_of_numbers_count():
    row = {"iterations": 1, "a": 0.0, "b": 1, "c": None, "d": 0.1}
    assert verify.first_difference(row, dict(row)) is None
    for column, value in {"a": -0.0, "b": 1.0, "c": 0.0, "d": 0.1 + 2**-56}.items():
        found = verify.first_difference(row, row | {column: value})
        assert found is not None
        assert found.column == column
