import dataclasses

import pytest

from isobatch.errors import UserError
from isobatch.study.design import Cell, Study, from_toml, load, preset_names, with_seeds
from isobatch.study.verdict import FEWEST_RUNS

GOOD = """
[study]
envs = ["CartPole-v1", "Acrobot-v1"]
budget = 4_096
seeds = 3
[base]
n_epochs = 2
[arms]
narrow = { n_envs = 8, n_steps = 128 }
wide = { n_envs = 128, n_steps = 8 }
[[claims]]
text = "Wide is better."
better = "wide"
than = "narrow"
"""


def edited(before, after):
    assert before in GOOD
    return GOOD.replace(before, after)


def test_a_study_is_every_arm_in_every_environment_with_every_seed():
    study = from_toml(GOOD, "mine")
    assert len(study.cells) == 2 * 2 * 3
    assert len(set(study.cells)) == 12
    assert len({cell.key for cell in study.cells}) == 12
    first_seed = study.cells[:4]
    assert {(cell.arm, cell.env) for cell in first_seed} == {
        (arm, env) for arm in ("narrow", "wide") for env in ("CartPole-v1", "Acrobot-v1")
    }


def test_a_cells_recipe_is_the_preset_then_the_base_then_the_arm():
    study = from_toml(edited("n_epochs = 2", "n_epochs = 2\nn_steps = 4\nlearning_rate = 0.5"), "x")
    recipe = study.recipe(Cell("wide", "Acrobot-v1", 3))
    assert (recipe.env, recipe.seed, recipe.total_timesteps) == ("Acrobot-v1", 3, 4096)
    assert (recipe.batch.n_envs, recipe.batch.n_steps, recipe.batch.n_epochs) == (128, 8, 2)
    assert recipe.optimizer.learning_rate == 0.5
    assert recipe.machine.threads == recipe.environment.env_threads == 1


def test_an_arm_may_choose_its_algorithm_and_gets_that_algorithms_preset():
    study = from_toml(edited("n_steps = 8 }", 'n_steps = 8, algo = "ppo-ewma" }'), "x")
    assert study.recipe(Cell("narrow", "CartPole-v1", 1)).algo == "ppo"
    ewma = study.recipe(Cell("wide", "CartPole-v1", 1))
    assert ewma.algo == "ppo-ewma"
    assert ewma.objective.advantage_normalization == "ewma"


def test_a_grid_is_an_arm_for_every_combination():
    grid = GOOD.partition("[arms]")[0] + "[grid]\nn_envs = [2, 4]\nn_steps = [8, 16]\ngamma = [0.9]"
    study = from_toml(grid, "x")
    assert list(study.arms) == [
        "2x8 gamma=0.9", "2x16 gamma=0.9", "4x8 gamma=0.9", "4x16 gamma=0.9",
    ]  # fmt: skip
    assert study.recipe(Cell("4x8 gamma=0.9", "CartPole-v1", 1)).batch.n_envs == 4


def test_json_and_back():
    study = from_toml(GOOD, "mine")
    assert Study.from_json(study.to_json()) == study


def test_seeds_by_number_or_by_name():
    assert from_toml(GOOD, "x").seeds == (1, 2, 3)
    assert from_toml(edited("seeds = 3", "seeds = [7, 5]"), "x").seeds == (7, 5)
    assert with_seeds(from_toml(GOOD, "x"), 5).seeds == (1, 2, 3, 4, 5)


def test_a_scale_replaces_fields_of_the_study():
    text = GOOD + '\n[laptop]\nbudget = 2_048\n[paper]\nseeds = 9\nenvs = ["Breakout-v5"]\n'
    assert from_toml(text, "x", "laptop").budget == 2048
    paper = from_toml(text, "x", "paper")
    assert (paper.budget, len(paper.seeds), paper.envs) == (4096, 9, ("Breakout-v5",))
    with pytest.raises(UserError, match="paper"):
        from_toml(GOOD, "x", "paper")


