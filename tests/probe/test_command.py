"""isobatch probe, as a user types it."""

import json
import math
import re
from dataclasses import replace

import pytest
import torch

import isobatch
from isobatch.batch import Shape
from isobatch.cli import main
from isobatch.estimate import Estimate
from isobatch.noise.clusters import Clusters
from isobatch.probe import Question, investigate


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of CartPole short enough that its gradient stands clear of its noise."""
    path = tmp_path_factory.mktemp("runs") / "cartpole"
    isobatch.train(
        "CartPole-v1", out=path, quiet=True, n_envs=4, n_steps=32, n_minibatches=2,
        n_epochs=2, total_timesteps=1024, hidden_sizes=[8],
    )  # fmt: skip
    return path


def refused(capsys, *arguments) -> str:
    """Return the one line a mistake is answered with."""
    assert main(["probe", *map(str, arguments)]) == 2
    captured = capsys.readouterr()
    assert len(captured.err.strip().splitlines()) == 1
    return captured.err


def test_it_answers_tabulates_and_writes(run, capsys):
    assert main(["probe", str(run), "--shapes", "4x32,16x8", "--batches", "3"]) == 0
    printed = capsys.readouterr().out
    first, second = printed.splitlines()[1:3]
    shape = re.match(r"at 128 samples per rollout: (\d+x\d+)\b.* has the smallest gradient", first)
    assert "against Monte-Carlo returns" in first
    assert shape is not None
    assert re.match(rf"{shape[1]} has the smallest error in \d+% of bootstrap resamples", second)
    for word in (
        "longer rollouts", "design effect", "effective sample size", "noise scale", "env steps/s",
        "95% CI", "advantage error", "per-sample noise is", "per-trajectory noise",
        "credit-assignment noise cannot be estimated: 0% of samples", "against GAE, which shares",
        "rollouts without end", "have a cosine of", "see their episode terminate",
    ):  # fmt: skip
        assert word in printed
    data = json.loads((run / "probe.json").read_text())
    (point,) = data["points"]
    assert data["source"]["shape"] == "4x32"
    assert point["answer"][0] == first
    assert point["env_steps"] == pytest.approx(1024, abs=4)
    assert [row["shape"] for row in point["decomposition"]] == ["4x32", "4x32", "16x8", "16x8"]
    assert len(point["agreement"][0]["cosines"]) == 3
    assert {row["estimator"] for row in point["noise"]} == {
        "per-sample", "two-batch", "per-environment",
    }  # fmt: skip
    assert [each["reference"] for each in point["curves"]] == ["monte-carlo", "gae"]
    for each in point["curves"]:
        names = [f"{shape['n_envs']}x{shape['n_steps']}" for shape in each["shapes"]]
        assert names == ["128x1", "64x2", "32x4", "16x8", "8x16", "4x32", "2x64", "1x128"]
        assert each["decided"]
        assert each["best"] in names
    assert point["curves"][0]["best"] == shape[1]
    assert point["returns"]["complete"] > 0.9
    assert [each["covered"] for each in point["credit"]] == [0, 0]
    assert [each["variance"] for each in point["credit"]] == [None, None]
    assert [each["by_chance"] for each in point["minibatches"]] == pytest.approx([0.5**0.5] * 2)
    assert "<html" in (run / "probe.html").read_text()


def test_parts_of_a_run_and_files_of_ones_own(run, tmp_path, capsys):
    where = ["--json", str(tmp_path / "a.json"), "--page", str(tmp_path / "b.html")]
    assert main(["probe", str(run), "--at", "0.25,1", "--no-speed", "--lambdas", "1", *where]) == 0
    data = json.loads((tmp_path / "a.json").read_text())
    assert [point["fraction"] for point in data["points"]] == pytest.approx([0.25, 1], abs=0.15)
    held = [(each["reference"], each["gae_lambda"]) for each in data["points"][0]["bias"]]
    assert held == [("monte-carlo", 0.9), ("gae", 0.9), ("gae", 1.0)]
    assert data["points"][0]["curves"][0]["fastest"] is None
    assert (tmp_path / "b.html").exists()
    assert "% of its budget" in capsys.readouterr().out


def test_an_untrained_policy_of_an_environment(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    arguments = ["--policy", "random", "--shapes", "4x8", "--no-speed", "--of", "value"]
    assert main(["probe", "FrozenLake8x8-v1", *arguments]) == 0
    data = json.loads((tmp_path / "probe.json").read_text())
    assert data["source"]["policy"] == "random"
    assert data["source"]["of"] == "value"
    assert not any(row["normalized"] for row in data["points"][0]["decomposition"])
    assert "untrained" in capsys.readouterr().out


def test_a_q_network_has_the_gradient_of_its_values(tmp_path, capsys):
    path = tmp_path / "q"
    isobatch.train(
        "CartPole-v1", algo="pqn", out=path, quiet=True, n_envs=4, n_steps=16, n_minibatches=2,
        total_timesteps=512, hidden_sizes=[8],
    )  # fmt: skip
    assert "no policy gradient" in (line := refused(capsys, path))
    assert "--of value" in line
    assert main(["probe", str(path), "--of", "value", "--no-speed"]) == 0
    assert "its errors are not seen" in capsys.readouterr().out
    (point,) = json.loads((path / "probe.json").read_text())["points"]
    assert [each["reference"] for each in point["curves"]] == ["gae"], "its targets are greedy"
    assert point["returns"] is None


def test_states_that_come_twice_tell_the_noise_of_credit_assignment(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    arguments = ["--policy", "random", "--shapes", "8x16", "--no-speed"]
    assert main(["probe", "FrozenLake8x8-v1", *arguments]) == 0
    assert "8x16: credit-assignment noise is " in capsys.readouterr().out
    (point,) = json.loads((tmp_path / "probe.json").read_text())["points"]
    (credit,) = point["credit"]
    individual = next(row for row in point["decomposition"] if not row["normalized"])["individual"]
    assert 0 < credit["variance"] <= individual[2]
    assert credit["covered"] > 0.9


def no_number(name):
    raise AssertionError(f"{name} is not JSON")


def test_an_interval_without_a_bound_is_said_to_have_none(run, tmp_path, capsys):
    """Four environments are too few: this ended in an OverflowError."""
    record, page = tmp_path / "a.json", tmp_path / "b.html"
    where = ["--json", str(record), "--page", str(page), "--no-speed"]
    assert main(["probe", str(run), "--shapes", "2x64", "--batches", "2", *where]) == 0
    assert re.search(r"raw advantages +\S+ \[\S+, inf\]", capsys.readouterr().out)
    data = json.loads(record.read_text(), parse_constant=no_number)
    raw = data["points"][0]["decomposition"][0]
    value, low, high = raw["total"]
    assert value > low >= 0
    assert high is None
    assert f"{value:#.4g} <small>[{low:#.4g}, ∞]" in page.read_text(encoding="utf-8")


def test_shapes_of_different_sizes_are_warned_of(run, tmp_path, capsys):
    where = ["--json", str(tmp_path / "a.json"), "--page", str(tmp_path / "b.html"), "--no-speed"]
    assert main(["probe", str(run), "--shapes", "4x8,4x16", *where]) == 0
    assert "! the shapes differ in size (4x8 = 32, 4x16 = 64)" in capsys.readouterr().out


def test_mistakes_are_one_line(run, tmp_path, capsys):
    assert "no run" in refused(capsys, tmp_path / "nothing")
    assert "no recipe.toml" in refused(capsys, tmp_path)
    assert "--shapes must read like" in refused(capsys, run, "--shapes", "4by32")
    assert "--shapes must read like" in refused(capsys, run, "--shapes", "0x32")
    assert "two environments or more" in refused(capsys, run, "--shapes", "1x32", "--batches", "1")
    assert "at least 1" in refused(capsys, run, "--batches", "0")
    assert "[0, 1]" in refused(capsys, run, "--at", "2")
    assert "numbers such as" in refused(capsys, run, "--at", "half")
    assert "leave out --policy" in refused(capsys, run, "--policy", "random")
    assert "no budget" in refused(capsys, "CartPole-v1", "--policy", "random", "--at", "0.5")
    assert "no folder" in refused(capsys, run, "--no-speed", "--page", tmp_path / "no" / "p.html")
    assert "CartPole" in refused(capsys, "CartPol-v1", "--policy", "random")


def test_a_run_without_a_policy_is_refused(run, tmp_path, capsys):
    (tmp_path / "recipe.toml").write_text((run / "recipe.toml").read_text())
    assert "policy" in refused(capsys, tmp_path)


def test_one_environment_is_measured_through_batches(run):
    findings = investigate(
        isobatch.load(run), Question(shapes=(Shape(1, 32),), batches=40, speed=False)
    )
    (batches,) = findings.batches
    assert batches.raw.n_envs == 1
    assert batches.across[0] == pytest.approx(batches.raw.total.value, rel=0.03)


def test_what_is_measured_does_not_depend_on_when(run):
    question = Question(shapes=(Shape(4, 16),), batches=2, speed=False)
    first, again = (investigate(isobatch.load(run), question) for _ in range(2))
    assert first.batches[0].raw == again.batches[0].raw
    assert first.curve == again.curve


def test_a_gradient_too_noisy_to_measure_names_no_shape(run):
    from isobatch.probe.answer import answer
    from isobatch.probe.page import render
    from isobatch.probe.record import record
    from isobatch.probe.tables import tables

    findings = investigate(
        isobatch.load(run), Question(shapes=(Shape(4, 8),), batches=2, speed=False)
    )
    assert findings.against_returns is not None
    assert findings.has_advice
    noise = torch.randn(64, 500, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    lost = Clusters(torch.ones(64).double(), noise @ noise.T, noise.square().sum(1))
    noisy = replace(findings, against_returns=replace(findings.against_returns, reference=lost))
    assert not noisy.has_advice
    lines = answer(noisy)
    assert "undecided, too noisy to choose a shape. Against Monte-Carlo returns" in lines[0]
    assert "cannot see its errors" in lines[1], "GAE is decided, and advises nothing"
    assert not any(line.startswith("against Monte-Carlo returns") for line in tables(noisy))
    assert any(line.startswith("against GAE") for line in tables(noisy))
    (point,) = record([noisy], None)["points"]
    assert [(each["decided"], each["best"] is None) for each in point["curves"]] == [
        (False, True), (True, False),
    ]  # fmt: skip
    assert "undecided" in render(record([noisy], None))


def test_a_shape_without_any_error_is_not_advised(run):
    from isobatch.probe.answer import answer

    findings = investigate(
        isobatch.load(run), Question(shapes=(Shape(4, 8),), batches=2, speed=False)
    )
    blank = [replace(each, error=each.error._replace(value=math.inf)) for each in findings.curve]
    noisy = replace(findings, curves=findings.curves | {"monte-carlo": blank})
    assert not noisy.has_advice
    assert "undecided" in answer(noisy)[0]


def test_correlation_is_called_significant_only_where_zero_is_outside_its_interval(run):
    from isobatch.probe.answer import answer

    findings = investigate(
        isobatch.load(run), Question(shapes=(Shape(4, 8),), batches=2, speed=False)
    )

    def line(covariance: Estimate) -> str:
        (batches,) = findings.batches
        raw = replace(batches.raw, covariance=covariance)
        changed = replace(findings, batches=[replace(batches, raw=raw)])
        return next(each for each in answer(changed) if each.startswith("4x8: "))

    assert "not significantly different from zero" in line(Estimate(0.1, -0.1, 0.3))
    assert "too few environments for an interval" in line(Estimate(0.1))
    for covariance in (Estimate(0.2, 0.1, 0.3), Estimate(-0.2, -0.3, -0.1)):
        assert "zero" not in line(covariance)
