"""The loop: move, collect, learn, count, record, until the data budget is spent."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from isobatch import machine, scaling
from isobatch.algos import Context, Learned, Learner, make_learner
from isobatch.algos.learner import TakeGradient, own_gradient
from isobatch.algos.sharded import Gradients
from isobatch.batch import Batch
from isobatch.clock import Clock
from isobatch.errors import UserError
from isobatch.experience import Rollout
from isobatch.noise import online
from isobatch.recipe import Recipe
from isobatch.run import exact, policy
from isobatch.run.divergence import Guard
from isobatch.run.environments import Environments, Place
from isobatch.run.evaluation import Evaluate, Marks, by_itself
from isobatch.run.interrupt import Abandoned, Stop, stop_requests
from isobatch.run.monitor import Monitor
from isobatch.run.overlap import Overlap, Turn, overlapping
from isobatch.run.profile import UNTIMED, Profile
from isobatch.run.sharded_environments import ShardedEnvironments
from isobatch.run.sinks import MetricsFile, Sink, Sinks
from isobatch.run.store import Checkpoint, RunDirectory
from isobatch.state import TrainState
from isobatch.turns import at_once
from isobatch.world import ALONE

OnIteration = Callable[[dict[str, Any]], bool | None]
"""Is given each row; returning False stops the run, saved."""


def run(
    state: TrainState,
    environments: Environments | ShardedEnvironments,
    directory: RunDirectory,
    sinks: Iterable[Sink],
    on_iteration: OnIteration | None = None,
    exactly: Checkpoint | None = None,
    profile: Profile = UNTIMED,
) -> bool:
    """Train from `state` until the budget is spent; return whether it was stopped before.

    With `exactly`, the checkpoint that the state is from, environments and learner are brought to
    where they were. `profile` takes down where the time goes.
    """
    image = environments.image is not None
    if image:
        machine.keep_freed_memory()
    threads, work = state.recipe.machine.threads, _gradient_work(state, environments)
    gradient: TakeGradient = own_gradient
    if isinstance(environments, ShardedEnvironments):
        # As many threads wherever a shard is computed: their number changes the last bits.
        threads, gradient = threads or 1, Gradients(environments.world)
    with machine.torch_threads(threads, image, work), stop_requests() as stop:
        course = training(
            state,
            environments,
            directory,
            sinks,
            stop,
            gradient=gradient,
            on_iteration=on_iteration,
            exactly=exactly,
            profile=profile,
        )
        return at_once(course)


def _gradient_work(state: TrainState, environments: Environments | ShardedEnvironments) -> int:
    """Return rows x parameters of a gradient at the batch the run began with.

    Not of the moment: a run that is resumed must have as many threads as before.
    """
    rows = scaling.at(environments.asked, 0).batch.minibatch_size
    return min(rows, environments.chunk_size) * state.parameters.vector.numel()


async def training(
    state: TrainState,
    environments: Place,
    directory: RunDirectory,
    sinks: Iterable[Sink],
    stop: Stop,
    *,
    gradient: TakeGradient = own_gradient,
    evaluate: Evaluate = by_itself,
    on_iteration: OnIteration | None = None,
    exactly: Checkpoint | None = None,
    profile: Profile = UNTIMED,
) -> bool:
    """As `run`, in a cohort too: rollouts are awaited from `environments`, gradients from there.

    Evaluations too, where others play them.
    """
    state.counters.environments = environments.made
    if not state.counters.restarts:
        state.machine = machine.fingerprint()
    own = isinstance(environments, Environments | ShardedEnvironments)
    if own and state.recipe.machine.exact_resume:
        environments.keep_actions(directory.folder)
    heard = Sinks([MetricsFile(directory)], sinks)
    clock = profile.clock
    marks = Marks(directory, state, environments.make_env, heard.evaluation, evaluate, clock)
    world = environments.world if isinstance(environments, ShardedEnvironments) else ALONE
    context = Context(
        state, environments.chunk_size, directory.path, heard.note, gradient, clock, world
    )
    learner = make_learner(context)
    keeper = Keeper(directory, environments, learner, stop)
    clock.watch(keeper, "checkpoints", "settle", "keep", "checkpoint", "rescue")
    heard.start(state.recipe, str(directory.path), state.counters.env_steps)
    abandoned = False
    try:
        if exactly is not None and own:
            exact.bring_back(state, environments, learner, exactly, heard.note)
        keeper.settle(state)
        keeper.checkpoint(state)  # A kill from here on leaves a run that resumes.
        guard = Guard(learner, directory, context.is_alone)
        with overlapping(state, environments, learner, marks, clock, heard.announce) as overlap:
            await _iterate(
                state, environments, guard, heard, keeper, marks, stop, on_iteration, profile,
                overlap,
            )  # fmt: skip
        keeper.checkpoint(state)
    except Abandoned:
        abandoned = True
        keeper.rescue(state)
    except UserError:
        keeper.rescue(state)
        raise
    finally:
        heard.stop()
        learner.close()
        if stop.requested:
            environments.close()  # While a stop is seen to: they may hang in this too.
    return abandoned or state.steps_left >= state.recipe.batch.n_envs


async def _iterate(
    state: TrainState,
    environments: Place,
    guard: Guard,
    sinks: Sinks,
    keeper: Keeper,
    marks: Marks,
    stop: Stop,
    on_iteration: OnIteration | None,
    profile: Profile,
    overlap: Overlap | None,
) -> None:
    """Move, collect, learn, count, record."""
    first = {"resumed": True} if state.counters.restarts else {}
    monitor = Monitor(state)
    clock, columns = profile.clock, guard.columns
    if state.recipe.probe_interval:
        columns = (*columns, *online.COLUMNS)
    cost = await marks.begin(state, environments.env)
    if cost is not None:
        sinks.note(cost)
    profile.begin()
    began = time.perf_counter()
    while state.steps_left >= state.recipe.batch.n_envs:
        # Before it collects, so that what moved is always said in a row.
        with clock.section("making"):
            moved = environments.move(state)
        before = time.perf_counter()
        with clock.section("warm_up"):
            warmup = await environments.warm_up(state)
        if warmup:
            moved["warmup_steps"] = warmup
            await count_warmup(state, environments, marks, warmup)
            began += time.perf_counter() - before  # No time of training's either.
        keeper.settled = not moved
        if overlap is not None and overlap.applies(state):
            turn = await overlap.turn(state, guard, keeper)
        else:
            turn = await _in_turn(state, environments, guard, keeper, marks, stop, clock)
        rollout, learned = turn.rollout, turn.learned
        began += turn.evaluating  # No time of training's.
        if overlap is not None:
            overlap.see(turn)
        with clock.section("diagnostics"):
            diagnosed = monitor(state, rollout)
        now = time.perf_counter()
        elapsed, began = now - began, now
        with clock.section("metrics"):
            count(state, rollout, learned, environments.made, elapsed)
            statistics = dict.fromkeys(columns) | learned.statistics | diagnosed
            spent = ledger(state.recipe.batch, turn, elapsed)
            events = environments.take_events(sinks.note)
            row = metrics_row(state, rollout, spent | statistics, elapsed) | moved | events | first
            first = {}
            sinks.row(row)
        keeper.settle(state)
        keeper.keep(state, rollout)
        with clock.section("metrics"):
            asked = on_iteration is not None and on_iteration(dict(row)) is False
        profile.iterated()
        if environments.stopping(asked or stop.requested):
            return
    await marks.finish(state, environments.env)


async def _in_turn(
    state: TrainState,
    environments: Place,
    guard: Guard,
    keeper: Keeper,
    marks: Marks,
    stop: Stop,
    clock: Clock,
) -> Turn:
    """Collect, then learn; in between evaluate the policy that collected, where that is due."""
    with clock.section("rollout"):
        rollout = await environments.rollout(state)
    evaluating = await marks.passed(state, environments.env, rollout.n_valid)
    if stop.requested:
        keeper.rescue(state)  # The update may take longer than is left.
    keeper.settled = False
    before = time.perf_counter()
    with clock.section("advantages"):
        learned = await guard.learn(state, rollout)
    return Turn(rollout, learned, time.perf_counter() - before, evaluating=evaluating)


async def count_warmup(state: TrainState, environments: Place, marks: Marks, steps: int) -> None:
    """Take the steps that spread environments over their episodes into the counters.

    Where they count, the marks among them are played by the policy that took them.
    """
    state.counters.warmup_steps += steps
    if not state.recipe.environment.count_warmup:
        return
    if state.steps_left - steps < state.recipe.batch.n_envs:
        raise UserError(
            "count_warmup: spreading the environments over their episodes "
            f"took {steps:,} steps, more than the budget still holds",
            field="count_warmup",
        )
    await marks.passed(state, environments.env, steps)
    state.counters.env_steps += steps


def count(
    state: TrainState, rollout: Rollout, learned: Learned, environments: int, elapsed: float
) -> None:
    """Take a rollout that was learned from into the counters and running statistics.

    After learning: schedules, exploration and the probe's cadence read the steps before this
    rollout, so that a linear schedule's last step size is not 0.
    """
    counters = state.counters
    counters.env_steps += rollout.n_valid
    counters.iterations += 1
    counters.epochs += learned.epochs
    counters.grad_steps += learned.grad_steps
    if learned.phase_iterations is not None:
        counters.phase_iterations = learned.phase_iterations
    counters.environments = environments
    counters.seconds += elapsed
    state.episodes.update(rollout)
    normalizer = state.observation_normalizer
    if normalizer.moments is not None and not normalizer.by_step:
        normalizer.merge(rollout.vector_moments())


def metrics_row(
    state: TrainState,
    rollout: Rollout,
    statistics: Mapping[str, float | None],
    elapsed: float,
) -> dict[str, Any]:
    """Return the iteration's row of metrics."""
    counters, episodes = state.counters, state.episodes
    return {
        "env_steps": counters.env_steps,
        "iterations": counters.iterations,
        "epochs": counters.epochs,
        "grad_steps": counters.grad_steps,
        "episodes": episodes.finished,
        "episode_return": episodes.mean_return,
        "episode_length": episodes.mean_length,
        **statistics,
        **asdict(state.recipe.batch),
        "rows": rollout.n_valid,
        "seconds": round(counters.seconds, 6),
        "steps_per_second": rollout.n_valid / elapsed,
        "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
    }


