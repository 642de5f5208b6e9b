from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import TimeLimit
from probe_envs import MODES, Acting, Both, Counter, Journal, vector_of

from isobatch import UserError, envs, preset

any_mode = pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
SEEDS = [11, 22]


def wrapped(make_env, seeds=SEEDS, vectorization="sync"):
    return envs.wrap(make_env, "Probe-v0", list(seeds), vectorization)


def transitions(env, n_steps, n=0):
    """Return environment n's (observation, reward, terminated, truncated, true next one)."""
    seen, before = [], env.reset()
    for _ in range(n_steps):
        step = env.step(torch.zeros(env.n_envs, 1, dtype=torch.int64))
        done = bool(step.terminated[n] | step.truncated[n])
        after = step.final if done and step.final is not None else step.observation
        if step.valid[n]:
            ends = bool(step.terminated[n]), bool(step.truncated[n])
            seen.append((before["vector"][n, 0], step.reward[n], *ends, after["vector"][n, 0]))
        before = step.observation
    env.close()
    return [tuple(float(value) for value in row) for row in seen]


def counted(length, ending):
    """The transitions of one episode of `Counter`, by hand."""
    end = (ending == "terminated", ending == "truncated")
    rows = [(t, t + 1, *((False, False) if t + 1 < length else end), t + 1) for t in range(length)]
    return [tuple(float(value) for value in row) for row in rows]


@any_mode
@pytest.mark.parametrize("ending", ["terminated", "truncated"])
def test_every_mode_tells_the_same_transitions(mode, ending):
    make_env = vector_of(mode, lambda: Counter(2, ending), lambda: Counter(3, ending))
    for n, length in enumerate((2, 3)):
        given = transitions(wrapped(make_env), 12, n)
        assert len(given) >= 8
        assert given == (counted(length, ending) * 6)[: len(given)]


@any_mode
def test_the_valid_rows_are_as_many_as_the_steps_the_environments_took(mode):
    journal = Journal()
    factories = [lambda: Counter(2, journal=journal), lambda: Counter(5, journal=journal)]
    env = wrapped(vector_of(mode, *factories))
    journal.transitions = 0
    env.reset()
    rows = [env.step(torch.zeros(2, 1, dtype=torch.int64)).valid for _ in range(23)]
    assert int(torch.stack(rows).sum()) == journal.transitions


def test_a_next_step_vector_gives_one_row_that_is_no_transition_after_each_end():
    env = wrapped(vector_of(AutoresetMode.NEXT_STEP, lambda: Counter(2)), [11])
    env.reset()
    steps = [env.step(torch.tensor([[1]])) for _ in range(6)]
    assert [bool(step.valid) for step in steps] == [True, True, False, True, True, False]
    assert [float(step.observation["vector"]) for step in steps] == [1, 2, 0, 1, 2, 0]


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.DISABLED])
def test_other_vectors_give_transitions_alone_and_the_final_observation_beside(mode):
    env = wrapped(vector_of(mode, lambda: Counter(2)), [11])
    env.reset()
    steps = [env.step(torch.tensor([[1]])) for _ in range(4)]
    assert all(bool(step.valid) for step in steps)
    assert [float(step.observation["vector"]) for step in steps] == [1, 0, 1, 0]
    assert [float(step.final["vector"]) for step in steps if step.final is not None] == [2, 2]


@any_mode
def test_an_episode_that_terminates_as_its_time_runs_out_is_not_bootstrapped(mode):
    given = transitions(wrapped(vector_of(mode, lambda: Counter(2, "both")), [11]), 6)
    assert given[1] == (1, 2, True, False, 2)


@any_mode
@pytest.mark.parametrize("ending", ["terminated", "truncated"])
def test_an_end_at_the_time_limit_is_what_the_environment_says_it_is(mode, ending):
    """Gymnasium's TimeLimit truncates the very step in which a task of 4 steps terminates."""

    def limited():
        return TimeLimit(Counter(4, "terminated" if ending == "terminated" else "never"), 4)

    alone = limited()
    alone.reset()
    said = [alone.step(0)[2:4] for _ in range(4)][-1]
    assert said == (ending == "terminated", True)
    env = wrapped(vector_of(mode, limited, limited))
    env.reset()
    steps = [env.step(torch.zeros(2, 1, dtype=torch.int64)) for _ in range(4)]
    assert steps[-1].terminated.tolist() == [ending == "terminated"] * 2
    assert steps[-1].truncated.tolist() == [ending == "truncated"] * 2
    assert steps[-1].ended.all()
    assert not any(step.ended.any() for step in steps[:-1])


