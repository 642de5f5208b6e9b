import json

import numpy as np
import pytest
from fakes import finish_study
from pages import Elements

from isobatch.cli.study import finish
from isobatch.errors import UserError
from isobatch.study.design import from_toml
from isobatch.study.queue import Queue
from isobatch.study.results import Results
from isobatch.study.stats import equivalence, mean, van_elteren
from isobatch.study.verdict import verdicts

HEAD = """
[study]
envs = ["CartPole-v1", "Acrobot-v1"]
budget = 400
seeds = 8
[arms]
a = { n_envs = 2, n_steps = 8 }
b = { n_envs = 4, n_steps = 4 }
c = { n_envs = 4, n_steps = 8 }
d = { n_envs = 8, n_steps = 8 }
"""
CLAIM = '[[claims]]\ntext = "{text}"\nbetter = {better}\nthan = {than}\n{extra}\n'


def claim(better, than, extra="", text="so it is"):
    quoted = [
        str(list(side)) if isinstance(side, tuple) else f'"{side}"' for side in (better, than)
    ]
    return CLAIM.format(text=text, better=quoted[0], than=quoted[1], extra=extra)


def judged(tmp_path, claims, level):
    """Return the verdicts of a study whose arms have these mean scores, and noise of 0.05."""
    study = from_toml(HEAD + "".join(claims), "x")
    noise = np.random.default_rng(0)

    def score(cell):
        normalised = level[cell.arm] + 0.05 * noise.standard_normal()
        return {"CartPole-v1": 500 * normalised, "Acrobot-v1": -500 + 400 * normalised}[cell.env]

    finish_study(tmp_path / "study", study, score)
    return verdicts(Results.load(tmp_path / "study"))


LEVELS = {"a": 0.3, "b": 0.6, "c": 0.6, "d": 0.6}


def test_a_clear_difference_supports_or_contradicts_and_none_leaves_it_undecided(tmp_path):
    found = judged(tmp_path, [claim("b", "a"), claim("a", "b"), claim("b", "c")], LEVELS)
    assert [each.verdict for each in found] == ["supported", "contradicted", "undecided"]
    first, second, third = found
    assert first.effect == pytest.approx(0.3, abs=0.05)
    assert first.probability == 1.0
    assert first.low is not None
    assert first.effect is not None
    assert 0 < first.low < first.effect
    assert second.effect == pytest.approx(-first.effect)
    assert third.low is not None
    assert third.high is not None
    assert third.low < 0 < third.high
    assert all(each.runs == 8 for each in found)


def test_levels_are_bonferronis(tmp_path):
    found = judged(tmp_path, [claim("b", "a"), claim("b", "c"), claim("c", "d")], LEVELS)
    results = Results.load(tmp_path / "study")
    seeds = list(range(1, 9))
    b, c = results.scores("b", seeds), results.scores("c", seeds)
    assert found[1].p == pytest.approx(min(1, 3 * van_elteren(b, c)[1]))
    assert found[1].effect == pytest.approx(mean(b) - mean(c))


def test_equivalence(tmp_path):
    claims = [claim("b", "c", "margin = 0.1"), claim("b", "c", "margin = 0.001")]
    claims.append(claim("b", "a", "margin = 0.1"))
    found = judged(tmp_path, claims, LEVELS)
    assert [each.verdict for each in found] == ["supported", "undecided", "contradicted"]
    results = Results.load(tmp_path / "study")
    seeds = list(range(1, 9))
    expected = 3 * equivalence(results.scores("b", seeds), results.scores("c", seeds), 0.1)
    assert found[0].p == pytest.approx(expected)


def test_gains_are_compared_by_seed(tmp_path):
    levels = {"a": 0.2, "b": 0.6, "c": 0.3, "d": 0.35}
    found = judged(tmp_path, [claim(("b", "a"), ("d", "c")), claim(("d", "c"), ("b", "a"))], levels)
    assert [each.verdict for each in found] == ["supported", "contradicted"]
    assert found[0].effect == pytest.approx(0.35, abs=0.06)


def test_area_under_the_curve_is_its_own_measure(tmp_path):
    found = judged(tmp_path, [claim("b", "a"), claim("b", "a", 'measure = "curve"')], LEVELS)
    assert found[0].effect != found[1].effect
    assert "area under the curve" in found[1].sentence