def ledger(batch: Batch, turn: Turn, elapsed: float) -> dict[str, float]:
    """Return what the iteration's batch was used for, and where its time went.

    The four times add up to the iteration's, but with overlap: time in which a rollout was
    collected and another learned from then counts for both. What is neither collecting nor learning
    is other: the files of the iteration before, and in a cohort waiting for other runs.
    """
    rollout, learned, learning = turn.rollout, turn.learned, turn.learning
    passes = learned.grad_steps / max(1, batch.minibatches_for(len(rollout.actions)))
    return {
        "rollout_size": batch.rollout_size,
        "minibatch_size": batch.minibatch_size,
        "updates_per_sample": passes,
        "age_iterations": 0.0,
        "env_seconds": rollout.env_seconds,
        "acting_seconds": rollout.collect_seconds - rollout.env_seconds,
        "learning_seconds": learning,
        "other_seconds": elapsed - rollout.collect_seconds - learning + turn.together,
    }


class Keeper:
    """Writes checkpoints about as often as the recipe says, and policies at parts of the budget."""

    def __init__(
        self,
        directory: RunDirectory,
        environments: Place,
        learner: Learner,
        stop: Stop,
    ) -> None:
        self.directory, self._environments = directory, environments
        self._learner, self._stop = learner, stop
        self._exact: Environments | ShardedEnvironments | None = None
        if (
            isinstance(environments, Environments | ShardedEnvironments)
            and environments.keeps_actions
        ):
            self._exact = environments
        self._saved = time.perf_counter()
        self.settled = False
        """Whether the state is still the one that the last row stands for."""

    def settle(self, state: TrainState) -> None:
        """Remember that the state is that of a whole iteration, whose row is written."""
        self._generator = state.action_generator.get_state()
        self._statistics = state.observation_normalizer.state_dict()
        self.settled = True

    def keep(self, state: TrainState, rollout: Rollout) -> None:
        """Save what is due after an iteration."""
        after = state.counters.env_steps
        if _passes_a_part(state.recipe, after - rollout.n_valid, after):
            with self._stop.held():
                policy.save(self.directory, state, self._environments.env, "part")
        due = time.perf_counter() - self._saved > state.recipe.machine.checkpoint_seconds
        if due if self._exact is None else self._exact.first_says(due):
            self.checkpoint(state)

    def checkpoint(self, state: TrainState) -> None:
        """Write the whole state, and the policy for `eval` and `load`."""
        directory, tensors, numbers = self.directory, state.tensors(), state.numbers()
        needed: set[str] = set()
        with self._stop.held():
            if self._exact is not None:
                own, data, needed = exact.beside(state, self._exact, self._learner)
                tensors, numbers = tensors | own, numbers | data
            directory.save_checkpoint(tensors, numbers, state.counters.iterations, needed)
            policy.save(directory, state, self._environments.env)
        if self._exact is not None:
            # Files that no checkpoint needs are removed: nobody is to begin one meanwhile.
            self._exact.first_says(True)
        self._saved = time.perf_counter()

    def rescue(self, state: TrainState) -> None:
        """Save the state as the last whole iteration left it, if nothing has changed it since.

        A rollout that is given up has only drawn random numbers and used up seeds, and may have
        been taken into observation statistics. To resume exactly its actions count too: the
        checkpoint there is will do.
        """
        if not self.settled or self._exact is not None:
            return
        drawn = state.action_generator.get_state()
        state.action_generator.set_state(self._generator)
        state.observation_normalizer.load_state_dict(self._statistics)
        state.counters.environments = self._environments.made
        with suppress(OSError):  # There is a checkpoint, and a better reason to stop.
            self.checkpoint(state)
        state.action_generator.set_state(drawn)


def _passes_a_part(recipe: Recipe, before: int, after: int) -> bool:
    """Say whether, short of the end, one of the parts at which policies are kept is passed."""
    parts, total = recipe.machine.keep_policies, recipe.total_timesteps
    return any(before < k * total / parts <= after for k in range(1, parts))
