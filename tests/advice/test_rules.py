"""Every rule speaks of a run made to break it, and none above a note of presets that learn."""

import importlib
import inspect
import math
import pkgutil
import random
from pathlib import Path
from typing import Any

import pytest
from recorded_runs import BROKEN, HEALTHY, history_of, recipe_of

from isobatch import advice
from isobatch.advice import RULES, SEVERITIES, Actions, Advice, History, Rule, findings, rules
from isobatch.cli.flags import Parser, add_recipe_flags, given
from isobatch.presets import PRESETS, family_preset
from isobatch.recipe import Recipe
from isobatch.registry import ALGORITHMS

CARTPOLE = family_preset("classic", "CartPole-v1")


def rows(count=40, budget=CARTPOLE.total_timesteps, spent=1.0, **columns):
    """Return rows over a part of a budget; a column is a value, or a function of the part of it."""
    return [
        {
            "env_steps": round(budget * spent * (k + 1) / count),
            "iterations": k + 1,
            **{
                name: each((k + 1) / count) if callable(each) else each
                for name, each in columns.items()
            },
        }
        for k in range(count)
    ]


def learning(part):
    """A mean return that rises from 20 to 220."""
    return 20 + 200 * part


def recipe(**fields):
    return CARTPOLE.replace(**fields)


# Where a recorded run is named, its rows are that run's; a recipe is looked at before it runs.
BREAKING = {
    "diverging": "diverging",
    "reward-never-seen": "no-reward",
    "far-from-preset": "step-size-tiny",
    "kl-high": "step-size-20x",
    "clip-high": "step-size-20x",
    "entropy-collapse": "step-size-100x",
    "entropy-bonus": "entropy-bonus-1",
    "value-scale": "shared-network",
    "value-weight": "vf-coef-1000",
    "value-unlearned": "one-environment",
    "return-fallen": "large-steps-relu",
    "no-progress": "entropy-bonus-1",
    "importance-ess": "no-ratio-clipping",
    "ratios-capped": "no-ratio-clipping",
    "target-kl-stops": "target-kl-tiny",
    "few-updates": (recipe(n_envs=128), []),
    "long-episodes": "one-episode-each",
    "short-rollout": (recipe(n_steps=2), []),
    "beyond-noise": "one-large-minibatch",
    "weight-norm": "no-gradient-clipping",
    "gradient-kurtosis": "large-returns",
    "feature-rank": "taxi",
    "dormant-units": "no-gradient-clipping",
    "state-coverage": "large-returns",
    "reinforce-rows": (family_preset("classic", "CartPole-v1", "reinforce", n_envs=2), []),
    "small-minibatch": (recipe(n_minibatches=256), []),
    "few-minibatches": (recipe(n_minibatches=1), []),
    "many-minibatches": (recipe(n_minibatches=64), []),
    "lone-environments": (recipe(minibatches_by="envs", n_minibatches=8), []),
    "few-environments": (recipe(n_envs=1, n_steps=1024), []),
    "many-epochs": (recipe(n_epochs=40), []),
    "advantage-swings": "rare-rewards",
    "clip-low": "small-steps",
    "kl-low": "step-size-tiny",
    "never-evaluated": (recipe(eval_every=200_000), []),
    "early-evaluation": "evaluated-too-soon",
    "no-episodes": "no-episode",
    "throughput": "many-gradient-steps",
}


def broken(name):
    made = BREAKING[name]
    return history_of(made) if isinstance(made, str) else History(*made)