def test_too_few_seeds_leave_it_undecided_and_say_so(tmp_path):
    judged(tmp_path, [claim("b", "a")], LEVELS)
    queue = Queue.open(tmp_path / "study")
    for cell in queue.study.cells:
        if cell.seed > 2:
            queue._file(cell, "done").unlink()
    (found,) = verdicts(Results.load(tmp_path / "study"))
    assert found.verdict == "undecided"
    assert found.effect is None
    assert "only 2 seeds with all runs of these arms finished, 5 needed" in found.sentence


def test_a_run_that_was_not_evaluated_leaves_its_curve_undecided(tmp_path):
    judged(tmp_path, [claim("b", "a"), claim("b", "a", 'measure = "curve"')], LEVELS)
    queue = Queue.open(tmp_path / "study")
    cell = queue.study.cells[0]
    (queue.run_path(cell) / "evaluations.jsonl").unlink()
    done = queue._file(cell, "done")
    done.write_text(json.dumps(json.loads(done.read_text()) | {"evaluations_sha256": ""}))
    score, curve = verdicts(Results.load(tmp_path / "study"))
    assert score.verdict == "supported"
    assert curve.verdict == "undecided"
    assert "was not evaluated while training" in curve.sentence


def gains(tmp_path, levels, better=("b", "a"), than=("d", "c")):
    (found,) = judged(tmp_path, [claim(better, than)], levels)
    return found


def test_to_lose_less_is_no_gain(tmp_path):
    found = gains(tmp_path, {"a": 0.9, "b": 0.8, "c": 0.9, "d": 0.3})
    assert found.effect == pytest.approx(0.5, abs=0.06)
    assert found.p is not None
    assert found.p < 0.05
    assert found.verdict == "contradicted"
    assert "both lose, b over a less than d over c: b over a loses (-0." in found.sentence
    assert "d over c loses (-0.6" in found.sentence


def test_a_difference_of_gains_without_a_gain_is_undecided(tmp_path):
    found = gains(tmp_path, {"a": 0.6, "b": 0.6, "c": 0.9, "d": 0.3})
    assert found.verdict == "undecided"
    assert "the gain is not, it loses less: b over a has no significant gain" in found.sentence


def test_a_gain_beside_a_loss_is_supported_and_says_both(tmp_path):
    found = gains(tmp_path, {"a": 0.3, "b": 0.6, "c": 0.6, "d": 0.3})
    assert found.verdict == "supported"
    assert "b over a gains (+0.3" in found.sentence
    assert "d over c loses (-0.3" in found.sentence


def test_a_loss_is_no_gain_whatever_the_other_does(tmp_path):
    found = gains(tmp_path, {"a": 0.9, "b": 0.3, "c": 0.6, "d": 0.6})
    assert found.verdict == "contradicted"
    assert "no gain but a loss: b over a loses" in found.sentence


def test_the_own_gain_is_tested_at_the_studys_level(tmp_path):
    levels = {"a": 0.57, "b": 0.6, "c": 0.9, "d": 0.3}
    alone = gains(tmp_path / "alone", levels)
    others = [claim("a", "c")] * 199
    among = judged(tmp_path / "among", [claim(("b", "a"), ("d", "c")), *others], levels)[0]
    assert (alone.verdict, among.verdict) == ("supported", "undecided")


def test_two_gains_may_be_claimed_to_be_the_same(tmp_path):
    levels = {"a": 0.9, "b": 0.6, "c": 0.9, "d": 0.6}
    (found,) = judged(tmp_path, [claim(("b", "a"), ("d", "c"), "margin = 0.2")], levels)
    assert found.verdict == "supported"


def test_beyond_a_margin_the_test_and_the_interval_say_so_both(tmp_path):
    (found,) = judged(tmp_path, [claim("b", "a", "margin = 0.1")], LEVELS)
    assert found.verdict == "contradicted"
    assert found.test == "test of a difference beyond the margin"
    scores = Results.load(tmp_path / "study").scores
    b, a = (scores(arm, list(range(1, 9))) for arm in "ba")
    assert found.p == pytest.approx(1 - equivalence(b, a, 0.1))
    assert found.p is not None
    assert found.p < 0.05
    assert f"{found.test} p = {found.p:.3g}" in found.sentence


