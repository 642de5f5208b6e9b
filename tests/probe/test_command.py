"""isobatch probe, as a user types it."""

import json
import math
import os
import re
import shutil
from dataclasses import replace

import pytest
import torch

import isobatch
from benchmarks.captures import everything, screen
from isobatch.batch import Shape
from isobatch.cli import main
from isobatch.cli.probe import _progress_bar
from isobatch.estimate import Estimate
from isobatch.noise.clusters import Clusters
from isobatch.probe import Probe, Question, investigate, plan
from isobatch.probe.answer import answer, warnings
from isobatch.probe.compare import compare
from isobatch.probe.details import details
from isobatch.probe.laboratory import by_use
from isobatch.probe.page import render
from isobatch.probe.record import record
from isobatch.probe.tables import tables
from isobatch.run.sealed import read_sealed, write_sealed

_DRAWS = torch.randn(64, 500, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
NOISE = Clusters(torch.ones(64).double(), _DRAWS @ _DRAWS.T, _DRAWS.square().sum(1))
"""A reference without a gradient."""


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


@pytest.fixture(scope="module")
def findings(run):
    question = Question(shapes=(Shape(4, 8), Shape(8, 4)), batches=2, speed=False)
    return investigate(isobatch.load(run), question)


def test_it_answers_what_was_asked_first_and_writes(run, capsys):
    assert main(["probe", str(run), "--shapes", "4x32,16x8", "--batches", "3", "--at", "1"]) == 0
    printed = capsys.readouterr().out
    lines = printed.splitlines()
    assert re.match(
        r"CartPole-v1, ppo: policy at 1,02\d env steps \(100% of the budget\)", lines[0]
    )
    verdict = r"4x32 or 16x8: (no clear winner \()?(4x32|16x8) has the smaller error in \d+% of"
    assert re.match(verdict, lines[1])
    joined = " ".join(printed.split())
    for word in (
        r"4x32 \(the recipe's\) error \S+ \[\S+, \S+\] \S+ env steps/s",
        r"16x8 error \S+ \[\S+, \S+\] \S+ env steps/s",
        r"error of (4x32 / error of 16x8|16x8 / error of 4x32): \S+ \[",
        r"Smallest error of all shapes with 128 transitions: (undecided between )?\d+x\d+ \(\d+%",
        r"; over one update, (undecided between )?\d+x\d+ \(\d+%",
        r"Smallest error of one update x time on this machine: (undecided between )?\d+x\d+ \(\d+%",
        r"Record: ",
        r"Minibatch of 64 transitions: .*noise scale \S+ \[",
        r"Rollout of 128 transitions: .*noise scale \S+ \[",
        r"saved to ",
    ):
        assert re.search(word, joined), word
    assert max(map(len, lines[:-1])) <= 80
    assert len(lines) <= 24
    data = json.loads((run / "probe.json").read_text())
    (point,) = data["points"]
    assert data["source"]["shape"] == "4x32"
    assert point["answer"][0].startswith("4x32 or 16x8: ")
    assert point["state"] == "measured"
    assert point["env_steps"] == pytest.approx(1024, abs=4)
    assert [each["over"] for each in point["comparisons"]] == ["update", "updates"]
    assert point["comparisons"][0]["shapes"] == ["4x32", "16x8"]
    assert {name: each["rows"] for name, each in point["sizing"].items()} == {
        "minibatch": 64, "rollout": 128,
    }  # fmt: skip
    assert [row["shape"] for row in point["decomposition"]] == ["4x32", "4x32", "16x8", "16x8"]
    assert len(point["agreement"][0]["cosines"]) == 3
    assert {row["estimator"] for row in point["noise"]} == {
        "per-sample", "two-batch", "per-environment", "minibatch",
    }  # fmt: skip
    assert [each["reference"] for each in point["curves"]] == ["monte-carlo", "gae"]
    for each in point["curves"]:
        names = [f"{shape['n_envs']}x{shape['n_steps']}" for shape in each["shapes"]]
        assert names == ["128x1", "64x2", "32x4", "16x8", "8x16", "4x32", "2x64", "1x128"]
        assert each["decided"]
        wins = [shape["wins"] for shape in each["shapes"]]
        assert each["best"] == names[wins.index(max(wins))]
        for shape in each["shapes"]:
            for value, low, high in (shape["bias2"], shape["variance"], shape["error"]):
                assert value is None or low <= value
                assert high is None or (value is not None and value <= high)
    assert point["returns"]["complete"] > 0.9
    assert [each["covered"] for each in point["credit"]] == [0, 0]
    assert [each["variance"] for each in point["credit"]] == [None, None]
    assert [each["by_chance"] for each in point["minibatches"]] == pytest.approx([0.5**0.5] * 2)
    assert "<html" in (run / "probe.html").read_text()


def test_what_it_rests_on_is_behind_verbose(findings):
    found = Probe([findings])
    brief, full = str(found), found.verbose()
    assert full.startswith(brief)
    for word in (
        "er rollouts, ", "design effect", "effective sample size", "advantage error",
        "per-sample noise is", "per-trajectory noise", "against GAE, which shares",
        "credit-assignment noise cannot be estimated: 0% of", "bootstrapping bias^2",
        "total bias^2", "value-function bias", "a minibatch is the whole", "tr(Sigma)",
    ):  # fmt: skip
        assert word in " ".join(full.split()), word
        assert word not in brief
    assert max(map(len, full.splitlines())) <= 80


def test_python_says_what_the_command_does(run, tmp_path, capsys):
    where = ["--json", str(tmp_path / "a.json"), "--page", str(tmp_path / "b.html")]
    assert main(["probe", str(run), "--no-speed", *where]) == 0
    printed = capsys.readouterr().out
    found = isobatch.probe.run(run, speed=False)
    assert printed == f"{found}\nsaved to {tmp_path / 'a.json'} and {tmp_path / 'b.html'}\n"
    data = json.loads((tmp_path / "a.json").read_text())
    for each in (data, ours := json.loads(json.dumps(found.to_dict()))):
        del each["points"][0]["collected"]["seconds"]
    assert data == ours
    (findings,) = found.findings
    assert findings.policy.env_steps == pytest.approx(512, abs=130), "half of the budget"
    assert "<h4>CartPole-v1, ppo" in found._repr_html_()
    assert "<html" in found.page()


def collapse(tensors: dict) -> None:
    """Make the first action certain."""
    bias = next(name for name in tensors if name.endswith("actor.head.bias"))
    tensors[bias] = torch.tensor([50.0, -50.0])


def test_a_policy_that_has_collapsed_names_no_shape(run):
    policy = isobatch.load(run)
    state = policy.model.state_dict()
    collapse(state)
    policy.model.load_state_dict(state)
    found = isobatch.probe.run(policy, shapes="4x8,8x4", batches=2, speed=False)
    text = str(found)
    assert "The policy has collapsed" in text
    assert not re.search(r"\dx\d|noise scale|too small|no clear winner", text)
    (point,) = found.to_dict()["points"]
    assert point["state"] == "collapsed"
    assert not any(each["decided"] for each in point["curves"])
    page = found.page()
    assert "The policy has collapsed" in page
    assert "point-1-noise" not in page
    value = Question(shapes=(Shape(4, 8),), batches=2, loss="value", speed=False)
    assert not replace(found.findings[0], question=value).has_collapsed, "values still learn"


def test_without_a_gradient_at_half_of_the_budget_it_probes_earlier(run, tmp_path):
    path = tmp_path / "solved"
    shutil.copytree(run, path)
    early, middle, _ = sorted((path / "policies").glob("0*.safetensors"))
    tensors, description = read_sealed(middle)
    collapse(tensors)
    middle.unlink()
    write_sealed(middle, tensors, description)
    found = isobatch.probe.run(path, shapes=[Shape(4, 8)], batches=2, speed=False)
    (findings,) = found.findings
    assert findings.policy.env_steps == int(early.stem)
    text = " ".join(str(found).split())
    assert f"The policy at {int(middle.stem):,} env steps" in text
    assert "has collapsed: probed an earlier one." in text
    assert found.to_dict()["passed_over"] == found.passed_over
    assert found.passed_over[0] in found.page()
    (there,) = isobatch.probe.run(path, shapes="4x8", batches=2, speed=False, at=0.5).findings
    assert there.has_collapsed, "what --at names is probed"


def test_where_earlier_policies_have_no_gradient_either_it_probes_later(run, tmp_path):
    path = tmp_path / "late"
    shutil.copytree(run, path)
    *before, last = sorted((path / "policies").glob("0*.safetensors"))
    for each in before:
        tensors, description = read_sealed(each)
        collapse(tensors)
        each.unlink()
        write_sealed(each, tensors, description)
    found = isobatch.probe.run(path, shapes=[Shape(4, 8)], batches=2, speed=False)
    assert [each.policy.env_steps for each in found.findings] == [int(last.stem)]
    assert len(found.passed_over) == 2
    assert all(line.endswith("has collapsed: probed a later one") for line in found.passed_over)


def test_parts_of_a_run_and_files_of_ones_own(run, tmp_path, capsys):
    where = ["--json", str(tmp_path / "a.json"), "--page", str(tmp_path / "b.html")]
    assert main(["probe", str(run), "--at", "0.25,1", "--no-speed", "--lambdas", "1", *where]) == 0
    data = json.loads((tmp_path / "a.json").read_text())
    assert [point["fraction"] for point in data["points"]] == pytest.approx([0.25, 1], abs=0.15)
    held = [(each["reference"], each["gae_lambda"]) for each in data["points"][0]["bias"]]
    assert held == [("monte-carlo", 0.9), ("gae", 0.9), ("gae", 1.0)]
    assert data["points"][0]["curves"][0]["fastest"] is None
    assert (tmp_path / "b.html").exists()
    assert "% of the budget" in capsys.readouterr().out


def test_an_untrained_policy_of_an_environment(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    arguments = [
        "--policy",
        "random",
        "--shapes",
        "4x8",
        "--no-speed",
        "--of",
        "value",
    ]  # Its name until 0.2.0.
    assert main(["probe", "FrozenLake8x8-v1", *arguments]) == 0
    data = json.loads((tmp_path / "probe.json").read_text())
    assert data["source"]["policy"] == "random"
    assert data["source"]["loss"] == "value"
    assert not any(row["normalized"] for row in data["points"][0]["decomposition"])
    assert "untrained" in capsys.readouterr().out


def test_a_q_network_has_the_gradient_of_its_values(tmp_path, capsys):
    path = tmp_path / "q"
    isobatch.train(
        "CartPole-v1", algo="pqn", out=path, quiet=True, n_envs=4, n_steps=16, n_minibatches=2,
        total_timesteps=512, hidden_sizes=[8],
    )  # fmt: skip
    assert "no policy gradient" in (line := refused(capsys, path))
    assert "--loss value" in line
    assert main(["probe", str(path), "--loss", "value", "--no-speed"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "errors are against GAE, which shares the value function and does not see" in printed
    assert "does not see its errors" in (path / "probe.html").read_text()
    (point,) = json.loads((path / "probe.json").read_text())["points"]
    assert [each["reference"] for each in point["curves"]] == ["gae"], "its targets are greedy"
    assert point["returns"] is None


def test_states_that_come_twice_tell_the_noise_of_credit_assignment(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    arguments = ["--policy", "random", "--shapes", "8x16", "--no-speed", "--verbose"]
    assert main(["probe", "FrozenLake8x8-v1", *arguments]) == 0
    assert "8x16: credit-assignment noise is " in capsys.readouterr().out
    (point,) = json.loads((tmp_path / "probe.json").read_text())["points"]
    (credit,) = point["credit"]
    individual = next(row for row in point["decomposition"] if not row["normalized"])["individual"]
    assert 0 < credit["variance"] <= individual[2]
    assert credit["covered"] > 0.9


def no_number(name):
    raise AssertionError(f"{name} is not JSON")


def test_an_interval_without_a_bound_is_said_to_have_none(run, tmp_path, monkeypatch, capsys):
    """Four environments are too few: this ended in an OverflowError."""
    monkeypatch.setattr(plan, "FEWEST_ENVS", 4)
    record, page = tmp_path / "a.json", tmp_path / "b.html"
    where = ["--json", str(record), "--page", str(page), "--no-speed", "--verbose"]
    assert main(["probe", str(run), "--shapes", "2x64", "--batches", "2", *where]) == 0
    assert re.search(r"raw advantages +\S+ \[\S+, inf\]", capsys.readouterr().out)
    data = json.loads(record.read_text(), parse_constant=no_number)
    raw = data["points"][0]["decomposition"][0]
    value, low, high = raw["total"]
    assert value > low >= 0
    assert high is None
    assert f"{value:#.4g} <small>[{low:#.4g}, ∞]" in page.read_text(encoding="utf-8")


def test_shapes_of_different_sizes_are_compared_both_ways(run):
    found = isobatch.probe.run(run, shapes="4x8,4x16,4x6", batches=2, speed=False, at=1)
    text = " ".join(str(found).split())
    assert "4x8 or 4x16 or 4x6: " in text
    assert "They differ in size (4x8 has 32, 4x16 has 64, 4x6 has 24 transitions)" in text
    assert "At the same number of transitions, " in text
    assert "Smallest error of all shapes with 32 transitions: " in text
    (findings,) = found.findings
    assert findings.comparisons.transitions is not None
    assert findings.comparisons.transitions.batches == (2, 1, 64 / 24)


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


def test_every_shape_is_measured_by_all_environments_collected(findings):
    environments = findings.directions.squares.shape[1]
    assert environments > 2 * 8  # More than the two batches of the widest shape have.
    for each in findings.batches:
        assert each.batches * each.shape.n_envs == environments
        assert each.agreement.cosines.shape == (2, 2)


def test_what_is_measured_does_not_depend_on_when(run):
    question = Question(shapes=(Shape(4, 16),), batches=2, speed=False)
    first, again = (investigate(isobatch.load(run), question) for _ in range(2))
    assert first.batches[0].raw == again.batches[0].raw
    assert first.curve == again.curve


def test_a_gradient_too_noisy_to_measure_names_no_shape(findings):
    assert findings.against_returns is not None
    assert findings.has_advice
    noisy = replace(findings, against_returns=replace(findings.against_returns, reference=NOISE))
    assert not noisy.has_advice
    lines = answer(noisy)
    assert lines[0].startswith("No gradient distinguishable from its noise, so no shape is named")
    assert "an earlier one if the task is solved, a later one if" in lines[1]
    assert not any("Smallest error" in line or "error of" in line for line in lines)
    assert any("cannot see its errors" in line for line in details(noisy)), "GAE is decided"
    assert not any("against Monte-Carlo returns" in line for line in tables(noisy))
    assert any("against GAE" in line for line in tables(noisy))
    (point,) = record([noisy])["points"]
    assert [(each["decided"], each["best"] is None) for each in point["curves"]] == [
        (False, True), (True, False),
    ]  # fmt: skip
    assert "no shape is named" in render(record([noisy]))


def test_gae_answers_where_monte_carlo_returns_tell_nothing(findings):
    held, gae = findings.against_returns, findings.biases[0]
    lines = findings.curves["monte-carlo"], findings.curves["gae"]
    blank = [replace(each, error=each.error._replace(value=math.inf)) for each in lines[0]]

    def first(monte_carlo, other, line=lines[0]):
        return by_use([(monte_carlo, line), (other, lines[1])])[0][0]

    lost = replace(held, reference=NOISE)
    assert first(held, gae) is held
    assert first(lost, gae) is gae
    assert first(held, gae, blank) is gae, "no shape points along the returns' gradient"
    assert first(lost, replace(gae, reference=NOISE)) is lost, "neither tells"
    by_gae = replace(
        findings,
        against_returns=lost,
        curves={each: findings.curves[each] for each in ("gae", "monte-carlo")},
        comparisons=compare(gae, findings.comparisons.updates.shapes),
    )
    assert by_gae.has_advice
    assert any("against GAE" in line for line in answer(by_gae))
    assert any(
        line.startswith("against Monte-Carlo returns no gradient is distinguishable")
        for line in warnings(by_gae)
    )
    assert not any("cannot see its errors" in line for line in details(by_gae)), "said already"
    (point,) = record([by_gae])["points"]
    assert [each["reference"] for each in point["curves"]] == ["gae", "monte-carlo"]
    assert "Here only that of GAE is." in render(record([by_gae]))


def test_a_shape_without_any_error_is_not_advised(findings):
    blank = [replace(each, error=each.error._replace(value=math.inf)) for each in findings.curve]
    noisy = replace(findings, curves=findings.curves | {"monte-carlo": blank})
    assert not noisy.has_advice
    assert "no shape is named" in answer(noisy)[0]


def test_a_shape_is_named_where_it_nearly_always_wins_and_else_those_it_may_be(findings):
    def line(*shares: float) -> str:
        points = [replace(each, best_share_over_updates=0.0) for each in findings.curve]
        for k, share in enumerate(shares):
            points[k] = replace(points[k], best_share_over_updates=share)
        changed = replace(findings, curves=findings.curves | {"monte-carlo": points})
        return next(each for each in answer(changed) if each.startswith("Smallest error of all"))

    assert "transitions: 32x1 (96% of bootstrap resamples); over" in line(0.96, 0.04)
    both = line(0.27, 0.71, 0.02)
    assert "undecided between 16x2 (71% of bootstrap resamples) and 32x1 (27%); over" in both
    many = line(0.4, 0.3, 0.2, 0.1)
    assert "32x1 (40% of bootstrap resamples), 16x2 (30%), 8x4 (20%) and others; over" in many


@pytest.mark.parametrize(("wins", "said"), [(0.97, "8x4 has"), (0.9, "no clear winner (8x4 has")])
def test_asked_shapes_come_first_and_are_told_apart_only_where_one_nearly_always_wins(
    findings, wins, said
):
    compared = findings.comparisons
    updates = replace(compared.updates, wins=(1 - wins, wins))
    lines = answer(replace(findings, comparisons=replace(compared, updates=updates)))
    share = f"{wins:.0%}"
    expected = f"4x8 or 8x4: {said} the smaller error in {share} of bootstrap resamples"
    assert lines[0].startswith(expected)
    names = [line.split()[0] for line in lines if line.startswith("  ")]
    assert names == ["4x8", "8x4", "error"]


def test_what_doubling_buys_is_said_unless_the_noise_scale_has_no_bound(findings):
    def lines(scale: Estimate) -> str:
        (first, *rest) = findings.batches
        noise = [replace(each, noise_scale=scale) for each in first.noise]
        changed = replace(findings, batches=[replace(first, noise=noise), *rest])
        return "\n".join(answer(changed))

    small = lines(Estimate(6400.0, 3200.0, 9600.0))
    assert "Minibatch of 64 transitions: too small, noise scale 6,400 [3,200, 9,600]" in small
    assert "Doubling it: 0.505 [0.503, 0.51] times the gradient steps" in small
    assert "1.01x the transitions processed" in small
    assert "Rollout of 128 transitions: too small" in small
    assert "Doubling it to 8x32: 0.51 [0.507, 0.519] times the iterations" in small
    assert "Minibatch of 64 transitions: too large" in lines(Estimate(16.0, 8.0, 24.0))
    assert "Minibatch of 64 transitions: about right," in lines(Estimate(64.0, 40.0, 100.0))
    lost = lines(Estimate(6400.0, 3200.0, math.inf))
    assert "cannot tell if it is too small, noise scale 6,400 [3,200, inf]" in lost
    assert "Doubling" not in lost


def test_warnings_are_the_same_in_the_terminal_and_on_the_page(findings):
    changed = replace(
        findings,
        cautions=["environments are copies"],
        untimed="no such objective",
        experience=replace(findings.experience, episode_length=None, burn_in=1),
    )
    found = Probe([changed])
    lines = warnings(changed)
    assert len(lines) == 3
    text, page = " ".join(str(found).split()), found.page()
    for line in lines:
        assert f"! {line}" in text
        assert line[1:] in page
    assert "no episode ended within 1 step:" in text


def test_correlation_is_called_significant_only_where_zero_is_outside_its_interval(findings):
    def line(covariance: Estimate) -> str:
        batches = findings.batches[0]
        raw = replace(batches.raw, covariance=covariance)
        changed = replace(findings, batches=[replace(batches, raw=raw)])
        return next(each for each in details(changed) if each.startswith("4x8: "))

    assert "not significantly different from zero" in line(Estimate(0.1, -0.1, 0.3))
    assert "too few environments for an interval" in line(Estimate(0.1))
    assert "zero" not in line(Estimate(0.2, 0.1, 0.3))
    assert "negatively correlated" in line(Estimate(-0.2, -0.3, -0.1))


def test_a_finished_bar_says_done(monkeypatch):
    master, terminal = os.openpty()
    monkeypatch.setenv("TERM", "xterm")
    with os.fdopen(terminal, "w") as stream:
        monkeypatch.setattr("sys.stderr", stream)
        with _progress_bar() as progress:
            progress("computing gradients", 5, 10)
    shown = everything(master)
    os.close(master)
    assert screen(shown)[-1].startswith("done")
