"""How fast a recipe's acting and learning are on this machine, from a few steps of each."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import cast

import torch

from isobatch import envs
from isobatch.algos import Context, make_learner
from isobatch.algos.learner import Awaits
from isobatch.envs.seeds import env_seeds
from isobatch.experience import Collector, Rollout, Several
from isobatch.experience.stagger import limits
from isobatch.machine import torch_threads
from isobatch.recipe import Recipe
from isobatch.run.cohort import Pool, learn_together, stacked_gradient
from isobatch.run.evaluation import Due, arena, can_join
from isobatch.state import TrainState
from isobatch.update import chunk_rows
from isobatch.update.stacked import Stack

ROWS = 512
"""Of a timed rollout, about."""
EVALUATION_STEPS = 16
"""Of a timed evaluation."""


class Trial:
    """A run's environments and networks, begun in order to be timed."""

    def __init__(self, recipe: Recipe, env: envs.BatchedEnv) -> None:
        device, image = torch.device("cpu"), env.observation_layout.image
        self.recipe = recipe
        self.chunk_size = chunk_rows(image, recipe.model.encoder, recipe.machine.chunk_size)
        self.state = TrainState.begin(recipe, env.observation_layout, env.action_layout, device)
        self.collector = Collector(env, device, self.chunk_size)
        self.n_steps = _steps(recipe)
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

    def evaluation_step_seconds(self) -> float:
        """Return the seconds of one step of an evaluation."""
        return _evaluation_step_seconds([self.state])

    def _collect(self) -> Rollout:
        return self.collector.collect(self.state.actor, self.n_steps)


class CohortTrial:
    """Some runs of a recipe in a cohort, begun in order to be timed."""

    def __init__(self, recipe: Recipe, pool: Pool, count: int, width: int) -> None:
        env, device = pool.env, torch.device("cpu")
        layouts = env.observation_layout, env.action_layout
        self._states = [
            TrainState.begin(recipe.replace(seed=recipe.seed + k), *layouts, device)
            for k in range(count)
        ]
        self._pool, self._width, self._recipe = pool, width, recipe
        self._n_steps = _steps(recipe)
        self._rollout = self._collect()

    def step_seconds(self) -> float:
        """Return the seconds of one step of all environments, for each run."""
        return _quickest(self._collect) / self._n_steps / len(self._states)

    def row_seconds(self) -> float:
        """Return the seconds it takes to learn from a row, for each run."""
        n_envs = self._pool.n_envs
        runs = [(each.model, each.parameters) for each in self._states]
        # A short rollout is cut into fewer minibatches, not into smaller ones.
        rows = min(self._recipe.batch.most_rows, n_envs * self._n_steps)
        stack = Stack(runs, self._width, rows)
        shares = [self._rollout.share(place, n_envs) for place in range(len(runs))]
        with TemporaryDirectory() as scratch:
            learners = []
            for state in self._states:
                state.move(state.recipe.replace(staleness=0))
                context = Context(
                    state, self._pool.chunk_size, Path(scratch), gradient=stacked_gradient
                )
                learners.append(cast(Awaits, make_learner(context)))
            learn_together(learners, shares, stack)
            seconds = _quickest(lambda: learn_together(learners, shares, stack))
        return seconds / self._rollout.n_valid

    def evaluation_step_seconds(self) -> float:
        """Return the seconds of one step of an evaluation, for each run."""
        return _evaluation_step_seconds(
            self._states if can_join(self._recipe) else self._states[:1]
        )

    def _collect(self) -> Rollout:
        actor = Several([each.actor for each in self._states])
        return self._pool.collector.collect(actor, self._n_steps)


@contextmanager
def cohort_trial(recipe: Recipe, count: int, width: int) -> Iterator[CohortTrial]:
    """Begin a trial of `count` runs of a recipe in a stack of `width`."""
    recipes = [recipe.replace(seed=recipe.seed + k) for k in range(count)]
    pool = Pool(recipes, [0] * count, torch.device("cpu"))
    try:
        with torch_threads(recipe.machine.threads, images=False):
            yield CohortTrial(recipe, pool, count, width)
    finally:
        pool.env.close()


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


def _evaluation_step_seconds(states: Sequence[TrainState]) -> float:
    """Return the seconds of one step of an evaluation of some policies, for each of them."""
    with arena([Due(each, 0) for each in states]) as (env, choose), torch.inference_mode():
        observation = env.reset()

        def play() -> None:
            nonlocal observation
            for _ in range(EVALUATION_STEPS):
                observation = env.step(choose(observation)).observation

        with env.stepping():
            return _quickest(play) / EVALUATION_STEPS / len(states)


def _steps(recipe: Recipe) -> int:
    """Return how many steps a timed rollout has."""
    return min(recipe.batch.n_steps, max(8, -(-ROWS // recipe.batch.n_envs)))


def _quickest(act: Callable[[], object]) -> float:
    """Return the least seconds of three calls: the others were disturbed."""
    times = []
    for _ in range(3):
        began = time.perf_counter()
        act()
        times.append(time.perf_counter() - began)
    return min(times)
