import copy
from typing import Any

import pytest
import torch
from torch import nn

import isobatch
from isobatch.algos import ppo
from isobatch.recipe import Optimizer
from isobatch.run.store import CLOCK_COLUMNS
from isobatch.update import Stepper
from isobatch.update.optimize import FlatParameters, make_optimizer
from isobatch.update.replicas import Replicas

IMAGES = torch.randn(40, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def network():
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 1)
    return nn.Sequential(*layers)


def squared(call, images):
    outputs = call(images).squeeze(1)
    return outputs.square(), {"output": outputs}


def stepper(count, chunk_size=7):
    model = network()
    parameters = FlatParameters(model)
    optimizer = make_optimizer(parameters, Optimizer())
    replicas = Replicas(model, parameters, count) if count > 1 else None
    return Stepper(
        model, parameters, optimizer, squared, Optimizer(), chunk_size, replicas=replicas
    )


def gather(rows):
    return IMAGES[rows]


@pytest.mark.parametrize("count", [2, 3, 5])
@pytest.mark.parametrize("n_rows", [40, 7, 5, 3, 1])
def test_shares_add_up_to_the_minibatchs_gradient(count, n_rows):
    rows = torch.randperm(40, generator=torch.Generator().manual_seed(1))[:n_rows]
    alone, together = stepper(1), stepper(count)
    expected, found = alone.gradient(rows, gather), together.gradient(rows, gather)
    torch.testing.assert_close(together.parameters.gradient, alone.parameters.gradient)
    torch.testing.assert_close(found["output"], expected["output"])


def test_replicas_follow_the_weights_from_step_to_step():
    alone, together = stepper(1), stepper(2)
    for _ in range(3):
        for taker in (alone, together):
            taker.gradient(torch.arange(40), gather)
            taker.step(0.01)
    torch.testing.assert_close(together.parameters.vector, alone.parameters.vector)
    assert not torch.equal(together.parameters.vector, stepper(1).parameters.vector)


def test_the_same_bits_every_time():
    takers = [stepper(2) for _ in range(5)]
    for taker in takers:
        taker.gradient(torch.arange(40), gather)
    first = takers[0].parameters.gradient
    assert all(torch.equal(taker.parameters.gradient, first) for taker in takers)


def test_an_error_in_a_share_is_raised():
    def fail(rows):
        raise ValueError("no such row")

    with pytest.raises(ValueError, match="no such row"):
        stepper(2).gradient(torch.arange(40), fail)


TINY: dict[str, Any] = {
    "n_envs": 2, "n_steps": 8, "n_minibatches": 2, "n_epochs": 1, "total_timesteps": 32,
    "seed": 1, "quiet": True,
}  # fmt: skip


def test_runs_with_images_have_the_same_bits_twice_and_learn_alike_with_one_thread(tmp_path):
    runs = {
        name: isobatch.train("Breakout-v5", threads=threads, out=tmp_path / name, **TINY).metrics
        for name, threads in (("one", 1), ("two", 2), ("again", 2))
    }
    for row, again in zip(runs["two"], runs["again"], strict=True):
        assert {k: v for k, v in row.items() if k not in CLOCK_COLUMNS} == {
            k: v for k, v in again.items() if k not in CLOCK_COLUMNS
        }
    for row, one in zip(runs["two"], runs["one"], strict=True):
        assert row["grad_norm"] == pytest.approx(one["grad_norm"], rel=1e-3)


@pytest.mark.parametrize("threads", [1, 2])
def test_a_users_own_module_is_never_copied(threads, monkeypatch, tmp_path):
    """It may draw random numbers or keep statistics, which threads would disorder."""
    made = []

    def spy(*arguments):
        made.append(make(*arguments))
        return made[0]

    make = ppo.make_stepper
    monkeypatch.setattr(ppo, "make_stepper", spy)
    own = nn.Sequential(nn.Conv2d(4, 2, 8, stride=8), nn.Flatten())
    out = tmp_path / "run"
    isobatch.train("Breakout-v5", encoder=copy.deepcopy(own), out=out, threads=threads, **TINY)
    assert made[0].replicas is None