@any_mode
def test_images_and_vectors_are_given_together_with_their_true_finals(mode):
    env = wrapped(vector_of(mode, Both, lambda: Both(4)))
    env.reset()
    steps = [env.step(torch.zeros(2, 1, dtype=torch.int64)) for _ in range(3)]
    last = steps[-1].observation if steps[-1].final is None else steps[-1].final
    assert steps[-1].truncated.tolist() == [True, False]
    assert last["vector"][0].tolist() == [3, -3]
    assert last["image"].dtype == torch.uint8
    assert last["image"][0, :, 0, 0].tolist() == [3, 3, 103]
    assert steps[-1].observation["vector"][1].tolist() == [3, -3]


@any_mode
def test_each_environment_is_reset_with_its_own_seed_once(mode):
    journal = Journal()
    env = wrapped(vector_of(mode, *[lambda: Counter(2, journal=journal)] * 2))
    transitions(env, 9)
    assert journal.seeds == SEEDS


@pytest.mark.parametrize(
    ("space", "given", "expected"),
    [
        (spaces.Discrete(3, start=5), [[2]], 7),
        (spaces.Box(-1, 1, (2,), np.float32), [[0.5, 9.0]], [0.5, 1.0]),
        (spaces.MultiDiscrete([2, 4], start=[0, 1]), [[1, 3]], [1, 4]),
        (spaces.MultiBinary(3), [[1, 0, 1]], [1, 0, 1]),
    ],
    ids=["Discrete", "Box", "MultiDiscrete", "MultiBinary"],
)
@any_mode
def test_actions_arrive_in_the_environments_own_form(mode, space, given, expected):
    received = []

    class Recording(Acting):
        def step(self, action):
            received.append(action)
            return super().step(action)

    env = wrapped(vector_of(mode, lambda: Recording(space)), [11])
    env.reset()
    env.step(torch.tensor(given))
    assert space.contains(received[0])
    np.testing.assert_array_equal(received[0], expected)


def test_separate_processes_give_what_one_process_gives():
    given = [
        transitions(wrapped(lambda: Counter(2), vectorization=how), 7) for how in ("sync", "async")
    ]
    assert given[0] == given[1]
    assert len(given[0]) == 5


@pytest.mark.parametrize("wrappers", [(), ("frame_skip=2",)])
def test_the_process_of_an_environment_has_no_pytorch(wrappers):
    """It takes two seconds and 200 MB to import, in each of them."""
    own = {"vectorization": "supervised", "n_envs": 2, "wrappers": wrappers}
    recipe = preset("gymnasium:CartPole-v1", **own)
    env = envs.make(recipe, [1, 2])
    try:
        children = Path("/proc/self/task").glob("*/children")
        mapped = [
            Path("/proc", child, "maps").read_text()
            for each in children
            for child in each.read_text().split()
            if b"envs/child.py" in Path("/proc", child, "cmdline").read_bytes()
        ]
    finally:
        env.close()
    assert len(mapped) == 2
    assert all("numpy" in each and "libtorch" not in each for each in mapped)


def test_gymnasiums_own_environments_are_made_by_id():
    recipe = preset("gymnasium:CartPole-v1", env_options=("max_episode_steps=5",))
    env = envs.make(recipe, SEEDS)
    first = env.reset()["vector"]
    expected, _ = gymnasium.make("CartPole-v1").reset(seed=SEEDS[1])
    np.testing.assert_array_equal(first[1], expected)
    steps = [env.step(torch.tensor([[0], [1]])) for _ in range(6)]
    env.close()
    assert [step.truncated.tolist() for step in steps[3:]] == [[False] * 2, [True] * 2, [False] * 2]


@pytest.mark.parametrize(
    ("make_env", "complaint"),
    [
        (vector_of(AutoresetMode.NEXT_STEP, Counter), "vector of 1 environment, but n_envs is 2"),
        (lambda: "CartPole-v1", "must return a Gymnasium environment, got str"),
        (lambda: None, "must return a Gymnasium environment, got NoneType"),
    ],
)
def test_what_is_no_environment_of_the_right_number_is_refused(make_env, complaint):
    with pytest.raises(UserError, match=complaint):
        wrapped(make_env)


def test_a_vector_that_does_not_say_how_it_resets_is_refused():
    def make_env():
        vector = SyncVectorEnv([Counter, Counter])
        vector.metadata = {}
        return vector

    with pytest.raises(UserError, match="autoreset_mode"):
        wrapped(make_env)


def test_what_gymnasium_cannot_make_is_one_line():
    recipe = preset("gymnasium:CartPole-v1", env_options=("wheels=3",))
    with pytest.raises(UserError, match=r"cannot make CartPole-v1.*wheels") as caught:
        envs.make(recipe, SEEDS)
    assert "\n" not in str(caught.value)
