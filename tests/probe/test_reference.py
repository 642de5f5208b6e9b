"""Whole returns as a reference: they see what a value function gets wrong, and GAE does not."""

import math

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from hand_made import PLAIN, begin, experience
from known_gradients import without_intervals
from test_collection import policy_of

from isobatch.batch import Shape
from isobatch.noise.clusters import Clusters, scattered
from isobatch.noise.estimators import squared_gradient
from isobatch.probe import Question, investigate
from isobatch.probe.collection import Experience
from isobatch.probe.curve import against_returns, bias, curve, endless_bias
from isobatch.probe.gradients import Directions
from isobatch.probe.reference import bootstrap_weights, monte_carlo

GAMMA = 0.9
SECOND = 2.0
"""What the second action is worth; the first one's worth, 1, comes with the second reward."""


def two_steps(value, n_envs=400, rows=32, noise=0.0, seed=0):
    """Episodes of two steps: action a pays a at the end, then action b pays 2 b; both are +-1.

    At the second state, which remembers a, the value function says `value` times a; the truth is
    a. Directions are (a, 0) and (0, b), so that the true gradient is (0.9, 2) / 2.
    """
    generator = torch.Generator().manual_seed(seed)

    def sign():
        return torch.randint(2, (rows // 2, n_envs), generator=generator) * 2.0 - 1

    first, second = sign(), sign()
    zero = torch.zeros_like(first)

    def woven(one, other):
        return torch.stack([one, other], 1).flatten(0, 1)

    last = woven(zero, zero + 1).bool()
    paid = first + SECOND * second + noise * torch.randn(first.shape, generator=generator)
    values = torch.cat([woven(zero, value * first), torch.zeros(1, n_envs)])
    blank = experience(begin(PLAIN))
    rollout = type(blank)(**{**vars(blank),
        "rewards": woven(zero, paid), "values": values, "terminated": last,
        "truncated": torch.zeros_like(last), "valid": torch.ones_like(last),
        "final_values": torch.zeros_like(values[:-1]),
    })  # fmt: skip
    vectors = torch.stack([woven(first, zero), woven(zero, second)], 2)
    squares = vectors.square().sum(2).double()
    return Experience(rollout, 0, 2.0), Directions(vectors, squares, 2, None)


def both(found, directions, lengths=(1, 2), gae_lambda=0.0):
    """Return the bias against GAE that looks on, and against whole returns."""
    rows = len(directions.squares)
    own = bias(found, directions, list(lengths), GAMMA, gae_lambda)
    returns = monte_carlo(found, rows, GAMMA).advantages
    return own, against_returns(own, returns, found, directions, GAMMA)


def test_a_wrong_value_function_is_seen_by_whole_returns_alone():
    """It says -a for a: the gradient of lambda 0 is (-0.9, 2) / 2, and GAE that looks on agrees."""
    own, whole = both(*two_steps(value=-1.0))
    seen = 2 * GAMMA / math.hypot(GAMMA, SECOND)
    cosine = (SECOND**2 - GAMMA**2) / (SECOND**2 + GAMMA**2)
    for length in own.lengths:
        assert own.norm(length).value == 0
    for length in (*whole.lengths, whole.endless):
        found = whole.norm(length)
        assert found.value == pytest.approx(seen, rel=0.05)
        assert found.low < seen < found.high
    blind, seeing = (curve(each, 64)[0] for each in (own, whole))
    assert blind.name == seeing.name == "64x1"
    assert blind.bias2.value == pytest.approx(0, abs=1e-6)
    assert seeing.bias2.value == pytest.approx(1 / cosine**2 - 1, rel=0.1)
    assert seeing.bias2.low < 1 / cosine**2 - 1 < seeing.bias2.high
    assert endless_bias(whole).value == pytest.approx(1 / cosine**2 - 1, rel=0.1)


def test_longer_rollouts_make_up_for_a_wrong_value_function():
    """With lambda 1 two steps are whole episodes, and one step is still the value function's."""
    _, whole = both(*two_steps(value=-1.0), gae_lambda=1.0)
    one, two = whole.lengths
    assert whole.norm(one).value == pytest.approx(2 * GAMMA / math.hypot(GAMMA, SECOND), rel=0.05)
    assert whole.norm(two).value < 0.01


def test_noise_does_not_enter_as_bias(monkeypatch):
    """The value function is right, rewards are noisy: no bias on average, though every draw has."""
    without_intervals(monkeypatch)
    squared, plain = [], []
    for seed in range(200):
        _, whole = both(*two_steps(value=1.0, n_envs=24, noise=4.0, seed=seed))
        clusters = whole.lengths[0].difference
        sums = clusters.sums(torch.ones(1, len(clusters), dtype=torch.float64))
        squared.append(float(squared_gradient(sums)))
        plain.append(float(sums.mean_square))
    found = torch.tensor(squared)
    error = float(found.std()) / math.sqrt(len(squared))
    assert abs(float(found.mean())) < 3 * error
    assert sum(plain) / len(plain) > 5 * error, "the noise is there to be taken off"


def test_what_is_taken_off_is_the_inner_product_of_each_environment_with_itself():
    means = torch.randn(7, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    clusters = Clusters(torch.ones(7).double(), means @ means.T, means.square().sum(1))
    products = (means @ means.T)[~torch.eye(7, dtype=torch.bool)]
    assert float(scattered(clusters, squared_gradient)[0]) == pytest.approx(float(products.mean()))


def test_the_acting_states_value_is_a_baseline_and_biases_nothing():
    found, directions = two_steps(value=-1.0)
    rows = len(directions.squares)
    moved = torch.randn(found.rollout.values.shape, generator=torch.Generator().manual_seed(3))
    other = Experience(type(found.rollout)(**{**vars(found.rollout), "values": moved}), 0, 2.0)
    gradients = [
        torch.einsum("tn,tnp->p", monte_carlo(each, rows, GAMMA).advantages, directions.vectors)
        / directions.squares.numel()
        for each in (found, other)
    ]
    truth = torch.tensor([GAMMA, SECOND]) / 2
    for gradient in gradients:
        torch.testing.assert_close(gradient, truth, atol=0.05, rtol=0)


def test_values_weigh_as_much_as_is_left_when_they_stand_in():
    rollout = experience(begin(PLAIN))
    over = torch.zeros(16, 4, dtype=torch.bool)
    terminated, truncated = over.clone(), over.clone()
    terminated[5, 0] = truncated[5, 1] = True
    rollout = type(rollout)(**{**vars(rollout), "terminated": terminated, "truncated": truncated})
    weights = bootstrap_weights(rollout, GAMMA)
    assert weights[:6, 0].tolist() == [0] * 6
    assert weights[:6, 1].tolist() == pytest.approx([GAMMA**k for k in range(6, 0, -1)])
    for n in (0, 1, 2):
        rest = range(10, 0, -1) if n < 2 else range(16, 6, -1)
        begins = 6 if n < 2 else 0
        assert weights[begins : begins + 10, n].tolist() == pytest.approx([GAMMA**k for k in rest])
    valid = torch.ones(16, 4, dtype=torch.bool)
    rollout = type(rollout)(**{**vars(rollout), "valid": valid})
    returns = monte_carlo(Experience(rollout, 0, None), 6, GAMMA)
    assert returns.complete == 0.25
    assert returns.value_weight == pytest.approx(float(weights[:6].mean()))
    assert returns.horizon == 10
    expected = sum(GAMMA**k * rollout.rewards[k, 0] for k in range(6)) - rollout.values[0, 0]
    assert float(returns.advantages[0, 0]) == pytest.approx(float(expected), rel=1e-4)


class Delayed(gymnasium.Env):
    """The same two steps as an environment: the first action is paid for with the second."""

    def __init__(self):
        self.observation_space = spaces.Box(-1, 1, (2,), np.float32)
        self.action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.first = 0.0
        return np.array([0, 0], np.float32), {}

    def step(self, action):
        sign = 2.0 * action - 1
        if not self.first:
            self.first = sign
            return np.array([1, sign], np.float32), 0.0, False, False, {}
        return np.array([0, 0], np.float32), self.first + SECOND * sign, True, False, {}


def test_a_probe_advises_by_whole_returns_and_says_what_the_value_function_costs():
    """The critic is taught the wrong sign: GAE finds nothing to object to, whole returns do."""
    policy = policy_of(Delayed, gamma=GAMMA, gae_lambda=0.0, architecture="dual")
    states = torch.tensor([[0.0, 0.0], [1.0, -1.0], [1.0, 1.0]])
    wrong = torch.tensor([0.0, 1.0, -1.0])
    critic = torch.optim.Adam(policy.model.parameters(), 0.02)
    for _ in range(400):
        loss = (policy.model({"vector": states})[1] - wrong).square().mean()
        critic.zero_grad()
        loss.backward()
        critic.step()
    assert loss.item() < 0.01
    question = Question(shapes=(Shape(32, 8),), batches=5, speed=False)
    findings = investigate(policy, question, make_env=Delayed)
    assert findings.reference == "monte-carlo"
    assert findings.has_advice
    assert findings.returns is not None
    assert findings.returns.value_weight < 0.01
    for blind, seeing in zip(findings.curves["gae"], findings.curve, strict=True):
        assert blind.bias2.value == pytest.approx(0, abs=1e-4)
        assert seeing.bias2.low > 0.1, "lambda 0: no length makes up for it"
    assert endless_bias(findings.bias("monte-carlo")).low > 0.1
