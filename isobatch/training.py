"""The loop: collect, learn, record, until the data budget is spent."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any

import torch

from isobatch import envs, machine, policy, store
from isobatch.algos import check_phase_memory, make_learner
from isobatch.envs.catalog import require_trusted
from isobatch.envs.seeds import env_seeds
from isobatch.errors import UserError
from isobatch.models import EncoderFactory
from isobatch.presets import family_preset, preset
from isobatch.recipe import Recipe, check_budget
from isobatch.rollout import Collector, Rollout
from isobatch.state import TrainState
from isobatch.update import chunk_rows
from isobatch.view import View, choose_view

MakeEnv = Callable[[], Any]
Encoder = EncoderFactory | torch.nn.Module
USERS_OWN = "python:make_env"
"""The environment id of runs whose environment came through `make_env`."""


@dataclass(frozen=True)
class Run:
    """A run on disk."""

    path: Path
    interrupted: bool = False
    """True where the run was stopped before its budget was spent."""

    @property
    def recipe(self) -> Recipe:
        """The run's recipe."""
        return Recipe.load(self.path / "recipe.toml")

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """The run's rows, one per iteration."""
        return store.read_metrics(self.path)


def train(
    env: str | None = None,
    *,
    make_env: MakeEnv | None = None,
    algo: str | None = None,
    recipe: Recipe | None = None,
    out: str | Path | None = None,
    encoder: Encoder | str | None = None,
    quiet: bool = False,
    **overrides: Any,
) -> Run:
    """Train a policy and return its run.

    Give an environment id, or `make_env`, a function returning a Gymnasium environment, a vector
    of them or a `TensorEnv`; or a whole `recipe`. `overrides` are recipe fields by their flat
    names (`n_envs=64`). `encoder` names one of the built-in encoders, or is a module of your own
    or a function from `ObservationLayout` to one.
    """
    custom = None if isinstance(encoder, str) else encoder
    if encoder is not None:
        overrides["encoder"] = encoder if isinstance(encoder, str) else "custom"
    recipe = _recipe(env, make_env, algo, recipe, overrides)
    check_budget(recipe)
    path = Path(out) if out is not None else default_path(recipe)
    store.refuse_taken(path)
    env_batch = _make(recipe, make_env, restarts=0)
    try:
        state = _begin(recipe, env_batch, custom)
        directory = store.RunDirectory.create(path, recipe)
        try:
            return _run(recipe, state, env_batch, directory, choose_view(quiet))
        except UserError:
            if not directory.metrics():
                directory.discard()  # The environment's very first rollout was unusable.
            raise
        finally:
            directory.release()
    finally:
        env_batch.close()


def resume(
    path: str | Path,
    *,
    total_timesteps: int | None = None,
    env: str | None = None,
    make_env: MakeEnv | None = None,
    encoder: Encoder | None = None,
    quiet: bool = False,
) -> Run:
    """Go on with a run from its last good checkpoint, to a longer budget if one is given.

    The environments are made anew, with seeds the run has not used; the first row after that is
    marked `resumed`. `env` repeats a `module:Id`, since no file may name a module to import.
    """
    directory = store.RunDirectory.open(path)
    try:
        recipe = directory.recipe
        require_trusted(recipe.env, env)
        if total_timesteps is not None:
            recipe = recipe.replace(total_timesteps=total_timesteps)
        check_budget(recipe)
        checkpoint = directory.last_checkpoint()
        restarts = checkpoint[1]["counters"]["restarts"] + 1 if checkpoint else 1
        env_batch = _make(recipe, make_env, restarts)
        try:
            state = _begin(recipe, env_batch, encoder)
            if checkpoint:
                state.load(*checkpoint)
            if total_timesteps is not None and total_timesteps < state.counters.env_steps:
                raise UserError(
                    f"{path} already has {state.counters.env_steps} environment steps, more than "
                    f"total_timesteps {total_timesteps}"
                )
            state.counters.restarts = restarts
            directory.save_recipe(recipe)
            directory.cut_metrics(state.counters.iterations)
            return _run(recipe, state, env_batch, directory, choose_view(quiet))
        finally:
            env_batch.close()
    finally:
        directory.release()


