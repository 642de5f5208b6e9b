"""Advice while a run trains."""

import time

import pytest
from recorded_runs import HEALTHY, RUNS, history_of, recipe_of

from isobatch.advice import RULES, Watch
from isobatch.advice.history import WINDOW, Columns, History
from isobatch.advice.live import APPEARS, CLEARS, EVERY, FIRST, LAST, PAST
from isobatch.presets import family_preset

CARTPOLE = family_preset("classic", "CartPole-v1")


def rows_of(name):
    history = history_of(name)
    return history._columns._rows


def moving(kl, count, start=0):
    return [
        {"env_steps": 100 * k, "iterations": k + 1, "approx_kl": kl}
        for k in range(start, start + count)
    ]


@pytest.mark.parametrize("name", HEALTHY)
def test_it_is_silent_while_presets_learn(name):
    watch = Watch(recipe_of(name), actions=history_of(name).actions)
    assert [text for row in rows_of(name) for text in watch.see(row)] == []
    assert watch.current is None


def test_a_finding_appears_once_stands_and_clears_once():
    watch = Watch(CARTPOLE)
    bad = moving(0.5, 100)
    said = [text for row in bad for text in watch.see(row)]
    assert len(said) == 1
    assert said[0].startswith("1,900 env steps: problem kl-high: approximate KL 0.5")
    assert said[0].endswith("; try --learning-rate 0.00022")
    assert watch.current is not None
    assert watch.current.rule == "kl-high"
    assert watch.current.since == 100 * (EVERY - 1)
    said = [text for row in moving(0.01, 100, start=100) for text in watch.see(row)]
    assert len(said) == 1
    assert said[0].endswith("env steps: kl-high cleared")
    assert watch.current is None


def test_it_does_not_flicker():
    """A number that crosses its threshold at every look, to and fro, is said once at most."""
    watch, said = Watch(CARTPOLE), []
    for k in range(40):
        # More rows than the window, so that each look sees one side only.
        kl = 0.06 if k % 2 else 0.04
        looks = moving(kl, WINDOW + EVERY, start=k * (WINDOW + EVERY))
        said += [text for row in looks for text in watch.see(row)]
    assert len(said) <= 1
    assert APPEARS <= CLEARS


def test_what_the_recipe_tells_is_said_with_the_first_row():
    watch = Watch(CARTPOLE.replace(n_envs=128))
    (said,) = watch.see({"env_steps": 1024})
    assert said.startswith("0 env steps: warning few-updates")
    assert [text for row in moving(0.01, 50, 1) for text in watch.see(row)] == []


def test_the_worst_stands_first():
    watch = Watch(CARTPOLE.replace(n_envs=128))
    for row in moving(0.5, 50):
        watch.see(row)
    assert [each.rule for each in watch.standing][:2] == ["kl-high", "few-updates"]


@pytest.mark.parametrize("name", RUNS)
def test_it_comes_to_what_the_whole_run_tells(name):
    """All but what has not yet stood for long, and what has not yet cleared."""
    watch = Watch(recipe_of(name), actions=history_of(name).actions)
    rows = rows_of(name)
    for row in rows:
        watch.see(row)
    seen = len(rows) // EVERY * EVERY
    looks = [history_of(name).until(seen - k * EVERY) for k in range(APPEARS)]
    told = set.intersection(*({r.name for r in RULES if r(each)} for each in looks))
    assert told <= {each.rule for each in watch.standing}


def test_what_it_keeps_is_bounded_and_loses_nothing_that_is_measured_seldom():
    watch = Watch(CARTPOLE)
    for k in range(10_000):
        row = {"env_steps": k, "iterations": k + 1, "clip_fraction": 0.1}
        watch.see(row | ({"weight_norm": 10 + k / 100} if k % 10 == 0 else {}))
    kept = [*watch._first, *watch._past, *watch._last]
    assert len(kept) <= FIRST + PAST + LAST
    values = History(CARTPOLE, Columns(kept)).values("weight_norm")
    assert len(values) > PAST // 2
    assert values[0] == 10
    assert values == sorted(values)
    assert "weight-norm" in {each.rule for each in watch.standing}


def test_a_row_costs_little():
    watch, rows = Watch(recipe_of("cartpole")), rows_of("cartpole")
    began = time.process_time()
    for k in range(2000):
        watch.see(rows[k % len(rows)])
    assert (time.process_time() - began) / 2000 < 1e-3  # 0.1 ms where nothing else runs.
