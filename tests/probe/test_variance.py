"""Known answers: gradients whose variance is computed on paper."""

import math
import subprocess
import sys

import pytest
import torch
from known_gradients import CASES, correlated, on_paper, without_intervals

from isobatch.errors import UserError
from isobatch.probe import decompose

REPLICATIONS = 200
"""`python tests/probe/known_answers.py` makes 1,000, with intervals: docs/results/probe.md."""


@pytest.mark.parametrize("name", CASES)
def test_the_terms_are_unbiased(name, monkeypatch):
    n_envs, n_steps, size, phi, effect = CASES[name]
    without_intervals(monkeypatch)
    generator = torch.Generator().manual_seed(1)
    found = []
    for _ in range(REPLICATIONS):
        terms = decompose(correlated(generator, (n_envs, n_steps, size), phi, effect))
        found.append([terms.total.value, terms.individual.value, terms.covariance.value])
    found = torch.tensor(found, dtype=torch.float64)
    error = found.std(0) / math.sqrt(REPLICATIONS)
    truth = torch.tensor(on_paper(n_envs, n_steps, size, phi, effect), dtype=torch.float64)
    assert ((found.mean(0) - truth).abs() < 4 * error).all()


@pytest.mark.parametrize("name", ["ar 0.9", "negative"])
def test_intervals_hold_the_truth_about_as_often_as_they_say(name):
    """60 of them: at a true 95%, fewer than 51 would come up once in 5,000 times."""
    n_envs, n_steps, size, phi, effect = CASES[name]
    generator = torch.Generator().manual_seed(2)
    truth = on_paper(n_envs, n_steps, size, phi, effect)
    held = torch.zeros(3)
    for _ in range(60):
        terms = decompose(correlated(generator, (n_envs, n_steps, size), phi, effect))
        for k, each in enumerate((terms.total, terms.individual, terms.covariance)):
            held[k] += each.low <= truth[k] <= each.high
    assert (held >= 51).all()
    assert (held < 60).any()


def test_the_formulas_are_those_of_analysis_of_variance(monkeypatch):
    without_intervals(monkeypatch)
    g = correlated(torch.Generator().manual_seed(3), (5, 7, 2), 0.4, 0.2)
    terms = decompose(g)
    means, whole = g.mean(1), g.mean((0, 1))
    between = (means - whole).square().sum()
    msb = 7 * between / 4
    msw = (g - means[:, None]).square().sum() / (5 * 6)
    sigma2 = msw + (msb - msw) / 7
    assert terms.total.value == pytest.approx(float(between / 20), rel=1e-5)
    assert terms.individual.value == pytest.approx(float(sigma2 / 35), rel=1e-5)
    assert terms.icc.value == pytest.approx(float((msb - msw) / (msb + 6 * msw)), rel=1e-5)
    assert terms.design_effect.value == pytest.approx(1 + 6 * terms.icc.value, rel=1e-5)
    assert terms.effective_samples.value == pytest.approx(35 / terms.design_effect.value)
    assert terms.total.value - terms.individual.value == pytest.approx(terms.covariance.value)


def test_steps_that_make_up_for_each_other_have_a_negative_covariance():
    g = torch.randn(16, 4, 3, generator=torch.Generator().manual_seed(4)).repeat(1, 2, 1)
    g[:, 4:] *= -1
    terms = decompose(g)
    assert terms.total.value == pytest.approx(0, abs=1e-9)
    assert terms.covariance.value == pytest.approx(-terms.individual.value, rel=1e-4)


def test_one_environment_has_a_variance_through_batches(monkeypatch):
    without_intervals(monkeypatch)
    g = correlated(torch.Generator().manual_seed(5), (20, 1, 8, 2))
    terms = decompose(g)
    means = g.mean(2).squeeze(1)
    assert terms.n_envs == 1
    assert terms.total.value == pytest.approx(float(means.var(0).sum()), rel=1e-5)


def test_batches_of_several_environments_are_one_batchs_variance(monkeypatch):
    without_intervals(monkeypatch)
    g = correlated(torch.Generator().manual_seed(6), (5, 4, 8, 2))
    together = decompose(g.flatten(0, 1))
    assert decompose(g).total.value == pytest.approx(5 * together.total.value)
    assert decompose(g).icc.value == pytest.approx(together.icc.value)


def test_rows_left_out_do_not_count():
    generator = torch.Generator().manual_seed(7)
    g = correlated(generator, (6, 8, 2), 0.5)
    valid = torch.ones(6, 8, dtype=torch.bool)
    valid[:, 6:] = False
    damaged = g.clone()
    damaged[:, 6:] = 1e6
    assert decompose(damaged, valid).total == decompose(g[:, :6]).total
    assert decompose(damaged, valid).covariance == decompose(g[:, :6]).covariance


def test_unequal_clusters_by_their_ratio(monkeypatch):
    """Environments with fewer rows weigh less: V = sum p_n^2 |g_n - G|^2 / (1 - 2 P_3 / P_2 + P_2).

    p_n = T_n / sum T, P_k = sum p_n^k.
    """
    without_intervals(monkeypatch)
    g = correlated(torch.Generator().manual_seed(8), (6, 8, 2), 0.5)
    valid = torch.rand(6, 8, generator=torch.Generator().manual_seed(9)) < 0.7
    rows = torch.where(valid[:, :, None], g, 0)
    counts = valid.sum(1).double()
    means = rows.sum(1) / counts[:, None]
    whole = rows.sum((0, 1)) / counts.sum()
    distance = (means - whole).square().sum(1)
    share = counts / counts.sum()
    second, third = share.square().sum(), share.pow(3).sum()
    expected = (share.square() * distance).sum() / (1 - 2 * third / second + second)
    assert decompose(g, valid).total.value == pytest.approx(float(expected), rel=1e-5)


def test_one_step_has_nothing_to_correlate():
    terms = decompose(torch.randn(10, 1, 3))
    assert terms.total.value == pytest.approx(terms.individual.value)
    assert terms.covariance.value == 0
    assert math.isnan(terms.icc.value)


def test_one_environment_and_one_batch_are_refused():
    with pytest.raises(UserError, match="two environments or more, or two batches"):
        decompose(torch.randn(1, 8, 2))


def test_other_shapes_are_refused():
    with pytest.raises(ValueError, match="N, T, P"):
        decompose(torch.randn(8, 2))


def test_the_laboratory_is_there_without_importing_it():
    """In a process of its own: here others have imported it already."""
    code = "import isobatch; print(isobatch.probe.decompose.__name__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "decompose"
