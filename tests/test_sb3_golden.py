"""Networks and losses with Stable-Baselines3's settings are its own."""

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3 import PPO
from stable_baselines3.common.policies import ActorCriticCnnPolicy, ActorCriticPolicy
from torch import nn

from isobatch.algos import Context, ppo
from isobatch.envs.spaces import ActionLayout, ObservationLayout
from isobatch.experience import Rollout
from isobatch.models import ActorCritic
from isobatch.recipe import Model, Recipe
from isobatch.state import TrainState

VECTOR, CONTINUOUS = spaces.Box(-1, 1, (100,)), spaces.Box(-1, 1, (8,))
MODULES = {
    "tanh": nn.Tanh, "relu": nn.ReLU, "elu": nn.ELU, "gelu": nn.GELU, "silu": nn.SiLU,
    "leaky_relu": nn.LeakyReLU,
}  # fmt: skip


def theirs(observations: Any = VECTOR, kind=ActorCriticPolicy, **kwargs) -> ActorCriticPolicy:
    torch.manual_seed(0)
    return kind(observations, CONTINUOUS, lambda _: 3e-4, **kwargs)


def ours(observations: Any = VECTOR, **model) -> ActorCritic:
    torch.manual_seed(0)
    layouts = ObservationLayout.of(observations, "test"), ActionLayout.of(CONTINUOUS, "test")
    return ActorCritic(*layouts, Model(**model))


def layers_of(parts: list[nn.Module]) -> list[Any]:
    """Return the layers of modules, each once."""
    found = [m for part in parts for m in part.modules() if isinstance(m, nn.Linear | nn.Conv2d)]
    return list(dict.fromkeys(found))


def their_layers(policy: ActorCriticPolicy) -> list[Any]:
    """Return encoder, hidden layers and head of the policy, and then the value's."""
    extractor = policy.mlp_extractor
    return layers_of([
        policy.pi_features_extractor, extractor.policy_net, policy.action_net,
        policy.vf_features_extractor, extractor.value_net, policy.value_net,
    ])  # fmt: skip


def our_layers(model: nn.Module) -> list[Any]:
    return layers_of([model])


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


