"""The archived reference implementation's own numbers (openai/ppo-ewma)."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from isobatch.advantages import AdvantageMoments, gae
from isobatch.losses import clip_loss, clipped_fraction, kl_loss, value_loss
from isobatch.models.distributions import Categorical
from isobatch.normalize import RewardNormalizer
from isobatch.proximal import Ewma


@pytest.fixture(scope="module")
def golden():
    with np.load(Path(__file__).parent / "golden" / "ppo_ewma.npz") as arrays:
        return {name: torch.from_numpy(arrays[name]) for name in arrays}


def close(actual, expected):
    actual, expected = torch.as_tensor(actual).double(), torch.as_tensor(expected).double()
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["clip", "clip01", "kl"])
def test_policy_loss_and_its_gradient(golden, name):
    logits = golden["loss_logits"].clone().requires_grad_()
    logp = Categorical((5,)).log_prob(logits, golden["loss_actions"][:, None])
    close(logp, golden["loss_logp"])
    given = golden["loss_logp_behav"], golden["loss_logp_prox"], golden["loss_advantages"]
    if name == "kl":
        loss = kl_loss(logp, *given, kl_coef=1.0)
    else:
        loss = clip_loss(logp, *given, clip_range=0.2 if name == "clip" else 0.1)
    assert loss.shape == (64,)
    loss.mean().backward()
    close(loss.mean(), golden[f"loss_{name}_value"])
    close(logits.grad, golden[f"loss_{name}_dlogits"])


@pytest.mark.parametrize(("name", "clip_range"), [("clip", 0.2), ("clip01", 0.1)])
def test_clip_fraction(golden, name, clip_range):
    clipped = clipped_fraction(golden["loss_logp"], golden["loss_logp_prox"], clip_range)
    assert clipped.mean() == golden[f"loss_{name}_clipfrac"]


def test_value_loss(golden):
    loss = value_loss(golden["loss_values"], golden["loss_returns"])
    close(loss.mean(), golden["loss_value_loss"])


def test_gae(golden):
    terminated = golden["gae_terminated"]
    advantages, targets = gae(
        golden["gae_rewards"],
        golden["gae_values"],
        terminated,
        torch.zeros_like(terminated),
        float(golden["gae_gamma"]),
        float(golden["gae_lambda"]),
    )
    close(advantages, golden["gae_advantages"])
    close(targets, golden["gae_returns"])


@pytest.mark.parametrize("decay", ["0.0", "0.6", "0.96923"])
def test_advantage_moments(golden, decay):
    moments = AdvantageMoments(float(decay))
    for batch, expected in zip(
        golden[f"adv_decay_{decay}_batches"], golden[f"adv_decay_{decay}_moments"], strict=True
    ):
        moments.update(batch)
        close([moments.mean, moments.var], expected)


def test_weight_average(golden):
    weights, averages = golden["ewma_weights"], golden["ewma_average"]
    layer = nn.Linear(3, 2, bias=False)
    layer.weight.data.copy_(weights[0])
    ewma = Ewma(layer, float(golden["ewma_decay"]))
    for k in range(1, 10):
        if k == 7:
            ewma.reset()
            close(ewma.module.weight, golden["ewma_after_reset"])
        layer.weight.data.copy_(weights[k])
        ewma.update()
        close(ewma.module.weight, averages[k - 1])


def test_reward_normalization(golden):
    normalizer = RewardNormalizer(5, float(golden["reward_gamma"]), float(golden["reward_clip"]))
    for rewards, first, expected in zip(
        golden["reward_in"], golden["reward_first"], golden["reward_out"], strict=True
    ):
        close(normalizer(rewards, first), expected)
