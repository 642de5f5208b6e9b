"""How fast a recipe's acting and learning are on this machine, from a few steps of each."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from isobatch import envs
from isobatch.algos import Context, make_learner
from isobatch.envs.seeds import env_seeds
from isobatch.experience import Collector, Rollout
from isobatch.experience.stagger import limits
from isobatch.machine import torch_threads
from isobatch.recipe import Recipe
from isobatch.state import TrainState
from isobatch.update import chunk_rows

ROWS = 512
"""Of a timed rollout, about."""


class Trial:
    """A run's environments and networks, begun in order to be timed."""

    def __init__(self, recipe: Recipe, env: envs.BatchedEnv) -> None:
        device, image = torch.device("cpu"), env.observation_layout.image
        self.recipe = recipe
        self.chunk_size = chunk_rows(image, recipe.machine.chunk_size)
        self.state = TrainState.begin(recipe, env.observation_layout, env.action_layout, device)
        self.collector = Collector(env, device, self.chunk_size)
        self.n_steps = min(recipe.batch.n_steps, max(8, -(-ROWS // env.n_envs)))
        self.rollout = self._collect()

    @property
    def most_warmup_steps(self) -> int:
        """Steps of all environments that spreading them over their episodes takes at most."""
        return sum(limits(self.collector.env)) if self.recipe.environment.stagger else 0

    @property
    def weight_count(self) -> int:
        """Parameters of the networks."""
        return self.state.parameters.vector.numel()

    @property
    def weight_bytes(self) -> int:
        """Size of the networks."""
        return self.weight_count * 4

    def step_seconds(self) -> float:
        """Return the seconds of one step of all environments."""
        return _quickest(self._collect) / self.n_steps

    def row_seconds(self) -> float:
        """Return the seconds it takes to learn from a row."""
        self.state.move(self.recipe.replace(compile="off", staleness=0, n_policy_iterations=1))
        with TemporaryDirectory() as scratch:
            learner = make_learner(Context(self.state, self.chunk_size, Path(scratch)))
            learner.learn(self.rollout)
            seconds = _quickest(lambda: learner.learn(self.rollout))
            learner.close()
        return seconds / self.rollout.n_valid

    def _collect(self) -> Rollout:
        return self.collector.collect(self.state.actor, self.n_steps)


@contextmanager
def trial(recipe: Recipe) -> Iterator[Trial]:
    """Begin a trial of a recipe, with as many threads as its run would have."""
    env = envs.make(recipe, env_seeds(recipe.seed, recipe.batch.n_envs))
    try:
        threads, images = recipe.machine.threads, env.observation_layout.image is not None
        with torch_threads(threads, images):
            begun = Trial(recipe, env)
        rows = min(recipe.batch.minibatch_size, begun.chunk_size)
        with torch_threads(threads, images, rows * begun.weight_count):
            yield begun
    finally:
        env.close()


def _quickest(act: Callable[[], object]) -> float:
    """Return the least seconds of three calls: the others were disturbed."""
    times = []
    for _ in range(3):
        began = time.perf_counter()
        act()
        times.append(time.perf_counter() - began)
    return min(times)
