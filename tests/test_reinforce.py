import dataclasses
from itertools import pairwise

import pytest
import torch
from hand_made import ENVS, PLAIN, STEPS, begin, experience, learn, made, weights

import isobatch
from isobatch.algos.reinforce import Reinforce
from isobatch.experience import BY_STEP, concatenate
from isobatch.run.sinks import readings

RECIPE = PLAIN.replace(objective="pg", algo="reinforce", advantage_normalization="none")
SIZE = STEPS * ENVS
ALL = [(STEPS - 1, n) for n in range(ENVS)]


def endings(state, ends, seed=0, truncated=False):
    """Return a rollout of whole rows whose episodes end at the given (step, environment)s."""
    rollout = experience(state, seed)
    none = torch.zeros(STEPS, ENVS, dtype=torch.bool)
    done = none.clone()
    for t, n in ends:
        done[t, n] = True
    terminated, truncated = (none, done) if truncated else (done, none)
    return dataclasses.replace(
        rollout, terminated=terminated, truncated=truncated, valid=~none, over=done
    )


def slope(state, loss):
    """Return the gradient of a loss as one vector."""
    slopes = torch.autograd.grad(loss, list(state.model.parameters()), allow_unused=True)
    return torch.cat(
        [
            torch.zeros_like(each).flatten() if slope is None else slope.flatten()
            for each, slope in zip(state.model.parameters(), slopes, strict=True)
        ]
    )


def log_probs(state, rollout):
    """Return the present policy's log-probabilities of a rollout's actions [T, N], and values."""
    rows = {"vector": rollout.observations["vector"][:-1].flatten(0, 1)}
    params, values = state.model(state.observation_normalizer(rows))
    logp = state.model.distribution.log_prob(params, rollout.actions.flatten(0, 1))
    return logp.view(STEPS, ENVS), values.view(STEPS, ENVS)


def gradient_by_hand(state, rollout, returns, rows, baseline):
    logp, values = (each[rows] for each in log_probs(state, rollout))
    advantages = returns - rollout.values[:-1][rows] if baseline else returns
    loss = -(logp * advantages).mean()
    if baseline:
        loss = loss + RECIPE.objective.vf_coef * 0.5 * (values - returns).square().mean()
    return slope(state, loss)


def given_weights(learner, monkeypatch):
    """Return a list that fills with the weights of each update, None where all are 1."""
    improve, given = learner.gradient.improve, []

    def recorded(rollout, advantages, targets, weights):
        given.append(weights)
        return improve(rollout, advantages, targets, weights)

    monkeypatch.setattr(learner.gradient, "improve", recorded)
    return given


@pytest.mark.parametrize("baseline", [True, False])
def test_one_step_is_the_policy_gradient_with_rewards_to_go(baseline):
    recipe = RECIPE.replace(baseline=baseline, learning_rate=1.0)
    state = begin(recipe)
    ends = {0: 5, 2: STEPS - 1, 3: STEPS - 1}
    rollout = endings(state, [(t, n) for n, t in ends.items()])
    rows = torch.zeros(STEPS, ENVS, dtype=torch.bool)
    rows[:6, 0] = rows[:, 2] = rows[:, 3] = True
    returns = torch.zeros(STEPS, ENVS)
    for t, n in rows.nonzero().tolist():
        returns[t, n] = sum(0.9 ** (k - t) * rollout.rewards[k, n] for k in range(t, ends[n] + 1))
    expected = gradient_by_hand(state, rollout, returns[rows], rows, baseline)
    before = weights(state).clone()
    statistics = learn(made(Reinforce, state, recipe, 1000), rollout)
    torch.testing.assert_close(before - weights(state), expected, rtol=0, atol=1e-5)
    assert statistics["rows_learned"] == 6 + 2 * STEPS
    assert statistics["rows_waiting"] == SIZE - 6 - 2 * STEPS
    assert state.counters.grad_steps == 1


