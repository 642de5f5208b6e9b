"""How long an iteration takes on this machine, by the batch's shape."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import torch

from isobatch import envs
from isobatch.algos import make_learner
from isobatch.envs.seeds import evaluation_seeds
from isobatch.policy import Policy
from isobatch.probe.collection import SEED
from isobatch.rollout import Collector
from isobatch.state import TrainState
from isobatch.update import chunk_rows

REPEATS = 3
MOST_STEPS = 32
"""Of a timed rollout: its length is no matter, once begun."""
MOST_ENVS, MOST_IMAGE_ENVS = 1024, 256
"""More are not tried: making them takes longer than it tells."""


def iteration_seconds(policy: Policy) -> Callable[[int, int], float | None]:
    """Return a function from (n_envs, n_steps) to the seconds of one iteration, or None."""
    images = policy.observation_layout.image is not None
    per_row = _learning(policy)

    @cache
    def per_step(n_envs: int) -> float:
        return _acting(policy, n_envs)

    def seconds(n_envs: int, n_steps: int) -> float | None:
        if n_envs > (MOST_IMAGE_ENVS if images else MOST_ENVS):
            return None
        return per_step(n_envs) * n_steps + per_row * n_envs * n_steps

    return seconds


def _acting(policy: Policy, n_envs: int) -> float:
    """Return the seconds of one step of `n_envs` environments, policy included."""
    env = envs.make(policy.recipe, evaluation_seeds(policy.recipe.seed, n_envs, SEED))
    try:
        collector = _collector(policy, env)
        generator = torch.Generator().manual_seed(0)

        def act() -> None:
            collector.collect(policy.model, policy.normalizer, generator, MOST_STEPS)

        act()
        return median(_timed(act) for _ in range(REPEATS)) / MOST_STEPS
    finally:
        env.close()


def _learning(policy: Policy) -> float:
    """Return the seconds a row takes to learn from, over all epochs, in minibatches as usual."""
    recipe = policy.recipe
    n_envs = min(recipe.batch.n_envs, recipe.batch.minibatch_size)
    n_steps = max(1, recipe.batch.minibatch_size // n_envs)
    small = recipe.replace(
        n_envs=n_envs,
        n_steps=n_steps,
        n_minibatches=1,
        n_epochs=1,
        batch_schedule="",
        compile="off",
    )
    env = envs.make(small, evaluation_seeds(recipe.seed, n_envs, SEED))
    try:
        collector = _collector(policy, env)
        state = TrainState.begin(
            small, env.observation_layout, env.action_layout, torch.device("cpu")
        )
        rollout = collector.collect(
            state.model, state.observation_normalizer, state.action_generator, n_steps
        )
        with TemporaryDirectory() as directory:
            learner = make_learner(state, small, collector.chunk_size, Path(directory))
            learner.learn(rollout)
            taken = median(_timed(lambda: learner.learn(rollout)) for _ in range(REPEATS))
            learner.close()
    finally:
        env.close()
    return taken * recipe.batch.n_epochs / (n_envs * n_steps)


def _collector(policy: Policy, env: envs.BatchedEnv) -> Collector:
    return Collector(env, torch.device("cpu"), chunk_rows(policy.observation_layout.image))


def _timed(function: Callable[[], Any]) -> float:
    began = time.perf_counter()
    function()
    return time.perf_counter() - began
