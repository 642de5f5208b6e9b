from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from probe_envs import MODES, Acting, Both, Counter, Faulty, Journal, TensorCounter, vector_of

from isobatch import Recipe, UserError, envs, preset
from isobatch.algos import ppo
from isobatch.experience import BY_STEP, Collector, EpisodeTracker, Rollout, concatenate
from isobatch.state import TrainState

CPU = torch.device("cpu")
GAMMA, GAE_LAMBDA = 0.9, 0.8


class Collecting:
    """Two environments of a kind with a fresh policy, collected from again and again."""

    def __init__(self, make_env: Any = None, env_id: str | None = None, **overrides: Any):
        settings = {"n_envs": 2, "n_steps": 8, "n_minibatches": 1, **overrides}
        if env_id is not None:
            self.recipe = preset(env_id, **settings)
            self.env = envs.make(self.recipe, [1, 2])
        else:
            self.recipe = Recipe("Probe").replace(gamma=GAMMA, gae_lambda=GAE_LAMBDA, **settings)
            self.env = envs.wrap(make_env, "Probe", [1, 2], "sync")
        layouts = self.env.observation_layout, self.env.action_layout
        self.state = TrainState.begin(self.recipe, *layouts, CPU)
        self.collector = Collector(self.env, CPU, chunk_size=64)

    def collect(self, n_steps, **limits):
        return self.collector.collect(self.state.actor, n_steps, **limits)

    def advantages(self, rollout):
        """Return environment 0's advantages, transitions only."""
        advantages, _ = ppo.advantages_and_targets(self.state, rollout)
        return advantages[:, 0][rollout.valid[:, 0]]

    def value(self, count):
        observation = {"vector": torch.tensor([[float(count)]])}
        with torch.no_grad():
            return float(self.state.model.values(self.state.observation_normalizer(observation)))


def vectors(length=3, ending="truncated"):
    """Every way to give two counters: Gymnasium's three modes and the tensor protocol."""
    ways = {mode.name: vector_of(mode, *[lambda: Counter(length, ending)] * 2) for mode in MODES}
    return ways | {"TENSOR": lambda: TensorCounter(2, length)}


def rows_of(transitions, mode):
    """Rows that hold this many transitions of 3-step episodes: resets take one where next-step."""
    return transitions + (transitions - 1) // 3 if mode == "NEXT_STEP" else transitions


any_mode = pytest.mark.parametrize("mode", vectors())
gymnasium_mode = pytest.mark.parametrize("mode", [mode.name for mode in MODES])


def advantages_by_hand(value, bootstrapped):
    """GAE of one whole episode of `Counter(3)`."""
    running, advantages = 0.0, []
    for count in (2, 1, 0):
        ends = count == 2
        follows = value(count + 1) if bootstrapped or not ends else 0.0
        running = (count + 1) + GAMMA * follows - value(count) + GAMMA * GAE_LAMBDA * running
        advantages.append(running)
    return advantages[::-1]


@any_mode
@pytest.mark.parametrize("architecture", ["shared", "dual"])
def test_a_truncated_episode_is_bootstrapped_with_its_final_observation(mode, architecture):
    probe = Collecting(vectors()[mode], architecture=architecture)
    rollout = probe.collect(rows_of(12, mode))
    assert rollout.n_valid == 24
    expected = advantages_by_hand(probe.value, bootstrapped=True) * 4
    np.testing.assert_allclose(probe.advantages(rollout), expected, rtol=1e-5, atol=1e-5)


@gymnasium_mode
@pytest.mark.parametrize("ending", ["terminated", "both"])
def test_a_terminated_episode_is_not_bootstrapped_even_as_its_time_runs_out(mode, ending):
    probe = Collecting(vectors(ending=ending)[mode])
    rollout = probe.collect(rows_of(12, mode))
    expected = advantages_by_hand(probe.value, bootstrapped=False) * 4
    np.testing.assert_allclose(probe.advantages(rollout), expected, rtol=1e-5, atol=1e-5)


@any_mode
def test_a_rollout_that_ends_amid_an_episode_is_bootstrapped_with_what_comes_next(mode):
    probe = Collecting(vectors()[mode])
    last = probe.advantages(probe.collect(2))[-1]
    assert float(last) == pytest.approx(2 + GAMMA * probe.value(2) - probe.value(1), abs=1e-5)


