"""Training from Python: begin a run, or go on with one."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from itertools import count
from pathlib import Path
from typing import Any

import torch

from isobatch import __version__, algos
from isobatch.clock import OFF, Clock
from isobatch.envs import MakeEnv
from isobatch.envs.catalog import require_trusted
from isobatch.envs.own import PREFIX, id_of
from isobatch.errors import UserError, understanding
from isobatch.models import EncoderFactory
from isobatch.models.own import name_of
from isobatch.presets import family_preset, preset
from isobatch.recipe import USERS_OWN, Recipe, check_budget
from isobatch.run import exact, overlap, store, trackers
from isobatch.run.divergence import Diverged
from isobatch.run.environments import Environments
from isobatch.run.live import terminal
from isobatch.run.loop import OnIteration, run
from isobatch.run.profile import Profile, kept
from isobatch.run.result import Run
from isobatch.run.sealed import sealed, unsealed
from isobatch.run.sharded_environments import ShardedEnvironments
from isobatch.run.sinks import Sink
from isobatch.scaling.rules import move as moved
from isobatch.state import TrainState
from isobatch.world import Group, World

EncoderLike = EncoderFactory | torch.nn.Module
READABLE = ("0.1.0", "0.2.0")
"""Versions whose checkpoints this one goes on from."""


def train(
    env: str | None = None,
    *,
    make_env: MakeEnv | None = None,
    algo: str | None = None,
    recipe: Recipe | None = None,
    out: str | Path | None = None,
    encoder: EncoderLike | str | None = None,
    sinks: Iterable[Sink] = (),
    on_iteration: OnIteration | None = None,
    quiet: bool = False,
    profile: bool | Clock = False,
    track: str | Iterable[str] = (),
    group: Group | None = None,
    **overrides: Any,
) -> Run:
    """Train a policy and return its run.

    Give an environment id; or `make_env`, a function returning a Gymnasium environment, a vector
    environment or a `TensorEnv`; or a complete `recipe`. `overrides` are recipe fields
    (`n_envs=64`). `encoder` is the name of an encoder, your own module, or a function from
    `ObservationLayout` to a module. `sinks` receive the run's events, in addition to its metrics
    file and, unless `quiet`, the terminal. `on_iteration` receives each row; returning False saves
    and stops the run. `track` names trackers: tensorboard, wandb. With `profile` the run reports at
    the end where the time went and saves it to profile.json; a `Clock` may have been started
    earlier. `group` are the processes that train it together (`isobatch.workers`): all of them call
    this with the same recipe and `out`, and the first one writes.
    """
    clock, sinks = _clock(profile), [*sinks, *trackers.make(track)]
    custom = None if isinstance(encoder, str) else encoder
    if encoder is not None:
        overrides["encoder"] = encoder if isinstance(encoder, str) else name_of(encoder)
    recipe = _recipe(env, make_env, algo, recipe, overrides)
    check_budget(recipe)
    algos.check(recipe)
    world = World(recipe.machine.shards, group)
    refuse_inelastic(recipe, world.size)
    path = Path(out) if out is not None else default_path(recipe)
    if world.is_first:
        store.refuse_taken(path)
    device = choose_device(recipe.machine.device)
    with clock.section("making"):
        environments = _environments(world, recipe, make_env, device, clock=clock)
    try:
        with clock.section("making"):
            state = _begin(environments, custom)
        state.counters.workers = world.size
        directory, profiled = _created(world, path, recipe), _profile(clock, state)
        try:
            heard = _heard(sinks, quiet, world)
            with kept(profiled, directory, quiet):
                stopped = run(state, environments, directory, heard, on_iteration, profile=profiled)
            return Run(path, interrupted=stopped)
        except UserError as error:
            if world.is_first and not directory.metrics() and not isinstance(error, Diverged):
                directory.discard()  # The environment's very first rollout was unusable.
            raise
        finally:
            directory.release()
    finally:
        environments.close()


def resume(
    path: str | Path,
    *,
    total_timesteps: int | None = None,
    env: str | None = None,
    make_env: MakeEnv | None = None,
    encoder: EncoderLike | None = None,
    from_scratch: bool = False,
    allow_inexact: bool = False,
    sinks: Iterable[Sink] = (),
    on_iteration: OnIteration | None = None,
    quiet: bool = False,
    profile: bool | Clock = False,
    track: str | Iterable[str] = (),
    group: Group | None = None,
) -> Run:
    """Resume a run from its last valid checkpoint, with a longer budget if one is given.

    The environments are new, with seeds the run has not used; the first row after the resume is
    marked `resumed`. `env` repeats a `module:Id`, since files must not decide which modules are
    imported. A checkpoint that is damaged, or whose rows are missing, is reported and skipped. If
    none is left it is an error; `from_scratch` then trains again from the start and moves the old
    files to a folder set-aside.

    A run trained with `exact_resume` continues in its old environments: they are recreated and all
    their actions are replayed. `allow_inexact` resumes in new environments, or on another machine.
    `profile` and `track` are as in `train`, for the resumed part. So is `group`: a run goes on with
    any number of workers.
    """
    clock, sinks = _clock(profile), [*sinks, *trackers.make(track)]
    if group is not None and group.rank:
        return _join_in(Path(path), make_env, encoder, on_iteration, clock, group)
    directory = store.RunDirectory.open(path)
    try:
        recipe = directory.recipe
        require_trusted(recipe.env, env)
        if total_timesteps is not None:
            recipe = recipe.replace(total_timesteps=total_timesteps)
        check_budget(recipe)
        algos.check(recipe)
        if from_scratch:
            _start_over(directory)
        checkpoint = directory.last_checkpoint()
        numbers = checkpoint.numbers if checkpoint else None
        if numbers is not None:
            check_version(path, numbers)
            if total_timesteps is None:
                refuse_other_budget(path, recipe, numbers)
        given = 1 if group is None else group.size
        with understanding(f"{path}: the checkpoint"):
            asked = with_workers(recipe, numbers, given)
        world = World(asked.machine.shards, group)
        device = choose_device(recipe.machine.device)
        exactly = checkpoint if _resumes_exactly(recipe, numbers) and not allow_inexact else None
        world.from_first(_packed(asked, checkpoint, exactly is not None))
        with understanding(f"{path}: the checkpoint"):
            again = exact.parts(exactly.numbers) if exactly else None
            with clock.section("making"):
                environments = _environments(world, asked, make_env, device, numbers, again, clock)
        try:
            with clock.section("making"):
                state = _begin(environments, encoder)
            state.counters.workers = given  # The checkpoint's, where there is one.
            restore(state, directory, recipe, checkpoint)
            heard, profiled = _heard(sinks, quiet, world), _profile(clock, state)
            with kept(profiled, directory, quiet):
                stopped = run(
                    state, environments, directory, heard, on_iteration, exactly, profiled
                )
            return Run(directory.path, interrupted=stopped)
        finally:
            environments.close()
    finally:
        directory.release()


def with_workers(recipe: Recipe, numbers: Mapping[str, Any] | None, workers: int) -> Recipe:
    """Return the recipe for so many workers, where the batch is to follow their number.

    As many environments and shards for each as when the run began; the rules see to the rest.
    """
    begun = numbers["counters"].get("workers", 1) if numbers else workers
    if recipe.machine.elastic == "hold" or workers == begun:
        return recipe
    refuse_inelastic(recipe, begun)
    each, shards = recipe.batch.n_envs // begun, recipe.machine.shards // begun
    return moved(recipe, {"n_envs": each * workers}).recipe.replace(shards=shards * workers)


def refuse_inelastic(recipe: Recipe, workers: int) -> None:
    """Refuse a run of so many workers whose batch could not follow their number."""
    if recipe.machine.elastic == "hold":
        return
    for name, total in (("n_envs", recipe.batch.n_envs), ("shards", recipe.machine.shards)):
        if total % workers:
            raise UserError(
                f"elastic rescale: {name} {total} is not as many for each of {workers} workers",
                field="elastic",
            )
    if recipe.reshape.batch_schedule:
        raise UserError(
            "elastic rescale: batch_schedule says how many environments there are",
            field="elastic",
        )


def _join_in(
    path: Path,
    make_env: MakeEnv | None,
    encoder: EncoderLike | None,
    on_iteration: OnIteration | None,
    clock: Clock,
    group: Group,
) -> Run:
    """Go on with a run as one of the workers that read and write nothing."""
    recipe, checkpoint, is_exact = _unpacked(group.broadcast(None))
    world = World(recipe.machine.shards, group)
    numbers, exactly = checkpoint and checkpoint.numbers, checkpoint if is_exact else None
    device = choose_device(recipe.machine.device)
    again = exact.parts(exactly.numbers) if exactly else None
    environments = _environments(world, recipe, make_env, device, numbers, again, clock)
    try:
        state = _begin(environments, encoder)
        state.counters.workers = group.size
        if checkpoint:
            state.load(checkpoint.tensors, checkpoint.numbers)
        state.counters.restarts += 1
        directory = store.Elsewhere(path)
        try:
            stopped = run(state, environments, directory, [], on_iteration, exactly)
        finally:
            directory.release()
        return Run(path, interrupted=stopped)
    finally:
        environments.close()


def _packed(recipe: Recipe, checkpoint: store.Checkpoint | None, is_exact: bool) -> bytes:
    """Return a recipe and a checkpoint as the other workers get them."""
    tensors = {} if checkpoint is None else checkpoint.tensors
    numbers = None if checkpoint is None else checkpoint.numbers
    return sealed(tensors, {"asked": recipe.to_toml(), "numbers": numbers, "exact": is_exact})


def _unpacked(content: bytes) -> tuple[Recipe, store.Checkpoint | None, bool]:
    """Return what `_packed` was given."""
    tensors, data = unsealed(content)
    recipe, numbers = Recipe.from_toml(data["asked"]), data["numbers"]
    if numbers is None:
        return recipe, None, False
    marks = numbers["metrics"], numbers["evaluations"]
    return recipe, store.Checkpoint(tensors, numbers, *marks, {}), data["exact"]


def _environments(
    world: World,
    recipe: Recipe,
    make_env: MakeEnv | None,
    device: torch.device,
    numbers: Mapping[str, Any] | None = None,
    again: Sequence[Any] | None = None,
    clock: Clock = OFF,
) -> Environments | ShardedEnvironments:
    """Return the environments of a run, or of the shards of it that this worker owns."""
    if world.is_sharded:
        return ShardedEnvironments(world, recipe, make_env, device, numbers, again, clock)
    if world.size > 1:
        raise UserError(
            f"{world.size} workers share one shard: choose --shards {world.size} or more",
            field="shards",
        )
    return Environments(recipe, make_env, device, numbers, again, clock)


def _created(world: World, path: Path, recipe: Recipe) -> store.RunDirectory:
    """Make the run directory; workers other than the first wait for it."""
    made = store.RunDirectory.create(path, recipe) if world.is_first else None
    world.from_first(b"" if made is not None else None)
    return store.Elsewhere(path) if made is None else made


def restore(
    state: TrainState,
    directory: store.RunDirectory,
    recipe: Recipe,
    checkpoint: store.Checkpoint | None,
) -> None:
    """Bring a state that has just begun, and the run's files, to where the checkpoint was."""
    path = directory.path
    if checkpoint:
        with understanding(f"{path}: the checkpoint"):
            state.load(checkpoint.tensors, checkpoint.numbers)
    if recipe.total_timesteps < state.counters.env_steps:
        raise UserError(
            f"{path} already has {state.counters.env_steps} environment steps, more than "
            f"total_timesteps {recipe.total_timesteps}",
            field="total_timesteps",
        )
    state.counters.restarts += 1
    directory.save_recipe(recipe)
    if checkpoint:
        _say_what_was_found(directory, checkpoint, state)
        directory.go_on_from(checkpoint)


