"""The step size that follows the KL divergence, against rsl_rl's own numbers."""

import math

import pytest
import torch
from hand_made import PLAIN, begin, experience, learn, made

from isobatch.algos import ppo
from isobatch.errors import UserError
from isobatch.experience import Rollout
from isobatch.presets import preset
from isobatch.recipe import Optimizer
from isobatch.update.optimize import AdaptiveRate

ADAPTIVE = PLAIN.replace(learning_rate_schedule="kl-adaptive", n_minibatches=2, n_epochs=3)


@pytest.mark.parametrize(
    ("rate", "kl", "wanted"),
    [
        (3e-4, 0.021, 2e-4),  # Above twice 0.01.
        (3e-4, 0.02, 3e-4),
        (3e-4, 0.005, 3e-4),
        (3e-4, 0.0049, 4.5e-4),  # Below half of it.
        (3e-4, 0.0, 3e-4),
        (3e-4, -1e-9, 3e-4),  # Rounding.
        (1.2e-5, 1.0, 1e-5),
        (9e-3, 1e-4, 1e-2),
        (0.5, 1e-4, 1e-2),
        (3e-4, math.nan, 3e-4),
    ],
)
def test_the_rule_by_hand(rate, kl, wanted):
    followed = AdaptiveRate(rate).follow(torch.tensor(kl, dtype=torch.float64), Optimizer())
    assert followed == pytest.approx(wanted, rel=1e-12)


def wave(*shape, phase, scale=1.0):
    count = torch.arange(1, math.prod(shape) + 1, dtype=torch.float32)
    return scale * torch.sin(phase + 1.7 * count).view(*shape)


# PPO.update of rsl-rl-lib 5.5.1, twice, in 8 epochs of one minibatch: its Gaussian policy with
# std_type "log", no value clipping, and weights, observations, actions, advantages and returns as
# below.
RATES = [
    0.004, 0.006, 0.009, 0.01, 0.01, 0.01, 0.01 / 1.5, 0.01 / 2.25,
    0.01 / 2.25, 0.01 / 1.5, 0.01, 0.01, 0.01, 0.01, 0.01, 0.01 / 1.5,
]  # fmt: skip
KLS = [
    0.0, 0.00018704822, 0.00116671622, 0.00412128679, 0.00927615911, 0.01634161361, 0.0252861995,
    0.03232180327, 0.0, 0.00013061753, 0.00076837733, 0.00272087590, 0.00596201792, 0.01063673943,
    0.01691425219, 0.02497391030,
]  # fmt: skip
HEAD = [
    [-0.281404, 0.305415, 0.167107, -0.350206],
    [0.096473, 0.371942, -0.180484, -0.503296],
]
LOG_STD, VALUE = [-0.10145, 0.058516], [[0.274339, -0.065374, -0.269954, 0.208722]]


def test_updates_are_those_of_rsl_rl():
    steps, envs = 2, 4
    recipe = PLAIN.replace(
        learning_rate_schedule="kl-adaptive", desired_kl=0.01, learning_rate=0.004, n_envs=envs,
        n_steps=steps, n_epochs=8, optimizer="adam", adam_eps=1e-8, clip_range=0.3, vf_coef=1.0,
        ent_coef=0.01, hidden_sizes=(4,), advantage_normalization="none",
    )  # fmt: skip
    state = begin(recipe, "continuous")
    networks = ("actor.encoder.vector", "actor.head"), ("critic_encoder.vector", "value_head")
    with torch.no_grad():
        named = dict(state.model.named_parameters())
        for k, (encoder, head) in enumerate(networks):
            names = (f"{encoder}.layers.0.bias", f"{encoder}.layers.0.weight")
            names += (f"{head}.bias", f"{head}.weight")
            first = 1 - k  # Before the actor's there is its standard deviation.
            for j, name in enumerate(names, start=first):
                named[name].copy_(wave(*named[name].shape, phase=3.0 * k + j, scale=0.4))
    learner = made(ppo.Ppo, state, recipe)
    rates, kls = recorded(learner, state)
    vectors = wave(steps, envs, 3, phase=0.5, scale=1.5)
    for k in range(2):
        with torch.no_grad():
            params, values = state.model({"vector": vectors.flatten(0, 1)})
        noise = torch.stack([wave(envs, 2, phase=t + 7.0 * k) for t in range(steps)])
        actions = params[:, :2] + noise.flatten(0, 1)
        logp = state.model.distribution.log_prob(params, actions)
        none = torch.zeros(steps, envs, dtype=torch.bool)
        rollout = Rollout(
            observations={"vector": torch.cat([vectors, vectors[:1]])},
            actions=actions.view(steps, envs, 2),
            params=params.view(steps, envs, 4),
            logp=logp.view(steps, envs),
            values=torch.cat([values, values[:envs]]).view(steps + 1, envs),
            rewards=torch.zeros(steps, envs),
            terminated=none,
            truncated=none,
            valid=~none,
            first=none,
            final_values=None,
            scores=torch.zeros(steps, envs),
            over=none,
        )
        advantages, targets = wave(steps, envs, phase=2.0 + k), wave(steps, envs, phase=4.0 + k)
        learned = learner.improve(rollout, advantages, targets)
        assert learned.statistics["learning_rate"] == rates[-1]
        assert learned.statistics["kl"] == pytest.approx(sum(kls[-8:]) / 8, rel=1e-4)
    assert rates == pytest.approx(RATES, rel=1e-9)
    assert kls == pytest.approx(KLS, rel=1e-3, abs=1e-7)
    for name, wanted in (("actor.head.weight", HEAD), ("value_head.weight", VALUE)):
        torch.testing.assert_close(named[name], torch.tensor(wanted), rtol=0, atol=2e-5)
    torch.testing.assert_close(named["actor.free"], torch.tensor(LOG_STD), rtol=0, atol=2e-5)


