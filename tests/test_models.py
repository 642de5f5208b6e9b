import copy
import math
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn
from torch.nn import functional

from isobatch.envs.spaces import ActionLayout, ObservationLayout
from isobatch.errors import UserError
from isobatch.models import ActorCritic
from isobatch.models.acting import NUMPY_ROWS, acting
from isobatch.models.encoders import ImpalaEncoder, NatureEncoder, fits_blocks
from isobatch.models.layers import ACTIVATIONS, initialise
from isobatch.recipe import Model

VECTOR = spaces.Box(-1, 1, (4,))
IMAGE = spaces.Box(0, 255, (3, 40, 44), np.uint8)
BOTH = spaces.Dict({"camera": IMAGE, "speed": VECTOR})
SEVERAL = {
    "discrete": (spaces.Discrete(3), 3),
    "multidiscrete": (spaces.MultiDiscrete([3, 2]), 5),
    "binary": (spaces.MultiBinary(4), 4),
    "continuous": (spaces.Box(-1, 1, (2,)), 4),
}
ARCHITECTURES = ["shared", "dual", "detach"]


def layouts(observations: spaces.Space, actions: spaces.Space = SEVERAL["discrete"][0]):
    return ObservationLayout.of(observations, "test"), ActionLayout.of(actions, "test")


def build(
    observations: spaces.Space = VECTOR,
    actions: spaces.Space = SEVERAL["discrete"][0],
    own=None,
    **model,
):
    torch.manual_seed(0)
    return ActorCritic(*layouts(observations, actions), Model(**model), own)


def observe(space, n=5, seed=0):
    """Return n encoded observations of `space`."""
    random = np.random.default_rng(seed)
    vectors = random.normal(size=(n, 4)).astype(np.float32)
    images = random.integers(0, 256, (n, 3, 40, 44), dtype=np.uint8)
    layout = layouts(space)[0]
    if space is VECTOR:
        return layout.encode(vectors)
    return layout.encode(images if space is IMAGE else {"camera": images, "speed": vectors})


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize(
    ("space", "encoder"),
    [
        (VECTOR, "auto"), (VECTOR, "mlp"), (IMAGE, "auto"), (IMAGE, "nature"), (IMAGE, "impala"),
        (BOTH, "auto"), (BOTH, "impala"),
    ],
)  # fmt: skip
def test_shapes_for_every_encoder(space, encoder, architecture):
    model = build(space, encoder=encoder, architecture=architecture)
    params, values = model(observe(space))
    assert params.shape == (5, 3)
    assert values.shape == (5,)
    torch.testing.assert_close(model.values(observe(space)), values)
    torch.testing.assert_close(model.actor(observe(space)), params)


@pytest.mark.parametrize(
    ("space", "encoder"), [(VECTOR, "mlp"), (IMAGE, "nature"), (IMAGE, "impala")]
)
def test_layer_norm_makes_features_blind_to_the_scale_before_them(space, encoder):
    def features(layer_norm, factor):
        model = build(space, encoder=encoder, layer_norm=layer_norm, activation="relu")
        encoded: Any = model.actor.encoder
        inner = encoded.image or encoded.vector
        last = inner.layers[-1] if encoder == "mlp" else inner.dense
        with torch.no_grad():
            last.weight.mul_(factor)
        return model.actor.encoder(observe(space))

    torch.testing.assert_close(features(True, 50.0), features(True, 1.0), rtol=0.01, atol=0.01)
    assert (features(False, 50.0) - features(False, 1.0)).abs().max() > 1