def test_a_scale_may_have_arms_and_claims_of_its_own():
    text = (
        GOOD
        + """
    [paper]
    seeds = 9
    [paper.arms]
    one = { n_envs = 1 }
    two = { n_envs = 2 }
    [[paper.claims]]
    text = "Two is better."
    better = "two"
    than = "one"
    """
    )
    paper = from_toml(text, "x", "paper")
    assert list(paper.arms) == ["one", "two"]
    assert [claim.text for claim in paper.claims] == ["Two is better."]
    assert list(from_toml(text, "x").arms) == ["narrow", "wide"]


@pytest.mark.parametrize("name", preset_names())
def test_a_paper_scale_has_as_many_seeds_as_a_verdict_needs(name):
    assert len(load(name, "paper").seeds) >= FEWEST_RUNS


PROCGEN_STUDIES = {
    "ewma": {"ppo": ("ppo", 3, "clip"), "ppo-ewma": ("ppo-ewma", 3, "clip")},
    "phasic": {
        "ppo": ("ppo", 3, "clip"), "ppo-ewma": ("ppo-ewma", 3, "clip"),
        "ppg": ("ppg", 1, "clip"), "ppg-ewma": ("ppg-ewma", 1, "clip"),
    },
    "staleness": {"fresh": ("ppo", 3, "clip"), "decoupled-8": ("ppo", 3, "clip")},
    "invariance": {"n256": ("ppg-ewma", 1, "kl")},
}  # fmt: skip


@pytest.mark.parametrize("name", PROCGEN_STUDIES)
def test_a_procgen_study_has_the_papers_batch_and_algorithms(name):
    study = load(name, "paper")
    assert len(study.envs) == 16
    for arm, expected in PROCGEN_STUDIES[name].items():
        recipe = study.recipe(Cell(arm, "StarpilotHard-v0", 1))
        assert (recipe.algo, recipe.batch.n_epochs, recipe.objective.objective) == expected
        batch = recipe.batch
        assert (batch.n_envs, batch.n_steps, batch.n_minibatches) == (256, 256, 8)
        assert recipe.optimizer.learning_rate == 5e-4
        if recipe.averages_policy:
            assert recipe.objective.proximal_decay == 8 / 9


def test_the_papers_invariance_study_is_its_ladder():
    study = load("invariance", "paper")
    rungs = [study.recipe(Cell(f"n{4**k}", "HeistHard-v0", 1)) for k in range(5)]
    assert [recipe.batch.n_envs for recipe in rungs] == [1, 4, 16, 64, 256]
    assert [recipe.phasic.n_policy_iterations for recipe in rungs] == [8192, 2048, 512, 128, 32]
    assert [f"{recipe.optimizer.learning_rate:.4g}" for recipe in rungs] == [
        "3.125e-05", "6.25e-05", "0.000125", "0.00025", "0.0005",
    ]  # fmt: skip
    held = study.recipe(Cell("n1-step-size-held", "HeistHard-v0", 1))
    assert (held.optimizer.learning_rate, held.phasic.aux_learning_rate) == (5e-4, 0.0)
    assert (
        held.replace(
            learning_rate=rungs[0].optimizer.learning_rate,
            aux_learning_rate=rungs[0].phasic.aux_learning_rate,
        )
        == rungs[0]
    )


def test_ppg_and_ppg_ewma_differ_in_the_proximal_policy_alone():
    for scale, env in (("laptop", "CartPole-v1"), ("paper", "HeistHard-v0")):
        study = load("phasic", scale)
        for plain in ("ppo", "ppg"):
            pair = (study.recipe(Cell(arm, env, 1)) for arm in (plain, f"{plain}-ewma"))
            one, other = (recipe.values for recipe in pair)
            assert {name for name in one if one[name] != other[name]} <= {"algo", "proximal_decay"}


