import csv
from pathlib import Path

import gymnasium
import pytest

from isobatch.envs.pool import pool_registry
from isobatch.study.scores import ATARI, LARGEST, SCALES, SMALL, THRESHOLD, constants

PUBLISHED = Path(__file__).parents[1] / "golden" / "procgen_hard_published.csv"


@pytest.mark.parametrize(
    ("env_id", "score", "normalized"),
    [
        ("Breakout-v5", 30.5, 1),
        ("Breakout-v5", 1.7, 0),
        ("Pong-v5", 21, (21 + 20.7) / (14.6 + 20.7)),
        ("CoinrunHard-v0", 7.5, 0.5),
        ("StarpilotHard-v0", 35, 1),
        ("StarpilotEasy-v0", 64, 1),
        ("CartPole-v1", 22.2, 0),
        ("CartPole-v1", 475, 1),
        ("Pendulum-v1", 0, 1),
    ],
)
def test_scores_are_normalized(env_id, score, normalized):
    scale = constants(env_id)
    assert scale is not None
    assert scale.normalized(score) == pytest.approx(normalized)


def test_every_scale_is_of_an_environment_and_rises():
    assert set(SCALES) <= set(pool_registry())
    for scale in SCALES.values():
        assert scale.low < scale.high
        assert scale.source


def test_every_game_is_there():
    modules = {env_id: spec[0] for env_id, spec in pool_registry().items()}
    usual = [env_id for env_id in modules if env_id.endswith(("Hard-v0", "Easy-v0"))]
    procgen = [env_id for env_id in usual if modules[env_id] == "envpool.procgen"]
    assert len(procgen) == 32
    assert all(constants(env_id) for env_id in procgen)
    assert len(ATARI) == 57


def test_procgen_is_as_in_the_published_curves():
    with PUBLISHED.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert rows
    for row in rows:
        scale = constants(f"{row['game'].capitalize()}Hard-v0")
        assert scale is not None
        assert (scale.low, scale.high) == (float(row["norm_min"]), float(row["norm_max"]))


def test_thresholds_are_gymnasiums():
    compared = 0
    for env_id, (_, high, kind) in SMALL.items():
        if env_id in gymnasium.registry:
            documented = gymnasium.registry[env_id].reward_threshold
            assert (documented, kind) in [(high, THRESHOLD), (None, LARGEST)], env_id
            compared += 1
    assert compared >= 10


def test_one_environment_of_several_makers():
    scale = constants("CartPole-v1")
    assert scale is not None
    assert constants("gymnasium:CartPole-v1") == constants("tensor:CartPole-v1") == scale


@pytest.mark.parametrize(
    "env_id", ["HalfCheetah-v4", "CaveflyerMemory-v0", "mine:CartPole-v1", "python:MyEnv", ""]
)
def test_other_environments_have_none(env_id):
    assert constants(env_id) is None
