"""Overlap: the next rollout is collected in a thread of its own, while the run learns.

In iteration k the policy as it is acts, and update k learns from the rollout before: what
`staleness = 1` computes, to the bit, but at the same time. So a rollout is one update behind,
neither more nor less, however fast either side is (as in Cleanba, Huang et al. 2023).

The acting thread has copies of all that it reads (`Snapshot`). The learning one reads nothing of
the rollout under way. They meet at the end of every iteration, so that between two iterations a
run's state is what it is without overlap: checkpoints, resuming and counting know nothing of it.
"""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from contextvars import copy_context
from queue import SimpleQueue
from statistics import median
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from isobatch.algos import Learned, Learner
from isobatch.algos.stale import Stale
from isobatch.clock import Clock
from isobatch.envs import Observation
from isobatch.errors import UserError
from isobatch.experience import Rollout, Single
from isobatch.models import ActorCritic, QNetwork
from isobatch.models.acting import Draw
from isobatch.models.agent import Drawn
from isobatch.models.encoders import CustomEncoder
from isobatch.run.divergence import Before, Diverged, Guard
from isobatch.run.environments import Environments
from isobatch.run.evaluation import Marks
from isobatch.run.interrupt import Abandoned
from isobatch.state import TrainState

WARM_UP = 2
"""The first iteration has nothing to learn from; the second compiles and makes what learning
needs."""
COUNTED = 3
"""Iterations of either kind whose median time counts: a single one misses by a fifth."""
IN_TURN = WARM_UP + COUNTED
"""Iterations that are not overlapped."""
WORTHWHILE = 1.1
"""A gain below this is none: iterations differ by as much."""
PATIENCE, HASTE = 10.0, 0.5
"""Seconds that a rollout under way has to end where the run fails, and where it must end soon."""


class Turn(NamedTuple):
    """What an iteration collected and learned, and the time it took."""

    rollout: Rollout
    learned: Learned
    learning: float
    """Seconds of learning."""
    together: float = 0.0
    """Seconds of learning in which the rollout was collected too."""
    evaluating: float = 0.0
    """Seconds of evaluations, which are no time of training's."""


class Keeps(Protocol):
    """What keeps checkpoints."""

    settled: bool
    """Whether the state is still the one that the last row stands for."""


def refuse_unfit(state: TrainState) -> None:
    """Refuse networks that cannot act from a copy while they learn, where that is asked for."""
    if not state.recipe.machine.overlap:
        return
    known = type(state.model) in (ActorCritic, QNetwork)
    if not known or any(isinstance(part, CustomEncoder) for part in state.model.modules()):
        raise UserError(
            "overlap: networks of your own may keep state or draw random numbers as they act, "
            "which two threads would mix up; train without it",
            field="overlap",
        )


@contextmanager
def overlapping(
    state: TrainState,
    environments: object,
    learner: Learner,
    marks: Marks,
    clock: Clock,
    announce: Callable[[str], None],
) -> Iterator[Overlap | None]:
    """Have a thread that collects, where the recipe asks for it, for as long as this lasts."""
    if not state.recipe.machine.overlap:
        yield None
        return
    assert isinstance(environments, Environments)
    assert isinstance(learner, Stale)
    overlap, patience = Overlap(state, environments, learner, marks, clock, announce), PATIENCE
    try:
        yield overlap
    except (Abandoned, KeyboardInterrupt):
        patience = HASTE  # The state is to be saved, and there are seconds for it.
        raise
    finally:
        overlap.close(patience)


class Overlap:
    """Takes a run's turns, collecting and learning at once where that is possible."""

    def __init__(
        self,
        state: TrainState,
        environments: Environments,
        learner: Stale,
        marks: Marks,
        clock: Clock,
        announce: Callable[[str], None],
    ) -> None:
        self._environments, self._learner, self._marks = environments, learner, marks
        self._clock, self._announce = clock, announce
        self._snapshot = Snapshot(state)
        self._worker = Worker(torch.get_num_threads())
        self._given_up = threading.Event()
        self._seen = 0
        self._alone: list[Times] = []
        self._together: list[Times] = []

    def applies(self, state: TrainState) -> bool:
        """Say whether the next turn may be overlapped.

        An evaluation may be due after the rollout, of the policy that collected it: learning then
        has to wait.
        """
        before = state.counters.env_steps
        after = before + state.recipe.batch.rollout_size
        return self._seen >= IN_TURN and not any(before < mark <= after for mark in self._marks.at)

    async def turn(self, state: TrainState, guard: Guard, keeper: Keeps) -> Turn:
        """Collect a rollout and meanwhile learn from the one before.

        If the rollout fails, or the run is told to stop, what was learned meanwhile is undone: the
        state is that of the last whole iteration, and can be saved.
        """
        began, before, settled = time.perf_counter(), Before(state), keeper.settled
        keeper.settled = False
        coming = self._begin(state)
        started = time.perf_counter()

        async def learn() -> Learned:
            return self._learner.learn_ahead(self._environments.env.n_envs, coming.get)

        try:
            with self._clock.section("advantages"):
                learned = await guard.watch(state, learn, coming.get)
        except Diverged:
            raise
        except BaseException:
            before.restore(state)
            keeper.settled = settled
            raise
        now, rollout = time.perf_counter(), coming.get()
        self._snapshot.give_back(state)
        learning = now - started - coming.waited
        together = max(0.0, rollout.collect_seconds + learning - (now - began))
        return Turn(rollout, learned, learning, together)

    def _begin(self, state: TrainState) -> Coming:
        """Let the worker collect a rollout, by the policy as it is now."""
        actor = self._snapshot.take(state)
        drawing = actor.drawing

        def stoppable(n_envs: int) -> Draw:
            draw = drawing(n_envs)

            def checked(observation: Observation, noise: Tensor) -> Drawn:
                if self._given_up.is_set():
                    raise GivenUp
                return draw(observation, noise)

            return checked

        actor.drawing = stoppable
        asked = self._worker.ask(lambda: self._environments.collect(state, actor))
        return Coming(asked, self._clock)

    def see(self, turn: Turn) -> None:
        """Take in an iteration's times; once enough is known, say what overlapping gains here."""
        times = Times(turn.rollout.collect_seconds, turn.learning)
        self._seen += 1
        if WARM_UP < self._seen <= IN_TURN:
            self._alone.append(times)
        elif turn.together and len(self._together) <= COUNTED:
            self._together.append(times)
            if len(self._together) > COUNTED:  # The first started the thread.
                self._announce(gain(usual(self._alone), usual(self._together[1:])))

    def close(self, patience: float) -> None:
        """End the thread; a rollout under way is given up before its next step."""
        self._given_up.set()
        self._worker.close(patience)


