"""What a study will cost: time measured on this machine in a few seconds, and disk."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from isobatch import envs
from isobatch.algos import make_learner
from isobatch.envs.seeds import env_seeds
from isobatch.machine import torch_threads
from isobatch.recipe import Recipe
from isobatch.rollout import Collector, Rollout
from isobatch.state import TrainState
from isobatch.study.design import Cell, Study
from isobatch.update import chunk_rows

PROBE_ROWS = 512
ROW_BYTES = 900
"""One line of metrics."""
COPIES = 7
"""Model-sized tensors a finished run keeps: policy, and two checkpoints with Adam's moments."""
START_SECONDS = 1.0
"""Making environments and networks, writing the first and last checkpoints."""


@dataclass(frozen=True)
class Cost:
    """Estimated cost of one run."""

    seconds: float
    bytes: int


def estimate(study: Study) -> dict[tuple[str, str], Cost]:
    """Return the cost of a run of each (arm, environment), from a few steps of each."""
    return {
        (arm, env): run_cost(study.recipe(Cell(arm, env, study.seeds[0])), study.evaluate)
        for env in study.envs
        for arm in study.arms
    }


def run_cost(recipe: Recipe, evaluate: int = 0) -> Cost:
    """Time some steps and learning from them, and multiply.

    How long an episode is cannot be known before: evaluation is taken as a tenth of the acting.
    """
    batch = recipe.batch
    env = envs.make(recipe, env_seeds(recipe.seed, batch.n_envs))
    try:
        images = env.observation_layout.image
        with torch_threads(recipe.machine.threads, images is not None):
            step, learn, size = _measure(recipe, env, chunk_rows(images, recipe.machine.chunk_size))
    finally:
        env.close()
    iterations = recipe.total_timesteps / batch.rollout_size
    acting = step * (recipe.total_timesteps / batch.n_envs) * (1.1 if evaluate else 1.0)
    learning = learn * recipe.total_timesteps
    copies = COPIES + max(0, recipe.machine.keep_policies - 1)
    return Cost(acting + learning + START_SECONDS, int(iterations * ROW_BYTES + copies * size))


def _measure(recipe: Recipe, env: envs.BatchedEnv, chunk_size: int) -> tuple[float, float, int]:
    """Return (seconds a step of all environments, seconds to learn a row, bytes of weights)."""
    n_steps = min(recipe.batch.n_steps, max(8, -(-PROBE_ROWS // env.n_envs)))
    device = torch.device("cpu")
    state = TrainState.begin(recipe, env.observation_layout, env.action_layout, device, None)
    collector = Collector(env, device, chunk_size)

    def collect() -> Rollout:
        return collector.collect(
            state.model, state.observation_normalizer, state.action_generator, n_steps
        )

    rollout = collect()
    step = _quickest(collect) / n_steps
    short = recipe.replace(compile="off", staleness=0, n_policy_iterations=1)
    with TemporaryDirectory() as scratch:
        learner = make_learner(state, short, chunk_size, Path(scratch))
        learner.learn(rollout)
        learning = _quickest(lambda: learner.learn(rollout)) / rollout.n_valid
        learner.close()
    return step, learning, state.parameters.vector.numel() * 4


def _quickest(act: Callable[[], object]) -> float:
    """Return the least seconds of three calls: the others were disturbed."""
    times = []
    for _ in range(3):
        began = time.perf_counter()
        act()
        times.append(time.perf_counter() - began)
    return min(times)