class Scored(Results):
    """A study's results with these normalised scores, arm by arm."""

    def __init__(self, study, scores):
        super().__init__(study, [])
        self.given = scores

    def seeds(self, arms):
        return list(range(len(next(iter(self.given.values())))))

    def scores(self, contrast, seeds, measure="score", normalise=True):
        return self.given[contrast]


def test_where_only_the_interval_lies_beyond_a_margin_it_is_undecided():
    # Few runs, one environment: the bootstrap's interval is narrower than Welch's test allows.
    head = HEAD.replace(', "Acrobot-v1"', "")
    study = from_toml(head + claim("b", "a", "margin = 0.1"), "x")
    b = np.array([0.11, 0.12, 0.13, 0.16, 0.30])[:, None]
    a = np.array([-0.03, 0.0, 0.0, 0.01, 0.02])[:, None]
    (found,) = verdicts(Scored(study, {"b": b, "a": a}))
    assert found.low is not None
    assert found.p is not None
    assert found.low > 0.1
    assert found.p > 0.05
    assert found.verdict == "undecided"
    assert "the test and the interval disagree on a margin of 0.1" in found.sentence
    assert found.pulls == [
        "tasks that pull towards b: CartPole-v1 (difference +0.164, "
        "probability of improvement 1.00)",
        "tasks that pull towards a: none",
    ]


# A large difference in one task, a small one the other way in every run of the other.
FEW = np.arange(8.0)[:, None] / 1000
TORN = {"b": np.hstack([0.9 + FEW, 0.5 + FEW]), "a": np.hstack([0.2 + FEW, 0.51 + FEW])}
PULLS = [
    "tasks that pull towards b: CartPole-v1 (difference +0.700, probability of improvement 1.00)",
    "tasks that pull towards a: Acrobot-v1 (difference -0.010, probability of improvement 0.00)",
]


def test_where_the_interval_alone_decides_the_tasks_that_pull_either_way_are_named():
    (found,) = verdicts(Scored(from_toml(HEAD + claim("b", "a"), "x"), TORN))
    assert found.verdict == "undecided"
    assert found.reason == "the test and the interval disagree"
    assert found.low is not None
    assert found.low > 0
    assert found.p == 1.0
    assert found.pulls == PULLS


def test_where_the_test_alone_decides_the_tasks_are_named_the_strongest_first():
    envs = ", ".join(f'"{env}-v5"' for env in ("Pong", "Breakout", "Qbert", "Boxing", "Alien"))
    head = HEAD.replace('"CartPole-v1", "Acrobot-v1"', f'"CartPole-v1", {envs}')
    steps = 0.01 * np.arange(1, 6)
    a = np.hstack([np.array([[0, 1] * 4]).T - 0.035, np.tile(0.5 + FEW / 100, 5)])
    b = np.hstack([np.array([[1, 0] * 4]).T * 1.0, np.tile(0.5 + FEW / 100, 5) + steps])
    (found,) = verdicts(Scored(from_toml(head + claim("a", "b"), "x"), {"a": a, "b": b}))
    assert found.verdict == "undecided"
    assert found.p is not None
    assert found.p < 0.05
    towards_a, towards_b = found.pulls
    assert towards_a == "tasks that pull towards a: none"
    assert towards_b.startswith("tasks that pull towards b: Alien-v5 (difference -0.050")
    assert towards_b.endswith(
        "CartPole-v1 (difference -0.035, probability of improvement 0.25), "
        "Qbert-v5 (difference -0.030, probability of improvement 0.00), 2 more"
    )


def test_where_they_agree_no_task_is_named(tmp_path):
    claims = [claim("b", "a"), claim("a", "b"), claim("b", "c"), claim("b", "a", "margin = 0.1")]
    assert [each.pulls for each in judged(tmp_path, claims, LEVELS)] == [[], [], [], []]


