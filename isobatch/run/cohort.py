"""Several runs of one recipe in one process: what differs is the seed, and numbers.

Each is an ordinary run: its own state, random numbers, normalisers, counters, files. But rollouts
come from one pool of environments in which all their policies act at once, and gradients of their
minibatches are computed together (`isobatch.update.stacked`). Evaluations that are due at one
moment are played together too. So a run costs a fraction of what it costs alone, where networks are
small.

A run does not depend on its companions. It differs from the same run alone by rounding, since
products of stacked matrices may add in another order.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from isobatch import algos, envs, machine
from isobatch.algos.learner import Awaits, awaits
from isobatch.algos.stepping import pays_to_compile
from isobatch.envs.own import PREFIX
from isobatch.envs.seeds import env_seeds
from isobatch.errors import UserError
from isobatch.experience import Collector, Rollout, Several
from isobatch.experience.stagger import stagger_together
from isobatch.objectives import BUILT_IN
from isobatch.recipe import Recipe
from isobatch.run.environments import warm_up_actor
from isobatch.run.evaluation import Due, Played, by_itself, can_join, play_due
from isobatch.run.interrupt import Abandoned, stop_requests
from isobatch.run.loop import OnIteration, training
from isobatch.run.memory import environment_bytes, refuse_too_large
from isobatch.run.sinks import Sink
from isobatch.run.store import RunDirectory
from isobatch.state import TrainState
from isobatch.turns import Asked
from isobatch.update import Joinable, Stepper, chunk_rows, worth_compiling
from isobatch.update.stacked import COEFFICIENTS, Stack, Wanted

NUMBERS = (
    *COEFFICIENTS, "learning_rate", "min_learning_rate", "max_learning_rate", "desired_kl",
    "adam_beta1", "adam_beta2", "adam_eps", "rms_decay", "momentum", "max_grad_norm", "gamma",
    "gae_lambda", "clip_range", "target_kl", "advantage_decay",
    "proximal_decay", "reward_gamma", "reward_clip", "total_timesteps", "seed", "epsilon_start",
    "epsilon_end", "epsilon_fraction", "log_std_init",
)  # fmt: skip
"""What may differ between the runs of a cohort."""
COMPILED_AS = 5
"""Runs whose gradient steps are taken to repay compiling, however many there are: whether a run's
update is compiled must not depend on its companions."""
MOST_ENVIRONMENT_BYTES = 1_000_000_000
"""Of a run's environments. Five runs of 256 environments of DM Control took 16 GB."""
UNIMPORTANT = (
    "keep_policies", "checkpoint_seconds", "eval_marks", "eval_episodes", "diagnostics",
)  # fmt: skip
"""What may differ too, since it changes nothing that is learned."""


def why_alone(recipe: Recipe) -> str | None:
    """Say why a run of this recipe must be trained alone; None where it may be in a cohort."""
    if not awaits(algos.learner_class(recipe)):
        return f"{recipe.algo} is trained alone"
    if recipe.objective.objective not in BUILT_IN:  # In a stack rows of several runs meet.
        return "its objective is your own, and might look at more than one row at a time"
    if recipe.env.startswith(PREFIX):
        return "its environment is your own, and may be a vector of one width"
    if recipe.reshape.batch_schedule:
        return "its batch changes while it trains"
    if recipe.machine.overlap:
        return "it collects while it learns"
    if recipe.machine.exact_resume:
        return "exact_resume keeps the actions of a single run"
    if recipe.machine.shards > 1:
        return "it is computed by shards"
    if recipe.environment.remake_steps:
        return "its environments are re-made while it trains"
    if recipe.environment.vectorization == "supervised":
        return "its environments are supervised one at a time"
    normalize = recipe.normalize
    if normalize.normalize_observations and normalize.update_statistics == "step":
        return "its observation statistics are updated at every step"
    if has_large_networks(recipe):
        return "its networks are large"
    if environment_bytes(recipe) > MOST_ENVIRONMENT_BYTES:
        return "its environments take much memory"
    return None


def has_large_networks(recipe: Recipe) -> bool:
    """Say whether a run's networks use all cores by themselves: those for images."""
    return recipe.model.encoder not in ("auto", "mlp")


def alike(recipe: Recipe) -> tuple[Any, ...]:
    """Return what runs of one cohort must have in common."""
    free = {*NUMBERS, *UNIMPORTANT}
    same = tuple(value for name, value in sorted(recipe.values.items()) if name not in free)
    return (*same, worth_compiling(recipe.batch, recipe.total_timesteps, COMPILED_AS))


