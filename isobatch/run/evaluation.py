"""Evaluation while training: the policy played at fixed environment steps, beside training.

A mean over finished training episodes is censored by N: an episode of length L shows only after
N x L steps. So curves that are compared come from here. At each mark the policy that acts when
training reaches it plays whole episodes in environments made for that mark, with seeds of their
own. What a mark gives depends on the policy, the run's seed and the mark alone: training's
environments, random numbers and bits are not touched, and a resumed run plays the same again.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from isobatch import envs
from isobatch.envs import MakeEnv, Observation
from isobatch.envs.seeds import evaluation_seeds, mixed_generator
from isobatch.experience import Evaluation, play
from isobatch.experience.play import MOST_ENVS
from isobatch.models import QNetwork
from isobatch.models.agent import evaluation_mode
from isobatch.run import policy
from isobatch.run.store import RunDirectory
from isobatch.state import TrainState
from isobatch.text import duration

FIRST, LAST = 512, 1500
"""Numbers of the evaluations that marks take in turn: their environments are no others'."""


class Marks:
    """Plays the marks of a run as training passes them, and keeps the best policy."""

    def __init__(
        self,
        directory: RunDirectory,
        state: TrainState,
        make_env: MakeEnv | None,
        tell: Callable[[dict[str, Any]], None],
    ) -> None:
        """`tell` is given the row of each evaluation."""
        recipe = state.recipe
        self.at = recipe.evaluation.marks(recipe.total_timesteps)
        """Environment steps, ascending."""
        self._directory, self._make_env, self._width = directory, make_env, None
        self._tell = tell
        # Supervised environments are made one by one, in no process but their own.
        vectors = recipe.environment.vectorization != "supervised"
        if make_env is not None and self.at and vectors:
            self._make_env, self._width, _ = envs.inspect(make_env)
        played = directory.evaluations()
        self._best = max((row["episode_return"] for row in played), default=None)
        self._last = max((row["mark"] for row in played), default=-1)
        """The last mark that was played."""

    def begin(self, state: TrainState, env: envs.BatchedEnv) -> str | None:
        """Play the mark 0, of the policy that has learned nothing; say what evaluation will cost.

        None where there is nothing to play.
        """
        if not self.at or state.counters.env_steps:
            return None
        seconds = self._play(state, env, 0)
        count, first = len(self.at), self._directory.evaluations()[-1]
        steps = sum(first["lengths"]) * count
        return (
            f"evaluations: {count} of {first['episodes']} episodes each; the untrained policy's "
            f"took {seconds:.2g} s; all as long as that take {duration(seconds * count)}, and "
            f"{steps / state.recipe.total_timesteps:.0%} as many steps as training"
        )

    def passed(self, state: TrainState, env: envs.BatchedEnv, rows: int) -> float:
        """Play the marks among the next `rows` steps; return the seconds it took.

        They were collected by the policy as it is, before it learns from them.
        """
        before = state.counters.env_steps
        # A run that ended short of its budget has played what lies between.
        ends = max(before, self._last), before + rows
        first, last = (bisect_right(self.at, steps) for steps in ends)
        return sum(self._play(state, env, place) for place in range(first, last))

    def finish(self, state: TrainState, env: envs.BatchedEnv) -> None:
        """Play the marks that the budget holds and training fell short of, by less than a step.

        The policy as it is would act there, and has learned from nothing later.
        """
        self.passed(state, env, max(0, state.recipe.total_timesteps - state.counters.env_steps))

    def _play(self, state: TrainState, env: envs.BatchedEnv, place: int) -> float:
        began = time.perf_counter()
        recipe = state.recipe
        episodes = recipe.evaluation.episodes(recipe.total_timesteps)
        count = self._width or min(episodes, MOST_ENVS)
        seeds = evaluation_seeds(recipe.seed, count, FIRST + place % (LAST - FIRST))
        arena = envs.make(recipe, seeds, make_env=self._make_env, training=False)
        try:
            with evaluation_mode(state.model), _greedy(state):
                played = play(_actor(state, place), arena, episodes)
        finally:
            arena.close()
        seconds = time.perf_counter() - began
        self._record(state, env, self.at[place], played, seconds)
        return seconds

    def _record(
        self,
        state: TrainState,
        env: envs.BatchedEnv,
        mark: int,
        played: Evaluation,
        seconds: float,
    ) -> None:
        if self._best is None or played.mean > self._best:
            self._best = played.mean
            policy.save(self._directory, state, env, "best")
        row: dict[str, Any] = {
            "mark": mark,
            "env_steps": state.counters.env_steps,
            "iterations": state.counters.iterations,
            "episodes": len(played.returns),
            "episode_return": played.mean,
            "episode_return_std": played.std,
            "episode_length": sum(played.lengths) / len(played.lengths),
            "returns": played.returns,
            "lengths": played.lengths,
            "seconds": round(seconds, 6),
        }
        self._directory.append_evaluation(row)
        self._last = mark
        self._tell(row)


def _actor(state: TrainState, place: int) -> Callable[[Observation], Tensor]:
    """Return how the policy acts: drawing from it, with random numbers of this mark's own."""
    model, prepare = state.model, state.observation_normalizer
    device = state.parameters.vector.device
    generator = mixed_generator(state.recipe.seed, place, device=device)

    def act(observation: Observation) -> Tensor:
        parts = {part: each.to(device) for part, each in observation.items()}
        params, _ = model.act(prepare(parts))
        noise = model.distribution.noise((len(params),), params, generator)
        return model.distribution.sample(params, noise)

    return act


@contextmanager
def _greedy(state: TrainState) -> Iterator[None]:
    """Do not explore: what a Q-network has learned is its greedy policy."""
    if not isinstance(state.model, QNetwork):
        yield
        return
    epsilon, state.model.epsilon = state.model.epsilon, 0.0
    try:
        yield
    finally:
        state.model.epsilon = epsilon
