"""Gymnasium environments, one by one or as vectors, in each of the three autoreset modes."""

from __future__ import annotations

import os
import queue
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from threading import Timer
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from torch import Tensor

from isobatch.envs.child import depend_on
from isobatch.envs.faults import EnvironmentFailed, failed, misfit
from isobatch.envs.spaces import ActionLayout, ObservationLayout, add_batch_axis
from isobatch.envs.step import BatchedEnv, Observation, Step, owned
from isobatch.envs.supervised import SupervisedEnv
from isobatch.envs.wrappers import wrapped
from isobatch.errors import UserError, one_line
from isobatch.recipe import Environment

FAMILIES = {
    "gymnasium.envs.classic_control": "classic",
    "gymnasium.envs.box2d": "box2d",
    "gymnasium.envs.toy_text": "toy-text",
    "gymnasium.envs.mujoco": "mujoco",
}
CLOSE_SECONDS = 5.0
"""How long environments in processes of their own may take to close."""


class GymEnv:
    """A Gymnasium vector environment in any autoreset mode.

    Next-step vectors behave as EnvPool does. Same-step vectors give the final observation in
    `final`; where autoreset is disabled, ended environments are reset here, which is the same.
    """

    def __init__(self, vector: VectorEnv, name: str, seeds: list[int]) -> None:
        self.name = name
        self.n_envs = vector.num_envs
        self.observation_layout = ObservationLayout.of(vector.single_observation_space, name)
        self.action_layout = ActionLayout.of(vector.single_action_space, name)
        self._vector = vector
        self._seeds = seeds
        self._mode = _autoreset_mode(vector, name)
        self._action_dtype: Any = vector.single_action_space.dtype
        self._done = np.zeros(self.n_envs, bool)
        self._steps = 0

    def reset(self) -> Observation:
        """Start all environments with the seeds given."""
        self._done = np.zeros(self.n_envs, bool)
        self._steps = 0
        # Only these take a seed per environment; a vector of another make takes one for all.
        each = isinstance(self._vector.unwrapped, SyncVectorEnv | AsyncVectorEnv)
        seed: Any = self._seeds if each else self._seeds[0]
        try:
            observation, _ = self._vector.reset(seed=seed)
        except Exception as error:
            raise self._failed(error) from _origin(error)
        return owned(self.observation_layout.encode(observation))

    def step(self, actions: Tensor) -> Step:
        """Step all environments; `actions` [N, K] in policy form."""
        self.send(actions)
        return self.receive()

    def send(self, actions: Tensor) -> None:
        """Begin a step, which `receive` ends."""
        native = self.action_layout.native(actions.cpu().numpy()).astype(self._action_dtype)
        self._steps += 1
        self._sent: Any = native
        if isinstance(self._vector, AsyncVector):
            try:
                self._vector.step_async(native)
            except Exception as error:
                raise self._failed(error) from _origin(error)

    def receive(self) -> Step:
        """End the step under way."""
        try:
            if isinstance(self._vector, AsyncVector):
                raw, reward, terminated, truncated, info = self._vector.step_wait()
            else:
                raw, reward, terminated, truncated, info = self._vector.step(self._sent)
        except Exception as error:
            raise self._failed(error) from _origin(error)
        # An end is an end, even as the time runs out: there is no value to bootstrap.
        truncated = np.logical_and(truncated, np.logical_not(terminated))
        observation = owned(self.observation_layout.encode(raw))
        done = np.logical_or(terminated, truncated)
        valid = np.ones(self.n_envs, bool)
        final = None
        if self._mode is AutoresetMode.NEXT_STEP:
            valid, self._done = ~self._done, done
        elif done.any() and self._mode is AutoresetMode.SAME_STEP:
            final = self._final_from(info, observation, done)
        elif done.any():
            final = observation
            try:
                raw, _ = self._vector.reset(options={"reset_mask": done})
            except Exception as error:
                raise self._failed(error) from _origin(error)
            observation = owned(self.observation_layout.encode(raw))
        return Step(
            observation=observation,
            reward=torch.from_numpy(np.array(reward, np.float32)),
            terminated=torch.from_numpy(np.array(terminated, bool)),
            truncated=torch.from_numpy(np.array(truncated, bool)),
            valid=torch.from_numpy(valid),
            final=final,
        )

    def restart(self, which: Tensor, actions: Tensor) -> Step:
        """Begin a new episode in some environments, `which` [N] bool, then step all."""
        if not isinstance(self._vector.unwrapped, SyncVectorEnv | AsyncVectorEnv):
            raise UserError(
                f"{self.name}: stagger restarts environments one by one, which only Gymnasium's "
                "own vectors can",
                field="stagger",
            )
        resets = which.numpy()
        try:
            if resets.any():
                self._vector.reset(options={"reset_mask": resets})
        except Exception as error:
            raise self._failed(error) from _origin(error)
        self._done &= ~resets
        return self.step(actions)

    def stepping(self) -> AbstractContextManager[None]:
        """Nothing to hold."""
        return nullcontext()

    def close(self) -> None:
        """Close the vector and its environments."""
        self._vector.close()

    def _failed(self, error: Exception) -> UserError:
        """Return the error that says which environment failed, at which step, and how."""
        if isinstance(error, UserError):
            return error
        seen = getattr(self._vector.unwrapped, "_env_obs", None) or ()
        for index, observation in enumerate(seen):
            found = None if observation is None else misfit(observation, self.observation_layout)
            if found:
                place = f"environment {index}, step {self._steps}"
                return EnvironmentFailed(f"{self.name} gave {found} ({place})")
        return failed(self.name, self._steps, _origin(error), _index(error))

    def _final_from(self, info: dict, observation: Observation, done: np.ndarray) -> Observation:
        """Collect the final observations a same-step vector leaves in `info`."""
        if "final_obs" not in info:
            raise UserError(
                f"{self.name}: a vector environment with autoreset mode SAME_STEP must put "
                "final_obs into its info"
            )
        final = owned(observation)
        for index in np.flatnonzero(done):
            single = add_batch_axis(info["final_obs"][index])
            for part, tensor in self.observation_layout.encode(single).items():
                final[part][index] = tensor[0]
        return final