@pytest.mark.parametrize("name", ["scale-envs", "shared-vs-dual", "algorithms", "epochs"])
def test_an_atari_study_has_rollouts_of_the_papers_128_steps(name):
    study = load(name, "paper")
    steps = {study.recipe(Cell(arm, "Amidar-v5", 1)).batch.n_steps for arm in study.arms}
    assert steps == {128}


SCORES = '[scores]\n"Acrobot-v1" = { random = -500, reference = -80 }\n'


def test_scores_of_an_environment_may_be_given():
    study = from_toml(GOOD + SCORES, "x")
    assert study.scores == {"Acrobot-v1": {"random": -500, "reference": -80}}
    assert Study.from_json(study.to_json()) == study


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ("reference = -80", "best = -80", "random = .*reference"),
        ("reference = -80", "reference = -500", "above random"),
        ("reference = -80", 'reference = "high"', "must be a number"),
        ("reference = -80", "reference = nan", "must be a number"),
        ("{ random = -500, reference = -80 }", "3", "random = .*reference"),
    ],
)
def test_scores_that_are_none_are_refused(before, after, words):
    with pytest.raises(UserError, match=rf"x.toml.*Acrobot-v1.*{words}"):
        from_toml(GOOD + SCORES.replace(before, after), "x", source="x.toml")