@pytest.mark.parametrize("truncated", [True, False])
@pytest.mark.parametrize("baseline", [True, False])
@pytest.mark.parametrize("apart", [True, False], ids=["same step", "next step"])
def test_a_truncated_return_goes_on_with_the_baselines_value_of_the_final_observation(
    truncated, baseline, apart
):
    recipe = RECIPE.replace(baseline=baseline, learning_rate=1.0)
    state = begin(recipe)
    rollout = endings(state, ALL, truncated=truncated)
    final = rollout.values[-1]
    if apart:
        final = torch.tensor([3.0, -2.0, 1.0, 0.5])
        final_values = torch.zeros(STEPS, ENVS)
        final_values[-1] = final if truncated else 0
        rollout = dataclasses.replace(rollout, final_values=final_values)
    follows = final if truncated and baseline else torch.zeros(ENVS)
    returns = torch.zeros(STEPS, ENVS)
    for t in reversed(range(STEPS)):
        follows = returns[t] = rollout.rewards[t] + 0.9 * follows
    rows = torch.ones(STEPS, ENVS, dtype=torch.bool)
    expected = gradient_by_hand(state, rollout, returns[rows], rows, baseline)
    before = weights(state).clone()
    learn(made(Reinforce, state, recipe, 1000), rollout)
    torch.testing.assert_close(before - weights(state), expected, rtol=0, atol=1e-5)


def test_rows_wait_for_their_episodes_end_and_are_learned_from_once():
    state = begin(RECIPE)
    learner = made(Reinforce, state, RECIPE, 1000)
    first = learn(learner, endings(state, [(9, n) for n in range(ENVS)]))
    assert (first["rows_learned"], first["rows_waiting"]) == (40, SIZE - 40)
    nothing = learn(learner, endings(state, [], 1))
    assert nothing["rows_learned"] == 0
    assert nothing["rows_waiting"] == 2 * SIZE - 40
    last = learn(learner, endings(state, ALL, 2))
    assert last["rows_learned"] == 3 * SIZE - 40
    assert last["rows_waiting"] == last["rows_dropped"] == 0


def test_rows_wait_however_long_their_episode_takes():
    learner = made(Reinforce, begin(RECIPE), RECIPE, 1000)
    seen = [learn(learner, endings(learner.state, [], seed)) for seed in range(20)]
    assert [row["rows_waiting"] for row in seen] == [SIZE * (k + 1) for k in range(20)]
    last = learn(learner, endings(learner.state, ALL, 20))
    assert last["rows_learned"] == 21 * SIZE
    assert last["rows_waiting"] == 0
    assert all(row["rows_dropped"] == 0 for row in [*seen, last])


def test_rows_that_ended_wait_until_they_are_more_than_half_a_minibatch():
    state = begin(RECIPE)
    learner = made(Reinforce, state, RECIPE, 1000)
    before = weights(state).clone()
    half = learn(learner, endings(state, [(STEPS - 1, 0), (STEPS - 1, 1)]))
    assert half == {"rows_learned": 0, "rows_waiting": SIZE, "rows_dropped": 0}
    assert torch.equal(weights(state), before)
    more = learn(learner, endings(state, [(0, 0)], 1))
    assert more["rows_learned"] == SIZE // 2 + 1
    assert not torch.equal(weights(state), before)


def test_a_return_reaches_over_rollouts():
    """Three rollouts in a row teach what one of three times the length does."""
    state, again = begin(RECIPE), begin(RECIPE)
    parts = [endings(state, []), endings(state, [], 1), endings(state, ALL, 2)]
    for before, after in pairwise(parts):
        after.observations["vector"][0] = before.observations["vector"][-1]
    several = made(Reinforce, state, RECIPE, 1000)
    for part in parts:
        learn(several, part)
    one = made(Reinforce, again, RECIPE.replace(n_steps=3 * STEPS), 1000)
    learn(one, concatenate(*parts))
    torch.testing.assert_close(weights(state), weights(again))


def test_an_episode_dropped_between_rollouts_is_valued_like_a_truncation():
    """Environment 0 was replaced in the first row of the second rollout: they are not joined."""
    state, again = begin(RECIPE), begin(RECIPE)
    first, second = endings(state, []), endings(state, ALL, 1)
    second.observations["vector"][0] = first.observations["vector"][-1]
    dropped = torch.zeros(STEPS, ENVS, dtype=torch.bool)
    dropped[0, 0] = True
    second = dataclasses.replace(second, valid=~dropped, dropped=dropped)
    joined = concatenate(first, second)
    joined.truncated[STEPS - 1, 0] = True
    several = made(Reinforce, state, RECIPE, 1000)
    assert learn(several, first)["rows_waiting"] == SIZE
    assert learn(several, second)["rows_learned"] == 2 * SIZE - 1
    learn(made(Reinforce, again, RECIPE.replace(n_steps=2 * STEPS), 1000), joined)
    torch.testing.assert_close(weights(state), weights(again))
    assert not bool(first.truncated.any()), "the rollout itself is as it was"