def refuse_other_budget(path: str | Path, recipe: Recipe, numbers: Mapping[str, Any]) -> None:
    """Refuse a budget that nobody asked for: recipe.toml may be damaged."""
    saved = Recipe.from_toml(numbers["recipe"]).total_timesteps if "recipe" in numbers else None
    if saved not in (None, recipe.total_timesteps):
        raise UserError(
            f"{path}: recipe.toml has total_timesteps {recipe.total_timesteps:,}, its checkpoint "
            f"{saved:,}: choose one with --total-timesteps",
            field="total_timesteps",
        )


def _resumes_exactly(recipe: Recipe, numbers: Mapping[str, Any] | None) -> bool:
    return recipe.machine.exact_resume and numbers is not None and "exact" in numbers


def _start_over(directory: store.RunDirectory) -> None:
    aside = directory.set_aside()
    if aside is not None:
        warnings.warn(f"{directory.path / aside} has the previous files", stacklevel=3)


def _say_what_was_found(
    directory: store.RunDirectory, checkpoint: store.Checkpoint, state: TrainState
) -> None:
    """Warn of checkpoints that were skipped; a run must not lose anything in silence."""
    for name, why in checkpoint.skipped.items():
        warnings.warn(f"checkpoint {name} of {directory.path} was skipped: {why}", stacklevel=3)
    if checkpoint.skipped:
        steps = state.counters.env_steps
        warnings.warn(f"{directory.path} continues from {steps:,} environment steps", stacklevel=3)