def test_layer_norm_is_before_each_activation():
    model = build(layer_norm=True, activation="relu", hidden_sizes=(8, 6))
    vector = observe(VECTOR)["vector"]
    encoded: Any = model.actor.encoder
    for linear in encoded.vector.linears:
        hidden = linear(vector)
        centred = hidden - hidden.mean(1, keepdim=True)
        vector = (centred / (centred.square().mean(1, keepdim=True) + 1e-5).sqrt()).relu()
    torch.testing.assert_close(model.actor.encoder(observe(VECTOR)), vector)
    # NumPy's way of acting has no such layer: it must not be taken.
    act = acting(model, lambda observation: observation, 5)
    torch.testing.assert_close(act(observe(VECTOR))[0], model(observe(VECTOR))[0])


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_auxiliary_head_is_a_second_value_of_the_policys_encoder(architecture):
    model = ActorCritic(*layouts(VECTOR), Model(architecture=architecture), auxiliary=True)
    params, values, auxiliary = model.with_auxiliary(observe(VECTOR))
    plain_params, plain_values = model(observe(VECTOR))
    torch.testing.assert_close(params, plain_params)
    torch.testing.assert_close(values, plain_values)
    auxiliary.sum().backward()
    assert all(each.grad is not None for each in model.actor.encoder.parameters())
    assert model.value_head.weight.grad is None
    assert model.critic_encoder is None or all(
        each.grad is None for each in model.critic_encoder.parameters()
    )


@pytest.mark.parametrize("actions", SEVERAL)
def test_shapes_for_every_action_space(actions):
    space, n_params = SEVERAL[actions]
    params, _ = build(actions=space)(observe(VECTOR))
    assert params.shape == (5, n_params)


def test_image_encoders_by_name():
    for name, kind in (("auto", NatureEncoder), ("impala", ImpalaEncoder)):
        encoder = build(IMAGE, encoder=name).actor.encoder
        assert isinstance(encoder.get_submodule("image"), kind)


def test_procgen_network_has_the_papers_sizes():
    encoder = ImpalaEncoder((3, 64, 64), "reference")
    # Stages 16-32-32 with two residual blocks each, 2048 -> 256.
    stage = [(3, 16), *4 * [(16, 16)], (16, 32), *4 * [(32, 32)], *5 * [(32, 32)]]
    expected = sum(9 * a * b + b for a, b in stage) + 2048 * 256 + 256
    assert sum(each.numel() for each in encoder.parameters()) == expected
    assert encoder(torch.zeros(2, 3, 64, 64)).shape == (2, 256)


def textbook_impala(encoder, image):
    """The network as Espeholt et al. draw it, every convolution with its bias."""
    convolutions = (each for each in encoder.modules() if isinstance(each, nn.Conv2d))
    for _ in range(3):
        image = functional.max_pool2d(next(convolutions)(image), 3, stride=2, padding=1)
        for _ in range(2):
            hidden = next(convolutions)(torch.relu(image))
            image = image + next(convolutions)(torch.relu(hidden))
    return torch.relu(encoder.dense(torch.relu(image).flatten(1)))


@pytest.mark.parametrize("shape", [(3, 16, 16), (1, 13, 9)])
def test_impala_is_the_textbooks_and_so_is_its_gradient(shape):
    torch.manual_seed(0)
    encoder = ImpalaEncoder(shape, "orthogonal").double()
    for each in encoder.parameters():
        each.data.normal_(0, 0.3)
    image = torch.randn(3, *shape, dtype=torch.float64)
    found, expected = encoder(image), textbook_impala(encoder, image)
    torch.testing.assert_close(found, expected)
    for loss, other in zip(
        torch.autograd.grad(found.square().sum(), list(encoder.parameters())),
        torch.autograd.grad(expected.square().sum(), list(encoder.parameters())),
        strict=True,
    ):
        torch.testing.assert_close(loss, other)


def textbook_nature(encoder, image):
    """The network as Mnih et al. describe it, every layer as it stands, on images in [0, 1]."""
    image = encoder.convolutions(image.float() / 255)
    return torch.relu(encoder.norm(encoder.dense(image.flatten(1))))


