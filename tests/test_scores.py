import csv
from importlib import resources
from pathlib import Path

import gymnasium
import pytest

from isobatch.envs.pool import pool_registry
from isobatch.scores import constants, not_normalised, table
from isobatch.study.design import load, preset_names

PUBLISHED = Path(__file__).parent / "golden" / "procgen_hard_published.csv"
ROWS = list(csv.DictReader((resources.files("isobatch") / "scores.csv").read_text().splitlines()))
THRESHOLD = "Gymnasium's reward threshold"


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
        ("CheetahRun-v1", 250, 0.25),
        ("HalfCheetah-v4", 4800, 1),
        ("MiniGrid-FourRooms-v0", 1, 1),
    ],
)
def test_scores_are_normalized(env_id, score, normalized):
    scale = constants(env_id)
    assert scale is not None
    assert scale.normalized(score) == pytest.approx(normalized)


def test_every_scale_is_of_an_environment_and_rises():
    assert len(table()) == len(ROWS)
    assert set(table()) <= set(pool_registry())
    for scale in table().values():
        assert scale.low < scale.high


def test_every_number_says_where_it_comes_from():
    for row in ROWS:
        measured = row["random_source"].endswith("(benchmarks/random_scores.py)")
        defined = row["random_source"].startswith("by definition")
        assert measured or defined or "published" in row["random_source"], row
        kinds = ("published", "solved", "largest possible return", "bound", "by definition")
        assert any(kind in row["reference_source"] for kind in kinds), row


@pytest.mark.parametrize("name", preset_names())
@pytest.mark.parametrize("scale", ["laptop", "paper"])
def test_every_environment_of_the_shipped_studies_is_there(name, scale):
    study = load(name, scale)
    assert [env for env in study.envs if constants(env) is None] == []


USUAL = [
    "CartPole-v1", "Acrobot-v1", "LunarLander-v3", "MountainCar-v0", "Pendulum-v1",
    "MountainCarContinuous-v0", "BipedalWalker-v3", "FrozenLake8x8-v1", "Taxi-v3",
    "HalfCheetah-v4", "Hopper-v4", "Walker2d-v4", "Reacher-v4", "InvertedDoublePendulum-v4",
    "CartpoleSwingup-v1", "CheetahRun-v1", "FingerSpin-v1", "ReacherEasy-v1", "BallInCupCatch-v1",
    "PendulumSwingup-v1", "MiniGrid-DoorKey-5x5-v0", "MiniGrid-DoorKey-8x8-v0",
    "MiniGrid-FourRooms-v0", "MiniGrid-KeyCorridorS3R1-v0", "MiniGrid-KeyCorridorS3R3-v0",
    "Breakout-v5",
]  # fmt: skip


@pytest.mark.parametrize("env_id", USUAL)
def test_the_usual_small_environments_are_there(env_id):
    assert constants(env_id) is not None


def test_every_game_is_there():
    modules = {env_id: spec[0] for env_id, spec in pool_registry().items()}
    usual = [env_id for env_id in modules if env_id.endswith(("Hard-v0", "Easy-v0"))]
    procgen = [env_id for env_id in usual if modules[env_id] == "envpool.procgen"]
    assert len(procgen) == 32
    assert all(constants(env_id) for env_id in procgen)
    assert sum("human play" in row["reference_source"] for row in ROWS) == 57


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
    for row in ROWS:
        env_id, high = row["environment"], float(row["reference"])
        if env_id in gymnasium.registry and "published" not in row["reference_source"]:
            documented = gymnasium.registry[env_id].reward_threshold
            solved = THRESHOLD in row["reference_source"]
            assert documented == (high if solved else None), env_id
            compared += 1
    assert compared >= 16


def test_one_environment_of_several_makers():
    scale = constants("CartPole-v1")
    assert scale is not None
    assert constants("gymnasium:CartPole-v1") == constants("tensor:CartPole-v1") == scale


@pytest.mark.parametrize(
    "env_id", ["Humanoid-v4", "CaveflyerMemory-v0", "mine:CartPole-v1", "python:MyEnv", ""]
)
def test_other_environments_have_none(env_id):
    assert constants(env_id) is None


def test_what_the_user_can_give_is_said_in_a_line():
    said = not_normalised(["A-v0", "B-v0", "C-v0", "D-v0", "E-v0"])
    assert said.startswith("scores of A-v0, B-v0, C-v0 and 2 others cannot be normalised")
    assert '[scores] "A-v0" = { random = ..., reference = ... }' in said
    assert "\n" not in said
