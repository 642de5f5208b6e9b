"""The command line: one file a command, imported when it is asked for."""

from __future__ import annotations

import io
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from isobatch import __version__, registry
from isobatch.cli import loading
from isobatch.errors import UserError, nearest, one_line, system_error
from isobatch.text import plain, say

USAGE = """usage: isobatch COMMAND ...

On-policy reinforcement learning (PPO and relatives) in which the batch
(environments x steps, minibatches, epochs) is explicit and tunable.

  train ENV [options]     train a policy, e.g. isobatch train CartPole-v1
  resume RUN [options]    continue a run after a stop, a kill or a crash
  eval RUN [options]      evaluate a run's policy
  check RUN|STUDY         read every file and say whether it is intact
  verify RUN              train a run again and compare its metrics, bit by bit
  envs [NAME]             list environments, their families and presets

  import FORMAT FILE ENV  read another library's settings, or a trained policy
  export RUN --to sb3     save a run's policy for Stable-Baselines3
  rescale RECIPE|RUN|ENV  adapt hyperparameters to another batch, with reasons
  show RECIPE|RUN|ENV     draw the batch: rollout, minibatches, updates

  advise RUN              say what a run's numbers mean, and what to try
  probe RUN               compare shapes N x T; is the batch too small?

  study NAME|FILE         compare arms over environments and seeds at one budget
  report RUN...|STUDY     write an HTML page of a run, of several, or of a study
  query SQL               query the metrics of many runs with SQL

isobatch COMMAND --help explains a command. isobatch train ENV --help shows
every setting with the environment's defaults. Every command takes --import
MODULE, once or more: a module of yours that registers objectives, algorithms,
encoders or environments.
"""
PACKAGE = str(Path(__file__).parents[1])
COMMANDS = {
    "train": "isobatch.cli.train:train",
    "resume": "isobatch.cli.train:resume",
    "check": "isobatch.cli.check:check",
    "verify": "isobatch.cli.verify:verify",
    "eval": "isobatch.cli.evaluate:evaluate",
    "envs": "isobatch.cli.envs:envs",
    "export": "isobatch.cli.export:export",
    "import": "isobatch.cli.import_settings:import_settings",
    "rescale": "isobatch.cli.rescale:rescale",
    "show": "isobatch.cli.show:show",
    "advise": "isobatch.cli.advise:advise",
    "probe": "isobatch.cli.probe:probe",
    "study": "isobatch.cli.study:study",
    "report": "isobatch.cli.report:report",
    "query": "isobatch.cli.query:query",
}


def main(arguments: list[str] | None = None) -> int:
    """Run a command; return its exit code (0 done, 2 a mistake of the user's, 130 interrupted)."""
    arguments = sys.argv[1:] if arguments is None else arguments
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # Whatever it cannot encode is spelled out.
            stream.reconfigure(errors="backslashreplace")
    try:
        with _one_line_warnings(), loading.shown():
            return _dispatch(list(arguments))
    except UserError as error:
        say(f"isobatch: {one_line(error)}", error=True)
        return 2
    except BrokenPipeError:
        return 0
    except OSError as error:
        if error.errno is None:
            raise
        say(f"isobatch: {system_error(error)}", error=True)
        return 2
    except KeyboardInterrupt:
        say("isobatch: interrupted", error=True)
        return 130


@contextmanager
def _one_line_warnings() -> Iterator[None]:
    """Print Isobatch's own warnings as it prints its errors, without the line of its code."""
    usual = warnings.formatwarning

    def formatted(message: Any, category: type[Warning], filename: str, *place: Any) -> str:
        if category is UserWarning and filename.startswith(PACKAGE):
            return f"isobatch: {one_line(message)}\n"
        return plain(usual(message, category, filename, *place))

    warnings.formatwarning = formatted
    try:
        yield
    finally:
        warnings.formatwarning = usual


def _dispatch(arguments: list[str]) -> int:
    modules, arguments = _imports(arguments)
    command, rest = (arguments[0], arguments[1:]) if arguments else ("--help", [])
    if command in ("--help", "-h", "help"):
        say(USAGE.rstrip())
        return 0
    if command == "--version":
        say(f"isobatch {__version__}")
        return 0
    if command not in COMMANDS:
        raise UserError(f"unknown command {command!r}.{nearest(command, list(COMMANDS))}")
    registry.import_modules(modules)
    module, _, function = COMMANDS[command].partition(":")
    return getattr(import_module(module), function)(rest)


def _imports(arguments: list[str]) -> tuple[list[str], list[str]]:
    """Return the modules that --import names, and the other words."""
    modules: list[str] = []
    rest: list[str] = []
    words = iter(arguments)
    for word in words:
        if word == "--import":
            name = next(words, None)
            if name is None:
                raise UserError("--import needs the name of a module")
            modules.append(name)
        elif word.startswith("--import="):
            modules.append(word.partition("=")[2])
        else:
            rest.append(word)
    return modules, rest
