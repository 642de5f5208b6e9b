"""isobatch train and isobatch resume."""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isobatch import exchange, importing, registry
from isobatch.cli.flags import (
    Parser,
    add_env_flag,
    add_recipe_flags,
    given,
    usage,
    whole_between,
    whole_number,
)
from isobatch.clock import OFF, Clock, process_seconds
from isobatch.errors import UserError
from isobatch.parent import ONE_THREAD
from isobatch.presets import preset, quick_preset
from isobatch.recipe import USERS_OWN, Recipe, refuse_batch_size
from isobatch.text import counted, say

if TYPE_CHECKING:
    from isobatch.run.training import Run
    from isobatch.workers.membership import Group

MOST_SEEDS = 1000
MOST_WORKERS, MOST_RESTARTS = 256, 1_000_000


def train(arguments: list[str]) -> int:
    """Train a policy."""
    _import_for_worker()
    if any(word == "--batch-size" or word.startswith("--batch-size=") for word in arguments):
        raise refuse_batch_size()
    env = arguments[0] if arguments and not arguments[0].startswith("-") else None
    imported = _imported(env, arguments)
    base = _base_recipe(env, arguments) if imported is None else imported.recipe
    parser = Parser(
        prog=f"isobatch train {base.env if env else 'ENV'}",
        description="Train a policy. Every option overrides the environment's preset.",
        usage=usage(
            "isobatch train ENV [options]",
            "isobatch train --recipe FILE [options]",
            "isobatch train [ENV] --from FORMAT [FILE] [KEY=VALUE ...] [options]",
        ),
    )
    _add_output_flags(parser)
    parser.add_argument("--recipe", type=Path, metavar="FILE", help="read the recipe from a file")
    parser.add_argument(
        "--from",
        dest="source",
        nargs="+",
        metavar=("FORMAT", "FILE"),
        help=f"read another library's settings ({', '.join(exchange.formats())}) from a file or "
        "as key=value: see isobatch import",
    )
    add_env_flag(parser)
    parser.add_argument("--out", type=Path, metavar="DIR", help="run directory (default: runs/...)")
    parser.add_argument(
        "--seeds",
        type=whole_number,
        metavar="N",
        help="train N runs with consecutive seeds, together where possible",
    )
    _add_worker_flags(parser)
    add_recipe_flags(parser, base)
    parsed = parser.parse_args(arguments[1:] if env else arguments)
    recipe = base.replace(**given(parsed, base))
    if STARTED in os.environ or parsed.workers > 1:
        if parsed.seeds is not None:
            raise UserError("--workers train one run together: leave --seeds or --workers out")
        _refuse_profile_together(parsed.profile)
        if STARTED in os.environ:
            return _train_with_others(recipe, parsed.out, parsed.quiet, parsed.track)
        return _launch_training(recipe, parsed, arguments)
    if imported is not None and not parsed.quiet:
        say("\n".join([importing.headline(imported), *importing.losses(imported)]))
    if parsed.seeds is not None:
        _refuse_profile(parsed.profile, "--seeds")
        return _train_seeds(recipe, parsed.seeds, parsed.out, parsed.quiet, parsed.track)

    from isobatch.run import training

    run = training.train(
        recipe=recipe,
        out=parsed.out,
        quiet=parsed.quiet,
        profile=_clock(parsed.profile),
        track=parsed.track,
    )
    return _report(run, parsed.quiet)


STARTED = "TORCHELASTIC_RUN_ID"
"""What torchrun, and `--workers`, set in the environment of the processes they start."""


def _import_for_worker() -> None:
    """Import what the process that started this one was told to, by --import."""
    if STARTED in os.environ:
        registry.import_for_worker()


def _add_worker_flags(parser) -> None:
    parser.add_argument(
        "--workers",
        type=whole_between(1, MOST_WORKERS),
        default=1,
        metavar="W",
        help="train the run with W processes of this machine; n_envs stays the total",
    )
    parser.add_argument(
        "--max-restarts",
        type=whole_between(0, MOST_RESTARTS),
        default=3,
        metavar="N",
        help="restart all workers from the last checkpoint up to N times if one is lost",
    )


def _launch_training(recipe: Recipe, parsed: Any, arguments: list[str]) -> int:
    """Start the workers of a run, each with the same words but for what is decided here, once."""
    from isobatch.run import store, training
    from isobatch.run.sharded_environments import refuse_unshardable
    from isobatch.workers.agent import launch

    shards = max(recipe.machine.shards, parsed.workers)
    refuse_unshardable(recipe.replace(shards=shards))
    training.refuse_inelastic(recipe.replace(shards=shards), parsed.workers)
    if shards != recipe.machine.shards and not parsed.quiet:
        say(
            f"{shards} shards, for {parsed.workers} workers: the last bits are those of --shards "
            f"{shards} with any number of workers, and others than with {recipe.machine.shards}"
        )
    out = parsed.out or training.default_path(recipe)
    store.refuse_taken(out)
    words = [*_without("--workers", _without("--max-restarts", arguments))]
    words = ["train", *words, "--shards", str(shards), "--out", str(out)]
    return launch(parsed.workers, words, parsed.max_restarts)