def recorded(learner, state):
    """Return lists that the step size and the measured KL of each gradient step are added to."""
    rates, kls = [], []
    stepper, _ = learner._steppers(state.recipe)
    step, gradient = stepper.step, stepper.gradient

    def stepping(learning_rate):
        rates.append(learning_rate)
        return step(learning_rate)

    def computing(rows, gather):
        found = gradient(rows, gather)
        kls.append(float(found["kl"]))
        return found

    stepper.step, stepper.gradient = stepping, computing
    return rates, kls


@pytest.mark.parametrize("algo", ["ppo", "ppo-ewma"])
@pytest.mark.parametrize("actions", ["discrete", "continuous"])
def test_every_policy_follows_its_exact_kl(algo, actions):
    recipe = ADAPTIVE.replace(algo=algo, desired_kl=1e-4, max_learning_rate=0.2)
    state = begin(recipe, actions)
    learner = made(ppo.Ppo, state, recipe)
    rates, kls = recorded(learner, state)
    for seed in range(2):
        learn(learner, experience(state, seed))
    wanted, rate = [], recipe.optimizer.learning_rate
    for place, kl in enumerate(kls):
        if place % 6:  # Before an iteration's first step there is only rounding.
            rate = max(1e-5, rate / 1.5) if kl > 2e-4 else rate
            rate = min(0.2, rate * 1.5) if 0 < kl < 0.5e-4 else rate
        wanted.append(rate)
    assert rates == pytest.approx(wanted, rel=1e-12)
    assert len(set(rates)) > 2
    assert max(abs(kls[0]), abs(kls[6])) < 1e-6


def test_a_checkpoint_has_the_step_size():
    state = begin(ADAPTIVE)
    learn(made(ppo.Ppo, state), experience(state))
    assert state.adaptive_rate.rate != ADAPTIVE.optimizer.learning_rate
    other = begin(ADAPTIVE)
    other.load(state.tensors(), state.numbers())
    assert other.adaptive_rate.rate == state.adaptive_rate.rate


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"n_minibatches": 1, "n_epochs": 1}, "needs 2 or more gradient steps per iteration"),
        ({"algo": "pqn"}, "cannot follow the KL for pqn, which has no policy gradient"),
        ({"min_learning_rate": 0.1}, "min_learning_rate must be at most max_learning_rate 0.01"),
        ({"desired_kl": 0.0}, "desired_kl must be positive"),
    ],
)
def test_what_cannot_adapt_is_refused(settings, words):
    with pytest.raises(UserError, match=words):
        ADAPTIVE.replace(**settings)


def test_rescaling_leaves_it_alone_and_says_so():
    recipe = preset("CartPole-v1", learning_rate_schedule="kl-adaptive", desired_kl=0.02)
    rescaled = recipe.rescale(n_envs=2 * recipe.batch.n_envs)
    assert rescaled.recipe.optimizer.learning_rate == recipe.optimizer.learning_rate
    said = "the step size follows the KL (desired_kl 0.02), so the step-size rule does not apply"
    assert sum(said in line for line in rescaled.warnings) == 1
    sgd = recipe.replace(optimizer="sgd", momentum=0.9).rescale(n_envs=64, betas=True)
    assert "learning_rate" not in {change.field for change in sgd.changes}
    assert "momentum" in {change.field for change in sgd.changes}
