"""Credit-assignment noise: the same state and action in two environments, or nothing."""

import math

import pytest
import torch

from isobatch.probe.credit import credit_noise, numbered


def test_it_is_what_advantages_of_one_state_and_action_differ_by():
    """20 states and actions, worth what they are; chance has a variance of 4, one row's own."""
    generator = torch.Generator().manual_seed(0)
    pairs = torch.randint(20, (64, 50), generator=generator)
    worth = 3 * torch.randn(20, generator=generator)
    lengths = 1 + torch.rand(20, generator=generator)
    scales = worth[pairs] + 2 * torch.randn(pairs.shape, generator=generator)
    valid = torch.rand(pairs.shape, generator=generator) < 0.9
    scales[~valid] = 1e6
    found = credit_noise(scales, lengths[pairs].double(), pairs, valid, samples=100)
    assert found.is_identified
    assert found.covered == 1
    assert found.variance == pytest.approx(4 * float(lengths[pairs].mean()) / 100, rel=0.05)


def test_visits_of_one_environment_share_their_chance_and_do_not_count():
    """An environment's luck is all its rows': nothing differs within it, 9 between two."""
    generator = torch.Generator().manual_seed(1)
    luck = 3 * torch.randn(400, 1, generator=generator)
    pairs = torch.zeros(400, 5, dtype=torch.long)
    ones = torch.ones(400, 5)
    found = credit_noise(luck * ones, ones.double(), pairs, ones.bool(), samples=1)
    assert found.variance == pytest.approx(9, rel=0.2)
    alone = credit_noise(luck[:1] * ones[:1], ones[:1].double(), pairs[:1], ones[:1].bool(), 1)
    assert not alone.is_identified


def test_states_that_never_come_twice_tell_nothing():
    pairs = torch.arange(60).view(6, 10)
    ones = torch.ones(6, 10)
    found = credit_noise(torch.randn(6, 10), ones.double(), pairs, ones.bool(), samples=60)
    assert found.covered == 0
    assert math.isnan(found.variance)
    pairs[:, :4] = torch.arange(4)
    found = credit_noise(torch.randn(6, 10), ones.double(), pairs, ones.bool(), samples=60)
    assert found.covered == pytest.approx(0.4)
    assert not found.is_identified


def test_pairs_are_alike_in_state_and_action():
    seen = {
        "vector": torch.tensor([[[1.0], [2.0]], [[1.0], [1.0]], [[7.0], [7.0]]]),
        "image": torch.zeros(3, 2, 1, 2, 2, dtype=torch.uint8),
    }
    seen["image"][1, 1, 0, 1, 1] = 5
    actions = torch.tensor([[[0], [0]], [[0], [0]]])
    first, other = numbered(seen, actions).tolist()
    assert first[0] == other[0]
    assert len({first[0], first[1], other[1]}) == 3
    actions[1, 0] = 1
    assert numbered(seen, actions)[1, 0] != numbered(seen, actions)[0, 0]