@pytest.mark.parametrize("layer_norm", [False, True])
@pytest.mark.parametrize(
    "shape",
    # Atari's, another in whole blocks of 4x4, and four that are not or not quite.
    [(4, 84, 84), (3, 40, 64), (4, 84, 86), (4, 86, 84), (1, 37, 41), (3, 50, 36)],
)
def test_nature_is_the_textbooks_and_so_is_its_gradient(shape, layer_norm):
    torch.manual_seed(0)
    encoder = NatureEncoder(shape, "orthogonal", layer_norm)
    for each in encoder.parameters():
        each.data.add_(torch.randn_like(each), alpha=0.02)
    image = torch.randint(0, 256, (5, *shape), dtype=torch.uint8)
    parameters = list(encoder.parameters())
    expected = textbook_nature(encoder, image)
    weights = torch.randn_like(expected)
    gradients = torch.autograd.grad((expected * weights).sum(), parameters)
    # One image is convolved as it lies; some of a larger tensor, not from its first byte on.
    shifted = torch.cat([torch.zeros(3, dtype=torch.uint8), image.flatten()])[3:].view(image.shape)
    for images in (image, shifted, image.contiguous(memory_format=torch.channels_last)):
        found = encoder(images)
        assert_close_to_largest(found, expected)
        for one, other in zip(
            torch.autograd.grad((found * weights).sum(), parameters), gradients, strict=True
        ):
            assert_close_to_largest(one, other)
    assert_close_to_largest(encoder(image[:1]), expected[:1])


def assert_close_to_largest(found, expected):
    """Equal up to 1e-4 of the largest: sums of many floats that cancel are not exact."""
    bound = 1e-4 * float(expected.detach().abs().max())
    torch.testing.assert_close(found, expected, rtol=0, atol=bound)


def test_blocks_are_for_the_bytes_of_atari_and_whatever_else_fits():
    layer = NatureEncoder((4, 84, 84), "orthogonal").convolutions[0]
    assert isinstance(layer, nn.Conv2d)
    image = torch.zeros(2, 4, 84, 84, dtype=torch.uint8)
    assert fits_blocks(layer, image)
    assert not fits_blocks(layer, image.float())
    assert not fits_blocks(layer, image[:1])
    assert not fits_blocks(layer, image[..., :82].contiguous())
    assert not fits_blocks(layer, image.transpose(2, 3))
    assert not fits_blocks(layer, image.to("meta"))
    assert not fits_blocks(nn.Conv2d(4, 32, 8, stride=2), image)


def has_gradient(module):
    return any(each.grad is not None and bool(each.grad.any()) for each in module.parameters())


def after_value_loss(architecture):
    model = build(architecture=architecture)
    _, values = model(observe(VECTOR))
    (values - 1).square().mean().backward()
    return model


def test_shared_value_loss_trains_the_encoder():
    model = after_value_loss("shared")
    assert has_gradient(model.actor.encoder)
    assert not has_gradient(model.actor.head)


def test_detach_value_loss_trains_the_value_head_alone():
    model = after_value_loss("detach")
    assert has_gradient(model.value_head)
    assert not has_gradient(model.actor)


def test_dual_value_loss_trains_its_own_encoder_alone():
    model = after_value_loss("dual")
    assert model.critic_encoder is not None
    assert has_gradient(model.critic_encoder)
    assert not has_gradient(model.actor)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_policy_loss_trains_the_actor_and_not_the_value(architecture):
    model = build(architecture=architecture)
    params, _ = model(observe(VECTOR))
    params.square().sum().backward()
    assert has_gradient(model.actor.encoder)
    assert not has_gradient(model.value_head)
    assert model.critic_encoder is None or not has_gradient(model.critic_encoder)


def test_dual_encoders_begin_apart():
    model = build(architecture="dual")
    assert model.critic_encoder is not None
    pairs = zip(model.actor.encoder.parameters(), model.critic_encoder.parameters(), strict=True)
    assert any(not torch.equal(a, b) for a, b in pairs)


@pytest.mark.parametrize("layer", [nn.Linear(20, 8), nn.Conv2d(4, 8, 3)])
def test_orthogonal_rows_have_the_gain(layer):
    rows = initialise(layer, "orthogonal", gain=1.7).weight.detach().flatten(1)
    torch.testing.assert_close(rows @ rows.T, 1.7**2 * torch.eye(8), atol=1e-5, rtol=0)
    assert not layer.bias.any()


@pytest.mark.parametrize("layer", [nn.Linear(20, 8), nn.Conv2d(4, 8, 3)])
def test_reference_rows_have_the_scale(layer):
    rows = initialise(layer, "reference", scale=0.3).weight.detach().flatten(1)
    torch.testing.assert_close(rows.norm(dim=1), torch.full((8,), 0.3))
    assert not layer.bias.any()