def _run(
    recipe: Recipe,
    state: TrainState,
    env: envs.BatchedEnv,
    directory: store.RunDirectory,
    view: View,
) -> Run:
    """Iterate from `state` until the budget is spent or a signal asks to stop."""
    device = next(state.model.parameters()).device
    chunk_size = chunk_rows(env.observation_layout.image, recipe.machine.chunk_size)
    n_envs, counters = recipe.batch.n_envs, state.counters
    resumed = counters.restarts > 0
    _checkpoint(directory, state, env)  # A kill from here on leaves a run that resumes.
    images = env.observation_layout.image is not None
    if images:
        machine.keep_freed_memory()
    with (
        machine.torch_threads(recipe.machine.threads, images),
        _stop_requests() as stop_requested,
    ):
        collector = Collector(env, device, chunk_size)
        learner = make_learner(state, recipe, chunk_size, directory.path, view.note)
        view.start(recipe, str(directory.path), counters.env_steps)
        try:
            saved = began = time.perf_counter()
            while (left := recipe.total_timesteps - counters.env_steps) >= n_envs:
                rollout = collector.collect(
                    state.model,
                    state.observation_normalizer,
                    state.action_generator,
                    recipe.batch.n_steps,
                    row_limit=left if left < recipe.batch.rollout_size else None,
                )
                statistics = learner.learn(rollout)
                _refuse_divergence(state, statistics)
                _count(state, rollout)
                now = time.perf_counter()
                elapsed, began = now - began, now
                counters.seconds += elapsed
                statistics = dict.fromkeys(learner.columns) | statistics
                row = _row(recipe, state, rollout, statistics, elapsed)
                if resumed:
                    row["resumed"], resumed = True, False
                directory.append(row)
                view.row(row)
                if stop_requested():
                    break
                if now - saved > recipe.machine.checkpoint_seconds:
                    _checkpoint(directory, state, env)
                    saved = time.perf_counter()
        finally:
            view.stop()
            learner.close()
    _checkpoint(directory, state, env)
    unspent = recipe.total_timesteps - counters.env_steps
    return Run(directory.path, interrupted=unspent >= n_envs)


def _refuse_divergence(state: TrainState, statistics: dict[str, float]) -> None:
    """Stop a run that computes no longer with numbers, before that reaches a checkpoint."""
    lost = [name for name, value in statistics.items() if not math.isfinite(value)]
    if not bool(torch.isfinite(state.parameters.vector).all()):
        lost.append("a weight")
    if lost:
        raise UserError(
            f"training diverged after {state.counters.env_steps} environment steps: "
            f"{lost[0]} is not finite; lower the learning rate"
        )


def _count(state: TrainState, rollout: Rollout) -> None:
    """Take a rollout that was learned from into the counters and running statistics."""
    state.counters.env_steps += rollout.n_valid
    state.counters.iterations += 1
    state.episodes.update(rollout)
    if state.observation_normalizer.moments is not None:
        vectors = rollout.observations["vector"][:-1]
        state.observation_normalizer.update(vectors[rollout.valid])


def _row(
    recipe: Recipe,
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
        **asdict(recipe.batch),
        "rows": rollout.n_valid,
        "seconds": round(counters.seconds, 6),
        "steps_per_second": rollout.n_valid / elapsed,
        "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
    }


def _recipe(
    env: str | None,
    make_env: MakeEnv | None,
    algo: str | None,
    recipe: Recipe | None,
    overrides: dict[str, Any],
) -> Recipe:
    if recipe is not None:
        if env is not None or (make_env is not None and recipe.env != USERS_OWN):
            raise UserError("give an environment or a recipe, not both")
        return recipe.replace(**({"algo": algo} if algo else {}), **overrides)
    if (env is None) == (make_env is None):
        raise UserError("give either an environment id or make_env")
    if env is not None:
        return preset(env, algo or "ppo", **overrides)
    return family_preset("python", USERS_OWN, algo or "ppo", **overrides)


def _make(recipe: Recipe, make_env: MakeEnv | None, restarts: int) -> envs.BatchedEnv:
    n_envs = recipe.batch.n_envs
    seeds = env_seeds(recipe.seed, n_envs, first=restarts * n_envs)
    if make_env is not None:
        return envs.wrap(make_env, USERS_OWN, seeds, recipe.environment.vectorization)
    if recipe.env == USERS_OWN:
        raise UserError("this run's environment came from Python: pass make_env to go on with it")
    return envs.make(recipe, seeds)


def _begin(recipe: Recipe, env: envs.BatchedEnv, encoder: Encoder | None) -> TrainState:
    device = choose_device(recipe.machine.device)
    if recipe.is_phasic:
        check_phase_memory(recipe, env.observation_layout)
    return TrainState.begin(recipe, env.observation_layout, env.action_layout, device, encoder)


def _checkpoint(directory: store.RunDirectory, state: TrainState, env: envs.BatchedEnv) -> None:
    directory.save_checkpoint(state.tensors(), state.numbers(), state.counters.iterations)
    policy.save(directory, state, env)


def choose_device(name: str) -> torch.device:
    """Return the device asked for; `auto` takes CUDA where there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name == "cuda" and not torch.cuda.is_available():
        raise UserError("device cuda: PyTorch finds no CUDA device here")
    return torch.device(name)


def default_path(recipe: Recipe) -> Path:
    """Return a fresh directory name under runs/."""
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    name = store.safe_name(f"{recipe.env}-{recipe.algo}-s{recipe.seed}-{stamp}")
    numbered = (Path("runs", name if number == 1 else f"{name}-{number}") for number in count(1))
    return next(path for path in numbered if not path.exists())


@contextmanager
def _stop_requests() -> Iterator[Callable[[], bool]]:
    """Let Ctrl-C (or SIGTERM) end the run after the iteration under way; a second one at once."""
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    asked = threading.Event()
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def ask(number: int, frame: Any) -> None:
        if asked.is_set():
            signal.signal(number, signal.SIG_DFL)
            raise KeyboardInterrupt
        asked.set()

    for number in before:
        signal.signal(number, ask)
    try:
        yield asked.is_set
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