def test_page_and_terminal_name_the_tasks_that_pull_either_way(tmp_path, capsys):
    study = from_toml(HEAD + claim("b", "a"), "x")
    columns = {"CartPole-v1": 0, "Acrobot-v1": 1}

    def score(cell):
        normalised = TORN["b" if cell.arm == "b" else "a"][cell.seed - 1, columns[cell.env]]
        return {"CartPole-v1": 500 * normalised, "Acrobot-v1": -500 + 400 * normalised}[cell.env]

    finish_study(tmp_path / "study", study, score)
    assert finish(tmp_path / "study", failed=False) == 0
    results = Results.load(tmp_path / "study")
    (found,) = verdicts(results)
    assert len(found.pulls) == 2
    said = capsys.readouterr().out.splitlines()
    assert said[2:4] == [f"  {line}" for line in found.pulls]
    page = Elements((tmp_path / "study" / "report.html").read_text())
    for line in found.pulls:
        assert f"T{line[1:]}." in page.words


UNKNOWN = HEAD.replace('"Acrobot-v1"', '"gymnasium:Blackjack-v1"')


def ranked(tmp_path, claims, level):
    """Return the verdicts of a study one of whose environments has no known scale."""
    study = from_toml(UNKNOWN + "".join(claims), "x")
    noise = np.random.default_rng(0)
    finish_study(
        tmp_path / "study",
        study,
        lambda cell: 100 * level[cell.arm] + noise.standard_normal(),
    )
    return verdicts(Results.load(tmp_path / "study"))


def test_without_a_scale_arms_and_gains_are_compared_by_rank(tmp_path):
    levels = {"a": 0.3, "b": 0.6, "c": 0.6, "d": 0.1}
    claims = [claim("b", "a"), claim("a", "b"), claim("b", "c"), claim(("b", "a"), ("d", "c"))]
    found = ranked(tmp_path, claims, levels)
    assert [each.verdict for each in found] == [
        "supported", "contradicted", "undecided", "supported",
    ]  # fmt: skip
    assert (found[0].effect, found[1].effect) == (1.0, 0.0)
    assert "; probability of improvement 1.000 [1.000, 1.000], van Elteren" in found[0].sentence
    results = Results.load(tmp_path / "study")
    b, c = (results.scores(arm, list(range(1, 9)), normalise=False) for arm in "bc")
    assert found[2].p == pytest.approx(min(1, 4 * van_elteren(b, c)[1]))


def test_without_a_scale_a_margin_means_nothing(tmp_path):
    (found,) = ranked(tmp_path, [claim("b", "c", "margin = 0.1")], LEVELS)
    assert found.verdict == "undecided"
    assert found.effect is None
    assert "gymnasium:Blackjack-v1 cannot be normalised" in found.sentence
    assert "[scores]" in found.sentence


def test_a_claim_on_a_column_is_about_its_second_half_by_rank(tmp_path):
    claims = [claim("b", "a", 'column = "weight_norm"'), claim("a", "b", 'column = "entropy"')]
    study = from_toml(HEAD + "".join(claims), "x")
    noise = np.random.default_rng(0)

    def columns(cell, part):
        late, larger = part > 2, cell.arm == "b"
        # Smaller in b's first half, which does not count.
        weight = (larger if late else -larger) + 0.1 * noise.random()
        return {"weight_norm": weight, "entropy": noise.random() if part > 3 else None}

    finish_study(tmp_path / "study", study, lambda cell: 1.0, columns)
    weight, entropy = verdicts(Results.load(tmp_path / "study"))
    assert weight.verdict == "supported"
    assert weight.measured == "probability that weight_norm is larger"
    assert weight.effect == 1.0
    assert entropy.verdict == "undecided"


def test_a_column_that_no_row_has_leaves_its_claim_undecided(tmp_path):
    (found,) = judged(tmp_path, [claim("b", "a", 'column = "srank"')], LEVELS)
    assert found.verdict == "undecided"
    assert "no row of its second half has a number for srank" in found.sentence


@pytest.mark.parametrize("extra", ['measure = "curve"', "margin = 0.1"])
def test_a_column_has_neither_measure_nor_margin(extra):
    with pytest.raises(UserError, match="neither measure nor margin"):
        from_toml(HEAD + claim("b", "a", f'column = "entropy"\n{extra}'), "x")