def same_outputs(policy: ActorCriticPolicy, model: ActorCritic, seen: torch.Tensor) -> None:
    """Give the model SB3's weights, and compare means and values."""
    part = "image" if seen.dtype == torch.uint8 else "vector"
    copied(policy, model)
    with torch.no_grad():
        params, values = model({part: seen})
        distribution: Any = policy.get_distribution(seen).distribution
        expected = distribution.mean
        torch.testing.assert_close(params[:, :8], expected, rtol=1e-4, atol=1e-5)
        expected = policy.predict_values(seen).squeeze(1)
        torch.testing.assert_close(values, expected, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(model.values({part: seen}), values)


@pytest.mark.parametrize("activation", MODULES)
def test_activations_are_pytorchs(activation):
    policy = theirs(activation_fn=MODULES[activation], ortho_init=False)
    same_outputs(policy, ours(activation=activation), torch.randn(7, 100))


@pytest.mark.parametrize("architecture", ["dual", "shared"])
@pytest.mark.parametrize(
    ("net_arch", "sizes"),
    [
        ({"pi": [16, 8], "vf": [12]}, ((16, 8), (12,))),
        ({"pi": [], "vf": [12]}, ((), (12,))),
        ([], ((), ())),
    ],
)
def test_widths_apart_are_sb3s(net_arch, sizes, architecture):
    policy, value = sizes
    fields = {"policy_hidden_sizes": policy, "value_hidden_sizes": value, "hidden_sizes": ()}
    model = ours(architecture=architecture, **fields)
    same_outputs(theirs(net_arch=net_arch, ortho_init=False), model, torch.randn(7, 100))


@pytest.mark.parametrize(("architecture", "shared"), [("shared", True), ("dual", False)])
def test_layers_after_an_image_encoder_are_sb3s(architecture, shared):
    image = spaces.Box(0, 255, (3, 36, 36), np.uint8)
    policy = theirs(
        image, ActorCriticCnnPolicy, net_arch={"pi": [16], "vf": [12, 8]}, activation_fn=nn.ReLU,
        share_features_extractor=shared,
    )  # fmt: skip
    model = ours(
        image, architecture=architecture, policy_hidden_sizes=(16,), value_hidden_sizes=(12, 8),
        activation="relu",
    )  # fmt: skip
    gains = {(16, 512): 2**0.5, (12, 512): 2**0.5, (8, 16): 0.01, (1, 8): 1.0}
    for layers in (our_layers(model), their_layers(policy)):
        found = {tuple(x.weight.shape): x.weight for x in layers}
        for shape, gain in gains.items():
            assert found[shape].norm(dim=1).tolist() == pytest.approx([gain] * shape[0])
    same_outputs(policy, model, torch.randint(0, 256, (5, 3, 36, 36), dtype=torch.uint8))


@pytest.mark.parametrize("clip_range_vf", [None, 0.05])
def test_learning_from_one_rollout_is_sb3s(clip_range_vf):
    """SB3's own `train` and ours, from the same weights and rows, by plain gradient descent."""
    theirs = PPO(
        "MlpPolicy", "CartPole-v1", n_steps=64, batch_size=64, n_epochs=4, learning_rate=0.1,
        clip_range_vf=clip_range_vf, normalize_advantage=False, max_grad_norm=1e9, seed=0,
        device="cpu", policy_kwargs={"optimizer_class": torch.optim.SGD},
    )  # fmt: skip
    _, callback = theirs._setup_learn(64)
    buffer = theirs.rollout_buffer
    assert theirs.env is not None
    theirs.collect_rollouts(theirs.env, callback, buffer, n_rollout_steps=64)
    # Far enough from what the networks say that clipping acts at once.
    buffer.values += np.random.default_rng(0).normal(0, 0.1, buffer.values.shape)
    recipe = Recipe(env="CartPole-v1").replace(
        n_envs=1, n_steps=64, n_minibatches=1, n_epochs=4, learning_rate=0.1, vf_coef=1.0,
        clip_range_vf=clip_range_vf, clip_vf_loss="clipped", advantage_normalization="none",
        optimizer="sgd", compile="off",
    )  # fmt: skip
    space = theirs.observation_space
    layouts = ObservationLayout.of(space, "test"), ActionLayout.of(theirs.action_space, "test")
    state = TrainState.begin(recipe, *layouts, torch.device("cpu"), None)
    before = copied(theirs.policy, state.model)
    rollout = as_rollout(buffer)
    found = ppo.Ppo(Context(state, 1000)).improve(
        rollout, torch.tensor(buffer.advantages), torch.tensor(buffer.returns)
    )
    theirs.train()
    after = [layer.weight for layer in their_layers(theirs.policy)]
    for was, here, there in zip(before, our_layers(state.model), after, strict=True):
        assert (there - was).abs().max() > 1e-4
        torch.testing.assert_close(here.weight, there, rtol=0, atol=1e-6)
    # Half of SB3's, whose weight is doubled for it; SB3's is the last minibatch's of each epoch.
    logged = theirs.logger.name_to_value["train/value_loss"]
    assert found.statistics["value_loss"] == pytest.approx(logged / 2, rel=1e-4)


def copied(policy: ActorCriticPolicy, model: nn.Module) -> list[torch.Tensor]:
    """Give the model SB3's weights, and return those of its layers."""
    pairs = list(zip(our_layers(model), their_layers(policy), strict=True))
    with torch.no_grad():
        for here, there in pairs:
            assert here.weight.shape == there.weight.shape
            here.weight.copy_(there.weight)
            here.bias.copy_(there.bias)
    return [there.weight.detach().clone() for _, there in pairs]


def as_rollout(buffer) -> Rollout:
    """Return SB3's rows as a rollout; what only returns need is left blank."""
    seen = torch.tensor(buffer.observations)
    blank = torch.zeros(buffer.rewards.shape)
    never = blank.bool()
    return Rollout(
        observations={"vector": torch.cat([seen, seen[-1:]])},
        actions=torch.tensor(buffer.actions).long(),
        params=torch.zeros(*blank.shape, 2),
        logp=torch.tensor(buffer.log_probs),
        values=torch.tensor(np.concatenate([buffer.values, buffer.values[-1:]])),
        rewards=blank, terminated=never, truncated=never, valid=~never, first=never,
        final_values=None, scores=blank, over=never,
    )  # fmt: skip