def test_every_rule_that_is_written_has_its_place_in_the_order():
    written = [
        each
        for room in pkgutil.iter_modules(rules.__path__)
        for each in vars(importlib.import_module(f"{rules.__name__}.{room.name}")).values()
        if isinstance(each, Rule)
    ]
    assert {each.name for each in written} == {each.name for each in RULES}
    assert len({each.name for each in RULES}) == len(RULES)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_a_rule_speaks_of_a_run_made_to_break_it(rule):
    found = rule(broken(rule.name))
    assert found is not None
    assert found.rule == rule.name
    assert found.source
    assert found.severity in SEVERITIES
    assert any(each.isdigit() for each in found.sentence), "a sentence has numbers"
    assert not found.sentence.endswith(".")
    assert not found.suggestion.endswith(".")


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_a_flag_makes_a_recipe(rule):
    """What is suggested can be typed after `isobatch train ENV`, and changes the recipe."""
    history = broken(rule.name)
    found = rule(history)
    assert found is not None
    if found.flag:
        parser = Parser(prog="train")
        add_recipe_flags(parser, history.recipe)
        fields = given(parser.parse_args(found.flag.split()), history.recipe)
        assert fields == found.changes
        assert history.recipe.replace(**fields) != history.recipe


@pytest.mark.parametrize("name", HEALTHY)
def test_nothing_above_a_note_is_said_of_presets_that_learn(name):
    found = advice.look(history_of(name))
    assert [each for each in found if each.is_grave] == []


@pytest.mark.parametrize("name", HEALTHY)
@pytest.mark.parametrize("part", [0.1, 0.25, 0.5])
def test_nor_in_their_course(name, part):
    found = advice.look(history_of(name).until_part(part))
    assert [each for each in found if each.is_grave] == []


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_run_is_told(name):
    """By something above a note, or by the notes that are shown where a run does not learn."""
    history = history_of(name)
    said = str(Advice(name, history, advice.look(history)))
    assert any(f"\n{severity} " in said for severity in ("PROBLEM", "WARNING", "NOTE"))
    assert "Next, with the first of these:" in said


@pytest.mark.parametrize("algo", ALGORITHMS)
@pytest.mark.parametrize("family", [*PRESETS, "generic"])
def test_nothing_above_a_note_is_said_of_a_preset_before_it_runs(family, algo):
    found = findings(family_preset(family, "CartPole-v1", algo), [])
    assert [each for each in found if each.is_grave] == []


# What the rules say, and do not.


def spoken(recipe, rows, **settings):
    return {each.rule: each for each in advice.look(History(recipe, rows, **settings))}


def test_clip_fraction_bands_depend_on_the_epochs():
    for epochs, clipped, speaks in (
        (1, 0.09, False), (1, 0.15, True), (10, 0.15, False), (10, 0.25, True),
    ):  # fmt: skip
        found = spoken(recipe(n_epochs=epochs), rows(clip_fraction=clipped))
        assert ("clip-high" in found) is speaks
    found = spoken(recipe(n_epochs=1), rows(clip_fraction=0.2))["clip-high"]
    assert found.sentence == (
        "clip fraction 20% over the last 20 iterations, over 10% with 1 epoch: the step size is "
        "too high"
    )
    assert found.flag == "--learning-rate 0.00025"


def test_a_clip_fraction_of_nothing_is_no_news_once_steps_are_annealed_or_all_is_learned():
    steady: dict[str, Any] = {"clip_fraction": 0.0, "episode_return": learning}
    assert "clip-low" in spoken(CARTPOLE, rows(advantage_std=2.0, learning_rate=1e-3, **steady))
    annealed = rows(advantage_std=2.0, learning_rate=lambda p: 1e-3 * (1 - p), **steady)
    assert "clip-low" not in spoken(CARTPOLE, annealed)
    learned = rows(advantage_std=lambda p: 2.0 if p < 0.3 else 0.01, learning_rate=1e-3, **steady)
    assert "clip-low" not in spoken(CARTPOLE, learned)


def test_a_policy_that_is_sure_of_itself_is_fine_where_it_learned():
    sure: dict[str, Any] = {"entropy": lambda p: 0.69 * (1 - p) ** 8}
    assert "entropy-collapse" not in spoken(CARTPOLE, rows(episode_return=learning, **sure))
    found = spoken(CARTPOLE, rows(episode_return=20.0, **sure), actions=Actions(2, math.log(2)))
    assert found["entropy-collapse"].severity == "problem"