class AsyncVector(AsyncVectorEnv):
    """Gymnasium's vector of processes: its errors as they are, and an end that always comes."""

    def _raise_if_errors(self, successes: Iterable[bool]) -> None:
        if all(successes):
            return
        try:
            index, _, error, trace = self.error_queue.get(timeout=CLOSE_SECONDS)
        except queue.Empty:
            raise RuntimeError("it raised what cannot be sent to another process") from None
        error.add_note(trace)
        raise WorkerFailed(index) from error

    def close_extras(self, timeout: float | None = None, terminate: bool = False) -> None:
        """Close them; after `CLOSE_SECONDS`, or at once if a step is under way, kill them."""
        if terminate or self._state.value != "default":
            self._kill()
        late = Timer(CLOSE_SECONDS, self._kill)
        late.start()
        try:
            pipes = [pipe for pipe in self.parent_pipes if pipe is not None and not pipe.closed]
            for pipe in pipes:
                pipe.send(("close", None))
            for pipe in pipes:
                pipe.recv()
        except (OSError, EOFError):
            self._kill()  # One has died; what it shared with the others may be in any state.
        finally:
            late.cancel()
        for process in self.processes:
            process.join(CLOSE_SECONDS)

    def _kill(self) -> None:
        for process in self.processes:
            process.kill()


class WorkerFailed(Exception):
    """The environment of one process raised; what it raised is the cause."""

    def __init__(self, index: int) -> None:
        super().__init__(index)
        self.index = index


def _origin(error: Exception) -> Exception:
    """Return what an environment itself raised."""
    cause = error.__cause__
    if isinstance(error, WorkerFailed) and isinstance(cause, Exception):
        return cause
    if isinstance(error, EOFError | ConnectionResetError | BrokenPipeError):
        return EnvironmentFailed("an environment's process died")
    return error


