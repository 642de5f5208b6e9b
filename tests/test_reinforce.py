import dataclasses

import pytest
import torch
from hand_made import ENVS, PLAIN, STEPS, begin, experience, learn, made, weights

from isobatch.algos import reinforce
from isobatch.algos.reinforce import Reinforce

RECIPE = PLAIN.replace(objective="pg", algo="reinforce", advantage_normalization="none")


def endings(state, ends, seed=0):
    """Return a rollout of whole rows whose episodes end at the given (step, environment)s."""
    rollout = experience(state, seed)
    none = torch.zeros(STEPS, ENVS, dtype=torch.bool)
    terminated = none.clone()
    for t, n in ends:
        terminated[t, n] = True
    return dataclasses.replace(
        rollout, terminated=terminated, truncated=none, valid=~none, over=terminated
    )


def gradient_by_hand(state, rollout, returns, rows, baseline):
    vectors = rollout.observations["vector"][:-1][rows]
    params, values = state.model({"vector": vectors})
    logp = state.model.distribution.log_prob(params, rollout.actions[rows])
    advantages = returns - rollout.values[:-1][rows] if baseline else returns
    loss = -(logp * advantages).mean()
    if baseline:
        loss = loss + RECIPE.objective.vf_coef * 0.5 * (values - returns).square().mean()
    slopes = torch.autograd.grad(loss, list(state.model.parameters()), allow_unused=True)
    return torch.cat(
        [
            torch.zeros_like(each).flatten() if slope is None else slope.flatten()
            for each, slope in zip(state.model.parameters(), slopes, strict=True)
        ]
    )


@pytest.mark.parametrize("baseline", [True, False])
def test_one_step_is_the_policy_gradient_with_rewards_to_go(baseline):
    recipe = RECIPE.replace(baseline=baseline, learning_rate=1.0)
    state = begin(recipe)
    rollout = endings(state, [(5, 0), (STEPS - 1, 2)])
    rows = torch.zeros(STEPS, ENVS, dtype=torch.bool)
    rows[:6, 0] = rows[:, 2] = True
    returns = torch.zeros(STEPS, ENVS)
    for t, n in rows.nonzero().tolist():
        end = 5 if n == 0 else STEPS - 1
        returns[t, n] = sum(0.9 ** (k - t) * rollout.rewards[k, n] for k in range(t, end + 1))
    expected = gradient_by_hand(state, rollout, returns[rows], rows, baseline)
    before = weights(state).clone()
    statistics = learn(made(Reinforce, state, recipe, 1000), rollout)
    torch.testing.assert_close(before - weights(state), expected, rtol=0, atol=1e-5)
    assert statistics["rows_learned"] == 6 + STEPS
    assert statistics["rows_waiting"] == STEPS * ENVS - 6 - STEPS
    assert state.counters.grad_steps == 1


def test_rows_wait_for_their_episodes_end_and_are_learned_from_once():
    state = begin(RECIPE)
    learner = made(Reinforce, state, RECIPE, 1000)
    first = learn(learner, endings(state, [(3, 0)]))
    assert (first["rows_learned"], first["rows_waiting"]) == (4, STEPS * ENVS - 4)
    nothing = learn(learner, endings(state, [], 1))
    assert nothing["rows_learned"] == 0
    assert "policy_loss" not in nothing
    assert nothing["rows_waiting"] == 2 * STEPS * ENVS - 4
    last = learn(learner, endings(state, [(STEPS - 1, n) for n in range(ENVS)], 2))
    assert last["rows_learned"] == 3 * STEPS * ENVS - 4
    assert last["rows_waiting"] == last["rows_dropped"] == 0


def test_a_return_reaches_over_rollouts():
    """Two rollouts in a row teach what one of twice the length does."""
    state, again = begin(RECIPE), begin(RECIPE)
    ends = [(STEPS - 1, n) for n in range(ENVS)]
    first, second = endings(state, []), endings(state, ends, 1)
    second.observations["vector"][0] = first.observations["vector"][-1]
    two = made(Reinforce, state, RECIPE, 1000)
    learn(two, first)
    learn(two, second)
    one = made(Reinforce, again, RECIPE.replace(n_steps=2 * STEPS), 1000)
    learn(one, reinforce.concatenate(first, second))
    torch.testing.assert_close(weights(state), weights(again))


def test_rows_that_wait_too_long_are_dropped_and_counted(monkeypatch):
    monkeypatch.setattr(reinforce, "MOST_ROLLOUTS", 2)
    learner = made(Reinforce, begin(RECIPE), RECIPE, 1000)
    seen = [learn(learner, endings(learner.state, [], seed)) for seed in range(4)]
    size = STEPS * ENVS
    assert [row["rows_waiting"] for row in seen] == [size, 2 * size, 2 * size, 2 * size]
    assert [row["rows_dropped"] for row in seen] == [0, 0, size, size]


def test_without_a_baseline_the_value_function_is_left_alone():
    recipe = RECIPE.replace(baseline=False, architecture="dual")
    state = begin(recipe)
    before = state.model.value_head.weight.detach().clone()
    learn(made(Reinforce, state, recipe, 1000), endings(state, [(9, 1)]))
    assert torch.equal(state.model.value_head.weight, before)


def test_rewards_are_normalised_once_as_they_come():
    recipe = RECIPE.replace(normalize_rewards=True)
    state = begin(recipe)
    learner = made(Reinforce, state, recipe, 1000)
    for seed in range(3):
        learn(learner, endings(state, [], seed))
    assert float(state.reward_normalizer.moments.count) == pytest.approx(3 * STEPS * ENVS, abs=1)