def test_a_policy_that_leapt_and_stands_still_is_not_told_to_take_larger_steps():
    flat: dict[str, Any] = {"episode_return": lambda p: 20 + p}
    still = rows(approx_kl=lambda p: 3.0 if p < 0.04 else 1e-9, **flat)
    assert "kl-low" not in spoken(CARTPOLE, still)
    assert "kl-low" in spoken(CARTPOLE, rows(approx_kl=1e-9, **flat))


def test_continuous_policies_lose_entropy_per_dimension():
    def lost(nats):
        return rows(episode_return=20.0, entropy=lambda p: 8.5 - nats * (p > 0.3))

    assert "entropy-collapse" not in spoken(CARTPOLE, lost(12), actions=Actions(6, None))
    assert "entropy-collapse" in spoken(CARTPOLE, lost(24), actions=Actions(6, None))


def test_one_cause_is_said_once():
    """Returns that never change explain all the rest; a collapsed policy explains small steps."""
    found = spoken(recipe_of("no-reward"), rows(episode_return=-200.0, episodes=100, budget=20_000))
    assert "no-progress" not in found
    collapsed = {each.rule for each in advice.look(history_of("step-size-100x"))}
    assert "kl-low" not in collapsed
    assert "no-progress" not in collapsed


def test_large_returns_are_told_of_separate_networks_too():
    (found, *_) = advice.look(history_of("large-returns"))
    assert found.rule == "value-scale"
    assert found.severity == "problem"
    assert found.changes == {"normalize_rewards": True}
    assert found.flag == "--normalize-rewards"


def test_signs_of_instability_are_notes_in_runs_that_learn():
    """Of FrozenLake8x8-v1, which learns, the actor's rank falls from 23 to 14 in 100,000 steps."""
    sleeping: dict[str, Any] = {"dormant_fraction_actor": lambda p: 0.05 + 0.5 * p}
    assert spoken(CARTPOLE, rows(**sleeping))["dormant-units"].severity == "warning"
    found = spoken(CARTPOLE, rows(episode_return=learning, **sleeping))["dormant-units"]
    assert found.severity == "note"


def test_coverage_is_of_new_states_since_the_last_look():
    """Coverage is distinct states per step so far: 400 of 1,000, then 420 of 3,000 and more."""

    def seen(new):
        rate = {1000: 400, 2000: 420, 3000: 420 + new * 1000}
        return [
            {"env_steps": steps, "iterations": steps / 1000, "state_coverage": count / steps}
            for steps, count in rate.items()
        ]

    def said(rows, returned):
        before = [{"env_steps": 10 * k, "episode_return": 20.0} for k in range(20)]
        return spoken(CARTPOLE, [*before, *(row | returned for row in rows)]).get("state-coverage")

    found = said(seen(0.005), {"episode_return": 20.0})
    assert found is not None
    assert found.number == pytest.approx(0.005)
    assert said(seen(0.1), {"episode_return": 20.0}) is None


def test_signs_of_large_steps_are_notes_in_runs_that_learn():
    large: dict[str, Any] = {"approx_kl": 0.3}
    (found,) = spoken(CARTPOLE, rows(**large)).values()
    assert found.severity == "problem"
    (found,) = spoken(CARTPOLE, rows(episode_return=learning, **large)).values()
    assert found.severity == "note"


def test_a_step_size_that_follows_the_kl_is_made_smaller_by_another_kl():
    adaptive = CARTPOLE.replace(learning_rate_schedule="kl-adaptive", desired_kl=0.02, n_epochs=1)
    (found,) = spoken(adaptive, rows(approx_kl=0.3)).values()
    # The KL goes with the step's square: at most a half of the step.
    assert found.changes.keys() == {"desired_kl"}
    assert found.changes["desired_kl"] <= 0.02 / 4


def test_what_mends_too_few_updates_breaks_no_other_rule():
    """256 environments are told to be fewer, not to collect four steps each."""
    wide = recipe(n_envs=256, n_steps=64, total_timesteps=40_000)
    changed = wide.replace(**spoken(wide, [])["few-updates"].changes)
    assert changed.batch.n_envs < 256
    assert not {"few-updates", "short-rollout"} & set(spoken(changed, []))