def _launch_resuming(parsed: Any, arguments: list[str]) -> int:
    from isobatch.run import store
    from isobatch.workers.agent import launch

    directory = store.RunDirectory.open(parsed.run)
    machine = directory.recipe.machine
    directory.release()
    shards = machine.shards
    if machine.elastic == "hold" and shards < parsed.workers:
        raise UserError(
            f"{parsed.run} is computed by {counted(shards, 'shard')}, as it began: resume it with "
            f"--workers {shards}"
        )
    words = _without("--workers", _without("--max-restarts", arguments))
    return launch(parsed.workers, ["resume", *words], parsed.max_restarts)


def _without(flag: str, words: list[str]) -> list[str]:
    """Return a command's words without a flag and its value."""
    found, skips = [], False
    for word in words:
        if not skips and not word.startswith(f"{flag}=") and word != flag:
            found.append(word)
        skips = word == flag
    return found


def _train_with_others(recipe: Recipe, out: Path | None, quiet: bool, track: list[str]) -> int:
    """Train as one of several workers; a run that is there already goes on."""
    if out is None:
        raise UserError("workers need --out: the run directory that all of them share")
    from isobatch.run import together, training

    def train(group: Group, on_iteration: Any) -> Run:
        options: Any = {"quiet": quiet, "on_iteration": on_iteration, "group": group}
        options["track"] = track if group.rank == 0 else []
        if together.is_there(group, out, recipe):
            return training.resume(out, env=recipe.env, **options)
        return training.train(recipe=recipe, out=out, **options)

    return together.work(train, lambda run: _report(run, quiet))


def _resume_with_others(parsed: Any) -> int:
    from isobatch.run import together, training

    def resume(group: Group, on_iteration: Any) -> Run:
        return training.resume(
            parsed.run,
            total_timesteps=parsed.total_timesteps,
            env=parsed.env,
            allow_inexact=parsed.allow_inexact,
            quiet=parsed.quiet,
            on_iteration=on_iteration,
            track=parsed.track if group.rank == 0 else [],
            group=group,
        )

    return together.work(resume, lambda run: _report(run, parsed.quiet))


def _train_seeds(
    recipe: Recipe, count: int, out: Path | None, quiet: bool, track: list[str]
) -> int:
    if not 1 <= count <= MOST_SEEDS:
        raise UserError(f"--seeds must be between 1 and {MOST_SEEDS:,}, got {count:,}")
    os.environ.update(ONE_THREAD)  # A process to a core: before NumPy is loaded.

    from isobatch.run import seeds

    jobs = seeds.seed_paths(recipe, count, out)
    seeds.refuse_taken(jobs)
    return seeds.train_on_all_cores(jobs, quiet, track)


def _resume_seeds(folder: Path, env: str | None, quiet: bool, track: list[str]) -> int:
    os.environ.update(ONE_THREAD)

    from isobatch.envs.catalog import require_trusted
    from isobatch.run import seeds

    jobs = seeds.begun_in(folder)
    for recipe, _ in jobs:
        require_trusted(recipe.env, env)
    return seeds.train_on_all_cores(jobs, quiet, track)


def resume(arguments: list[str]) -> int:
    """Continue a run."""
    _import_for_worker()
    parser = Parser(
        prog="isobatch resume", description="Continue a run from its last valid checkpoint."
    )
    parser.add_argument("run", type=Path, help="run directory, or that of train --seeds")
    parser.add_argument(
        "--total-timesteps", type=whole_number, metavar="N", help="new budget in environment steps"
    )
    parser.add_argument(
        "--from-scratch",
        action="store_true",
        help="train again from the start; the old files are moved to a folder set-aside",
    )
    parser.add_argument(
        "--allow-inexact",
        action="store_true",
        help="resume a run with --exact-resume in new environments, or on another machine",
    )
    add_env_flag(parser)
    _add_worker_flags(parser)
    _add_output_flags(parser)
    parsed = parser.parse_args(arguments)
    if STARTED in os.environ or parsed.workers > 1:
        _refuse_profile_together(parsed.profile)
        if parsed.from_scratch:  # Workers that are started again would start over.
            raise UserError("--from-scratch is for one process: leave --workers out")
        if STARTED in os.environ:
            return _resume_with_others(parsed)
        return _launch_resuming(parsed, arguments)
    if next(parsed.run.glob("seed-*/recipe.toml"), None) is not None:
        if parsed.total_timesteps or parsed.from_scratch or parsed.allow_inexact:
            several = f"{parsed.run} holds several runs"
            raise UserError(f"{several}: with these options, resume one at a time")
        _refuse_profile(parsed.profile, str(parsed.run))
        return _resume_seeds(parsed.run, parsed.env, parsed.quiet, parsed.track)

    from isobatch.run import training

    run = training.resume(
        parsed.run,
        total_timesteps=parsed.total_timesteps,
        env=parsed.env,
        from_scratch=parsed.from_scratch,
        allow_inexact=parsed.allow_inexact,
        quiet=parsed.quiet,
        profile=_clock(parsed.profile),
        track=parsed.track,
    )
    return _report(run, parsed.quiet)


