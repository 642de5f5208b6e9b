"""isobatch import, of a trained policy."""

from __future__ import annotations

import shlex
from pathlib import Path

from isobatch import exchange
from isobatch.errors import UserError
from isobatch.text import say, wrapped

SUFFIXES = {"sb3": ".zip", "cleanrl": ".cleanrl_model"}
"""Files of weights by the format that has them."""
FORMS = (
    "isobatch import sb3 FILE.zip ENV [--out RUN] [--normalizer FILE]",
    "isobatch import cleanrl FILE.cleanrl_model ENV [--out RUN]",
)


def is_weights(word: str) -> bool:
    """Say whether a word names a file of weights."""
    return word.endswith(tuple(SUFFIXES.values()))


def import_weights(
    format: str, rest: list[str], env: str | None, out: Path | None, normalizer: str | None
) -> int:
    """Make a run directory of another library's trained policy: `rest` names file and settings."""
    named = [word for word in rest if is_weights(word)]
    if len(named) != 1 or not named[0].endswith(SUFFIXES.get(format, " ")):
        kinds = " or ".join(f"{name} *{suffix}" for name, suffix in SUFFIXES.items())
        raise UserError(f"a trained policy is one file, {kinds}: got {format} {' '.join(named)}")
    words = exchange.parse_words(format, [word for word in rest if word not in named])
    if (env is None) == (words.env is None):
        raise UserError(f"which environment? isobatch import {format} {named[0]} ENV")
    settings = exchange.settings(format, words)
    env = env or words.env or ""

    from isobatch import weights

    if format == "sb3":
        landed = weights.from_sb3(named[0], env, out, normalizer=normalizer, settings=settings)
    elif normalizer is not None:
        raise UserError("--normalizer is for sb3: CleanRL does not save its statistics")
    else:
        landed = weights.from_cleanrl(named[0], env, out, settings=settings)
    run, recipe = shlex.quote(str(landed.run.path)), landed.run.recipe
    lines = [
        f"{run}: {recipe.algo} on {recipe.env}, from {landed.origin}.",
        f"Carried over: {', '.join(landed.carried)}.",
        *(f"! {note}." for note in landed.notes),
    ]
    say("\n".join(wrapped("\n".join(lines))))
    say("\nNext:")
    say(f"isobatch eval {run} --deterministic")
    say(f"isobatch resume {run} --total-timesteps {2 * recipe.total_timesteps}")
    return 0
