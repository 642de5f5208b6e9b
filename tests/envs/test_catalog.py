import pytest

from isobatch import UserError
from isobatch.envs.catalog import families, resolve
from isobatch.presets import preset_name


@pytest.mark.parametrize(
    ("env_id", "maker", "family"),
    [
        ("CartPole-v1", "envpool", "classic"),
        ("LunarLander-v3", "envpool", "box2d"),
        ("FrozenLake-v1", "envpool", "toy-text"),
        ("Breakout-v5", "envpool", "atari"),
        ("CoinrunEasy-v0", "envpool", "procgen-easy"),
        ("CoinrunHard-v0", "envpool", "procgen-hard"),
        ("HalfCheetah-v4", "envpool", "mujoco"),
        ("WalkerWalk-v1", "envpool", "dmc"),
        ("MuJoCoPlayground/G1JoystickRoughTerrain-v1", "envpool", "playground"),
        ("MiniGrid-DoorKey-5x5-v0", "envpool", "minigrid"),
        ("gymnasium:Acrobot-v1", "gymnasium", "classic"),
        ("tensor:CartPole-v1", "tensor", "tensor"),
        ("my_module:My-v0", "gymnasium", "gymnasium"),
    ],
)
def test_an_id_finds_its_maker_and_family(env_id, maker, family):
    source = resolve(env_id)
    assert (source.maker, source.family) == (maker, family)


@pytest.mark.parametrize(
    ("env_id", "suggestion"),
    [
        ("CartPole-v2", "CartPole-v1"),
        ("cartpole-v1", "CartPole-v1"),
        ("CoinRunHard-v1", "CoinrunHard-v0"),
        ("gymnasium:Acrobat-v1", "Acrobot-v1"),
        ("tensor:CartPol-v1", "CartPole-v1"),
    ],
)
def test_an_unknown_id_is_refused_with_the_nearest(env_id, suggestion):
    with pytest.raises(UserError, match=suggestion):
        resolve(env_id)


def test_an_id_unlike_any_other_is_refused_without_a_guess():
    with pytest.raises(
        UserError, match=r"unknown environment 'qqqqqqqqqqqq'\. One of your own: pass --import"
    ):
        resolve("qqqqqqqqqqqq")


def test_every_listed_id_is_found_again_in_its_family():
    for family, ids in families().items():
        for env_id in (ids[0], ids[-1]):
            assert resolve(env_id).family == family


@pytest.mark.parametrize(
    "family",
    [
        *["classic", "box2d", "toy-text", "atari", "procgen-easy", "procgen-hard"],
        *["mujoco", "dmc", "playground", "minigrid", "tensor"],
    ],
)
def test_the_families_of_the_field_have_environments_and_a_preset_of_their_own(family):
    assert families()[family]
    assert preset_name(family) == family
