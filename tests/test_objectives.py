import re
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from hand_made import PLAIN, begin, experience, learn, made, weights

import isobatch
from isobatch import objectives, registry
from isobatch.algos import Context, make_learner
from isobatch.algos.ppo import Ppo, terms
from isobatch.algos.stepping import NOT_READ
from isobatch.errors import UserError
from isobatch.models.distributions import Categorical
from isobatch.objectives import Current, Samples, policy_loss

PAGE = Path(__file__).parent.parent / "docs" / "extending" / "objective.md"


def test_every_name_the_registry_knows_has_a_loss():
    assert set(registry.OBJECTIVES) == set(objectives._LOSSES) == {"clip", "kl", "pg"}


def test_an_unknown_objective_is_refused_when_a_learner_is_made_with_those_there_are():
    recipe = PLAIN.replace(objective="klip")
    with pytest.raises(UserError, match=r"'klip'.*there are clip, kl, pg\. Did you mean clip"):
        make_learner(Context(begin(recipe), 100))


def test_a_name_is_given_once():
    with pytest.raises(UserError, match="there is an objective 'clip' already"):
        isobatch.objective("clip")(lambda current, samples, settings: current.logp)


def register_the_pages_objective():
    """Register what the page does; tests/docs trains with it."""
    (code,) = re.findall(r"```python[^\n]*\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S)
    exec(code, {"__name__": "my_spo"})


@pytest.mark.parametrize("penalty", [1.0, 2.5])
def test_the_pages_objective_is_what_its_equation_says(penalty):
    register_the_pages_objective()
    settings = PLAIN.replace(objective="spo", spo_penalty=penalty).objective
    random = torch.Generator().manual_seed(0)

    def draw():
        return -1 + 0.3 * torch.randn(20, generator=random, dtype=torch.float64)

    logp, behav, prox, advantages = draw().requires_grad_(), draw(), draw(), 1 + draw()
    none, clip_range = torch.empty(0), torch.tensor(0.2)
    samples = Samples({}, none, behav, prox, None, advantages, advantages, clip_range)
    current = Current(logp, none, Categorical((2,)))
    loss = policy_loss("spo")(current, samples, settings)
    r, w = (logp - prox).exp(), (prox - behav).exp()
    by_hand = w * (r * advantages - penalty * advantages.abs() / 0.4 * (r - 1) ** 2)
    torch.testing.assert_close(loss, -by_hand)
    slope = torch.autograd.grad(loss.sum(), logp)[0]
    step = 1e-6
    ahead, behind = (
        policy_loss("spo")(current._replace(logp=logp + sign * step), samples, settings)
        for sign in (1, -1)
    )
    torch.testing.assert_close(slope, (ahead - behind) / (2 * step), rtol=1e-6, atol=1e-8)


STRONG = PLAIN.replace(learning_rate=0.5, n_minibatches=4, n_epochs=4)


def learned(settings):
    state = begin(settings)
    for seed in range(2):
        statistics = learn(made(Ppo, state, settings, 1000), experience(begin(settings), seed))
    return weights(state), statistics


def test_ewma_of_decay_0_is_the_importance_sampled_policy_gradient():
    averaged, statistics = learned(STRONG.replace(algo="ppo-ewma", proximal_decay=0.0))
    free, _ = learned(STRONG.replace(objective="kl", kl_coef=0.0))
    clipped, _ = learned(STRONG)
    assert statistics["clip_fraction"] == 0
    torch.testing.assert_close(averaged, free, rtol=0, atol=1e-6)
    assert (clipped - free).abs().max() > 1e-3


def test_ewma_with_the_acting_policy_as_proximal_is_ppo():
    one = STRONG.replace(algo="ppo-ewma")
    state, plain = begin(one), begin(STRONG)
    state.proximal.update = lambda: None
    rollout = experience(plain)
    statistics = learn(made(Ppo, state, one, 1000), rollout)
    assert statistics["clip_fraction"] > 0.05
    learn(made(Ppo, plain, STRONG, 1000), rollout)
    torch.testing.assert_close(weights(state), weights(plain), rtol=0, atol=1e-6)


def test_a2c_is_one_step_of_the_policy_gradient_and_of_ppo_alike():
    """At ratio 1 the clipped objective has the policy gradient's slope."""
    one = PLAIN.replace(n_minibatches=1, n_epochs=1)
    state = begin(one)
    rollout = experience(state)
    single_a2c, single_ppo = begin(one), begin(one)
    learn(made(Ppo, single_a2c, one.replace(algo="a2c", objective="pg"), 1000), rollout)
    learn(made(Ppo, single_ppo, one, 1000), rollout)
    torch.testing.assert_close(weights(single_a2c), weights(single_ppo), rtol=0, atol=1e-6)
    assert not torch.equal(weights(single_a2c), weights(state))


class Watched:
    """Settings that remember which of them were read."""

    def __init__(self, settings):
        self._settings, self.read = settings, set()

    def __getattr__(self, name):
        self.read.add(name)
        return getattr(self._settings, name)


@pytest.mark.parametrize("objective", ["clip", "kl", "pg"])
def test_losses_do_not_read_what_compiled_ones_are_shared_between(objective):
    settings = Watched(PLAIN.replace(objective=objective).objective)
    column = torch.zeros(4)
    actions = torch.zeros(4, 1).long()
    samples = Samples({}, actions, column, column, None, column, column, torch.tensor(0.2))
    params = torch.zeros(4, 2, requires_grad=True)
    terms(lambda _: (params, column), samples, cast(Any, settings), Categorical((2,)))
    assert settings.read
    assert not settings.read & set(NOT_READ)
