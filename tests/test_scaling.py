import math
from itertools import product

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from isobatch.errors import UserError
from isobatch.presets import family_preset, preset
from isobatch.recipe import Recipe
from isobatch.registry import ALGORITHMS
from isobatch.scaling import rescale
from isobatch.scaling.factors import center_of_mass, decay_of_mass, decay_of_span, span
from isobatch.scaling.horizon import matching_lambda, mean_lookahead

REFERENCE = preset("CoinrunHard-v0", "ppg-ewma")
LADDER = [
    # The paper's: environments, step size, b_prox, b_adv, N_pi, rollout, minibatch.
    (256, "0.0005", "0.88889", "0.00000", 32, 65536, 8192),
    (64, "0.00025", "0.96970", "0.60000", 128, 16384, 2048),
    (16, "0.000125", "0.99225", "0.88235", 512, 4096, 512),
    (4, "6.25e-05", "0.99805", "0.96923", 2048, 1024, 128),
    (1, "3.125e-05", "0.99951", "0.99222", 8192, 256, 32),
]


@pytest.mark.parametrize("rung", LADDER, ids=[f"c={256 // rung[0]}" for rung in LADDER])
def test_the_papers_ladder_to_every_digit(rung):
    n_envs, rate, proximal, advantage, n_pi, rollout, minibatch = rung
    recipe = REFERENCE.rescale(n_envs=n_envs).recipe
    assert f"{recipe.optimizer.learning_rate:.4g}" == rate
    assert f"{recipe.objective.proximal_decay:.5f}" == proximal
    assert f"{recipe.objective.advantage_decay:.5f}" == advantage
    assert recipe.phasic.n_policy_iterations == n_pi
    assert (recipe.batch.rollout_size, recipe.batch.minibatch_size) == (rollout, minibatch)


def numbers(recipe):
    """Return every numeric field."""
    return {
        name: value
        for name, value in recipe.values.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }


def assert_same(one, other):
    for name, value in numbers(one).items():
        assert numbers(other)[name] == pytest.approx(value, rel=1e-9, abs=1e-12), name
    assert {k: v for k, v in one.values.items() if k not in numbers(one)} == {
        k: v for k, v in other.values.items() if k not in numbers(other)
    }


powers = st.integers(0, 6).map(lambda exponent: 2**exponent)


@st.composite
def recipes(draw):
    algo = draw(st.sampled_from(list(ALGORITHMS)))
    base = family_preset(draw(st.sampled_from(["classic", "procgen-hard", "mujoco"])), "X", algo)
    one = algo in ("a2c", "reinforce")
    return base.replace(
        n_envs=draw(powers) * 64, n_steps=draw(powers) * 16,
        n_minibatches=1 if one else draw(st.sampled_from([1, 2, 8])),
        learning_rate=draw(st.floats(1e-5, 1e-1)), proximal_decay=draw(st.floats(0, 0.99)),
        advantage_decay=draw(st.floats(0, 0.99)),
        optimizer=draw(st.sampled_from(["adam", "sgd", "radam", "rmsprop"])),
        n_policy_iterations=draw(st.integers(1, 8)) * 4096, momentum=draw(st.floats(0, 0.95)),
    )  # fmt: skip