@dataclass
class Asking:
    """Something that is under way and asks, at times, for what others compute."""

    stopped: bool = field(default=False, init=False)
    """Whether it was stopped before its budget was spent."""
    failure: UserError | None = field(default=None, init=False)
    """What ended it, where it did not end well."""
    wants: Asked[Any] | None = field(default=None, init=False, repr=False)

    def begin(self, course: Coroutine[Any, Any, Any]) -> None:
        """Go on until it asks for something."""
        self._course = course
        self.go_on(lambda: course.send(None))

    def answer(self, what: Any) -> None:
        """Go on with what it asked for."""
        self.go_on(lambda: self._course.send(what))

    def throw(self, error: BaseException) -> None:
        """Let what it waits for fail."""
        if self.wants is not None:
            self.go_on(lambda: self._course.throw(error))

    def give_up(self) -> None:
        """End it as it is: its last checkpoint stands."""
        if self.wants is not None:
            self.wants = None
            self._course.close()

    def go_on(self, step: Callable[[], Asked[Any]]) -> None:
        """Go on until it asks again, ends, or fails."""
        self.wants = None
        try:
            self.wants = step()
        except StopIteration as end:
            self.stopped = end.value is True
        except UserError as error:
            self.failure = error


@dataclass
class Member(Asking):
    """A run of the cohort."""

    state: TrainState
    directory: RunDirectory
    sinks: Iterable[Sink]
    made: int
    """Environments that it made before: those of the cohort come next."""
    on_iteration: OnIteration | None = None


class WarmUpAsked(Asked[int]):
    """A member wants its environments spread over their episodes, and the steps that took."""


class RolloutAsked(Asked[Rollout]):
    """A member wants its next rollout."""


class GradientAsked(Asked[dict[str, Tensor]]):
    """A member wants the gradient of a minibatch."""

    def __init__(self, wanted: Wanted) -> None:
        self.wanted = wanted


class EvaluationAsked(Asked[Played]):
    """A member wants its policy evaluated."""

    def __init__(self, due: Due) -> None:
        self.due = due


async def with_others(due: Due) -> Played:
    """Ask for an evaluation that is played with the others'."""
    return await EvaluationAsked(due)


async def stacked_gradient(stepper: Stepper, rows: Tensor, gather: Joinable) -> dict[str, Tensor]:
    """Ask for a gradient that is computed with the others'."""
    return await GradientAsked(Wanted(stepper, rows, gather))


class Pool:
    """The environments of all members, a share each, in one vector."""

    def __init__(
        self, recipes: Sequence[Recipe], made: Sequence[int], device: torch.device
    ) -> None:
        self.n_envs = recipes[0].batch.n_envs
        seeds = [
            seed
            for recipe, first in zip(recipes, made, strict=True)
            for seed in env_seeds(recipe.seed, self.n_envs, first=first)
        ]
        self.device = device
        refuse_too_large(recipes[0])
        self.env = envs.make(recipes[0], seeds)
        image, chosen = self.env.observation_layout.image, recipes[0].machine.chunk_size
        self.chunk_size = chunk_rows(image, recipes[0].model.encoder, chosen)
        self._collector: Collector | None = None

    @property
    def collector(self) -> Collector:
        """What steps the environments."""
        if self._collector is None:
            self._collector = Collector(self.env, self.device, self.chunk_size)
        return self._collector

    def collect(self, members: Sequence[Member]) -> Rollout:
        """Collect a rollout of all; those of members that are done are nobody's."""
        actor = Several([each.state.actor for each in members])
        return self.collector.collect(actor, members[0].state.recipe.batch.n_steps)

    def warm_up(self, members: Sequence[Member]) -> list[int]:
        """Spread the environments of all over their episodes; return the steps of each."""
        actors = [warm_up_actor(each.state, each.made + self.n_envs) for each in members]
        return stagger_together(self.collector, actors)


class Seat:
    """A member's share of the pool, to it its environments."""

    def __init__(self, pool: Pool, made: int, width: int) -> None:
        self.make_env: envs.MakeEnv | None = None
        self.env, self.chunk_size = pool.env, pool.chunk_size
        self.made = made + pool.n_envs
        self._is_new = True
        self._events = {"cohort_width": width}

    async def rollout(self, state: TrainState) -> Rollout:
        """Ask for the next rollout; the budget's last is cut so that it is never overrun."""
        rollout = await RolloutAsked()
        n_envs, left = state.recipe.batch.n_envs, state.steps_left
        if left >= state.recipe.batch.rollout_size:
            return rollout
        counted = rollout.valid.sum(1).cumsum(0)
        before = torch.cat([counted.new_zeros(1), counted[:-1]])
        return rollout.until(int((before + n_envs <= left).cumprod(0).sum()))

    def move(self, state: TrainState) -> dict[str, Any]:
        """Stay: batches that change are trained alone."""
        return {}

    async def warm_up(self, state: TrainState) -> int:
        """Ask for it once, where it is wanted."""
        if not self._is_new or not state.recipe.environment.stagger:
            return 0
        self._is_new = False
        taken = await WarmUpAsked()
        state.episodes.restart(state.recipe.batch.n_envs, under_way=True)
        return taken

    def take_events(self, note: Callable[[str], None]) -> dict[str, Any]:
        """Report none: the pool fails as a whole, and stays as it was made.

        But its first row says how wide the stack is, which its last bits depend on.
        """
        events, self._events = self._events, {}
        return events

    def stopping(self, asked: bool) -> bool:
        """Stop when asked."""
        return asked

    def close(self) -> None:
        """Leave that to the pool's owner."""