@any_mode
def test_the_first_rows_of_episodes_are_marked_across_rollouts(mode):
    probe = Collecting(vectors()[mode])
    rollouts = [probe.collect(5) for _ in range(4)]
    first = torch.cat([rollout.first[rollout.valid[:, 0], 0] for rollout in rollouts])
    assert len(first) >= 15
    assert first.tolist() == [t % 3 == 0 for t in range(len(first))]
    assert not any((rollout.first & ~rollout.valid).any() for rollout in rollouts)


@any_mode
def test_each_transition_is_kept_with_what_was_seen_before_it(mode):
    rollout = Collecting(vectors()[mode]).collect(9)
    seen = rollout.observations["vector"][:-1, 0, 0][rollout.valid[:, 0]]
    rewards = rollout.rewards[:, 0][rollout.valid[:, 0]]
    assert seen.tolist() == [t % 3 for t in range(len(seen))]
    assert torch.equal(rewards, seen + 1)


@any_mode
def test_a_rollout_begins_where_the_last_one_ended(mode):
    probe = Collecting(vectors()[mode])
    first, second = probe.collect(4), probe.collect(4)
    for part, rows in first.observations.items():
        assert torch.equal(rows[-1], second.observations[part][0])


def test_arrays_that_the_environment_writes_again_are_kept_as_they_were():
    # copy=False is Gymnasium's own option: every step gives the same array.
    make_env = vector_of(AutoresetMode.SAME_STEP, Counter, Counter, copy=False)
    rollout = Collecting(make_env).collect(6)
    assert rollout.observations["vector"][:, 0, 0].tolist() == [0, 1, 2, 0, 1, 2, 0]


def test_tensors_that_the_simulator_writes_again_are_kept_as_they_were():
    rollout = Collecting(lambda: TensorCounter(2, in_place=True)).collect(6)
    assert rollout.observations["vector"][:, 0, 0].tolist() == [0, 1, 2, 0, 1, 2, 0]
    assert rollout.rewards[:, 0].tolist() == [1, 2, 3, 1, 2, 3]
    assert rollout.truncated[:, 0].tolist() == [False, False, True] * 2


@pytest.mark.parametrize(
    "actions",
    [spaces.Discrete(3), spaces.MultiDiscrete([2, 4]), spaces.MultiBinary(3), spaces.Box(-1, 1)],
    ids=["Discrete", "MultiDiscrete", "MultiBinary", "Box"],
)
@pytest.mark.parametrize("architecture", ["shared", "dual", "detach"])
def test_what_is_recorded_of_the_policy_is_what_the_model_says(actions, architecture):
    probe = Collecting(lambda: Acting(actions), architecture=architecture)
    rollout, model = probe.collect(8), probe.state.model
    rows = {"vector": rollout.observations["vector"][:-1].flatten(0, 1)}
    with torch.no_grad():
        params, values = model(rows)
        logp = model.distribution.log_prob(params, rollout.actions.flatten(0, 1))
    assert_close = partial(torch.testing.assert_close, rtol=1e-4, atol=1e-5)
    assert_close(rollout.params.flatten(0, 1), params)
    assert_close(rollout.values[:-1].flatten(), values)
    assert_close(rollout.logp.flatten(), logp)


def test_images_stay_bytes_beside_their_vectors():
    rollout = Collecting(Both).collect(5)
    image, vector = rollout.observations["image"], rollout.observations["vector"]
    assert image.shape == (6, 2, 3, 40, 36)
    assert image.dtype == torch.uint8
    assert torch.equal(image[:, :, 0, 0, 0].float(), vector[:, :, 0])


@pytest.mark.parametrize("limit", [2, 3, 7, 10, 100])
def test_a_limit_on_transitions_is_approached_and_never_passed(limit):
    journal = Journal()
    env = Collecting(lambda: Counter(1, journal=journal))
    rollout = env.collect(12, row_limit=limit)
    assert rollout.n_valid == journal.transitions == min(limit - limit % 2, 12)