def test_an_episode_dropped_between_rollouts_waits_no_more():
    state = begin(RECIPE)
    learner = made(Reinforce, state, RECIPE, 1000)
    learn(learner, endings(state, []))
    second = endings(state, [], 1)
    dropped = torch.zeros(STEPS, ENVS, dtype=torch.bool)
    dropped[0, :3] = True
    second = dataclasses.replace(second, valid=~dropped, dropped=dropped)
    statistics = learn(learner, second)
    assert statistics["rows_learned"] == 3 * STEPS
    assert statistics["rows_waiting"] == SIZE - 3 + STEPS


def old_and_new(state, learner):
    """Let the policy move while environment 3 goes on; return its rollouts before and after."""
    first = endings(state, [(STEPS - 1, n) for n in range(3)])
    learn(learner, first)
    return first, endings(state, ALL, 1)


@pytest.mark.parametrize("cap", [100.0, 1.05])
def test_rows_of_an_earlier_policy_count_by_their_capped_importance_weight(cap):
    recipe = RECIPE.replace(baseline=False, learning_rate=1.0, max_ratio=cap)
    state = begin(recipe)
    learner = made(Reinforce, state, recipe, 1000)
    first, second = old_and_new(state, learner)
    rewards = torch.cat([first.rewards[:, 3], second.rewards[:, 3]])
    returns = torch.zeros(2 * STEPS, ENVS)
    follows = torch.zeros(ENVS)
    for t in reversed(range(STEPS)):
        follows = returns[STEPS + t] = second.rewards[t] + 0.9 * follows
    old = follows[3]
    for t in reversed(range(STEPS)):
        old = returns[t, 3] = rewards[t] + 0.9 * old
    logp_old, logp_new = log_probs(state, first)[0][:, 3], log_probs(state, second)[0]
    ratio = (logp_old - first.logp[:, 3]).exp().detach()
    assert ratio.min() < 0.95, "the policy did not move"
    assert ratio.max() > 1.05, "the policy did not move"
    weight = ratio.clamp(max=cap)
    total = (weight * returns[:STEPS, 3] * logp_old).sum() + (returns[STEPS:] * logp_new).sum()
    expected = slope(state, -total / (STEPS + SIZE))
    before = weights(state).clone()
    statistics = learn(learner, second)
    torch.testing.assert_close(before - weights(state), expected, rtol=0, atol=1e-5)
    assert statistics["rows_learned"] == STEPS + SIZE
    capped = float((ratio > cap).sum()) / (STEPS + SIZE)
    assert statistics["capped_fraction"] == pytest.approx(capped)


def test_rows_of_the_present_policy_count_exactly_1(monkeypatch):
    recipe = RECIPE.replace(learning_rate=1.0)
    state = begin(recipe)
    learner = made(Reinforce, state, recipe, 1000)
    given = given_weights(learner, monkeypatch)
    learn(learner, endings(state, []))
    learn(learner, endings(state, [(STEPS - 1, n) for n in range(3)], 1))
    assert given == [None], "nothing was learned meanwhile: the rows that waited are on-policy"
    learn(learner, endings(state, ALL, 2))
    assert (given[1][2 * STEPS :] == 1).all()
    assert (given[1][: 2 * STEPS, :3] == 1).all(), "these rows were learned from before"
    assert (given[1][: 2 * STEPS, 3] != 1).all()


def test_rows_that_wait_while_the_normaliser_moves_are_weighted_too(monkeypatch):
    recipe = RECIPE.replace(normalize_observations=True)
    state = begin(recipe)
    learner = made(Reinforce, state, recipe, 1000)
    given = given_weights(learner, monkeypatch)
    first = endings(state, [])
    learn(learner, first)
    state.observation_normalizer.update(first.observations["vector"][:-1].flatten(0, 1) * 3 + 2)
    ratio = (log_probs(state, first)[0] - first.logp).exp()
    learn(learner, endings(state, ALL, 1))
    torch.testing.assert_close(given[0][:STEPS], ratio)
    assert (given[0][STEPS:] == 1).all()


