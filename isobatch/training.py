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

from isobatch import adaptive, envs, gradient_noise, machine, policy, scaling, store
from isobatch.algos import check_phase_memory, make_learner
from isobatch.batch import Batch
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
    arena = Arena(recipe, make_env)
    try:
        state = _begin(arena, custom)
        directory = store.RunDirectory.create(path, recipe)
        try:
            return _run(state, arena, directory, choose_view(quiet))
        except UserError:
            if not directory.metrics():
                directory.discard()  # The environment's very first rollout was unusable.
            raise
        finally:
            directory.release()
    finally:
        arena.close()


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
        if checkpoint and "batch" not in checkpoint[1]:
            raise UserError(f"{path} was begun by an older version, which kept less: train it anew")
        arena = Arena(recipe, make_env, checkpoint[1] if checkpoint else None)
        try:
            state = _begin(arena, encoder)
            if checkpoint:
                state.load(*checkpoint)
            if total_timesteps is not None and total_timesteps < state.counters.env_steps:
                raise UserError(
                    f"{path} already has {state.counters.env_steps} environment steps, more than "
                    f"total_timesteps {total_timesteps}"
                )
            state.counters.restarts += 1
            directory.save_recipe(recipe)
            directory.cut_metrics(state.counters.iterations)
            directory.cut_policies(state.counters.env_steps)
            return _run(state, arena, directory, choose_view(quiet))
        finally:
            arena.close()
    finally:
        directory.release()


class Arena:
    """The environments of a run: made for the batch of the moment, and anew when N changes."""

    def __init__(
        self,
        recipe: Recipe,
        make_env: MakeEnv | None,
        numbers: Mapping[str, Any] | None = None,
    ) -> None:
        """`numbers` are those of the checkpoint that the run goes on from, at its batch."""
        scaling.check_schedule(recipe)
        if recipe.reshape.is_adaptive and make_env is not None:
            _refuse_vector(make_env)
        self.asked, self.make_env = recipe, make_env
        self.recipe = scaling.at(recipe, 0)
        """The recipe at the batch of the moment."""
        self.environments = 0
        """Made so far, whose seeds are used up."""
        if numbers:
            self.recipe = scaling.at_batch(recipe, Batch(**numbers["batch"]))
            self.environments = numbers["counters"]["environments"]
        self.env = self._made()

    def move(self, state: TrainState) -> dict[str, str]:
        """Follow the schedule, or what was measured; say what moved, if anything did."""
        before = self.recipe
        after, said = self._wanted(state)
        left = before.total_timesteps - state.counters.env_steps
        if after.batch == before.batch or after.batch.n_envs > left:
            return {}
        self.recipe = after
        if after.batch.n_envs != before.batch.n_envs:
            self.env.close()
            self.env = self._made()
        return {"reshaped": _move(before, after), **said}

    def _wanted(self, state: TrainState) -> tuple[Recipe, dict[str, str]]:
        """Return the recipe at the batch to go on with, and what is to be said of it."""
        if not self.asked.reshape.is_adaptive:
            return scaling.at(self.asked, state.counters.env_steps), {}
        decision = adaptive.decide(self.asked, state.batch, state.probe)
        if decision is None:
            return self.recipe, {}
        return scaling.at_batch(self.asked, decision.batch), {"decision": decision.why}

    def close(self) -> None:
        """Close the environments."""
        self.env.close()

    def _made(self) -> envs.BatchedEnv:
        env = _make(self.recipe, self.make_env, self.environments)
        self.environments += self.recipe.batch.n_envs
        return env


def _move(before: Recipe, after: Recipe) -> str:
    """Say which fields moved: n_envs 8 -> 32, learning_rate 0.001 -> 0.0005."""
    pairs = ((name, before.values[name], value) for name, value in after.values.items())
    return ", ".join(f"{name} {old:.4g} -> {new:.4g}" for name, old, new in pairs if old != new)


