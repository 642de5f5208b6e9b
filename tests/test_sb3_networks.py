"""Networks with Stable-Baselines3's settings are its networks: shapes, beginnings, outputs."""

import pytest
import torch
from gymnasium import spaces
from stable_baselines3.common.policies import ActorCriticPolicy
from torch import nn

from isobatch.envs.spaces import ActionLayout, ObservationLayout
from isobatch.models import ActorCritic
from isobatch.recipe import Model

VECTOR, CONTINUOUS = spaces.Box(-1, 1, (100,)), spaces.Box(-1, 1, (8,))
MODULES = {
    "tanh": nn.Tanh, "relu": nn.ReLU, "elu": nn.ELU, "gelu": nn.GELU, "silu": nn.SiLU,
    "leaky_relu": nn.LeakyReLU,
}  # fmt: skip


def theirs(**kwargs) -> ActorCriticPolicy:
    torch.manual_seed(0)
    return ActorCriticPolicy(VECTOR, CONTINUOUS, lambda _: 3e-4, **kwargs)


def ours(**model) -> ActorCritic:
    torch.manual_seed(0)
    layouts = ObservationLayout.of(VECTOR, "test"), ActionLayout.of(CONTINUOUS, "test")
    return ActorCritic(*layouts, Model(**model))


def their_layers(policy: ActorCriticPolicy) -> list[nn.Linear]:
    """Return hidden layers and head of the policy, and then the value's."""
    extractor = policy.mlp_extractor
    order = [extractor.policy_net, policy.action_net, extractor.value_net, policy.value_net]
    return [m for part in order for m in part.modules() if isinstance(m, nn.Linear)]


def our_layers(model: ActorCritic) -> list[nn.Linear]:
    return [m for m in model.modules() if isinstance(m, nn.Linear)]


def test_the_initial_deviation_is_sb3s():
    log_std = theirs(log_std_init=-2).log_std
    free = ours(log_std_init=-2).actor.free
    assert free is not None
    assert free.dtype == log_std.dtype
    assert torch.equal(free, log_std)


@pytest.mark.parametrize(("ortho_init", "init"), [(True, "orthogonal"), (False, "torch")])
def test_layers_begin_like_sb3s(ortho_init, init):
    sizes = (256, 128)
    policy = theirs(ortho_init=ortho_init, net_arch=list(sizes))
    pairs = zip(our_layers(ours(init=init, hidden_sizes=sizes)), their_layers(policy), strict=True)
    for here, there in pairs:
        assert here.weight.shape == there.weight.shape
        # Of as many numbers as a head has, a deviation is known to a few percent.
        assert here.weight.std().item() == pytest.approx(there.weight.std().item(), rel=0.1)
        assert here.weight.norm().item() == pytest.approx(there.weight.norm().item(), rel=0.1)
        assert bool(here.bias.any()) == bool(there.bias.any()) == (init == "torch")
        if len(here.bias) > 1:
            most = there.bias.abs().max().item()
            assert here.bias.abs().max().item() == pytest.approx(most, rel=0.3)


def copied(policy: ActorCriticPolicy, model: ActorCritic) -> None:
    """Give the model SB3's weights."""
    with torch.no_grad():
        for here, there in zip(our_layers(model), their_layers(policy), strict=True):
            here.weight.copy_(there.weight)
            here.bias.copy_(there.bias)


@pytest.mark.parametrize("activation", MODULES)
def test_activations_are_pytorchs(activation):
    policy = theirs(activation_fn=MODULES[activation], ortho_init=False)
    model = ours(activation=activation)
    copied(policy, model)
    rows = torch.randn(7, 100)
    with torch.no_grad():
        params, values = model({"vector": rows})
        expected = policy.get_distribution(rows).distribution.mean
        torch.testing.assert_close(params[:, :8], expected)
        torch.testing.assert_close(values, policy.predict_values(rows).squeeze(1))
