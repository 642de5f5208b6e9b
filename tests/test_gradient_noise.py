import itertools
from dataclasses import replace
from typing import Any

import pytest
import torch
from hand_made import ENVS, PLAIN, STEPS, begin, experience
from torch import nn

import isobatch
from isobatch import Recipe, UserError
from isobatch.algos.estimates import advantages_and_targets, change_at_half, normalized
from isobatch.experience import Rollout
from isobatch.noise import online
from isobatch.noise.averages import DECAY
from isobatch.noise.clusters import Clusters
from isobatch.noise.estimators import squared_gradient, variance
from isobatch.noise.online import GroupSums, PolicyGradient, measure
from isobatch.run.store import CLOCK_COLUMNS, read_policy, read_sealed

SMALL: dict[str, Any] = {
    "n_envs": 4, "n_steps": 16, "n_minibatches": 2, "n_epochs": 2, "quiet": True,
    "total_timesteps": 512, "seed": 3, "compile": "off",
}  # fmt: skip


class Case:
    """A rollout of 4 environments, two of whose rows are resets, and each row's own gradient."""

    def __init__(self, actions="discrete", **settings):
        self.recipe = PLAIN.replace(**settings)
        self.state = begin(self.recipe, actions)
        self.rollout = experience(self.state)
        self.raw, _ = advantages_and_targets(self.state, self.rollout)
        self.advantages = normalized(self.state, self.raw, self.rollout)
        self.change = change_at_half(self.state, self.raw, self.rollout)
        self.valid = self.rollout.valid

    def gradient(self, chunk_size=1000):
        prepare = self.state.observation_normalizer
        return PolicyGradient(self.state.model, prepare, self.rollout, chunk_size)

    def measure(self, n_minibatches=4, seed=0, gradient=None) -> Any:
        generator = torch.Generator().manual_seed(seed)
        return measure(
            gradient or self.gradient(), self.valid, self.advantages, self.change, n_minibatches,
            generator,
        )  # fmt: skip

    def directions(self):
        """Return -grad log pi [T, N, P] of every row, by a backward pass for each."""
        actor, distribution = self.state.model.actor, self.state.model.distribution
        rows = []
        for t, n in itertools.product(range(STEPS), range(ENVS)):
            observation = {k: v[t, n][None] for k, v in self.rollout.observations.items()}
            logp = distribution.log_prob(actor(observation), self.rollout.actions[t, n][None])
            parts = torch.autograd.grad(-logp.sum(), list(actor.parameters()))
            rows.append(torch.cat([part.flatten() for part in parts]))
        return torch.stack(rows).view(STEPS, ENVS, -1).double()


def cluster_variance(gradients, valid):
    """Variance of the mean of gradients [T, N, P], a group to each n.

    sum_n p_n^2 |mean_n - mean|^2, of which the expectation is made up for where groups vary alike.
    """
    share = valid.sum(0).double() / valid.sum()
    means = torch.where(valid[:, :, None], gradients, 0).sum(0) / valid.sum(0)[:, None]
    apart = (means - share @ means).square().sum(1)
    expected = 1 - 2 * share + share.square().sum()
    return float(share.square() @ apart / (share.square() @ expected) * share.square().sum())


def square_of_mean(gradients, valid):
    """|mean|^2 of rows [T, N, P] without the variance that environments' means have of it."""
    mean = gradients[valid].mean(0)
    return float(mean @ mean) - cluster_variance(gradients, valid)


@pytest.mark.parametrize("actions", ["discrete", "continuous"])
@pytest.mark.parametrize("normalization", ["batch", "none"])
def test_the_measurements_are_those_of_single_rows_gradients(actions, normalization, monkeypatch):
    monkeypatch.setattr(online, "MINIBATCHES", 1000)
    case = Case(actions, advantage_normalization=normalization)
    assert not bool(case.valid.all())
    directions, valid = case.directions(), case.valid
    gradients = directions * case.advantages[:, :, None]
    # Every row a minibatch of its own: the two-batch estimate is then the variance itself.
    found = case.measure(n_minibatches=int(valid.sum()))
    assert found.rows == valid.sum() < STEPS * ENVS
    assert found.trace == pytest.approx(float(gradients[valid].var(0).sum()), rel=1e-4)
    assert found.signal == pytest.approx(square_of_mean(gradients, valid), rel=1e-4)
    assert found.variance == pytest.approx(cluster_variance(gradients, valid), rel=1e-4)
    half = STEPS // 2
    halves = [
        cluster_variance(gradients[part], valid[part]) for part in (slice(half), slice(half, None))
    ]
    assert found.half_variance == pytest.approx(sum(halves) / 2, rel=1e-4)
    shifted = directions * case.change[:, :, None]
    assert found.bias == pytest.approx(square_of_mean(shifted, valid), rel=1e-3)
    both = square_of_mean(gradients + shifted, valid)
    along = (both - square_of_mean(gradients, valid) - square_of_mean(shifted, valid)) / 2
    assert found.bias_along == pytest.approx(along, rel=1e-3, abs=1e-7)


