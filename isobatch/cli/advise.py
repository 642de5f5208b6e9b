"""isobatch advise."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

from isobatch import advice
from isobatch.cli.flags import Parser, add_recipe_flags, given, usage
from isobatch.errors import UserError
from isobatch.text import say, wrapped

USAGE = usage("isobatch advise RUN [--verbose]", "isobatch advise --throughput ENV [options]")
THROUGHPUT = "--throughput"


def advise(arguments: list[str]) -> int:
    """Say how a run is doing, or how many environments pay here."""
    if any(word.partition("=")[0] == THROUGHPUT for word in arguments):
        return _throughput(arguments)
    parser = Parser(
        prog="isobatch advise",
        description="Say what a run's numbers mean: what is wrong, most important first, and what "
        "to try. With --throughput, time a recipe with different numbers of environments on this "
        "machine, in about a minute.",
        usage=USAGE,
    )
    parser.add_argument("run", type=Path, help="run directory; the run may still be training")
    parser.add_argument(
        "--verbose",
        action="store_true",
        help="also show notes, and the start, threshold and source of each finding",
    )
    parser.add_argument(
        THROUGHPUT, metavar="ENV", help="instead: measure steps/s and memory for several n_envs"
    )
    parsed = parser.parse_args(arguments)
    for line in advice.advise(parsed.run).lines(parsed.verbose):
        say(line)  # As they come: the command at the end takes a second or two.
    return 0


def _throughput(arguments: list[str]) -> int:
    env, rest = _taken_out(arguments)
    from isobatch.presets import preset

    parser = Parser(
        prog=f"isobatch advise {THROUGHPUT} {env}",
        description="Time a recipe over 1, 2, 4, ... environments on this machine.",
        usage=f"isobatch advise {THROUGHPUT} ENV [options]",
    )
    algo = next((b for a, b in pairwise(rest) if a == "--algo"), "ppo")
    base = preset(env, algo)
    add_recipe_flags(parser, base)
    recipe = base.replace(**given(parser.parse_args(rest), base))

    from isobatch.run import throughput

    found = throughput.measure(
        recipe,
        seen=lambda rate: say(f"{rate.n_envs:>6,} environments ...", error=True),
    )
    for paragraph in throughput.answer(found, recipe.batch.n_envs):
        say("\n".join(wrapped(paragraph)))
    say()
    for line in throughput.table(found.rates):
        say(line)
    return 0


def _taken_out(arguments: list[str]) -> tuple[str, list[str]]:
    """Return the environment that --throughput names, and the other words."""
    rest = list(arguments)
    place = next(k for k, word in enumerate(rest) if word.partition("=")[0] == THROUGHPUT)
    word = rest.pop(place)
    if "=" in word:
        return word.partition("=")[2], rest
    if place == len(rest) or rest[place].startswith("-"):
        raise UserError(f"{THROUGHPUT} needs an environment: isobatch advise {THROUGHPUT} ENV")
    return rest.pop(place), rest