def _base_recipe(env: str | None, arguments: list[str]) -> Recipe:
    """Return the recipe the flags override: a file's, the environment's preset, or for help any."""
    file = _value_of("--recipe", arguments)
    if file is not None:
        recipe = Recipe.load(file, to_train=True)
        if env is not None:
            return recipe.replace(env=env)
        from isobatch.envs.catalog import require_trusted

        require_trusted(recipe.env, _value_of("--env", arguments))
        return recipe
    algo = _value_of("--algo", arguments) or "ppo"
    if "--help" in arguments or "-h" in arguments:
        shown = env or "CartPole-v1"
        return quick_preset(shown, algo)
    if env is not None:
        return preset(env, algo)
    raise UserError(
        "which environment? It comes first: isobatch train ENV [options], or train --recipe FILE"
    )


def _imported(env: str | None, arguments: list[str]) -> importing.Settings | None:
    """Return another library's settings that --from names, which the flags override."""
    if any(word.startswith("--from=") for word in arguments):
        raise UserError("--from takes its words after a space: --from FORMAT FILE KEY=VALUE ...")
    if "--from" not in arguments:
        return None
    if _value_of("--recipe", arguments) is not None:
        raise UserError("--from and --recipe: give one of them")
    rest = arguments[arguments.index("--from") + 1 :]
    said = list(itertools.takewhile(lambda word: not word.startswith("--"), rest))
    if not said:
        raise UserError(f"--from needs a format ({', '.join(exchange.formats())}) and its settings")
    found = importing.from_words(said[0], said[1:], env)
    if found.asked is None:
        from isobatch.envs.catalog import require_trusted

        require_trusted(found.recipe.env, _value_of("--env", arguments))
    if found.recipe.env == USERS_OWN:
        raise UserError(f"which environment? isobatch train ENV --from {' '.join(said)}")
    return found


def _value_of(flag: str, arguments: list[str]) -> str | None:
    """Return a flag's value before the parser that needs it exists."""
    for place, word in enumerate(arguments):
        if word == flag:
            return arguments[place + 1] if place + 1 < len(arguments) else None
        if word.startswith(f"{flag}="):
            return word.partition("=")[2]
    return None


def _add_output_flags(parser) -> None:
    parser.add_argument("--quiet", action="store_true", help="print only the last line")
    parser.add_argument(
        "--profile",
        action="store_true",
        help="print at the end where the time went; saved to profile.json",
    )
    parser.add_argument(
        "--track",
        nargs="+",
        choices=["tensorboard", "wandb"],
        default=[],
        help="also log to TensorBoard (tensorboard --logdir RUN) or W&B (also offline)",
    )


def _clock(asked: bool) -> Clock:
    """Return the clock of a run that is to be profiled, which began with the command."""
    if not asked:
        return OFF
    return Clock({"imports": process_seconds()})


def _refuse_profile(asked: bool, several: str) -> None:
    if asked:
        raise UserError(f"--profile times one run, {several} trains several: profile one of them")


def _refuse_profile_together(asked: bool) -> None:
    if asked:
        raise UserError("--profile times one process: leave --profile or --workers out")


def _report(run: Run, quiet: bool) -> int:
    """Say how a run ended, and in the last line where it is."""
    from isobatch.run import ending

    rows = run.metrics
    last = rows[-1] if rows else {}
    for line in [] if quiet else ending.batch_changes(run):
        say(line)
    if run.interrupted:
        steps = counted(last.get("env_steps", 0), "env step")
        say(f"stopped after {steps}; resume with: isobatch resume {run.path}")
        return 130
    seconds = last.get("seconds", 0)
    say(f"{run.recipe.env}: {ending.learned(run)} in {seconds:.1f} s; saved to {run.path}")
    return 0