def test_a_target_kl_that_is_tiny_is_raised():
    history = history_of("target-kl-tiny")
    (found,) = [each for each in advice.look(history) if each.rule == "target-kl-stops"]
    assert found.changes == {"target_kl": 0.01}


def test_lucky_episodes_are_no_gain_to_lose():
    sparse = rows(episode_return=lambda p: 0.01 if p * 40 % 5 < 1 else 0.0)
    assert "return-fallen" not in spoken(CARTPOLE, sparse)


def test_the_batch_in_force_counts():
    """A schedule's batch, not the one the recipe began with."""
    found = spoken(recipe(batch_schedule="0:8x128,50k:8x4"), rows(n_steps=4, n_envs=8))
    assert found["short-rollout"].number == 4


def test_reinforce_and_a2c_are_not_told_to_cut_rollouts():
    for algo in ("a2c", "reinforce"):
        found = spoken(family_preset("classic", "CartPole-v1", algo), [])
        assert not {"few-minibatches", "few-updates"} & set(found)


def test_actions_are_counted():
    humanoid = family_preset("mujoco", "Humanoid-v4")
    assert "small-minibatch" not in spoken(humanoid, [])
    found = spoken(humanoid, [], actions=Actions(17, None))["small-minibatch"]
    assert (found.severity, found.number, found.threshold) == ("note", 64, 170)


# Whatever rows hold.


def test_rules_never_fail():
    """Rows of other versions and of strangers: columns missing, null, huge, no numbers."""
    draw = random.Random(1)
    names = sorted(
        {word for rule in RULES for word in _columns(rule)} | {"n_envs", "n_minibatches"}
    )
    values = [None, 0, 0.0, -1.0, 1e-300, 1e300, -1e300, 3, 2**70, True, "x", [1], math.nan]
    algos = [family_preset("classic", "CartPole-v1", algo) for algo in ALGORITHMS]
    for _ in range(300):
        made = [
            {name: draw.choice(values) for name in draw.sample(names, draw.randint(0, len(names)))}
            for _ in range(draw.choice([0, 1, 3, 30]))
        ]
        for each in advice.look(History(draw.choice(algos), made)):
            assert each.sentence


def _columns(rule):
    text = inspect.getsource(rule.look)
    return [word for word in text.split('"') if word.replace("_", "").isalpha() and "_" in word]


def test_an_algorithm_of_the_users_own_is_looked_at_too():
    own = Recipe.from_toml('env = "CartPole-v1"\nalgo = "of-my-own"\n')
    assert findings(own, rows(clip_fraction=0.5))[0].rule == "clip-high"
    far = own.replace(learning_rate=1.0)
    assert [each.rule for each in findings(far, rows(episode_return=10.0))] == [], "no preset"


@pytest.mark.parametrize(
    ("fields", "changes"),
    [
        ({"learning_rate": 0.1}, {"learning_rate": 0.001}),
        ({"gamma": 0.5}, {"gamma": 0.98}),
        ({"vf_coef": 20.0}, {"vf_coef": 0.5}),
        ({"learning_rate": 0.005}, None),
        ({"learning_rate": 0.1, "optimizer": "sgd"}, None),
    ],
)
def test_a_setting_far_from_the_preset_is_named_where_nothing_is_learned(fields, changes):
    def found(**columns):
        return {each.rule: each for each in findings(recipe(**fields), rows(**columns))}

    flat = found(episode_return=20.0).get("far-from-preset")
    assert (flat and flat.changes) == changes
    assert "far-from-preset" not in found(episode_return=learning)


def test_the_documentation_has_every_rule():
    page = (Path(__file__).parents[2] / "docs/tasks/advise.md").read_text()
    cells = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| `")]
    said = {name.strip("`"): (when, source) for name, when, _, source, _ in cells}
    assert said == {rule.name: (rule.when, rule.source) for rule in RULES}