def train_cohort(members: Sequence[Member], pool: Pool, width: int) -> None:
    """Train all members to the end; how each ended is theirs to say.

    `width` is that of the stack, at least as many as there are members.
    """
    recipe = members[0].state.recipe
    machine.keep_freed_memory()
    runs = [(each.state.model, each.state.parameters) for each in members]
    compiled = pays_to_compile(members[0].state, COMPILED_AS)
    evaluate = with_others if can_join(recipe) else by_itself
    stack = Stack(runs, width, recipe.batch.most_rows, compiled)
    with machine.torch_threads(recipe.machine.threads, images=False), stop_requests() as stop:
        try:
            for each in members:
                seat = Seat(pool, each.made, width)
                course = training(
                    each.state,
                    seat,
                    each.directory,
                    each.sinks,
                    stop,
                    gradient=stacked_gradient,
                    evaluate=evaluate,
                    on_iteration=each.on_iteration,
                )
                each.begin(course)
            _conduct(members, pool, stack)
        finally:
            for each in members:
                each.give_up()  # Where something else than a run's own failure ended it.


def _conduct(members: Sequence[Member], pool: Pool, stack: Stack) -> None:
    while any(each.wants is not None for each in members):
        try:
            _answer(members, pool, stack)
        except (Abandoned, UserError) as error:
            for each in members:
                each.throw(error)


def _answer(members: Sequence[Member], pool: Pool, stack: Stack) -> None:
    """Give members what they wait for: evaluations, gradients, and a rollout once all wait for it.

    Evaluations come first, so that who was evaluated then learns with the others. Where they warm
    up they all do so before the first rollout.
    """
    if _give_evaluations(members) or _give_gradients(members, stack):
        return
    if any(isinstance(each.wants, WarmUpAsked) for each in members):
        answers: list[Any] = pool.warm_up(members)
    else:
        rollout = pool.collect(members)
        answers = [rollout.share(place, pool.n_envs) for place in range(len(members))]
    for each, what in zip(members, answers, strict=True):
        if each.wants is not None:
            each.answer(what)


def _give_evaluations(members: Sequence[Member]) -> bool:
    """Play the evaluations that are waited for; return whether there were any."""
    waiting: dict[int, list[tuple[Member, Due]]] = {}
    for each in members:
        if isinstance(each.wants, EvaluationAsked):
            due = each.wants.due
            waiting.setdefault(due.episodes, []).append((each, due))
    for of_one_size in waiting.values():
        _evaluate(of_one_size)
    return bool(waiting)


def _evaluate(waiting: Sequence[tuple[Member, Due]]) -> None:
    """Play evaluations together; where that fails one by one, lest one be the end of others."""
    try:
        played = play_due([due for _, due in waiting])
    except UserError as error:
        if len(waiting) == 1:
            waiting[0][0].throw(error)
        else:
            for one in waiting:
                _evaluate([one])
        return
    for (member, _), what in zip(waiting, played, strict=True):
        member.answer(what)


def _give_gradients(asking: Sequence[Asking], stack: Stack) -> bool:
    """Give those the gradients that wait for them; return whether there was anyone."""
    wanted = {
        place: each.wants.wanted
        for place, each in enumerate(asking)
        if isinstance(each.wants, GradientAsked)
    }
    for place, statistics in stack(wanted).items() if wanted else ():
        asking[place].answer(statistics)
    return bool(wanted)


def learn_together(learners: Sequence[Awaits], rollouts: Sequence[Rollout], stack: Stack) -> None:
    """Let each learn from a rollout of its own, and compute their gradients together."""
    asking = [Asking() for _ in learners]
    for each, learner, rollout in zip(asking, learners, rollouts, strict=True):
        each.begin(learner.learning(rollout))
    while _give_gradients(asking, stack):
        pass
    for each in asking:
        if each.failure is not None:
            raise each.failure