def check_version(path: str | Path, numbers: Mapping[str, Any]) -> None:
    """Refuse a checkpoint that this version cannot go on from, naming both versions."""
    # The first versions did not write theirs; what lacks the batch is older than can be read.
    written = numbers.get("version", "0.1.0" if "batch" in numbers else "an early 0.1.0")
    if written not in READABLE:
        raise UserError(
            f"{path} was written by Isobatch {written}; this is {__version__}, which resumes "
            f"runs of {' and '.join(READABLE)}: train it again, or install that version"
        )


def _clock(profile: bool | Clock) -> Clock:
    return profile if isinstance(profile, Clock) else Clock() if profile else OFF


def _profile(clock: Clock, state: TrainState) -> Profile:
    """Return what takes down where a run's time goes."""
    if state.parameters.vector.device.type == "cuda":
        clock.wait_for(torch.cuda.synchronize)
    if state.proximal is not None:
        clock.watch(state.proximal, "proximal", "update")
        clock.watch(state.proximal.module, "proximal", "forward")
    return Profile(clock)


def _heard(sinks: Iterable[Sink], quiet: bool, world: World) -> list[Sink]:
    """Return who is told of a run: nobody by workers other than the first."""
    return [*([] if quiet else [terminal()]), *sinks] if world.is_first else []