class Times(NamedTuple):
    """Seconds of an iteration."""

    collecting: float
    learning: float


def usual(iterations: Sequence[Times]) -> Times:
    """Return the medians of some iterations' times."""
    collecting, learning = zip(*iterations, strict=True)
    return Times(median(collecting), median(learning))


def gain(alone: Times, together: Times) -> str:
    """Say what overlapping gains: (c + u) / max(c', u'), with c', u' as long as both run.

    At most: an iteration also has what is neither.
    """
    whole, longest = sum(alone), max(together)
    part = max(alone) / whole
    if part > 1 / WORTHWHILE:
        name = "collecting" if alone.collecting > alone.learning else "learning"
        return f"overlap: {name} takes {part:.0%} of the time: overlapping gains nothing here"
    times = (
        f"collecting {alone.collecting:.3g} s and learning {alone.learning:.3g} s one after the "
        f"other, {together.collecting:.3g} s and {together.learning:.3g} s at the same time"
    )
    if whole / longest < WORTHWHILE:
        return f"overlap: gains nothing here ({whole / longest:.2f}x): {times}"
    return f"overlap: up to {whole / longest:.2f}x the steps/s: {times}"


class Snapshot:
    """Copies of all that acting reads: weights, observation statistics, random numbers."""

    def __init__(self, state: TrainState) -> None:
        self._model = copy.deepcopy(state.model)
        # Laid out as the run's own: where weights begin in memory may change a product's last bits.
        self._weights = state.parameters.vector.detach().clone()
        state.parameters.lay(self._model, self._weights, torch.zeros_like(self._weights))
        self._normalizer = copy.deepcopy(state.observation_normalizer)
        self._generator = torch.Generator(state.action_generator.device)

    def take(self, state: TrainState) -> Single:
        """Return who acts as the state's policy would now, whatever becomes of the state."""
        self._weights.copy_(state.parameters.vector.detach())
        for own, buffer in zip(self._model.buffers(), state.model.buffers(), strict=True):
            own.copy_(buffer)
        if isinstance(self._model, QNetwork) and isinstance(state.model, QNetwork):
            self._model.epsilon = state.model.epsilon
        self._normalizer.load_state_dict(state.observation_normalizer.state_dict())
        self._generator.set_state(state.action_generator.get_state())
        hold = state.recipe.noise_hold
        return Single(self._model, self._normalizer, self._generator, hold, trains=True)

    def give_back(self, state: TrainState) -> None:
        """Let the state go on with the random numbers, and statistics, that acting has come to."""
        state.action_generator.set_state(self._generator.get_state())
        if self._normalizer.by_step:
            state.observation_normalizer.load_state_dict(self._normalizer.state_dict())


class GivenUp(Exception):
    """Nobody waits for the rollout any more."""


class Coming:
    """A rollout that is being collected."""

    def __init__(self, asked: Future[Rollout], clock: Clock) -> None:
        self._asked, self._clock = asked, clock
        self.waited = 0.0
        """Seconds that its learner had nothing else to do."""

    def get(self) -> Rollout:
        """Wait for it; raise what went wrong."""
        began = time.perf_counter()
        try:
            with self._clock.section("waiting"):
                return self._asked.result()
        finally:
            self.waited += time.perf_counter() - began


class Worker:
    """A thread that does what it is asked, one thing at a time.

    It ends with the process, even from within an environment that hangs. One thread for all
    rollouts, since PyTorch's own threads belong to the one that first needed them.
    """

    def __init__(self, torch_threads: int) -> None:
        """`torch_threads` are those of single operations, which each thread sets for itself."""
        self._torch_threads = torch_threads
        self._asked: SimpleQueue[tuple[Callable[[], Rollout], Future[Rollout]] | None]
        self._asked = SimpleQueue()
        self._thread = threading.Thread(
            target=copy_context().run, args=(self._work,), name="isobatch-collect", daemon=True
        )
        self._thread.start()

    def ask(self, collect: Callable[[], Rollout]) -> Future[Rollout]:
        """Return what will be the rollout."""
        future: Future[Rollout] = Future()
        self._asked.put((collect, future))
        return future

    def close(self, patience: float) -> None:
        """End after what is under way, waiting for so many seconds."""
        self._asked.put(None)
        self._thread.join(patience)

    def _work(self) -> None:
        torch.set_num_threads(self._torch_threads)
        while self._answered(self._asked.get()):
            pass

    @staticmethod
    def _answered(asked: tuple[Callable[[], Rollout], Future[Rollout]] | None) -> bool:
        """Do one thing; hold on to nothing of it."""
        if asked is None:
            return False
        collect, future = asked
        try:
            future.set_result(collect())
        except BaseException as error:
            future.set_exception(error)
        return True
