import json

import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector.utils import batch_space
from probe_envs import BOTH_PARTS

from isobatch import UserError
from isobatch.envs.spaces import ActionLayout, ObservationLayout, add_batch_axis

OBSERVATIONS = {
    "vector": spaces.Box(-1, 1, (5,), np.float32),
    "double": spaces.Box(-np.inf, np.inf, (3,), np.float64),
    "matrix": spaces.Box(0, 1, (2, 3), np.float32),
    "image": spaces.Box(0, 255, (4, 84, 84), np.uint8),
    "channels last": spaces.Box(0, 255, (40, 36, 3), np.uint8),
    "grey": spaces.Box(0, 255, (36, 36), np.uint8),
    "float image": spaces.Box(0, 1, (1, 36, 36), np.float32),
    "discrete": spaces.Discrete(4, start=-1),
    "choices": spaces.MultiDiscrete([2, 3]),
    "bits": spaces.MultiBinary(3),
    "both": BOTH_PARTS,
    "nested": spaces.Dict({"a": spaces.Dict({"b": spaces.Discrete(2)}), "c": spaces.Box(0, 1)}),
}
ACTIONS = {
    "discrete": spaces.Discrete(3),
    "discrete from 5": spaces.Discrete(3, start=5),
    "choices": spaces.MultiDiscrete([2, 4]),
    "choices from 1": spaces.MultiDiscrete([2, 4], start=[1, 1]),
    "choices in rows": spaces.MultiDiscrete(np.array([[2, 3], [4, 5]])),
    "bits": spaces.MultiBinary(4),
    "bits in rows": spaces.MultiBinary((2, 2)),
    "box": spaces.Box(np.array([-1, 0.1], np.float32), np.array([0.3, 2], np.float32)),
    "box in rows": spaces.Box(-2, 2, (2, 3), np.float32),
    "whole numbers": spaces.Box(-1, 2, (2,), np.int64),
    "half bounded": spaces.Box(0, np.inf, (1,), np.float32),
}
UNSUPPORTED = [
    spaces.Text(8),
    spaces.Sequence(spaces.Discrete(2)),
    spaces.Tuple([spaces.Discrete(2)] * 2),
    spaces.Dict({"a": spaces.Text(8)}),
]


def observation_layout(space):
    return ObservationLayout.of(space, "Probe-v0")


def action_layout(space):
    return ActionLayout.of(space, "Probe-v0")


def native(space, actions):
    return action_layout(space).native(np.array(actions))


def wild_actions(layout, rows=64):
    """Return policy actions as wide of the mark as a policy can give them."""
    rng = np.random.default_rng(0)
    if layout.kind == "gaussian":
        return 10 * rng.standard_normal((rows, len(layout.counts)), np.float32)
    return rng.integers(0, layout.counts, (rows, len(layout.counts)))


@pytest.mark.parametrize("kind", OBSERVATIONS)
def test_encoded_observations_have_the_shapes_and_types_the_layout_says(kind):
    layout = observation_layout(OBSERVATIONS[kind])
    parts = layout.encode(batch_space(OBSERVATIONS[kind], 3).sample())
    assert {name: tuple(part.shape[1:]) for name, part in parts.items()} == layout.shapes
    assert {name: part.dtype for name, part in parts.items()} == layout.dtypes
    assert all(len(part) == 3 for part in parts.values())


def test_images_of_bytes_stay_bytes():
    layout = observation_layout(OBSERVATIONS["image"])
    assert layout.encode(np.zeros((2, 4, 84, 84), np.uint8))["image"].dtype == torch.uint8


def test_an_image_with_its_channels_last_is_transposed():
    frame = np.random.default_rng(0).integers(0, 256, (2, 40, 36, 3), np.uint8)
    image = observation_layout(OBSERVATIONS["channels last"]).encode(frame)["image"]
    assert image.shape == (2, 3, 40, 36)
    assert image[1, 2, 30, 5] == frame[1, 30, 5, 2]


def test_an_image_with_its_channels_first_is_left_as_it_is():
    frame = np.random.default_rng(0).integers(0, 256, (2, 4, 84, 84), np.uint8)
    image = observation_layout(OBSERVATIONS["image"]).encode(frame)["image"]
    assert np.array_equal(image, frame)


def test_a_grid_too_small_to_convolve_is_a_vector():
    assert observation_layout(spaces.Box(0, 255, (7, 7, 3), np.uint8)).shapes == {"vector": (147,)}


def test_a_discrete_observation_is_one_hot_from_its_start():
    layout = observation_layout(spaces.Discrete(3, start=5))
    assert layout.encode(np.array([5, 7]))["vector"].tolist() == [[1, 0, 0], [0, 0, 1]]


def test_a_multi_discrete_observation_is_one_hot_per_choice():
    layout = observation_layout(spaces.MultiDiscrete([2, 3]))
    assert layout.encode(np.array([[1, 0]]))["vector"].tolist() == [[0, 1, 1, 0, 0]]


def test_a_dict_gives_one_image_and_one_vector():
    layout = observation_layout(
        spaces.Dict(
            {
                "left": spaces.Box(0, 255, (36, 36, 3), np.uint8),
                "pose": spaces.Box(-1, 1, (2,), np.float32),
                "right": spaces.Box(0, 255, (36, 36, 1), np.uint8),
                "room": spaces.Discrete(2),
            }
        )
    )
    left = np.full((1, 36, 36, 3), 7, np.uint8)
    right = np.full((1, 36, 36, 1), 9, np.uint8)
    pose = np.array([[0.5, -0.5]], np.float32)
    parts = layout.encode({"left": left, "pose": pose, "right": right, "room": np.array([1])})
    assert parts["image"][0, :, 0, 0].tolist() == [7, 7, 7, 9]
    assert parts["vector"].tolist() == [[0.5, -0.5, 0, 1]]


