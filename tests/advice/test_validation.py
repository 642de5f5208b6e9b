"""The counting of benchmarks/advice.py."""

from pathlib import Path

from recorded_runs import history_of, recipe_of

from benchmarks.advice import (
    ANY,
    MOMENTS,
    Judged,
    Scored,
    count,
    is_bad,
    judge,
    markdown,
    scored_in,
)
from isobatch.run.store import RunDirectory


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
    shares = {each.rule: each for each in table}
    assert shares["kl-high"].recall == (0, 0.5, 1)
    assert shares["kl-high"].false_alarms == (0, 0, 0)
    assert shares["clip-high"].recall == (0, 0, 0.5)
    assert shares["clip-high"].false_alarms == (0.25, 0.25, 0.25)
    assert shares["clip-high"].informs
    assert shares["few-updates"].silent
    lines = markdown(table, 2, 4)
    assert "| kl-high | 0%, 50%, 100% | 0%, 0%, 0% |  |" in lines


def test_a_rule_that_speaks_of_good_runs_as_often_is_no_better_than_chance():
    table = count([judged(True, *[["kl-high"]] * 3), judged(False, *[["kl-high"]] * 3)])
    assert not next(each for each in table if each.rule == "kl-high").informs


def test_bad_is_below_half_of_the_way():
    # CartPole-v1 is in the table of scores: about 22 at random, 500 at best.
    runs = [Scored("CartPole-v1", score, history_of("cartpole")) for score in (200, 300)]
    assert is_bad(runs) == [True, False]
    other = [Scored("of-my-own", score, history_of("cartpole")) for score in (-3, 0, 7)]
    assert is_bad(other) == [True, True, False]


def test_a_run_is_judged_by_what_was_known_then():
    run = Scored("Acrobot-v1", -500, history_of("shared-network"))
    found = judge(run, bad=True, notes=False)
    assert "value-scale" not in found.spoke[0.1]
    assert {"value-scale", ANY} <= found.spoke[0.25]
    assert (
        ANY not in judge(Scored("Acrobot-v1", -80, history_of("acrobot")), False, True).spoke[0.5]
    )


def test_runs_are_found_with_their_scores(tmp_path: Path):
    directory = RunDirectory.create(tmp_path / "runs" / "one", recipe_of("acrobot"))
    directory.append({"iterations": 1, "env_steps": 1, "episode_return": -90.0})
    directory.release()
    (found,) = scored_in(tmp_path)
    assert (found.env, found.score) == ("Acrobot-v1", -90)
