"""Batches that agree, batches that do not, and gradients that repeat themselves."""

import pytest
import torch
from known_gradients import correlated

from isobatch.probe.agreement import MOST_POINTS, agreement, lagged, minibatches


def parts(gradients: torch.Tensor):
    """Return gradients as scales (ones), vectors, squared norms and valid rows."""
    shape = gradients.shape[:-1]
    return (
        torch.ones(shape), gradients, gradients.square().sum(-1).double(),
        torch.ones(shape, dtype=torch.bool),
    )  # fmt: skip


def test_cosines_and_norms_are_the_batches_means():
    g = torch.randn(3, 4, 5, 6, generator=torch.Generator().manual_seed(1))
    found = agreement(*parts(g))
    means = g.mean((1, 2))
    torch.testing.assert_close(found.norms, means.norm(dim=1))
    expected = torch.nn.functional.cosine_similarity(means[0], means[2], dim=0)
    assert float(found.cosines[0, 2]) == pytest.approx(float(expected), abs=1e-5)
    torch.testing.assert_close(found.cosines.diagonal(), torch.ones(3))


def test_samples_of_the_first_batch_against_every_mean():
    g = torch.randn(2, 3, 4, 5, generator=torch.Generator().manual_seed(2))
    scales, vectors, squares, valid = parts(g)
    scales[0, 1, 2] = -2.0
    found = agreement(scales, vectors, squares, valid)
    scaled = g * scales[..., None]
    sample, mean = scaled[0, 1, 2], scaled[1].mean((0, 1))
    row = 1 * 4 + 2
    assert float(found.sample_norms[row]) == pytest.approx(float(sample.norm()), rel=1e-5)
    cosine = torch.nn.functional.cosine_similarity(sample, mean, dim=0)
    assert float(found.sample_cosines[1, row]) == pytest.approx(float(cosine), abs=1e-5)


def test_rows_left_out_are_no_points_and_few_enough_are_kept():
    g = torch.randn(2, 10, 100, 3)
    scales, vectors, squares, valid = parts(g)
    valid[0, 0] = False
    assert len(agreement(scales, vectors, squares, valid).sample_norms) == MOST_POINTS
    valid[0, 5:] = False
    assert len(agreement(scales, vectors, squares, valid).sample_norms) == 400


@pytest.mark.parametrize("phi", [0.0, 0.8, -0.5])
def test_lagged_correlation_is_that_of_the_process(phi):
    g = correlated(torch.Generator().manual_seed(3), (64, 32, 40), phi)
    found = lagged(*parts(g))
    assert found.lags == [1, 2, 4, 8, 16]
    for lag, within, across in zip(found.lags, found.within, found.across, strict=True):
        assert within == pytest.approx(phi**lag, abs=0.03)
        assert across == pytest.approx(0, abs=0.01)


def test_environments_in_step_correlate_with_each_other():
    generator = torch.Generator().manual_seed(4)
    clock = correlated(generator, (1, 32, 40), 0.9)
    found = lagged(*parts(clock + correlated(generator, (16, 32, 40), 0.0)))
    assert found.across[0] > 0.2


def test_rows_left_out_correlate_with_nothing():
    g = correlated(torch.Generator().manual_seed(5), (32, 16, 40), 0.8)
    scales, vectors, _, valid = parts(g)
    valid[:, 5] = False
    damaged = vectors.clone()
    damaged[:, 5] = 1e3
    found = lagged(scales, damaged, damaged.square().sum(-1), valid)
    assert found.within[0] == pytest.approx(0.8, abs=0.05)


def test_minibatches_of_pure_noise_are_no_nearer_their_rollout_than_a_part_of_it_is():
    g = torch.randn(4, 8, 16, 400, generator=torch.Generator().manual_seed(5))
    scales, vectors, _, valid = parts(g)
    found = minibatches(scales, vectors, valid, 32)
    assert found.size == 32
    assert found.by_chance == 0.5
    assert found.cosine.value == pytest.approx(0.5, abs=0.02)
    assert 0.35 < found.cosine.low < found.cosine.value < found.cosine.high < 0.65


def test_minibatches_of_a_gradient_without_noise_go_its_way():
    g = torch.ones(2, 4, 8, 5)
    scales, vectors, _, valid = parts(g)
    valid[:, :, 6:] = False
    vectors[:, :, 6:] = -100.0
    found = minibatches(scales, vectors, valid, 8)
    assert found.size == 8
    assert found.cosine.low == pytest.approx(1, abs=1e-5)
    whole = minibatches(scales, vectors, valid, 500)
    assert (whole.size, whole.by_chance) == (24, 1)
