import copy
import dataclasses

import pytest
import torch
from gymnasium import spaces
from hand_made import ENVS, OBSERVATIONS, PLAIN, STEPS, begin, learn, made, weights
from hypothesis import given
from hypothesis import strategies as st

from isobatch.algos.pqn import Pqn, epsilon
from isobatch.envs.spaces import ActionLayout
from isobatch.errors import UserError
from isobatch.experience import Rollout
from isobatch.models import QNetwork
from isobatch.models.distributions import EpsilonGreedy
from isobatch.recipe import Exploration
from isobatch.state import TrainState

RECIPE = PLAIN.replace(algo="pqn", layer_norm=True, activation="relu", total_timesteps=640)


def experience(state, seed=0):
    """Return a rollout acted by the network, with an end in the middle and a truncation."""
    random = torch.Generator().manual_seed(seed)
    vectors = torch.randn(STEPS + 1, ENVS, 3, generator=random)
    with torch.no_grad():
        params, values = state.model.act({"vector": vectors.flatten(0, 1)})
    params = params.view(STEPS + 1, ENVS, -1)[:-1]
    actions = torch.randint(3, (STEPS, ENVS, 1), generator=random)
    none = torch.zeros(STEPS, ENVS, dtype=torch.bool)
    terminated, truncated, valid = none.clone(), none.clone(), ~none
    terminated[4, 0] = truncated[9, 1] = True
    valid[5, 0] = valid[10, 1] = False
    rewards = torch.randn(STEPS, ENVS, generator=random)
    return Rollout(
        observations={"vector": vectors}, actions=actions, params=params,
        logp=torch.zeros(STEPS, ENVS), values=values.view(STEPS + 1, ENVS), rewards=rewards,
        terminated=terminated, truncated=truncated, valid=valid, first=none, final_values=None,
        scores=rewards, over=terminated | truncated,
    )  # fmt: skip


def targets_by_hand(rollout, gamma, lam):
    """G_t = r + gamma (1 - d) (lambda G' + (1 - lambda) max Q'), cut where episodes are cut."""
    targets = torch.zeros(STEPS, ENVS)
    for n in range(ENVS):
        following = rollout.values[STEPS, n]
        for t in reversed(range(STEPS)):
            best = rollout.values[t + 1, n]
            if rollout.truncated[t, n]:
                following = best
            mixed = lam * following + (1 - lam) * best
            ahead = 0.0 if rollout.terminated[t, n] else gamma * mixed
            targets[t, n] = following = rollout.rewards[t, n] + ahead
    return targets


def test_one_step_is_the_regression_on_q_lambda():
    recipe = RECIPE.replace(learning_rate=1.0)
    state = begin(recipe)
    rollout = experience(state)
    rows = rollout.valid
    targets = targets_by_hand(rollout, 0.9, 0.8)[rows]
    network = copy.deepcopy(state.model)
    values = network({"vector": rollout.observations["vector"][:-1][rows]})
    chosen = values.gather(1, rollout.actions[rows]).squeeze(1)
    loss = 0.5 * (chosen - targets).square().mean()
    slopes = torch.autograd.grad(loss, list(network.parameters()))
    before = weights(state).clone()
    statistics = learn(made(Pqn, state, recipe, 1000), rollout)
    expected = torch.cat([slope.flatten() for slope in slopes])
    torch.testing.assert_close(before - weights(state), expected, rtol=0, atol=1e-5)
    assert statistics["value_loss"] == pytest.approx(loss.item(), rel=1e-4)
    assert statistics["q_mean"] == pytest.approx(chosen.mean().item(), abs=1e-5)


def test_exploration_falls_with_the_environment_steps():
    state = begin(RECIPE)
    settings = Exploration(epsilon_start=1.0, epsilon_end=0.1, epsilon_fraction=0.5)
    recipe = dataclasses.replace(RECIPE, exploration=settings)
    learner = made(Pqn, state, recipe, 1000)
    assert state.model.epsilon == 1.0
    seen = []
    for seed in range(8):
        rollout = experience(state, seed)
        seen.append(learn(learner, rollout)["epsilon"])
        state.counters.env_steps += rollout.n_valid
    spent = [62 * k / 640 for k in range(8)]
    assert seen == pytest.approx([max(0.1, 1 - 0.9 * part / 0.5) for part in spent])


def test_a_run_that_goes_on_explores_as_much_as_when_it_stopped():
    state = begin(RECIPE)
    state.counters.env_steps = 320
    made(Pqn, state, RECIPE, 1000)
    assert state.model.epsilon == epsilon(RECIPE.exploration, 0.5)


@given(st.floats(0, 1), st.floats(0, 1), st.floats(0, 1), st.floats(0, 1.5))
def test_epsilon_stays_between_its_ends(start, end, fraction, spent):
    settings = Exploration(start, end, fraction)
    low, high = sorted((start, end))
    assert low - 1e-9 <= epsilon(settings, spent) <= high + 1e-9
    assert epsilon(settings, 1.0) == end


@pytest.mark.parametrize(
    ("space", "words"),
    [
        (spaces.Box(-1, 1, (2,)), "2 continuous"),
        (spaces.MultiDiscrete([2, 3]), "2 discrete"),
        (spaces.MultiBinary(3), "3 yes-or-no"),
    ],
)
def test_other_actions_than_one_discrete_are_refused(space, words):
    actions = ActionLayout.of(space, "hand-made")
    with pytest.raises(UserError, match=f"pqn is for one discrete action.*{words}"):
        TrainState.begin(RECIPE, OBSERVATIONS, actions, torch.device("cpu"))


def test_the_greedy_network_acts_by_the_largest_value():
    state = begin(RECIPE)
    model = state.model
    assert isinstance(model, QNetwork)
    rows = {"vector": torch.randn(50, 3, generator=torch.Generator().manual_seed(0))}
    params, values = model.act(rows)
    noise = model.distribution.noise((50,), params, torch.Generator().manual_seed(1))
    assert torch.equal(model.distribution.sample(params, noise)[:, 0], model(rows).argmax(1))
    assert torch.equal(values, model(rows).amax(1))
    assert torch.equal(model.values(rows), values)


def test_frequencies_of_epsilon_greedy_are_its_probabilities():
    distribution = EpsilonGreedy(4)
    params = torch.tensor([[0.1, 2.0, -1.0, 0.3, 0.4]]).expand(40_000, -1)
    noise = distribution.noise((40_000,), params, torch.Generator().manual_seed(0))
    taken = distribution.sample(params, noise)
    share = torch.bincount(taken[:, 0], minlength=4) / 40_000
    expected = torch.tensor([0.1, 0.7, 0.1, 0.1])
    torch.testing.assert_close(share, expected, rtol=0, atol=0.01)
    told = torch.stack([distribution.log_prob(params[:1], torch.tensor([[k]])) for k in range(4)])
    torch.testing.assert_close(told.exp()[:, 0], expected)
    torch.testing.assert_close(
        distribution.entropy(params[:1])[0], -(expected * expected.log()).sum()
    )
    even = torch.tensor([[5.0, 0.0, 0.0, 0.0, 1.0]])
    torch.testing.assert_close(
        distribution.kl(params[:1], even)[0], (expected * (expected * 4).log()).sum()
    )
