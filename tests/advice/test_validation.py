"""The counting of benchmarks/advice.py."""

from pathlib import Path

import pytest
from recorded_runs import history_of, recipe_of

from benchmarks.advice import (
    ANY,
    MOMENTS,
    Counted,
    Judged,
    Scale,
    Scored,
    Stratum,
    count,
    exact_p,
    first_findings,
    judge,
    markdown,
    mends,
    scales,
    scored_in,
    where_sound,
)
from isobatch.advice import Finding
from isobatch.presets import family_preset
from isobatch.run.store import RunDirectory

CARTPOLE = family_preset("classic", "CartPole-v1")


def judged(bad, *spoke):
    return Judged(bad, dict(zip(MOMENTS, map(set, spoke), strict=True)))


def test_recall_is_of_bad_runs_and_false_alarms_of_good_ones():
    table = count(
        [
            judged(True, [], ["kl-high"], ["kl-high", "clip-high"]),
            judged(True, [], [], ["kl-high"]),
            judged(False, ["clip-high"], ["clip-high"], ["clip-high"]),
            judged(False, [], [], []),
            judged(False, [], [], []),
            judged(False, [], [], []),
        ]
    )
    counts = {each.rule: each for each in table}
    assert counts["kl-high"].recall == (0, 1, 2)
    assert counts["kl-high"].false_alarms == (0, 0, 0)
    assert counts["clip-high"].recall == (0, 0, 1)
    assert counts["clip-high"].false_alarms == (1, 1, 1)
    assert (counts["clip-high"].bad, counts["clip-high"].good) == (2, 4)
    assert counts["few-updates"].silent
    lines = markdown(table)
    assert "| rule | of 2 bad runs at 10%, 25%, 50% | of 4 good runs at 10%, 25%, 50% | |" in lines
    assert any(line.startswith("| kl-high | 0, 1, 2 | 0, 0, 0 | ") for line in lines)


def counted(*moments):
    return Counted("kl-high", tuple((Stratum(*each),) for each in moments))


def test_chance_is_told_by_an_exact_test():
    # Of 5 bad runs all, of 5 good ones none: one of 252 ways, and three moments were looked at.
    sure = counted((5, 5, 0, 0), (5, 5, 5, 0), (5, 5, 5, 0))
    assert sure.p == pytest.approx(3 / 252)
    assert sure.verdict == "better than chance, p = 0.01"
    # 3 of 6 runs were spoken of, and both bad ones are among them in 4 of 20 ways.
    few = counted((2, 4, 0, 0), (2, 4, 0, 0), (2, 4, 2, 1))
    assert few.p == pytest.approx(3 * 4 / 20)
    assert few.verdict.startswith("not significant")
    assert counted(*[(4, 8, 1, 2)] * 3).verdict == "no better than chance"


def test_an_environment_with_more_bad_runs_is_no_merit_of_a_rule():
    """A rule that speaks of all runs of one environment, and of none of another, knows nothing."""
    strata = [Stratum(9, 1, 9, 1), Stratum(1, 9, 0, 0)]
    assert exact_p(strata) == pytest.approx(1)
    # Both environments' bad runs, one of two each: a chance of a half, twice.
    assert exact_p([Stratum(1, 1, 1, 0)] * 2) == pytest.approx(1 / 4)


def test_bad_is_below_half_of_the_way_to_the_best_arms_median():
    # CartPole-v1's random score is in the studies' table, about 22.
    runs = [
        Scored("CartPole-v1", score, history_of("cartpole"), arm)
        for arm, scores in {"a": (400, 420, 500), "b": (200, 210, 300)}.items()
        for score in scores
    ]
    scale = scales(runs)["CartPole-v1"]
    assert scale.best == 420
    assert [scale.is_bad(run.score) for run in runs] == [False] * 3 + [True, True, False]


def test_environments_where_all_end_alike_are_left_out():
    runs = [Scored("of-my-own", score, history_of("shared-network")) for score in (5, 5, 5)]
    assert scales(runs) == {}
    assert scales([*runs, Scored("of-my-own", 0, history_of("shared-network"))]) == {
        "of-my-own": Scale(0, 5)
    }


def test_a_run_is_judged_by_what_was_known_then():
    run = Scored("Acrobot-v1", -500, history_of("shared-network"))
    found = judge(run, bad=True, notes=False)
    assert "value-scale" not in found.spoke[0.1]
    assert {"value-scale", ANY} <= found.spoke[0.25]
    assert (
        ANY not in judge(Scored("Acrobot-v1", -80, history_of("acrobot")), False, True).spoke[0.5]
    )


@pytest.mark.parametrize(
    ("off", "changes", "mended"),
    [
        ({"learning_rate": 0.03}, {"learning_rate": 0.003}, True),
        ({"learning_rate": 0.03}, {"learning_rate": 0.3}, False),
        ({"learning_rate": 0.03}, {"n_epochs": 5}, False),
        ({"normalize_rewards": True}, {"normalize_rewards": False}, True),
        ({"target_kl": 1e-4}, {"target_kl": None}, True),
        ({"n_envs": 256, "n_steps": 2}, {"n_envs": 64, "n_steps": 32}, True),
        ({}, {"learning_rate": 0.003}, False),
    ],
)
def test_a_finding_names_the_setting_that_it_brings_back(off, changes, mended):
    found = Finding("warning", 1, 0, "", "", changes)
    assert mends(found, CARTPOLE.replace(**off), CARTPOLE) is mended


def test_first_findings_are_counted_by_arm():
    sound = recipe_of("shared-network").replace(normalize_rewards=True)
    broken = Scored("Acrobot-v1", -500, history_of("shared-network"), "shared", sound)
    fine = Scored("Acrobot-v1", -80, history_of("acrobot"), "reference", sound)
    lines = first_findings([(fine, False), (broken, True)])
    assert "| reference | 0 of 1 | - | 0 of 0 |" in lines
    assert "| shared | 1 of 1 | value-scale 1 | 1 of 1 |" in lines


def test_arms_are_compared_where_the_first_one_ends_well():
    sound = recipe_of("acrobot")

    def runs(env, bad):
        fine = Scored(env, 0, history_of("acrobot"), "reference", sound)
        off = Scored(env, 0, history_of("shared-network"), "shared", sound)
        return [(fine, bad), (off, True)]

    kept = where_sound([*runs("a", False), *runs("b", True)])
    assert [(run.env, run.arm) for run, _ in kept] == [("a", "reference"), ("a", "shared")]


def test_runs_are_found_with_their_scores(tmp_path: Path):
    directory = RunDirectory.create(tmp_path / "runs" / "one", recipe_of("acrobot"))
    directory.append({"iterations": 1, "env_steps": 1, "episode_return": -90.0})
    directory.release()
    (found,) = scored_in(tmp_path)
    assert (found.env, found.score) == ("Acrobot-v1", -90)
