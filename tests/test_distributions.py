import math

import pytest
import torch
from gymnasium import spaces
from torch import distributions as reference

from isobatch.envs.spaces import ActionLayout
from isobatch.models.distributions import Bernoulli, Categorical, Gaussian, distribution_of

SAMPLES = 100_000


class Case:
    """One of our families beside PyTorch's own."""

    def __init__(self, ours, theirs, actions):
        self.ours, self.theirs, self.actions = ours, theirs, actions


def columns_of(counts):
    def theirs(params):
        return [reference.Categorical(logits=part) for part in params.split(counts, 1)]

    return theirs


CASES = {
    "one choice": Case(Categorical((5,)), columns_of((5,)), lambda n: choices(n, (5,))),
    "several choices": Case(
        Categorical((3, 2, 4)), columns_of((3, 2, 4)), lambda n: choices(n, (3, 2, 4))
    ),
    "binary": Case(
        Bernoulli(3),
        lambda params: [reference.Bernoulli(logits=each) for each in params.unbind(1)],
        lambda n: choices(n, (2, 2, 2)),
    ),
    "gaussian": Case(
        Gaussian(2),
        lambda params: [
            reference.Normal(mean, log_std.exp())
            for mean, log_std in zip(params[:, :2].unbind(1), params[:, 2:].unbind(1), strict=True)
        ],
        lambda n: torch.randn(n, 2, generator=seeded(7), dtype=torch.float64),
    ),
}


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def choices(n, counts):
    generator = seeded(7)
    return torch.stack([torch.randint(count, (n,), generator=generator) for count in counts], 1)


def parameters(case, n, seed=0):
    return torch.randn(n, case.ours.n_params, generator=seeded(seed), dtype=torch.float64)


@pytest.fixture(params=CASES, ids=lambda name: name.replace(" ", "-"))
def case(request):
    return CASES[request.param]


def test_log_prob(case):
    params, actions = parameters(case, 40), case.actions(40)
    expected = sum(
        each.log_prob(actions[:, k].to(params.dtype)) for k, each in enumerate(case.theirs(params))
    )
    torch.testing.assert_close(case.ours.log_prob(params, actions), expected)


def test_entropy(case):
    params = parameters(case, 40)
    expected = sum(each.entropy() for each in case.theirs(params))
    torch.testing.assert_close(case.ours.entropy(params), expected)


def test_kl(case):
    params, other = parameters(case, 40), parameters(case, 40, seed=1)
    pairs = zip(case.theirs(params), case.theirs(other), strict=True)
    expected = sum(reference.kl_divergence(p, q) for p, q in pairs)
    torch.testing.assert_close(case.ours.kl(params, other), expected)
    torch.testing.assert_close(case.ours.kl(params, params), torch.zeros(40).double())


def test_evaluate_is_log_prob_and_entropy(case):
    params, actions = parameters(case, 40), case.actions(40)
    logp, entropy = case.ours.evaluate(params, actions)
    torch.testing.assert_close(logp, case.ours.log_prob(params, actions))
    torch.testing.assert_close(entropy, case.ours.entropy(params))


def test_mode_is_at_least_as_likely_as_any_sample(case):
    params = parameters(case, 40)
    best = case.ours.log_prob(params, case.ours.mode(params))
    noise = case.ours.noise((200, 40), params, seeded())
    for draw in noise:
        assert (case.ours.log_prob(params, case.ours.sample(params, draw)) <= best + 1e-12).all()


def test_sampling_is_decided_by_the_generator(case):
    like = torch.zeros(1)
    first, again, other = (case.ours.noise((4, 3), like, seeded(s)) for s in (0, 0, 1))
    assert first.shape == (4, 3, case.ours.n_noise)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def drawn(case):
    """Return one row of parameters and many actions drawn from it."""
    params = parameters(case, 1).float()
    noise = case.ours.noise((SAMPLES,), params, seeded(3))
    return params, case.ours.sample(params.expand(SAMPLES, -1), noise)


@pytest.mark.parametrize("name", ["one choice", "several choices", "binary"])
def test_frequencies_of_choices(name):
    case = CASES[name]
    params, actions = drawn(case)
    for k, each in enumerate(case.theirs(params)):
        p = each.probs.flatten() if name != "binary" else torch.stack([1 - each.probs, each.probs])
        p = p.flatten()
        frequency = torch.bincount(actions[:, k], minlength=len(p)) / SAMPLES
        error = (p * (1 - p) / SAMPLES).sqrt()
        assert ((frequency - p).abs() < 4.5 * error).all()


@pytest.mark.parametrize("name", ["several choices", "binary", "gaussian"])
def test_columns_are_independent(name):
    _, actions = drawn(CASES[name])
    correlation = torch.corrcoef(actions.T.float())
    off_diagonal = correlation - torch.eye(len(correlation))
    assert off_diagonal.abs().max() < 4.5 / math.sqrt(SAMPLES)


def test_moments_of_the_gaussian():
    params, actions = drawn(CASES["gaussian"])
    mean, std = params[0, :2], params[0, 2:].exp()
    assert ((actions.mean(0) - mean).abs() < 4.5 * std / math.sqrt(SAMPLES)).all()
    assert ((actions.std(0) / std - 1).abs() < 4.5 / math.sqrt(2 * SAMPLES)).all()


@pytest.mark.parametrize("name", ["one choice", "several choices", "binary"])
def test_extreme_logits_stay_finite(name):
    ours = CASES[name].ours
    params = torch.full((2, ours.n_params), -1e4)
    params[:, 0] = 1e4
    actions = ours.mode(params)
    for result in (*ours.evaluate(params, actions), ours.kl(params, params)):
        assert torch.isfinite(result).all()


@pytest.mark.parametrize(
    ("space", "kind", "n_outputs", "n_params"),
    [
        (spaces.Discrete(4), Categorical, 4, 4),
        (spaces.MultiDiscrete([3, 2]), Categorical, 5, 5),
        (spaces.MultiBinary(6), Bernoulli, 6, 6),
        (spaces.Box(-1, 1, (3,)), Gaussian, 3, 6),
    ],
)
def test_distribution_for_each_action_space(space, kind, n_outputs, n_params):
    distribution = distribution_of(ActionLayout.of(space, "test"))
    assert isinstance(distribution, kind)
    assert (distribution.n_outputs, distribution.n_params) == (n_outputs, n_params)
