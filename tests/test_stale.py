import copy
from dataclasses import replace

import pytest
import torch
from hand_made import PLAIN, begin, experience, learn, made, weights

from isobatch.algos import Context
from isobatch.algos.estimates import advantages_and_targets
from isobatch.algos.ppo import Ppo
from isobatch.algos.stale import Stale

SETTINGS = PLAIN.replace(n_minibatches=4, n_epochs=2, learning_rate=0.3)
LOSSES = ["decoupled", "behavior", "proximal"]


def stale(recipe, state=None):
    state = state or begin(recipe)
    return Stale(made(Ppo, state, recipe), Context(state, chunk_size=7))


def rollouts(count, recipe=SETTINGS):
    state = begin(recipe)
    return [experience(state, seed) for seed in range(count)]


@pytest.mark.parametrize("loss", LOSSES)
def test_staleness_0_is_no_queue_to_the_bit(loss):
    recipe = SETTINGS.replace(staleness_loss=loss)
    queued, plain = stale(recipe), made(Ppo, begin(recipe), recipe, 1000)
    for rollout in rollouts(3):
        late = learn(queued, rollout)
        assert (late.pop("age_iterations"), late.pop("age_env_steps")) == (0, 0)
        assert late == learn(plain, rollout)
        assert torch.equal(weights(queued.state), weights(plain.state))


def test_each_rollout_is_learned_from_so_many_iterations_late():
    recipe = SETTINGS.replace(staleness=2, staleness_loss="behavior")
    queued, plain = stale(recipe), made(Ppo, begin(recipe), recipe, 1000)
    given = rollouts(5)
    seen = [learn(queued, rollout) for rollout in given]
    assert seen[:2] == [{}, {}]
    for place, late in enumerate(seen[2:]):
        rollout, behind = given[place], given[place + 1 : place + 3]
        assert late.pop("age_iterations") == 2
        assert late.pop("age_env_steps") == sum(each.n_valid for each in behind)
        # To the plain learner the policy that acted is the one before the update.
        late["approx_kl"] = late.pop("behavior_kl")
        assert late == pytest.approx(learn(plain, rollout), rel=1e-6)
    assert torch.equal(weights(queued.state), weights(plain.state))


