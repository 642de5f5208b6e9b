"""The command line: train, resume, eval, envs; rescale, show; probe; study, report, query."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from isobatch import __version__
from isobatch.errors import UserError, nearest

if TYPE_CHECKING:
    from isobatch.training import Run

USAGE = """usage: isobatch COMMAND ...

On-policy reinforcement learning in which the batch is a thing you can hold.

  train ENV [options]    train a policy: isobatch train CartPole-v1 --n-envs 8 --n-steps 128
  resume RUN [options]   go on with a run after a stop, a kill or a crash
  eval RUN [options]     play episodes with a run's policy
  envs [NAME]            list environments, their families and presets

  rescale RECIPE|RUN     carry a recipe over to another batch: what moves, and why
  show RECIPE|RUN|ENV    draw its batch: rollout, minibatches, updates

  probe RUN              measure where an update's noise comes from, and which N x T has least

  study NAME|FILE        compare arms over environments and seeds at one data budget
  report STUDY           write a study's page, report.html
  query SQL              ask the metrics of many runs at once

  isobatch COMMAND --help explains a command; isobatch train ENV --help shows every setting with
  the environment's own defaults.
"""


def main(arguments: list[str] | None = None) -> int:
    """Run a command; return its exit code (0 done, 2 a mistake of the user's, 130 interrupted)."""
    arguments = sys.argv[1:] if arguments is None else arguments
    command, rest = (arguments[0], arguments[1:]) if arguments else ("--help", [])
    try:
        if command in ("--help", "-h", "help"):
            print(USAGE, end="")
            return 0
        if command == "--version":
            print(f"isobatch {__version__}")
            return 0
        if command not in COMMANDS:
            raise UserError(f"unknown command {command!r}.{nearest(command, list(COMMANDS))}")
        return COMMANDS[command](rest)
    except UserError as error:
        print(f"isobatch: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        return 0
    except OSError as error:
        from isobatch.store import is_disk_full

        if not is_disk_full(error):
            raise
        print("isobatch: the disk is full; what was written so far is whole", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("isobatch: stopped", file=sys.stderr)
        return 130


def _train(arguments: list[str]) -> int:
    from isobatch.flags import Parser, add_recipe_flags, given
    from isobatch.recipe import refuse_batch_size

    if any(word == "--batch-size" or word.startswith("--batch-size=") for word in arguments):
        raise refuse_batch_size()
    env = arguments[0] if arguments and not arguments[0].startswith("-") else None
    base = _base_recipe(env, arguments)
    parser = Parser(
        prog=f"isobatch train {base.env if env else 'ENV'}",
        description="Train a policy. Every option overrides the environment's preset.",
        usage="isobatch train ENV [options], or isobatch train --recipe FILE [options]",
    )
    _add_output_flags(parser)
    parser.add_argument("--recipe", type=Path, metavar="FILE", help="take this recipe file")
    _add_env_flag(parser)
    parser.add_argument("--out", type=Path, metavar="DIR", help="run directory (default: runs/...)")
    add_recipe_flags(parser, base)
    parsed = parser.parse_args(arguments[1:] if env else arguments)

    from isobatch.training import train

    recipe = base.replace(**given(parsed, base))
    return _report(train(recipe=recipe, out=parsed.out, quiet=parsed.quiet))


def _base_recipe(env: str | None, arguments: list[str]):
    """Return the recipe the flags override: a file's, the environment's preset, or for help any."""
    from isobatch.envs.catalog import require_trusted
    from isobatch.presets import preset
    from isobatch.recipe import Recipe

    file = _value_of("--recipe", arguments)
    if file is not None:
        recipe = Recipe.load(file)
        if env is not None:
            return recipe.replace(env=env)
        require_trusted(recipe.env, _value_of("--env", arguments))
        return recipe
    if env is not None:
        return preset(env, _value_of("--algo", arguments) or "ppo")
    if "--help" in arguments or "-h" in arguments:
        return preset("CartPole-v1")
    raise UserError(
        "which environment? It comes first: isobatch train ENV [options], or train --recipe FILE"
    )


def _value_of(flag: str, arguments: list[str]) -> str | None:
    """Return a flag's value before the parser that needs it exists."""
    for place, word in enumerate(arguments):
        if word == flag:
            return arguments[place + 1] if place + 1 < len(arguments) else None
        if word.startswith(f"{flag}="):
            return word.partition("=")[2]
    return None


def _resume(arguments: list[str]) -> int:
    from isobatch.flags import Parser, whole_number

    parser = Parser(prog="isobatch resume", description="Go on from a run's last good checkpoint.")
    parser.add_argument("run", type=Path, help="run directory")
    parser.add_argument(
        "--total-timesteps", type=whole_number, metavar="N", help="go on to this budget instead"
    )
    _add_env_flag(parser)
    _add_output_flags(parser)
    parsed = parser.parse_args(arguments)

    from isobatch.training import resume

    run = resume(
        parsed.run, total_timesteps=parsed.total_timesteps, env=parsed.env, quiet=parsed.quiet
    )
    return _report(run)


def _eval(arguments: list[str]) -> int:
    from isobatch.flags import Parser, whole_number

    parser = Parser(
        prog="isobatch eval", description="Play whole episodes in environments training never saw."
    )
    parser.add_argument("run", type=Path, help="run directory")
    parser.add_argument(
        "--episodes", type=whole_number, default=20, metavar="N", help="default: 20"
    )
    parser.add_argument("--seed", type=whole_number, default=0, metavar="N", help="default: 0")
    _add_env_flag(parser)
    parser.add_argument(
        "--deterministic", action="store_true", help="take the most likely action, draw none"
    )
    parsed = parser.parse_args(arguments)
    if parsed.episodes < 1:
        raise UserError(f"--episodes must be at least 1, got {parsed.episodes}")

    from isobatch.policy import evaluate

    result = evaluate(
        parsed.run,
        parsed.episodes,
        deterministic=parsed.deterministic,
        seed=parsed.seed,
        env=parsed.env,
    )
    print(
        f"return {result.mean:.2f} +- {result.std:.2f} over {len(result.returns)} episodes "
        f"(from {min(result.returns):.2f} to {max(result.returns):.2f}), "
        f"mean length {sum(result.lengths) / len(result.lengths):.1f}"
    )
    return 0


def _envs(arguments: list[str]) -> int:
    from isobatch.flags import Parser

    parser = Parser(prog="isobatch envs", description="List families, or the ids that match.")
    parser.add_argument("name", nargs="?", help="a family, or part of an id")
    name = parser.parse_args(arguments).name

    from isobatch.envs.catalog import families
    from isobatch.presets import family_preset, preset_name

    listed = families()
    if name is None:
        print(f"{'family':14} {'ids':>5}  preset")
        for family, ids in listed.items():
            batch = family_preset(family, ids[0]).batch
            shape = f"{batch.n_envs} x {batch.n_steps}, {batch.n_minibatches} minibatches"
            print(f"{family:14} {len(ids):5}  {preset_name(family)}: {shape}, e.g. {ids[0]}")
        return 0
    found = {
        family: [i for i in ids if name.lower() in family or name.lower() in i.lower()]
        for family, ids in listed.items()
    }
    if not any(found.values()):
        everything = [*listed, *(env_id for ids in listed.values() for env_id in ids)]
        raise UserError(f"no environment or family matches {name!r}.{nearest(name, everything)}")
    for family, ids in found.items():
        for env_id in ids:
            print(f"{env_id:44} {family:14} preset {preset_name(family)}")
    return 0


def _add_env_flag(parser) -> None:
    parser.add_argument(
        "--env", metavar="MODULE:ID", help="confirm that the run's module may be imported"
    )


def _add_output_flags(parser) -> None:
    parser.add_argument("--quiet", action="store_true", help="show nothing but the last line")


def _report(run: Run) -> int:
    """Say in a line how a run ended and where it is."""
    rows = run.metrics
    last = rows[-1] if rows else {}
    steps = last.get("env_steps", 0)
    if run.interrupted:
        print(f"stopped at {steps:,} steps; go on with: isobatch resume {run.path}")
        return 130
    score = last.get("episode_return")
    learned = "no episode ended"
    if score is not None:
        learned = f"mean return {score:.2f} over the last {min(last['episodes'], 100)} episodes"
    print(
        f"{run.recipe.env}: {learned} after {steps:,} steps in {last.get('seconds', 0):.1f} s; "
        f"kept in {run.path}"
    )
    return 0


def _rescale(arguments: list[str]) -> int:
    from isobatch.batch_commands import rescale

    return rescale(arguments)


def _show(arguments: list[str]) -> int:
    from isobatch.batch_commands import show

    return show(arguments)


def _probe(arguments: list[str]) -> int:
    from isobatch.probe.command import probe

    return probe(arguments)


def _study(arguments: list[str]) -> int:
    from isobatch.study.commands import study

    return study(arguments)


def _report_study(arguments: list[str]) -> int:
    from isobatch.study.commands import report

    return report(arguments)


def _query(arguments: list[str]) -> int:
    from isobatch.study.commands import query

    return query(arguments)


COMMANDS: dict[str, Callable[[list[str]], int]] = {
    "train": _train,
    "resume": _resume,
    "eval": _eval,
    "envs": _envs,
    "rescale": _rescale,
    "show": _show,
    "probe": _probe,
    "study": _study,
    "report": _report_study,
    "query": _query,
}