def _index(error: Exception) -> int | None:
    """Return which environment of Gymnasium's own vectors raised."""
    if isinstance(error, WorkerFailed):
        return error.index
    at = (SyncVectorEnv.step, SyncVectorEnv.reset, AsyncVectorEnv.step_wait)
    codes = [each.__code__ for each in at]
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code in codes:
            here = trace.tb_frame.f_locals
            return here.get("i", here.get("env_idx"))
        trace = trace.tb_next
    return None


def ids() -> dict[str, str]:
    """Return Gymnasium's registered ids and their families."""
    return {env_id: _family(str(spec.entry_point)) for env_id, spec in gymnasium.registry.items()}


def make(env_id: str, seeds: list[int], settings: Environment, training: bool) -> BatchedEnv:
    """Make Gymnasium's environments, which evaluate as they train."""
    given = settings.vectorization, settings.env_timeout
    return from_id(env_id, seeds, *given, options=settings.options, wrappers=settings.wrappers)


def time_limit(env_id: str, settings: Environment) -> int | None:
    """Return the steps after which an episode is truncated, None where that is not known."""
    try:
        return limit_of(_registered(env_id), settings.options)
    except Exception:
        return None  # Making it says what is wrong.


def limit_of(spec: Any, options: dict[str, Any]) -> int | None:
    """Return the time limit that an environment's spec names, and its options may change."""
    limit = options.get("max_episode_steps", getattr(spec, "max_episode_steps", None))
    return limit if isinstance(limit, int) and limit > 0 else None


def _registered(env_id: str) -> Any:
    """Return the spec of an environment as it is registered here, its id where it is not."""
    module, colon, name = env_id.rpartition(":")
    if colon:
        import_module(module)
    return gymnasium.registry.get(name, env_id)


def _family(entry_point: str) -> str:
    for module, family in FAMILIES.items():
        if entry_point.startswith(module):
            return family
    return "gymnasium"


def from_id(
    env_id: str,
    seeds: list[int],
    vectorization: str,
    timeout: float,
    options: dict[str, Any],
    wrappers: Sequence[str] = (),
) -> BatchedEnv:
    """Make a registered Gymnasium environment (`Id` or `module:Id`), in its wrappers."""
    try:
        # As it is registered here: another process has not run what registered it.
        spec = _registered(env_id)

        def make() -> gymnasium.Env:
            # Its checker only prints; what matters is checked here, once per rollout.
            return wrapped(gymnasium.make(spec, disable_env_checker=True, **options), wrappers)

        return from_factory(make, env_id, seeds, vectorization, timeout)
    except UserError:
        raise
    except Exception as error:
        reason = one_line(error) or type(error).__name__
        raise UserError(f"Gymnasium cannot make {env_id}: {reason}") from error


def from_factory(
    make_env: Callable[[], Any], name: str, seeds: list[int], vectorization: str, timeout: float
) -> BatchedEnv:
    """Vectorise environments made one by one by `make_env`."""
    if vectorization == "supervised":
        return SupervisedEnv(make_env, name, seeds, timeout)
    if vectorization == "sync":
        vector = SyncVectorEnv([make_env] * len(seeds), autoreset_mode=AutoresetMode.NEXT_STEP)
        return GymEnv(vector, name, seeds)
    parent = os.getpid()

    def make() -> Any:
        if os.getpid() != parent:  # The vector makes one in this process, to see its spaces.
            depend_on(parent)
        return make_env()

    vector = AsyncVector([make] * len(seeds), autoreset_mode=AutoresetMode.NEXT_STEP)
    return GymEnv(vector, name, seeds)


def _autoreset_mode(vector: VectorEnv, name: str) -> AutoresetMode:
    mode = vector.metadata.get("autoreset_mode")
    if isinstance(mode, AutoresetMode):
        return mode
    raise UserError(
        f"{name}: the vector environment does not declare its autoreset mode; set "
        "metadata['autoreset_mode'] to a gymnasium.vector.AutoresetMode"
    )