def moved(recipe):
    """Return (state whose policy has moved on, the rollout acted before, its parameters now)."""
    state = begin(recipe)
    rollout = experience(state)
    state.model.actor.head.weight.data.normal_(generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        params = state.model({"vector": rollout.observations["vector"][:-1].flatten(0, 1)})[0]
    return state, rollout, params.view(*rollout.params.shape)


def log_prob(state, params, rollout):
    flat = state.model.distribution.log_prob(params.flatten(0, 1), rollout.actions.flatten(0, 1))
    return flat.view(rollout.logp.shape)


@pytest.mark.parametrize("loss", LOSSES)
def test_which_policies_the_loss_compares(loss):
    """Behaviour weights and proximal limits, each by the policy the paper's figure 1 says."""
    recipe = SETTINGS.replace(
        staleness=1, staleness_loss=loss, n_minibatches=1, n_epochs=1, vf_coef=0.0,
        advantage_normalization="none",
    )  # fmt: skip
    state, rollout, params = moved(recipe)
    plain_state = copy.deepcopy(state)
    late = stale(recipe, state)
    learn(late, rollout)
    statistics = learn(late, experience(state, 1))
    now, then = log_prob(state, params, rollout), rollout.logp
    behav = now if loss == "proximal" else then
    prox = then if loss == "behavior" else now
    eps, valid = recipe.objective.clip_range, rollout.valid
    a = advantages_and_targets(plain_state, rollout)[0]
    ratio = (now - prox).exp()
    surrogate = torch.minimum(ratio * a, ratio.clamp(1 - eps, 1 + eps) * a)
    expected = -((prox - behav).exp() * surrogate)[valid].mean()
    assert statistics["policy_loss"] == pytest.approx(expected.item(), rel=1e-4)
    assert statistics["clip_fraction"] == pytest.approx(
        ((ratio - 1).abs() > eps).float()[valid].mean().item()
    )
    assert (statistics["clip_fraction"] > 0) == (loss == "behavior")


@pytest.mark.parametrize("loss", LOSSES)
def test_old_data_does_not_stop_an_update_that_went_nowhere(loss):
    recipe = SETTINGS.replace(staleness=1, staleness_loss=loss, target_kl=1e-4, learning_rate=1e-9)
    state, rollout, params = moved(recipe)
    late = stale(recipe, state)
    learn(late, rollout)
    statistics = learn(late, experience(state, 1))
    assert "stopped_early" not in statistics
    assert statistics["approx_kl"] == pytest.approx(0, abs=1e-6)
    if loss != "proximal":  # Which does not know the behaviour policy any more.
        ratio = (log_prob(state, params, rollout) - rollout.logp)[rollout.valid]
        expected = float((ratio.exp() - 1 - ratio).mean())
        assert statistics["behavior_kl"] == pytest.approx(expected, rel=1e-3)
        assert expected > 1e-4


def test_decoupled_without_a_limit_is_the_importance_sampled_policy_gradient():
    recipe = SETTINGS.replace(
        staleness=1, clip_range=1e9, n_minibatches=1, n_epochs=1, vf_coef=0.0,
        advantage_normalization="none", max_ratio=1e9, learning_rate=1.0,
    )  # fmt: skip
    state, rollout, _ = moved(recipe)
    by_hand = copy.deepcopy(state)
    advantages = advantages_and_targets(copy.deepcopy(state), rollout)[0][rollout.valid]
    params, _ = by_hand.model({"vector": rollout.observations["vector"][:-1][rollout.valid]})
    logp = by_hand.model.distribution.log_prob(params, rollout.actions[rollout.valid])
    loss = -((logp - rollout.logp[rollout.valid]).exp() * advantages).mean()
    gradient = torch.autograd.grad(loss, list(by_hand.model.actor.parameters()))
    before = [each.detach().clone() for each in state.model.actor.parameters()]
    late = stale(recipe, state)
    learn(late, rollout)
    learn(late, experience(state, 1))
    for start, slope, end in zip(before, gradient, state.model.actor.parameters(), strict=True):
        torch.testing.assert_close(start - end, slope, rtol=0, atol=1e-6)


def test_ratios_past_the_cap_are_counted():
    recipe = SETTINGS.replace(staleness=1, max_ratio=1.5, n_minibatches=1, n_epochs=1)
    state, rollout, params = moved(recipe)
    late = stale(recipe, state)
    learn(late, rollout)
    statistics = learn(late, experience(state, 1))
    past = (log_prob(begin(recipe), params, rollout) - rollout.logp).exp() > 1.5
    assert 0 < statistics["capped_fraction"] < 1
    assert statistics["capped_fraction"] == pytest.approx(past[rollout.valid].float().mean().item())


def test_the_exact_kl_penalty_is_from_the_proximal_policy():
    recipe = SETTINGS.replace(
        staleness=1, objective="kl", kl_estimator="exact", n_minibatches=1, n_epochs=1
    )
    state, rollout, params = moved(recipe)
    late, plain = stale(recipe, copy.deepcopy(state)), stale(recipe, copy.deepcopy(state))
    learn(late, rollout)
    decoupled = learn(late, experience(state, 1))
    # The same rollout, told that the policy it is limited from is the one before the update.
    told = learn(plain.learner, replace(rollout, params_prox=params))
    assert decoupled["policy_loss"] == pytest.approx(told["policy_loss"], rel=1e-5)
    other = learn(stale(recipe, copy.deepcopy(state)).learner, rollout)
    assert other["policy_loss"] != pytest.approx(told["policy_loss"], rel=1e-3)


def test_ewma_learns_from_stale_data_through_its_average():
    recipe = SETTINGS.replace(algo="ppo-ewma", staleness=2, proximal_decay=0.5)
    late = stale(recipe)
    for rollout in rollouts(4, recipe):
        statistics = learn(late, rollout)
    assert statistics["age_iterations"] == 2
    assert not torch.equal(weights(late.state), weights(begin(recipe)))


def test_closing_forgets_what_waits():
    late = stale(SETTINGS.replace(staleness=3))
    learn(late, rollouts(1)[0])
    late.close()
    assert not late.waiting