@pytest.mark.parametrize("mode", ["NEXT_STEP", "SAME_STEP", "DISABLED", "TENSOR"])
def test_episodes_are_summed_over_transitions_and_across_rollouts(mode):
    probe, episodes = Collecting(vectors()[mode]), EpisodeTracker(2)
    for _ in range(5):
        episodes.update(probe.collect(5))
    assert episodes.finished >= 12
    assert set(episodes.returns) == {1 + 2 + 3}
    assert set(episodes.lengths) == {3}


def test_episodes_of_different_lengths_are_kept_apart():
    factories = [lambda: Counter(2), lambda: Counter(5)]
    probe = Collecting(vector_of(AutoresetMode.NEXT_STEP, *factories))
    episodes = EpisodeTracker(2)
    episodes.update(probe.collect(4))
    episodes.update(probe.collect(4))
    assert list(episodes.lengths) == [2, 2, 5, 2]
    assert list(episodes.returns) == [3, 3, 15, 3]
    assert episodes.mean_length == 11 / 4
    assert episodes.mean_return == 6


def test_the_means_are_of_the_last_hundred_episodes_and_there_are_none_before_the_first():
    episodes = EpisodeTracker(2)
    assert episodes.mean_return is None
    assert episodes.mean_length is None
    probe = Collecting(lambda: Counter(1))
    episodes.update(probe.collect(300))
    assert episodes.finished == 300
    assert len(episodes.returns) == 100


def test_envpools_episodes_are_as_long_as_its_own_clock_says():
    probe = Collecting(env_id="CartPole-v1", env_options=("max_episode_steps=5",))
    episodes = EpisodeTracker(2)
    rollout = probe.collect(60)
    episodes.update(rollout)
    assert rollout.n_valid == 2 * 50
    assert list(episodes.lengths) == [5] * 20
    assert list(episodes.returns) == [5.0] * 20


@pytest.mark.parametrize(
    "actions", [spaces.Discrete(2), spaces.Box(-1, 1)], ids=["Discrete", "Box"]
)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("part", ["reward", "observation"])
def test_what_is_not_finite_is_refused_with_its_environment_and_step(part, value, actions):
    factories = [
        lambda: Acting(actions, length=1000),
        lambda: Faulty(6, part, value, actions=actions),
    ]
    probe = Collecting(lambda: SyncVectorEnv(factories))
    probe.collect(4)
    with pytest.raises(UserError, match=rf"Probe gave an? {part}.*\(environment 1, step 6\)"):
        probe.collect(4)


@gymnasium_mode
def test_a_final_observation_that_is_not_finite_is_refused_too(mode):
    # Same-step vectors show it nowhere but beside the new episode's first.
    make_env = vector_of(AutoresetMode[mode], *[lambda: Faulty(3, "observation", length=3)] * 2)
    with pytest.raises(UserError, match=r"observation.*\(environment 0, step 3\)"):
        Collecting(make_env).collect(5)


def test_a_first_observation_that_is_not_finite_is_step_0():
    with pytest.raises(UserError, match=r"\(environment 0, step 0\)"):
        Collecting(lambda: Faulty(0, "observation")).collect(3)


@any_mode
def test_rollouts_in_a_row_join_into_what_they_were_cut_from(mode):
    collecting = Collecting(vectors()[mode])
    whole = collecting.collect(9)
    early = Rollout(
        observations={part: rows[:5] for part, rows in whole.observations.items()},
        values=whole.values[:5],
        final_values=None if whole.final_values is None else whole.final_values[:4],
        **{name: getattr(whole, name)[:4] for name in BY_STEP},
    )
    joined = concatenate(early, whole.since(4))
    assert joined.observations.keys() == whole.observations.keys()
    for part, rows in whole.observations.items():
        assert torch.equal(joined.observations[part], rows)
    for name in ("values", *BY_STEP):
        assert torch.equal(getattr(joined, name), getattr(whole, name)), name
    if whole.final_values is None or joined.final_values is None:
        assert joined.final_values is whole.final_values
    else:
        assert torch.equal(joined.final_values, whole.final_values)


def test_a_rollout_without_final_values_joins_one_that_has_them():
    collecting = Collecting(vectors()["SAME_STEP"])
    before, after = collecting.collect(2), collecting.collect(2)
    assert before.final_values is None
    assert after.final_values is not None
    joined = concatenate(before, after).final_values
    assert joined is not None
    assert torch.equal(joined, torch.cat([torch.zeros(2, 2), after.final_values]))