def test_weights_come_after_the_advantages_are_normalised(monkeypatch):
    """With weight 0 for one environment, the others' normalised advantages are as they were."""
    recipe = RECIPE.replace(advantage_normalization="batch", baseline=False, learning_rate=1.0)
    state = begin(recipe)
    learner = made(Reinforce, state, recipe, 1000)
    rollout = endings(state, ALL)
    given = torch.ones(STEPS, ENVS)
    given[:, 0] = 0
    monkeypatch.setattr(learner, "_weights", lambda rollout, n_old: given)
    returns = torch.zeros(STEPS, ENVS)
    follows = torch.zeros(ENVS)
    for t in reversed(range(STEPS)):
        follows = returns[t] = rollout.rewards[t] + 0.9 * follows
    scaled = (returns - returns.mean()) / returns.std(correction=0)
    loss = -(log_probs(state, rollout)[0] * scaled * given).mean()
    expected = slope(state, loss)
    before = weights(state).clone()
    learn(learner, rollout)
    torch.testing.assert_close(before - weights(state), expected, rtol=0, atol=1e-5)


def test_rows_whose_environments_are_gone_are_dropped_and_counted():
    learner = made(Reinforce, begin(RECIPE), RECIPE, 1000)
    learn(learner, endings(learner.state, [(3, 0)]))
    narrow = endings(learner.state, [(STEPS - 1, 0)], 1)
    parts = {name: getattr(narrow, name)[:, :1] for name in BY_STEP}
    seen = {"vector": narrow.observations["vector"][:, :1]}
    narrow = dataclasses.replace(narrow, observations=seen, values=narrow.values[:, :1], **parts)
    learner.state.recipe = RECIPE.replace(n_envs=1)
    row = learn(learner, narrow)
    assert (row["rows_learned"], row["rows_dropped"]) == (STEPS, SIZE)


def test_rows_that_target_kl_forbids_to_learn_from_are_dropped_and_counted():
    recipe = RECIPE.replace(learning_rate=1.0, target_kl=1e-6)
    state = begin(recipe)
    learner = made(Reinforce, state, recipe, 1000)
    _, second = old_and_new(state, learner)
    row = learn(learner, second)
    assert row["stopped_early"] == 1
    assert (row["rows_learned"], row["rows_waiting"]) == (0, 0)
    assert row["rows_dropped"] == STEPS + SIZE


def test_every_row_of_a_run_is_accounted_for_and_what_was_not_learned_is_null(tmp_path):
    """Episodes far longer than a rollout; before they end there is nothing to report."""
    run = isobatch.train(
        "CartPole-v1", algo="reinforce", n_envs=4, n_steps=2, total_timesteps=4000,
        out=tmp_path / "run", quiet=True,
    )  # fmt: skip
    rows = run.metrics
    learned = [row for row in rows if row["rows_learned"]]
    waited = [row for row in rows if not row["rows_learned"]]
    assert max(row["episode_length"] or 0 for row in rows) > 8 * 2
    total = sum(row["rows_learned"] for row in rows) + rows[-1]["rows_waiting"]
    assert total == rows[-1]["env_steps"] > 3990
    assert all(row["rows_dropped"] == 0 for row in rows)
    assert all(row["policy_loss"] is None and row["approx_kl"] is None for row in waited)
    assert all(row["policy_loss"] is not None and row["rows_learned"] > 4 for row in learned)
    assert learned[-1]["grad_steps"] == len(learned)
    assert "transitions waiting for episodes to end" in readings(waited[0])
    assert "wait" not in readings(learned[0])


def test_without_a_baseline_the_value_function_is_left_alone():
    recipe = RECIPE.replace(baseline=False, architecture="dual")
    state = begin(recipe)
    before = state.model.value_head.weight.detach().clone()
    learn(made(Reinforce, state, recipe, 1000), endings(state, ALL))
    assert torch.equal(state.model.value_head.weight, before)


def test_rewards_are_normalised_once_as_they_come():
    recipe = RECIPE.replace(normalize_rewards=True)
    state = begin(recipe)
    learner = made(Reinforce, state, recipe, 1000)
    for seed in range(3):
        learn(learner, endings(state, [], seed))
    assert float(state.reward_normalizer.moments.count) == pytest.approx(3 * STEPS * ENVS, abs=1)