def test_random_minibatches_have_the_rows_trace_in_expectation():
    case = Case()
    gradients = case.directions() * case.advantages[:, :, None]
    gradient = case.gradient()
    found = torch.tensor([case.measure(seed=k, gradient=gradient).trace for k in range(80)])
    truth = float(gradients[case.valid].var(0).sum())
    error = float(found.std()) / len(found) ** 0.5
    assert abs(float(found.mean()) - truth) < 4 * error
    assert error < 0.15 * truth


@pytest.mark.parametrize("counts", [[3, 3, 3, 3], [1, 2, 3, 6]])
def test_groups_estimate_without_bias(counts):
    random = torch.Generator().manual_seed(0)
    truth = torch.tensor([1.0, -0.5, 0.25])
    # Rows of a group that are all alike: only groups are independent.
    groups = truth + 0.5 * torch.randn(1000, len(counts), 3, generator=random)
    found = []
    for draw in groups:
        sums = GroupSums(torch.zeros(3))
        for group, count in zip(draw, counts, strict=True):
            sums.add(count * group, count)
        found.append((variance(sums), squared_gradient(sums)))
    spread, signal = torch.tensor(found).mean(0).tolist()
    assert signal == pytest.approx(float(truth @ truth), rel=0.05)
    share = sum(count**2 for count in counts) / sum(counts) ** 2
    assert spread == pytest.approx(3 * 0.5**2 * share, rel=0.05)


@pytest.mark.parametrize("counts", [[3, 3, 3, 3], [1, 2, 3, 6]])
def test_training_and_the_laboratory_estimate_alike(counts):
    """Groups of environments in training are the laboratory's clusters: one formula for both."""
    random = torch.Generator().manual_seed(0)
    gradients = torch.randn(len(counts), max(counts), 5, generator=random)
    valid = torch.arange(max(counts)) < torch.tensor(counts)[:, None]
    clusters = Clusters.of(gradients, valid).sums(torch.ones(1, len(counts)).double())
    sums = GroupSums(torch.zeros(5))
    for rows, known in zip(gradients, valid, strict=True):
        sums.add(rows[known].sum(0), int(known.sum()))
    assert variance(sums) == pytest.approx(float(variance(clusters)), rel=1e-5)
    assert squared_gradient(sums) == pytest.approx(float(squared_gradient(clusters)), rel=1e-5)