def test_heads_begin_small():
    reference, orthogonal = build(init="reference"), build(init="orthogonal")
    for head in (reference.actor.head, reference.value_head):
        torch.testing.assert_close(head.weight.norm(dim=1), torch.full((len(head.weight),), 0.1))
    assert orthogonal.actor.head.weight.norm(dim=1).tolist() == pytest.approx([0.01] * 3)
    assert orthogonal.value_head.weight.norm().item() == pytest.approx(1.0)
    hidden = orthogonal.actor.encoder.get_parameter("vector.layers.1.weight")
    assert hidden.norm(dim=1).tolist() == pytest.approx([math.sqrt(2)] * 64)


def test_continuous_policy_begins_with_unit_deviation():
    model = build(actions=SEVERAL["continuous"][0])
    assert not model(observe(VECTOR))[0][:, 2:].any()


def test_pytorchs_own_initialisation_with_orthogonal_heads():
    """CleanRL's ppo_procgen: layer_init is for its two heads alone."""
    model = build(IMAGE, encoder="impala", architecture="shared", init="torch-encoder")
    assert model.actor.head.weight.norm(dim=1).tolist() == pytest.approx([0.01] * 3)
    assert model.value_head.weight.norm().item() == pytest.approx(1.0)
    assert not model.actor.head.bias.any()
    layers = [m for m in model.actor.encoder.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    assert len(layers) == 16
    for layer in layers:
        bound = 1 / math.sqrt(layer.weight[0].numel())
        for part in (layer.weight, layer.bias):
            assert part is not None
            assert 0.5 * bound < part.abs().max().item() <= bound


def unchanged(observation):
    return observation


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("actions", ["discrete", "continuous"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_acting_is_the_models_own_answer(architecture, actions, activation):
    model = build(actions=SEVERAL[actions][0], architecture=architecture, activation=activation)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
        observation = observe(VECTOR)
        given = observation["vector"].clone()
        params, values = acting(model, unchanged, len(given))(observation)
        expected_params, expected_values = model.act(observation)
        whole, _ = model(observation)
    torch.testing.assert_close(params, expected_params, rtol=0, atol=1e-5)
    torch.testing.assert_close(params, whole, rtol=0, atol=1e-5)
    assert torch.equal(observation["vector"], given)
    assert (values is None) == (architecture == "dual") == (expected_values is None)
    if values is not None:
        torch.testing.assert_close(values, expected_values, rtol=0, atol=1e-5)


OWN = {"policy_hidden_sizes": (7,), "value_hidden_sizes": (6, 5)}


@pytest.mark.parametrize("hidden_sizes", [(), (8,)])
@pytest.mark.parametrize("activation", ["tanh", "silu"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_own_layers_act_value_and_keep_to_themselves(architecture, activation, hidden_sizes):
    model = build(
        architecture=architecture, activation=activation, hidden_sizes=hidden_sizes, **OWN
    )
    seen = observe(VECTOR)
    with torch.no_grad():
        params, values = model(seen)
        acted, acted_values = acting(model, unchanged, 5)(seen)
    torch.testing.assert_close(acted, params, rtol=0, atol=1e-5)
    torch.testing.assert_close(model.values(seen), values)
    assert (acted_values is None) == (architecture == "dual")
    if acted_values is not None:
        torch.testing.assert_close(acted_values, values, rtol=0, atol=1e-5)
    model(seen)[1].sum().backward()
    assert all(each.grad is None for each in model.actor.hidden.parameters())
    assert all(each.grad is not None for each in model.value_hidden.parameters())
    # What they share is trained by the value only where it is shared.
    trained = [each.grad is not None for each in model.actor.encoder.parameters()]
    assert trained == [architecture == "shared"] * len(trained)


def test_the_auxiliary_head_follows_the_policys_own_layers():
    model = ActorCritic(*layouts(VECTOR), Model(architecture="dual", **OWN), auxiliary=True)
    *_, auxiliary = model.with_auxiliary(observe(VECTOR))
    auxiliary.sum().backward()
    assert all(each.grad is not None for each in model.actor.hidden.parameters())


@pytest.mark.parametrize("n_rows", [3, NUMPY_ROWS + 1])
def test_acting_prepares_the_observation(n_rows):
    def halved(observation):
        return {"vector": observation["vector"] / 2}

    model, observation = build(architecture="shared"), observe(VECTOR, n_rows)
    with torch.no_grad():
        params, _ = acting(model, halved, n_rows)(observation)
        expected, _ = model.act(halved(observation))
    torch.testing.assert_close(params, expected, rtol=0, atol=1e-5)


def test_acting_follows_the_weights_in_place():
    model, observation = build(), observe(VECTOR)
    with torch.no_grad():
        before, _ = acting(model, unchanged, 5)(observation)
        model.actor.head.bias.add_(1.0)
        after, _ = acting(model, unchanged, 5)(observation)
    torch.testing.assert_close(after, before + 1, rtol=0, atol=1e-5)


@pytest.mark.parametrize("as_factory", [False, True])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_users_own_encoder(architecture, as_factory):
    own = nn.Sequential(nn.Linear(4, 7), nn.SiLU())
    encoder = (lambda layout: nn.Linear(layout.vector, 7)) if as_factory else own
    model = build(own=encoder, architecture=architecture)
    params, values = model(observe(VECTOR))
    (params.square().sum() + values.square().sum()).backward()
    assert params.shape == (5, 3)
    assert has_gradient(model.actor.encoder)
    assert not has_gradient(own)


def test_users_own_encoder_of_several_parts_gets_them_all():
    class Own(nn.Module):
        def forward(self, parts):
            assert parts["image"].dtype == torch.float32
            return torch.cat([parts["image"].mean((2, 3)), parts["vector"]], 1)

    params, _ = build(BOTH, own=Own())(observe(BOTH))
    assert params.shape == (5, 3)


@pytest.mark.parametrize("own", [nn.Conv2d(3, 8, 3), lambda layout: nn.Identity()])
def test_users_own_encoder_must_give_rows_of_features(own):
    with pytest.raises(UserError, match="encoder"):
        build(IMAGE, own=own)


@pytest.mark.parametrize(
    ("space", "encoder", "message"),
    [
        (VECTOR, "nature", "nature needs images"),
        (VECTOR, "impala", "impala needs images"),
        (IMAGE, "mlp", "mlp needs vectors"),
        (spaces.Box(0, 255, (3, 32, 32), np.uint8), "auto", "36x36"),
        (VECTOR, "custom", "encoder="),
    ],
)
def test_unsuitable_encoder_is_the_users_error(space, encoder, message):
    with pytest.raises(UserError, match=message):
        build(space, encoder=encoder)


def test_small_images_suit_impala():
    model = build(spaces.Box(0, 255, (3, 32, 32), np.uint8), encoder="impala")
    params, _ = model({"image": torch.zeros(2, 3, 32, 32, dtype=torch.uint8)})
    assert params.shape == (2, 3)


@pytest.mark.parametrize("encoder", ["nature", "impala"])
def test_images_are_bytes_until_the_encoder_scales_them(encoder):
    observation = observe(IMAGE)
    assert observation["image"].dtype == torch.uint8
    kept = observation["image"].clone()
    model = build(IMAGE, encoder=encoder)
    params, _ = model(observation)
    scaled, _ = model({"image": kept.float() / 255})
    torch.testing.assert_close(params, scaled, rtol=0, atol=1e-5)
    assert torch.equal(observation["image"], kept)


def test_float_images_are_left_as_they_are():
    model = build(IMAGE)
    image = torch.rand(2, 3, 40, 44)
    kept = image.clone()
    model({"image": image})
    assert torch.equal(image, kept)


def test_channels_last_computes_the_same():
    model = build(IMAGE, encoder="impala")
    last = copy.deepcopy(model).to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
    observation = observe(IMAGE)
    torch.testing.assert_close(last(observation)[0], model(observation)[0], rtol=0, atol=1e-5)