def test_one_observation_encodes_as_a_batch_of_one():
    layout = observation_layout(BOTH_PARTS)
    single = BOTH_PARTS.sample()
    parts = layout.encode(add_batch_axis(single))
    assert np.array_equal(parts["vector"][0], single["state"])
    assert np.array_equal(parts["image"][0], np.moveaxis(single["camera"], -1, 0))


def test_tensors_are_encoded_as_arrays_are():
    layout = observation_layout(OBSERVATIONS["vector"])
    array = np.random.default_rng(0).normal(size=(3, 5)).astype(np.float32)
    tensors = layout.encode(torch.from_numpy(array))
    assert torch.equal(tensors["vector"], layout.encode(array)["vector"])


@pytest.mark.parametrize("space", UNSUPPORTED, ids=repr)
def test_an_unsupported_observation_space_is_refused_by_name(space):
    with pytest.raises(UserError, match=r"Probe-v0.*observation space.*not supported"):
        observation_layout(space)


@pytest.mark.parametrize("space", UNSUPPORTED, ids=repr)
def test_an_unsupported_action_space_is_refused_by_name(space):
    with pytest.raises(UserError, match=r"Probe-v0.*action space.*not supported"):
        action_layout(space)


def test_images_of_two_sizes_are_refused():
    near, far = (spaces.Box(0, 255, (3, size, size), np.uint8) for size in (36, 48))
    with pytest.raises(UserError, match="different sizes"):
        observation_layout(spaces.Dict({"near": near, "far": far}))


def test_an_empty_dict_is_refused():
    with pytest.raises(UserError, match="is empty"):
        observation_layout(spaces.Dict({}))


@pytest.mark.parametrize("kind", ACTIONS)
def test_whatever_the_policy_gives_the_environment_gets_actions_of_its_space(kind):
    space = ACTIONS[kind]
    given = native(space, wild_actions(action_layout(space)))
    assert all(space.contains(action.astype(space.dtype)) for action in given)


def test_actions_on_a_device_become_the_same_as_those_on_the_cpu():
    layout = action_layout(ACTIONS["box"])
    actions = wild_actions(layout)
    on_device = layout.native_tensor(torch.from_numpy(actions))
    assert np.array_equal(on_device, layout.native(actions).astype(np.float32))


def test_a_discrete_action_counts_from_its_start():
    assert native(spaces.Discrete(3, start=5), [[0], [2]]).tolist() == [5, 7]


def test_choices_keep_their_columns():
    space = spaces.MultiDiscrete([2, 4], start=[1, 10])
    assert native(space, [[1, 3], [0, 2]]).tolist() == [[2, 13], [1, 12]]


def test_box_actions_are_clipped_to_each_bound():
    space = spaces.Box(np.array([-1, 0], np.float32), np.array([1, 3], np.float32))
    given = [[-5.0, -5.0], [0.25, 2.5], [5.0, 5.0]]
    assert native(space, given).tolist() == [[-1, 0], [0.25, 2.5], [1, 3]]


def test_a_bound_on_one_side_holds_there_alone():
    space = spaces.Box(0, np.inf, (1,), np.float32)
    assert native(space, [[-5.0], [1e6]]).tolist() == [[0], [1e6]]


@pytest.mark.parametrize("low", [-np.inf, np.finfo(np.float32).min, np.finfo(np.float32).tiny])
def test_unbounded_actions_pass_unchanged(low):
    # EnvPool writes no lower bound as the smallest positive number.
    space = spaces.Box(low, np.finfo(np.float32).max, (1,), np.float32)
    assert native(space, [[-1e6], [1e6]]).tolist() == [[-1e6], [1e6]]


@pytest.mark.parametrize("action", [-1, 3])
def test_a_discrete_action_out_of_range_is_an_error(action):
    with pytest.raises(ValueError, match="outside"):
        native(spaces.Discrete(3), [[0], [action]])


@pytest.mark.parametrize("action", [[0, 4], [2, 0], [0, -1]])
def test_a_choice_out_of_its_own_range_is_an_error(action):
    with pytest.raises(ValueError, match="outside"):
        native(spaces.MultiDiscrete([2, 4]), [[1, 3], action])


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_an_action_that_is_not_finite_is_an_error(value):
    with pytest.raises(ValueError, match="not finite"):
        native(spaces.Box(-1, 1, (2,)), [[0.0, value]])


def test_actions_of_the_wrong_width_are_an_error():
    with pytest.raises(ValueError, match="should be"):
        native(spaces.Box(-1, 1, (2,)), np.zeros((4, 3)))


@pytest.mark.parametrize("kind", OBSERVATIONS)
def test_an_observation_layout_survives_json(kind):
    layout = observation_layout(OBSERVATIONS[kind])
    assert ObservationLayout.from_json(json.loads(json.dumps(layout.to_json()))) == layout


@pytest.mark.parametrize("kind", ACTIONS)
def test_an_action_layout_survives_json(kind):
    layout = action_layout(ACTIONS[kind])
    assert ActionLayout.from_json(json.loads(json.dumps(layout.to_json()))) == layout