def test_rows_in_chunks_give_the_same_gradient():
    case = Case()
    rows = case.valid.flatten().nonzero().squeeze(1)
    whole, parts = (case.gradient(size)(rows, (case.advantages, case.change)) for size in (1000, 7))
    for one, other in zip(whole, parts, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def cut(rollout: Rollout, steps: int) -> Rollout:
    """Return the rollout as if it had ended after `steps`."""
    rest = {
        name: getattr(rollout, name)[:steps]
        for name in (
            "actions", "params", "logp", "rewards", "terminated", "truncated", "valid", "first",
            "scores", "over",
        )
    }  # fmt: skip
    finals = rollout.final_values
    return Rollout(
        observations={k: v[: steps + 1] for k, v in rollout.observations.items()},
        values=rollout.values[: steps + 1],
        final_values=None if finals is None else finals[:steps],
        **rest,
    )


@pytest.mark.parametrize("finals", [False, True])
@pytest.mark.parametrize("normalization", ["none", "batch", "minibatch"])
def test_advantages_change_at_half_as_those_of_a_rollout_cut_there(finals, normalization):
    recipe = PLAIN.replace(advantage_normalization=normalization)
    state = begin(recipe)
    rollout = experience(state)
    if finals:
        values = torch.randn(STEPS, ENVS, generator=torch.Generator().manual_seed(1))
        rollout = replace(rollout, final_values=torch.where(rollout.truncated, values, 0))
    raw, _ = advantages_and_targets(state, rollout)
    normalized(state, raw, rollout)
    half = STEPS // 2
    shorter, _ = advantages_and_targets(state, cut(rollout, half))
    unit = float(raw[rollout.valid].std(correction=0)) if normalization == "batch" else 1.0
    change = change_at_half(state, raw, rollout)
    expected = (shorter - raw[:half]) / unit
    torch.testing.assert_close(change[:half], expected, rtol=1e-4, atol=1e-5)
    assert bool((change[:half] != 0).any())
    assert not bool(change[half:].any())


def test_a_single_step_and_a_single_environment_have_no_halves_and_no_groups():
    recipe = PLAIN.replace(n_steps=1, n_minibatches=1)
    state = begin(recipe)
    whole = experience(state)
    short = cut(whole, 1)
    zero = torch.zeros(1, ENVS)
    assert change_at_half(state, short.rewards, short).shape == (1, ENVS)
    gradient = PolicyGradient(state.model, state.observation_normalizer, short, 100)
    found = measure(gradient, short.valid, short.rewards, zero, 1, torch.Generator())
    assert found.variance is not None
    assert found.half_variance is None
    assert found.bias is None
    alone = whole.valid.clone()
    alone[:, 1:] = False
    gradient = PolicyGradient(state.model, state.observation_normalizer, whole, 100)
    found = measure(gradient, alone, whole.rewards, whole.rewards, 1, torch.Generator())
    unknown = (found.variance, found.half_variance, found.bias, found.bias_along)
    assert unknown == (None, None, None, None)
    rows = alone.flatten().nonzero().squeeze(1)
    (total,) = gradient(rows, (whole.rewards,))
    square = float((total / len(rows)).square().sum())
    assert found.signal == pytest.approx(square - found.trace / len(rows), rel=1e-3)


class Forgetful(nn.Module):
    """An encoder that draws random numbers and keeps moments of what it saw."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.2))

    def forward(self, vector):
        return self.layers(vector)


def rows(run):
    dropped = (*CLOCK_COLUMNS, *online.COLUMNS)
    return [{k: v for k, v in row.items() if k not in dropped} for row in run.metrics]


@pytest.mark.parametrize("algo", ["ppo", "ppo-ewma", "ppg", "ppg-ewma", "a2c", "stale", "custom"])
def test_probing_leaves_training_alone_to_the_bit(algo, tmp_path):
    settings: dict[str, Any] = SMALL | {"algo": algo, "n_policy_iterations": 2}
    if algo == "a2c":
        settings |= {"n_minibatches": 1, "n_epochs": 1}
    if algo in ("stale", "custom"):
        settings |= {"algo": "ppo"}
    if algo == "stale":
        settings |= {"staleness": 1}
    runs = []
    for every in (0, 2):
        torch.manual_seed(0)  # The user's module draws from it.
        if algo == "custom":
            settings["encoder"] = Forgetful()
        out = tmp_path / str(every)
        runs.append(isobatch.train("CartPole-v1", out=out, probe_every=every, **settings))
    assert rows(runs[0]) == rows(runs[1])
    one, two = (read_policy(run.path)[0] for run in runs)
    assert [name for name in one if not torch.equal(one[name], two[name])] == []
    assert not any(column in row for row in runs[0].metrics for column in online.COLUMNS)
    probed = [row["iterations"] for row in runs[1].metrics if row["gradient_trace"] is not None]
    whole = [row for row in runs[1].metrics if row["approx_kl"] is not None]
    assert probed[:3] == [2, 4, 6]
    assert all(row["probe_seconds"] for row in whole if row["iterations"] in probed)
    assert all(set(online.COLUMNS) <= row.keys() for row in runs[1].metrics)


def test_gradients_of_training_are_not_touched():
    case = Case(probe_every=1)
    before = case.state.parameters.gradient.fill_(7.0).clone()
    online.probe(
        case.state.probe, case.state.model, case.state.observation_normalizer, case.rollout,
        case.advantages, case.change, n_minibatches=4, chunk_size=10, seed=(0, 0),
    )  # fmt: skip
    assert torch.equal(case.state.parameters.gradient, before)
    assert case.state.model.training


def smoothed(metrics):
    """Yield the noise scale as it follows from the single probes' columns."""
    signal = trace = 0.0
    for row in metrics:
        if row["gradient_trace"] is not None:
            signal = DECAY * signal + row["gradient_signal"]
            trace = DECAY * trace + row["gradient_trace"]
            yield row["noise_scale"], trace / signal if signal > 0 else None


def test_a_resumed_run_goes_on_averaging(tmp_path):
    isobatch.train("CartPole-v1", out=tmp_path / "run", probe_every=1, **SMALL)
    run = isobatch.resume(tmp_path / "run", total_timesteps=1000, quiet=True)
    assert any("resumed" in row for row in run.metrics)
    pairs = list(smoothed(run.metrics))
    assert len(pairs) >= 14
    assert any(found for found, _ in pairs)
    assert [found for found, _ in pairs] == pytest.approx([expected for _, expected in pairs])
    newest = max((run.path / "checkpoints").glob("*.safetensors"))
    assert read_sealed(newest)[1]["probe"]["probes"] == len(pairs)


@pytest.mark.parametrize(
    ("algo", "why"), [("pqn", "no policy gradient"), ("reinforce", "wait for the ends of episodes")]
)
@pytest.mark.parametrize("field", [{"probe_every": 10}, {"batch_schedule": "adaptive"}])
def test_algorithms_that_cannot_be_probed_are_refused(algo, why, field):
    recipe = isobatch.preset("CartPole-v1", algo)
    with pytest.raises(UserError, match=why) as caught:
        recipe.replace(**field)
    assert str(caught.value).startswith(next(iter(field)))
    assert "\n" not in str(caught.value)


def test_a_probe_interval_is_a_number_of_iterations():
    with pytest.raises(UserError, match="probe_every must not be negative"):
        Recipe("CartPole-v1").replace(probe_every=-1)
    assert Recipe("CartPole-v1").probe_interval == 0
    adaptive = Recipe("CartPole-v1").replace(batch_schedule="adaptive")
    assert adaptive.probe_interval == 10
    assert adaptive.replace(probe_every=3).probe_interval == 3