def _run(state: TrainState, arena: Arena, directory: store.RunDirectory, view: View) -> Run:
    """Iterate from `state` until the budget is spent or a signal asks to stop."""
    device = next(state.model.parameters()).device
    recipe, counters = arena.recipe, state.counters
    image = arena.env.observation_layout.image
    chunk_size = chunk_rows(image, recipe.machine.chunk_size)
    resumed, columns = (
        counters.restarts > 0,
        gradient_noise.COLUMNS if recipe.probe_interval else (),
    )
    counters.environments = arena.environments
    _checkpoint(directory, state, arena.env)  # A kill from here on leaves a run that resumes.
    if image is not None:
        machine.keep_freed_memory()
    with (
        machine.torch_threads(recipe.machine.threads, image is not None),
        _stop_requests() as stop_requested,
    ):
        collector = Collector(arena.env, device, chunk_size)
        learner = make_learner(state, recipe, chunk_size, directory.path, view.note)
        view.start(recipe, str(directory.path), counters.env_steps)
        try:
            saved = began = time.perf_counter()
            while (left := recipe.total_timesteps - counters.env_steps) >= recipe.batch.n_envs:
                # Before it collects, so that what moved is always said in a row.
                moved = arena.move(state)
                if moved:
                    recipe = arena.recipe
                    state.adopt(recipe)
                    learner.adopt(recipe)
                    if collector.env is not arena.env:
                        collector = Collector(arena.env, device, chunk_size)
                        counters.environments = arena.environments
                rollout = collector.collect(
                    state.model,
                    state.observation_normalizer,
                    state.action_generator,
                    recipe.batch.n_steps,
                    row_limit=left if left < recipe.batch.rollout_size else None,
                )
                statistics = learner.learn(rollout)
                _refuse_divergence(state, statistics)
                spent = counters.env_steps
                _count(state, rollout)
                now = time.perf_counter()
                elapsed, began = now - began, now
                counters.seconds += elapsed
                statistics = dict.fromkeys((*learner.columns, *columns)) | statistics
                row = _row(recipe, state, rollout, statistics, elapsed) | moved
                if resumed:
                    row["resumed"], resumed = True, False
                directory.append(row)
                view.row(row)
                if _passes_a_part(recipe, spent, counters.env_steps):
                    policy.save(directory, state, arena.env, keep=True)
                if stop_requested():
                    break
                if now - saved > recipe.machine.checkpoint_seconds:
                    _checkpoint(directory, state, arena.env)
                    saved = time.perf_counter()
        finally:
            view.stop()
            learner.close()
    _checkpoint(directory, state, arena.env)
    unspent = recipe.total_timesteps - counters.env_steps
    return Run(directory.path, interrupted=unspent >= recipe.batch.n_envs)


def _passes_a_part(recipe: Recipe, before: int, after: int) -> bool:
    """Say whether, short of the end, one of the parts at which policies are kept is passed."""
    parts, total = recipe.machine.keep_policies, recipe.total_timesteps
    return any(before < k * total / parts <= after for k in range(1, parts))


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


def _make(recipe: Recipe, make_env: MakeEnv | None, environments: int) -> envs.BatchedEnv:
    seeds = env_seeds(recipe.seed, recipe.batch.n_envs, first=environments)
    if make_env is not None:
        return envs.wrap(make_env, USERS_OWN, seeds, recipe.environment.vectorization)
    if recipe.env == USERS_OWN:
        raise UserError("this run's environment came from Python: pass make_env to go on with it")
    return envs.make(recipe, seeds)


def _refuse_vector(make_env: MakeEnv) -> None:
    """Refuse a vector of the user's own, whose width is what it is, where N is to change."""
    env = make_env()
    close = getattr(env, "close", None)
    if close is not None:
        close()
    if hasattr(env, "num_envs"):
        raise UserError(
            "batch_schedule adaptive changes n_envs: make_env must return one environment, "
            "not a vector"
        )


def _begin(arena: Arena, encoder: Encoder | None) -> TrainState:
    recipe, env = arena.recipe, arena.env
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