@given(recipes(), powers, powers, st.booleans(), st.booleans())
@settings(max_examples=100)
def test_there_and_back_is_the_identity(recipe, c_envs, c_steps, betas, grad_norm):
    options = {"betas": betas, "grad_norm": grad_norm}
    batch = recipe.batch
    small = recipe.rescale(
        n_envs=max(1, batch.n_envs // c_envs), n_steps=max(8, batch.n_steps // c_steps), **options
    )
    assert not any("rounded" in warning for warning in small.warnings)
    back = small.recipe.rescale(n_envs=batch.n_envs, n_steps=batch.n_steps, **options)
    assume(not any("should cover" in warning for warning in back.warnings))
    assert_same(back.recipe, recipe)


@given(recipes(), powers, powers)
@settings(max_examples=100)
def test_one_factor_after_the_other_is_both_at_once(recipe, first, second):
    n_envs, n_minibatches = recipe.batch.n_envs * first, recipe.batch.n_minibatches
    assume(recipe.algo not in ("a2c", "reinforce"))
    in_two = recipe.rescale(n_envs=n_envs).recipe.rescale(n_minibatches=n_minibatches * second)
    at_once = recipe.rescale(n_envs=n_envs, n_minibatches=n_minibatches * second)
    assume(
        not any("rounded" in w or "should cover" in w for w in in_two.warnings + at_once.warnings)
    )
    assume(not any("rounded" in w for w in recipe.rescale(n_envs=n_envs).warnings))
    assert_same(in_two.recipe, at_once.recipe)


def test_nothing_asked_changes_nothing():
    rescaled = rescale(REFERENCE)
    assert (rescaled.recipe, rescaled.changes, rescaled.warnings) == (REFERENCE, [], [])


def test_the_two_factors_are_apart():
    more_minibatches = REFERENCE.rescale(n_minibatches=32)  # c_opt 4, c_iter 1
    moved = {change.field for change in more_minibatches.changes}
    assert moved == {"n_minibatches", "learning_rate", "proximal_decay", "aux_learning_rate"}
    assert more_minibatches.recipe.optimizer.learning_rate == 2.5e-4
    same_minibatch = REFERENCE.rescale(n_envs=64, minibatch_size=8192)  # c_opt 1, c_iter 4
    moved = {change.field for change in same_minibatch.changes}
    assert moved == {"n_envs", "n_minibatches", "advantage_decay", "n_policy_iterations",
                     "aux_learning_rate"}  # fmt: skip


def test_sgd_moves_in_proportion():
    recipe = REFERENCE.replace(optimizer="sgd", momentum=0.9)
    assert recipe.rescale(n_envs=64).recipe.optimizer.learning_rate == pytest.approx(5e-4 / 4)
    moved = recipe.rescale(n_envs=64, betas=True).recipe.optimizer
    assert moved.momentum == pytest.approx(0.9**0.25)


def descended(optimizer, gradient, steps):
    """Return how far gradient descent with momentum gets, u <- mu u + g, x <- x - lr u."""
    position = velocity = 0.0
    for _ in range(steps):
        velocity = optimizer.momentum * velocity + gradient
        position -= optimizer.learning_rate * velocity
    return position


@pytest.mark.parametrize("n_envs", [64, 1024])
def test_sgd_with_momentum_goes_as_far_on_as_many_samples(n_envs):
    recipe = REFERENCE.replace(optimizer="sgd", momentum=0.9)
    moved = recipe.rescale(n_envs=n_envs, betas=True).recipe.optimizer
    far = descended(recipe.optimizer, 1.0, 8000)
    assert descended(moved, 1.0, 8000 * 256 // n_envs) == pytest.approx(far, rel=0.01)


def test_epsilon_moves_with_the_gradients_noise_when_asked():
    assert REFERENCE.rescale(n_envs=64).recipe.optimizer.adam_eps == REFERENCE.optimizer.adam_eps
    moved = REFERENCE.rescale(n_envs=64, betas=True).recipe.optimizer
    assert moved.adam_eps == pytest.approx(2 * REFERENCE.optimizer.adam_eps)


KEPT = {
    # n_envs 8 -> 64 of 8 x 128 in 4 minibatches of 256: (T, M, rows of a minibatch, step size).
    "rollout": (16, 4, 256, 1.0),
    "minibatch-size": (128, 32, 256, 1.0),
    "minibatches": (128, 4, 2048, math.sqrt(8)),
}


@pytest.mark.parametrize("keep", KEPT)
def test_what_is_kept_when_environments_are_added(keep):
    tuned = PPO.replace(n_envs=8, n_steps=128, n_minibatches=4)
    recipe = tuned.rescale(n_envs=64, keep=keep).recipe
    steps, minibatches, rows, rate = KEPT[keep]
    batch = recipe.batch
    assert (batch.n_envs, batch.n_steps, batch.n_minibatches) == (64, steps, minibatches)
    assert batch.minibatch_size == rows
    assert recipe.optimizer.learning_rate == pytest.approx(tuned.optimizer.learning_rate * rate)


def test_a_rollout_is_kept_by_steps_too():
    batch = PPO.replace(n_envs=8, n_steps=128).rescale(n_steps=32, keep="rollout").recipe.batch
    assert (batch.n_envs, batch.n_steps) == (32, 32)


@pytest.mark.parametrize(
    ("sizes", "keep", "words"),
    [
        ({"n_envs": 24}, "rollout", "1,024 rows do not divide by n_envs 24"),
        ({"n_envs": 16, "n_steps": 64}, "rollout", "leaves n_envs and n_steps no choice"),
        ({"n_envs": 16, "minibatch_size": 64}, "minibatch-size", "leaves minibatch_size no choice"),
        ({"n_envs": 16, "n_minibatches": 8}, "minibatches", "leaves n_minibatches no choice"),
        ({"n_envs": 3, "n_steps": 5}, "minibatch-size", "exceeds the transitions of a rollout, 15"),
        ({"n_envs": 0}, "rollout", "do not divide by n_envs 0"),
        ({"n_envs": 16}, "rollouts", "keep must be one of .* Did you mean rollout"),
    ],
)
def test_keeping_what_cannot_be_kept_is_refused(sizes, keep, words):
    with pytest.raises(UserError, match=words):
        PPO.replace(n_envs=8, n_steps=128).rescale(**sizes, keep=keep)


def test_lookahead_is_the_mean_of_what_gae_sums():
    gamma, gae_lambda, n_steps = 0.99, 0.9, 7
    x = gamma * gae_lambda
    sums = [sum(x**k for k in range(n_steps - t)) for t in range(n_steps)]
    assert mean_lookahead(gamma, gae_lambda, n_steps) == pytest.approx(sum(sums) / n_steps)
    assert mean_lookahead(1.0, 1.0, n_steps) == 4


def test_the_lambda_suggested_looks_as_far_ahead():
    before = mean_lookahead(0.99, 0.9, 128)
    longer, shorter = matching_lambda(0.99, 0.9, 128, 512), matching_lambda(0.99, 0.9, 128, 32)
    assert longer < 0.9 < shorter
    assert mean_lookahead(0.99, longer, 512) == pytest.approx(before)
    assert mean_lookahead(0.99, shorter, 32) == pytest.approx(before)
    assert matching_lambda(0.99, 0.9, 128, 4) == 1.0


def test_an_auxiliary_minibatch_below_a_segment_is_said():
    moved = REFERENCE.rescale(n_envs=4)
    assert any("0.25 of one would go with 4 environments" in each for each in moved.warnings)
    assert not any("segment" in each for each in REFERENCE.rescale(n_envs=16).warnings)


def test_more_epochs_keep_the_average_as_many_iterations_behind():
    moved = REFERENCE.rescale(n_epochs=3)
    assert center_of_mass(moved.recipe.objective.proximal_decay) == pytest.approx(24)
    assert any("n_epochs 1 -> 3: 3 times the gradient steps" in each for each in moved.warnings)


def test_a_span_below_a_rollout_is_clamped_and_said():
    moved = REFERENCE.rescale(n_envs=1024)
    assert moved.recipe.objective.advantage_decay == 0
    assert any("cover 0.25 rollouts" in warning for warning in moved.warnings)


def test_a_phase_that_must_be_rounded_says_by_how_much():
    moved = REFERENCE.replace(n_policy_iterations=3).rescale(n_envs=512)
    assert moved.recipe.phasic.n_policy_iterations == 2
    assert any("1.5 is rounded to 2" in each and "1.33 times" in each for each in moved.warnings)


def test_the_auxiliary_step_size_goes_by_its_own_minibatch():
    """At 4 environments a minibatch of one segment is as large as at 16."""
    recipe = REFERENCE.rescale(n_envs=4).recipe
    assert recipe.phasic.aux_learning_rate == pytest.approx(5e-4 / math.sqrt(16))
    assert REFERENCE.rescale(n_envs=16).recipe.phasic.aux_learning_rate == 0
    own = REFERENCE.replace(aux_learning_rate=1e-3).rescale(n_envs=64).recipe
    assert own.phasic.aux_learning_rate == pytest.approx(5e-4)


PPO = preset("CartPole-v1", n_epochs=1, max_grad_norm=None, advantage_normalization="none")
LIMITS = {
    "epochs": ({"n_epochs": 4}, {"n_envs": 16}, "n_epochs 4: the rules hold for one epoch"),
    "ppo": ({}, {"n_envs": 2}, "ppo-ewma with proximal_decay 0.94118"),
    "batch": ({"advantage_normalization": "batch"}, {"n_envs": 2}, "advantage_decay 0.6 covers"),
    "minibatch": ({"advantage_normalization": "minibatch"}, {"n_envs": 2}, "now of 64 rows"),
    "clipping": ({"max_grad_norm": 0.5}, {"n_envs": 2}, "1 (x sqrt(c_opt)) clips as often"),
    "target": ({"target_kl": 0.02}, {"n_envs": 2}, "target_kl 0.02 stops an iteration"),
    "clipped values": ({"clip_range_vf": 0.2}, {"n_envs": 2}, "they can move 4 times as far"),
    "horizon": ({}, {"n_steps": 8}, "7.98 before (GAE's horizon 1 / (1 - gamma lambda) is 8.47)"),
    "stale": ({"staleness": 3}, {"n_envs": 16}, "staleness 3 is now 6,144 environment steps"),
    "noise near": ({}, {"n_envs": 16, "noise_scale": 600.0}, "near the measured noise scale"),
    "noise above": ({}, {"n_envs": 16, "noise_scale": 90.0}, "above the measured noise scale"),
}  # fmt: skip


@pytest.mark.parametrize("case", LIMITS)
def test_what_the_rules_do_not_keep_is_said_with_its_number(case):
    fields, batch, words = LIMITS[case]
    assert words in "\n".join(PPO.replace(**fields).rescale(**batch).warnings)
    others = [w for name, (_, _, w) in LIMITS.items() if name not in (case, "ppo", "horizon")]
    assert not any(w in "\n".join(PPO.rescale(n_envs=2).warnings) for w in others)


def test_below_the_noise_scale_nothing_is_said_of_it():
    warnings = PPO.rescale(n_envs=16, noise_scale=6000.0).warnings
    assert not any("noise scale" in warning for warning in warnings)


@pytest.mark.parametrize(
    ("batch", "words"),
    [
        ({"n_envs": 3, "n_steps": 5}, "3 x 5 = 15 rows do not divide into 4 minibatches"),
        ({"minibatch_size": 100}, "do not divide a rollout of 1024"),
        ({"n_envs": 0}, "n_envs must be at least 1"),
        ({"n_minibatches": 2048}, "exceeds the transitions of a rollout, 1024"),
    ],
)
def test_a_batch_that_does_not_partition_is_refused(batch, words):
    with pytest.raises(UserError, match=words):
        PPO.rescale(**batch)


def test_a_factor_that_makes_a_rule_meaningless_is_refused():
    recipe = REFERENCE.replace(proximal_decay=1 - 1e-13, n_envs=2**20)
    with pytest.raises(UserError, match=r"proximal_decay would be 1 at c_opt.*too far apart"):
        recipe.rescale(n_envs=1)


@given(st.floats(0, 1e9))
def test_decays_and_their_ages_are_inverse(age):
    assert center_of_mass(decay_of_mass(age)) == pytest.approx(age, rel=1e-6, abs=1e-9)
    assert span(decay_of_span(age + 1)) == pytest.approx(age + 1, rel=1e-6)


def test_whatever_the_batches_the_result_is_a_recipe_or_a_refusal():
    """A grid of batches far apart; benchmarks/random_rescales.py does 100,000 random ones."""
    for algo, old, new in product(ALGORITHMS, (1, 7, 4096), (1, 3, 65536)):
        recipe = Recipe("X") if algo == "ppo" else family_preset("classic", "X", algo)
        recipe = recipe.replace(n_envs=old, n_steps=840)
        try:
            moved = recipe.rescale(n_envs=new, betas=True, grad_norm=True).recipe
        except UserError:
            continue
        assert all(math.isfinite(value) for value in numbers(moved).values())