MISTAKES = {
    "unknown table": ("[base]", "[bass]", "base"),
    "unknown setting": ("budget =", "bugdet =", "budget"),
    "no budget": ("budget = 4_096", "", "budget"),
    "budget not a number": ("4_096", '"much"', "budget"),
    "no seeds": ("seeds = 3", "seeds = 0", "seeds"),
    "env twice": ('"Acrobot-v1"', '"CartPole-v1"', "twice"),
    "arm no table": ("narrow = {", "thin = 3\nnarrow = {", "thin"),
    "claim about no arm": ('better = "wide"', 'better = "wild"', "wide"),
    "claim of one gain": ('better = "wide"', 'better = ["wide", "narrow"]', "two gains"),
    "claim's measure": ('than = "narrow"', 'than = "narrow"\nmeasure = "luck"', "measure"),
    "claim's margin": ('than = "narrow"', 'than = "narrow"\nmargin = -1', "margin"),
    "arm sets the budget": ("n_steps = 8 }", "n_steps = 8, total_timesteps = 5 }", "budget"),
    "arm sets the seed": ("n_steps = 8 }", "n_steps = 8, seed = 5 }", "seeds"),
    "not TOML": ("[arms]", "[arms", "TOML"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_in_the_file_is_one_clear_line(mistake):
    before, after, expected = MISTAKES[mistake]
    with pytest.raises(UserError, match=expected) as raised:
        from_toml(edited(before, after), "x", source="x.toml")
    assert "x.toml" in str(raised.value)
    assert "\n" not in str(raised.value)


LATER_MISTAKES = {
    "unknown field of an arm": ("n_steps = 8 }", "n_stesp = 8 }", ["wide", "n_steps"]),
    "unknown environment": ("Acrobot-v1", "Acrobat-v1", ["Acrobot-v1"]),
    "budget below an arm's rollout": ("4_096", "1_000", ["narrow", "1000", "1024"]),
    "impossible batch": ("n_envs = 128,", "n_envs = 0,", ["wide", "n_envs"]),
    "a module": ('"Acrobot-v1"', '"evil:Env-v0"', ["evil", "--env"]),
}


@pytest.mark.parametrize("mistake", LATER_MISTAKES)
def test_a_mistake_in_a_recipe_is_found_before_the_first_run(mistake):
    before, after, expected = LATER_MISTAKES[mistake]
    study = from_toml(edited(before, after), "x")
    with pytest.raises(UserError) as raised:
        study.check()
    assert all(word in str(raised.value) for word in expected)


def test_arms_whose_names_meet_on_disk_are_refused():
    with pytest.raises(UserError, match="one name on disk"):
        from_toml(edited("wide = {", '"narrow " = {'), "x")


@pytest.mark.parametrize("name", preset_names())
@pytest.mark.parametrize("scale", ["laptop", "paper"])
def test_every_preset_can_be_made_at_both_scales_and_says_what_it_tests(name, scale):
    study = load(name, scale)
    study.check()
    assert study.title
    assert study.claims
    assert all(claim.source for claim in study.claims)


def test_presets_of_the_issue_are_there():
    expected = {
        "n-vs-t", "scale-envs", "scale-steps", "epochs", "shared-vs-dual", "ewma", "exploration",
        "dynamic",
    }  # fmt: skip
    assert expected <= set(preset_names())


def test_unknown_preset_names_the_nearest():
    with pytest.raises(UserError, match="n-vs-t"):
        load("n-vs-s")
    with pytest.raises(UserError, match="cannot read"):
        load("nowhere.toml")


def test_the_arms_of_ewma_differ_in_the_proximal_policy_alone():
    study = load("ewma")
    ppo, ewma = (study.recipe(Cell(arm, "CartPole-v1", 1)) for arm in ("ppo", "ppo-ewma"))
    different = {name for name, value in ppo.values.items() if ewma.values[name] != value}
    assert different == {"algo", "proximal_decay"}
    assert dataclasses.replace(study).claims == study.claims


RESCALED = """
[study]
envs = ["CartPole-v1"]
budget = 10_000
seeds = 2
algo = "ppo-ewma"
[base]
n_epochs = 1
[arms]
tuned = { n_envs = 16, n_steps = 64 }
small = { rescale_from = "tuned", n_envs = 4 }
unmoved = { rescale_from = "tuned", n_envs = 4, hold = ["learning_rate"] }
other = { rescale_from = "tuned", n_envs = 4, gamma = 0.5 }
"""


def test_an_arm_may_be_another_at_another_batch():
    study = from_toml(RESCALED, "rescaled")
    tuned, small, unmoved, other = (study.recipe(Cell(arm, "CartPole-v1", 1)) for arm in study.arms)
    assert small == tuned.rescale(n_envs=4).recipe
    quarter = from_toml(RESCALED.replace("n_envs = 4", "scale_envs = 0.25", 1), "rescaled")
    assert quarter.recipe(Cell("small", "CartPole-v1", 1)) == small
    assert small.optimizer.learning_rate == tuned.optimizer.learning_rate / 2
    assert unmoved == small.replace(learning_rate=tuned.optimizer.learning_rate)
    assert other == small.replace(gamma=0.5)
    assert (small.total_timesteps, small.machine.threads, small.batch.n_epochs) == (10_000, 1, 1)


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ('rescale_from = "tuned"', 'rescale_from = "tunde"', "tunde.*mean tuned"),
        ('rescale_from = "tuned"', 'rescale_from = "other"', "not an arm with its own batch"),
        ('hold = ["learning_rate"]', 'hold = ["learning_rat"]', "learning_rat.*learning_rate"),
        (
            'rescale_from = "tuned", n_envs = 4, hold',
            "n_envs = 4, hold",
            "hold .* but no rescale_from",
        ),
        ("n_envs = 4, gamma", "n_envs = 4, scale_envs = 2, gamma", "n_envs and scale_envs"),
        ("n_envs = 4, gamma", "scale_envs = 0, gamma", "scale_envs must be a positive"),
        ("n_envs = 4, gamma", "scale_envs = 0.1, gamma", "0.1 of 16 environments is 1.6"),
        ("n_envs = 4, gamma", 'keep = "rollouts", gamma', "keep.*rollouts.*rollout"),
    ],
)
def test_a_reference_that_is_none_is_refused(before, after, words):
    assert before in RESCALED
    with pytest.raises(UserError, match=words):
        from_toml(RESCALED.replace(before, after, 1), "rescaled").check()
