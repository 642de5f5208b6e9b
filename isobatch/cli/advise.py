"""isobatch advise."""

from __future__ import annotations

import textwrap
from collections import Counter
from itertools import pairwise
from pathlib import Path

from isobatch import advise as advice
from isobatch.advise import Finding, History
from isobatch.cli.flags import Parser, add_recipe_flags, given
from isobatch.errors import UserError
from isobatch.text import counted, number, say

WIDTH = 80
USAGE = "isobatch advise RUN [--verbose], or isobatch advise --throughput ENV [options]"
THROUGHPUT = "--throughput"


def advise(arguments: list[str]) -> int:
    """Say how a run is doing, or how many environments pay here."""
    if any(word.partition("=")[0] == THROUGHPUT for word in arguments):
        return _throughput(arguments)
    parser = Parser(
        prog="isobatch advise",
        description="Say what a run's numbers mean: what is the matter, the most important first, "
        "and what to try. With --throughput, time a recipe over numbers of environments on this "
        "machine, in about a minute.",
        usage=USAGE,
    )
    parser.add_argument("run", type=Path, help="run directory, also of a run under way")
    parser.add_argument(
        "--verbose", action="store_true", help="also say since when, the threshold and its source"
    )
    parser.add_argument(
        THROUGHPUT, metavar="ENV", help="instead: steps/s and memory over n_envs for a recipe"
    )
    parsed = parser.parse_args(arguments)
    history = advice.read(parsed.run)
    found = advice.look(history)
    _say(_headline(parsed.run, history, found))
    for each in found:
        say()
        say(f"{each.severity.upper()} {each.rule}")
        for line in _lines(each, parsed.verbose):
            _say(line, "  ")
    return 0


def _headline(path: Path, history: History, found: list[Finding]) -> str:
    """Say how it is in a line: how many findings, in how much of a run."""
    counts = Counter(each.severity for each in found)
    said = [counted(counts[each], each) for each in advice.SEVERITIES if counts[each]]
    grave = any(each.is_grave for each in found)
    verdict = ", ".join(said if grave else ["healthy: nothing above a note", *said])
    seen = "no rows yet, so only the recipe was looked at"
    if history.rows:
        iterations = int(history.last("iterations") or history.rows)
        seen = (
            f"{counted(iterations, 'iteration')}, {history.env_steps:,} of "
            f"{history.recipe.total_timesteps:,} env steps, {len(advice.RULES)} rules"
        )
    return f"{path}: {verdict} ({seen})"


def _lines(found: Finding, verbose: bool) -> list[str]:
    """Return a finding: what, what to try, and the flag on a line of its own, to copy."""
    lines = [f"{found.sentence}.", f"Try: {found.suggestion}."]
    if found.flag:
        lines.append(f"     {found.flag}")
    if verbose:
        held = f"{number(found.number)} against {number(found.threshold)}"
        lines.append(f"Since {found.since:,} env steps; {held}; source: {found.source}.")
    return lines


def _say(text: str, indent: str = "") -> None:
    """Print a paragraph, wrapped at words; what is one word stays whole."""
    width = {"break_long_words": False, "break_on_hyphens": False}
    for line in textwrap.wrap(
        text, WIDTH, initial_indent=indent, subsequent_indent=indent, **width
    ):
        say(line)


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

    from isobatch.advise import throughput

    found = throughput.measure(
        recipe,
        seen=lambda rate: say(f"{rate.n_envs:>6,} environments ...", error=True),
    )
    for line in throughput.answer(found, recipe.batch.n_envs):
        _say(line)
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
