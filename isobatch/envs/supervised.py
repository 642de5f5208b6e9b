"""Gymnasium environments in a process each, replaced when they raise, hang or crash.

The episode under way is dropped: the row of the fault is no transition and its observation is the
first of the new environment's, as in a reset row.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext, suppress
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from isobatch.envs import child, wrappers
from isobatch.envs.faults import TRACEBACK, EnvironmentFailed, misfit
from isobatch.envs.spaces import ActionLayout, ObservationLayout
from isobatch.envs.step import Observation, Step
from isobatch.errors import UserError, printable
from isobatch.text import say

START_SECONDS = 60.0
"""For processes to start and import, beside the time limit of a step and a second for each."""
CLOSE_SECONDS = 5.0
MOST_FAULTS, FAULT_STEPS = 10, 1000
"""Faults of one environment that are borne within so many steps: one more ends the run."""
MOST_RESETS = 3
"""Faults in a row at its reset that end it."""


class Fault(NamedTuple):
    """What became of an environment."""

    kind: str
    """The exception's type, the signal's name, 'hung' or 'exited'."""
    text: str
    """In one line."""
    trace: str = ""


class Worker:
    """One environment in a process of its own."""

    def __init__(self, make_env: bytes) -> None:
        here, there = socket.socketpair()
        with there:
            self.process = subprocess.Popen(
                [sys.executable, "-P", child.__file__, str(there.fileno()), str(os.getpid())],
                stdin=subprocess.DEVNULL,
                pass_fds=[there.fileno()],
            )
        self.connection = Connection(here.detach())
        with suppress(OSError):  # Where it has died, waiting for its answer shows it.
            self.connection.send(sys.path)
            self.connection.send_bytes(make_env)

    def ask(self, command: str, value: Any = None) -> None:
        """Send a command; the answer comes later."""
        with suppress(OSError):
            self.connection.send((command, value))

    def answer(self) -> Any:
        """Return what it answered, or what went wrong."""
        try:
            good, value = self.connection.recv()
        except (EOFError, OSError):
            return self._death()
        except Exception as error:
            return Fault("answer", f"its answer cannot be read: {printable(str(error))}")
        if good:
            return value
        name, message, trace = value
        text = printable(" ".join(message.split()))
        return Fault(name, f"{name}: {text}".removesuffix(": "), trace)

    def _death(self) -> Fault:
        try:
            code = self.process.wait(CLOSE_SECONDS)
        except subprocess.TimeoutExpired:
            return Fault("exited", "its process closed the connection")
        if code < 0:
            name = signal.Signals(-code).name
            return Fault(name, f"its process was ended by {name}")
        return Fault("exited", f"its process exited with code {code}")

    def end(self) -> None:
        """Kill it."""
        self.process.kill()
        self.process.wait()
        self.connection.close()


class SupervisedEnv:
    """N Gymnasium environments in a process each, which reset on the next step."""

    def __init__(
        self, make_env: Callable[[], Any], name: str, seeds: list[int], timeout: float
    ) -> None:
        import cloudpickle

        # Their code is sent, not their name: importing this package would import PyTorch, which
        # takes two seconds and 200 MB in each process.
        cloudpickle.register_pickle_by_value(wrappers)
        self.name, self.n_envs = name, len(seeds)
        self.faults: list[Fault] = []
        """Those that no one has taken yet."""
        self.fresh_seed: Callable[[], int] = _hashed(seeds)
        """Gives the seed of an environment that replaces another."""
        self._seeds, self._timeout = seeds, timeout
        self._make = cloudpickle.dumps(make_env)
        self._steps = 0
        self._done = np.zeros(self.n_envs, bool)
        # When each failed, as far back as it counts.
        self._failed_at = [deque[int](maxlen=MOST_FAULTS) for _ in seeds]
        self._waiting = True
        self._workers = [Worker(self._make) for _ in seeds]
        try:
            made = self._answers(range(self.n_envs), START_SECONDS + timeout + self.n_envs)
            observations, actions = self._spaces(made)
            self.observation_layout = ObservationLayout.of(observations, name)
            self.action_layout = ActionLayout.of(actions, name)
            self._action_dtype: Any = actions.dtype
        except BaseException:
            self.close()
            raise

    def reset(self) -> Observation:
        """Start all environments with the seeds given."""
        self._done[:], self._steps = False, 0
        for each in self._failed_at:
            each.clear()
        for worker, seed in zip(self._workers, self._seeds, strict=True):
            worker.ask("reset", seed)
        first = self._answers(range(self.n_envs), self._timeout)
        return self._encoded(first | self._replaced(first))

    def step(self, actions: Tensor) -> Step:
        """Step all environments; `actions` [N, K] in policy form."""
        native = self.action_layout.native(actions.cpu().numpy()).astype(self._action_dtype)
        self._steps += 1
        resets = self._done.copy()
        for index, worker in enumerate(self._workers):
            worker.ask(*(("reset", None) if resets[index] else ("step", native[index])))
        answers = self._answers(range(self.n_envs), self._timeout)
        observations = self._replaced(answers)
        dropped = np.isin(np.arange(self.n_envs), list(observations))
        reward = np.zeros(self.n_envs, np.float32)
        ends = np.zeros((2, self.n_envs), bool)
        for index, answer in answers.items():
            if resets[index] and not dropped[index]:
                observations[index] = answer
            elif not dropped[index]:
                observations[index], reward[index], *ends[:, index] = self._checked(index, answer)
        # An end is an end, even as the time runs out: there is no value to bootstrap.
        terminated, truncated = ends[0], ends[1] & ~ends[0]
        self._done = terminated | truncated
        return Step(
            observation=self._encoded(observations),
            reward=torch.from_numpy(reward),
            terminated=torch.from_numpy(terminated),
            truncated=torch.from_numpy(truncated),
            valid=torch.from_numpy(~resets & ~dropped),
            dropped=torch.from_numpy(dropped),
        )

    def restart(self, which: Tensor, actions: Tensor) -> Step:
        """Begin a new episode in some environments, `which` [N] bool, then step all."""
        indices = which.nonzero()[:, 0].tolist()
        for index in indices:
            self._workers[index].ask("reset")
        self._replaced(self._answers(indices, self._timeout))
        self._done[indices] = False
        return self.step(actions)

    def stepping(self) -> AbstractContextManager[None]:
        """Nothing to hold."""
        return nullcontext()

    def close(self) -> None:
        """Let the environments close, those that hang not for long, and end their processes."""
        if not self._waiting:
            for worker in self._workers:
                worker.ask("close")
            deadline = time.monotonic() + CLOSE_SECONDS
            for worker in self._workers:
                with suppress(subprocess.TimeoutExpired):
                    worker.process.wait(max(0.0, deadline - time.monotonic()))
        for worker in self._workers:
            worker.end()
        self._workers = []

    def _answers(self, indices: Iterable[int], seconds: float) -> dict[int, Any]:
        """Return what each of some environments answers: of those too late, a fault."""
        answers: dict[int, Any] = dict.fromkeys(indices)
        waiting: dict[Any, int] = {self._workers[index].connection: index for index in answers}
        deadline = time.monotonic() + seconds
        self._waiting = True
        while waiting:
            ready = wait(list(waiting), max(0.0, deadline - time.monotonic()))
            if not ready:
                break
            for connection in ready:
                index = waiting.pop(connection)
                answers[index] = self._workers[index].answer()
        for index in waiting.values():
            answers[index] = Fault("hung", f"it did not answer within {seconds:g} s")
        self._waiting = False
        return answers

    def _replaced(self, answers: dict[int, Any]) -> dict[int, Any]:
        """Replace the environments whose answer is a fault; return their first observations."""
        faults = {index: each for index, each in answers.items() if isinstance(each, Fault)}
        observations: dict[int, Any] = {}
        for _ in range(MOST_RESETS):
            if not faults:
                return observations
            for index, fault in faults.items():
                self._count(index, fault)
                self._workers[index].end()
                self._workers[index] = Worker(self._make)
            made = self._answers(faults, START_SECONDS + self._timeout + len(faults))
            begun = [index for index, answer in made.items() if not isinstance(answer, Fault)]
            for index in begun:
                self._workers[index].ask("reset", self.fresh_seed())
            first = made | self._answers(begun, self._timeout)
            faults = {index: each for index, each in first.items() if isinstance(each, Fault)}
            observations |= {index: each for index, each in first.items() if index not in faults}
        if faults:
            index, fault = next(iter(faults.items()))
            raise self._failed(index, fault, f"failed {MOST_RESETS} times in a row at reset")
        return observations

    def _count(self, index: int, fault: Fault) -> None:
        self.faults.append(fault)
        if fault.trace and os.environ.get(TRACEBACK):
            say(fault.trace, error=True)
        before = self._failed_at[index]
        if len(before) == MOST_FAULTS and self._steps - before[0] < FAULT_STEPS:
            often = f"failed {MOST_FAULTS + 1} times within {FAULT_STEPS:,} steps"
            raise self._failed(index, fault, often)
        before.append(self._steps)

    def _failed(self, index: int, fault: Fault, what: str) -> EnvironmentFailed:
        place = f"environment {index}, step {self._steps}"
        return EnvironmentFailed(f"{self.name} {what} ({place}): {fault.text}")

    def _checked(self, index: int, answer: Any) -> tuple[Any, float, bool, bool]:
        try:
            observation, reward, terminated, truncated = answer
            return observation, float(reward), bool(terminated), bool(truncated)
        except (TypeError, ValueError):
            given = printable(" ".join(str(answer[1:]).split()))
            raise EnvironmentFailed(
                f"{self.name} gave {given} for reward, terminated and truncated "
                f"(environment {index}, step {self._steps})"
            ) from None

    def _spaces(self, made: dict[int, Any]) -> tuple[Any, Any]:
        """Return the spaces of the first environment, where all were made."""
        for index, answer in made.items():
            if isinstance(answer, Fault):
                raise self._failed(index, answer, "cannot be made")
            if answer[0]:
                raise UserError(
                    "vectorization supervised makes Gymnasium environments one by one: make_env "
                    f"must not return {answer[0]}",
                    field="vectorization",
                )
        return made[0][1:]

    def _encoded(self, observations: dict[int, Any]) -> Observation:
        rows = [observations[index] for index in range(self.n_envs)]
        for index, row in enumerate(rows):
            found = misfit(row, self.observation_layout)
            if found:
                place = f"environment {index}, step {self._steps}"
                raise EnvironmentFailed(f"{self.name} gave {found} ({place})")
        return self.observation_layout.encode(_stacked(rows))


def _stacked(rows: list[Any]) -> Any:
    """Return observations of N environments as one [N, ...]."""
    if isinstance(rows[0], dict):
        return {key: _stacked([row[key] for row in rows]) for key in rows[0]}
    return np.stack([np.asarray(row) for row in rows])


def _hashed(seeds: list[int]) -> Callable[[], int]:
    """Return seeds that follow from these, for who gives none."""
    draw = np.random.default_rng(seeds)
    return lambda: int(draw.integers(1 << 31))