def _recipe(
    env: str | None,
    make_env: MakeEnv | None,
    algo: str | None,
    recipe: Recipe | None,
    overrides: dict[str, Any],
) -> Recipe:
    if recipe is not None:
        if env is not None or (make_env is not None and not recipe.env.startswith(PREFIX)):
            raise UserError("give an environment or a recipe, not both")
        return recipe.replace(**({"algo": algo} if algo else {}), **overrides)
    if (env is None) == (make_env is None):
        raise UserError("give either an environment id or make_env")
    if env is not None:
        return preset(env, algo or "ppo", **overrides)
    assert make_env is not None
    return family_preset("python", id_of(make_env) or USERS_OWN, algo or "ppo", **overrides)


def _begin(
    environments: Environments | ShardedEnvironments, encoder: EncoderLike | None
) -> TrainState:
    """Return the state of a run at the batch it begins with."""
    recipe, env = environments.begin, environments.env
    algos.check(recipe, env.observation_layout)
    state = TrainState.begin(
        recipe, env.observation_layout, env.action_layout, environments.device, encoder
    )
    overlap.refuse_unfit(state)
    return state


def choose_device(name: str) -> torch.device:
    """Return the device asked for; `auto` takes CUDA where there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name == "cuda" and not torch.cuda.is_available():
        raise UserError("device cuda: PyTorch finds no CUDA device here", field="device")
    return torch.device(name)


def default_path(recipe: Recipe) -> Path:
    """Return a fresh directory name under runs/."""
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    name = store.safe_name(f"{recipe.env}-{recipe.algo}-s{recipe.seed}-{stamp}")
    numbered = (Path("runs", name if number == 1 else f"{name}-{number}") for number in count(1))
    return next(path for path in numbered if not path.exists())
