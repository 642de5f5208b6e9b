"""Evaluation while training: the policy played at fixed environment steps, beside training.

A mean over finished training episodes is censored by N: an episode of length L shows only after
N x L steps. So curves that are compared come from here. At each mark the policy that acts when
training reaches it plays whole episodes in environments made for that mark, with seeds of their
own. What a mark gives depends on the policy, the run's seed and the mark alone: training's
environments, random numbers and bits are not touched, and a resumed run plays the same again.

In a cohort the evaluations that are due at one moment are played together: one vector of
environments, a share for each run, and all policies acting at once. A run alone is the case of one
share, computed in the same way, so that to the bit it plays what it would play in company.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

from isobatch import envs
from isobatch.clock import OFF, Clock
from isobatch.envs import MakeEnv
from isobatch.envs.catalog import resolve
from isobatch.envs.seeds import evaluation_seeds, mixed_generator
from isobatch.experience import Evaluation, Several, Single, drawing, play_together
from isobatch.experience.play import MOST_ENVS, Choose
from isobatch.models import QNetwork
from isobatch.models.agent import evaluation_mode
from isobatch.recipe import Recipe
from isobatch.run import policy
from isobatch.run.store import Elsewhere, RunDirectory
from isobatch.state import TrainState
from isobatch.text import counted, duration

FIRST, LAST = 512, 1500
"""Numbers of the evaluations that marks take in turn: their environments are no others'."""


class Due(NamedTuple):
    """An evaluation that is due: a policy as it is, and the mark it has come to."""

    state: TrainState
    place: int
    """Which of the run's marks it is."""
    make_env: MakeEnv | None = None
    """The user's own, where there is one."""
    width: int | None = None
    """How wide a vector that makes, None where it makes one environment."""

    @property
    def episodes(self) -> int:
        """How many are to be played."""
        recipe = self.state.recipe
        return recipe.evaluation.episodes(recipe.total_timesteps)

    @property
    def seeds(self) -> list[int]:
        """Those of its environments."""
        count, number = min(self.episodes, MOST_ENVS), FIRST + self.place % (LAST - FIRST)
        return evaluation_seeds(self.state.recipe.seed, self.width or count, number)

    @property
    def actor(self) -> Single:
        """Who acts, with random numbers of this mark's own."""
        state = self.state
        device = state.parameters.vector.device
        generator = mixed_generator(state.recipe.seed, self.place, device=device)
        hold = state.recipe.noise_hold
        return Single(state.model, state.observation_normalizer, generator, hold)


class Played(NamedTuple):
    """What came of an evaluation."""

    scores: Evaluation
    seconds: float
    """Its share of the time it took to play it and others."""


Evaluate = Callable[[Due], Awaitable[Played]]
"""How an evaluation is played: at once, or with others."""


async def by_itself(due: Due) -> Played:
    """Play an evaluation at once."""
    (played,) = play_due([due])
    return played


def can_join(recipe: Recipe) -> bool:
    """Say whether evaluations of several runs may have one vector: a seed for each environment."""
    return resolve(recipe.env).maker != "tensor"  # Where one seed is for the whole vector.


def play_due(due: Sequence[Due]) -> list[Played]:
    """Play evaluations of as many episodes each, by policies of one architecture, together."""
    began = time.perf_counter()
    with arena(due) as (env, choose):
        scores = play_together(choose, env, due[0].episodes, len(due))
    seconds = (time.perf_counter() - began) / len(due)
    return [Played(each, seconds) for each in scores]


@contextmanager
def arena(due: Sequence[Due]) -> Iterator[tuple[envs.BatchedEnv, Choose]]:
    """Make the environments of evaluations, an equal share for each; yield how to act in them."""
    first, seeds = due[0], [seed for each in due for seed in each.seeds]
    with ExitStack() as held:
        env = envs.make(first.state.recipe, seeds, make_env=first.make_env, training=False)
        held.callback(env.close)
        for each in due:
            held.enter_context(evaluation_mode(each.state.model))
            held.enter_context(_greedy(each.state))
        actor = Several([each.actor for each in due])
        yield env, drawing(actor, len(seeds), first.state.parameters.vector.device)


class Marks:
    """Has the marks of a run played as training passes them, and keeps the best policy."""

    def __init__(
        self,
        directory: RunDirectory,
        state: TrainState,
        make_env: MakeEnv | None,
        tell: Callable[[dict[str, Any]], None],
        evaluate: Evaluate = by_itself,
        clock: Clock = OFF,
    ) -> None:
        """`tell` is given the row of each evaluation."""
        recipe = state.recipe
        # Of several workers the first plays them: they change nothing that the others need.
        elsewhere = isinstance(directory, Elsewhere)
        self.at = [] if elsewhere else recipe.evaluation.marks(recipe.total_timesteps)
        """Environment steps, ascending."""
        self._evaluate, self._clock = evaluate, clock
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

    async def begin(self, state: TrainState, env: envs.BatchedEnv) -> str | None:
        """Play the mark 0, of the policy that has learned nothing; say what evaluation will cost.

        None where there is nothing to play.
        """
        if not self.at or state.counters.env_steps:
            return None
        await self._play(state, env, 0)
        count, first = len(self.at), self._directory.evaluations()[-1]
        steps, seconds = sum(first["lengths"]) * count, first["seconds"]
        return (
            f"{counted(count, 'evaluation')} of {counted(first['episodes'], 'episode')} each; the "
            f"first, of the untrained policy, took {seconds:.2g} s; if all take as long: "
            f"{duration(seconds * count)}, and {steps / state.recipe.total_timesteps:.0%} as many "
            "steps as training"
        )

    async def passed(self, state: TrainState, env: envs.BatchedEnv, rows: int) -> float:
        """Play the marks among the next `rows` steps; return the seconds that held training up.

        They were collected by the policy as it is, before it learns from them.
        """
        before = state.counters.env_steps
        # A run that ended short of its budget has played what lies between.
        ends = max(before, self._last), before + rows
        began = time.perf_counter()
        for place in range(*(bisect_right(self.at, steps) for steps in ends)):
            await self._play(state, env, place)
        return time.perf_counter() - began

    async def finish(self, state: TrainState, env: envs.BatchedEnv) -> None:
        """Play the marks that the budget holds and training fell short of, by less than a step.

        The policy as it is would act there, and has learned from nothing later.
        """
        left = max(0, state.recipe.total_timesteps - state.counters.env_steps)
        await self.passed(state, env, left)

    async def _play(self, state: TrainState, env: envs.BatchedEnv, place: int) -> None:
        with self._clock.section("evaluation"):
            played = await self._evaluate(Due(state, place, self._make_env, self._width))
            self._record(state, env, self.at[place], *played)

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
            "actions": state.recipe.eval_actions,
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
