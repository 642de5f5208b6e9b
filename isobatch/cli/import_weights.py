"""isobatch import, of a trained policy."""

from __future__ import annotations

from pathlib import Path

from isobatch import exchange
from isobatch.cli.flags import Parser, usage
from isobatch.errors import UserError
from isobatch.text import say, wrapped

SUFFIXES = {"sb3": ".zip", "cleanrl": ".cleanrl_model"}
"""Files of weights by the format that has them."""
FORMS = (
    "isobatch import sb3 FILE.zip ENV [--out RUN] [--normalizer FILE] [KEY=VALUE ...]",
    "isobatch import cleanrl FILE.cleanrl_model ENV [--out RUN] [KEY=VALUE ...]",
)


def is_weights(word: str) -> bool:
    """Say whether a word names a file of weights."""
    return word.endswith(tuple(SUFFIXES.values()))


def import_weights(arguments: list[str]) -> int:
    """Make a run directory of another library's trained policy."""
    parser = Parser(
        prog="isobatch import",
        description="Make a run directory of a trained policy: its settings as the recipe, its "
        "weights, the optimiser's averages and the statistics of observations and rewards. No code "
        "in the file is run. KEY=VALUE are settings that the file does not tell.",
        usage=usage(*FORMS),
    )
    parser.add_argument("format", choices=SUFFIXES, metavar="FORMAT", help=", ".join(SUFFIXES))
    parser.add_argument("file", type=Path, help="the saved policy")
    parser.add_argument("env", metavar="ENV", help="environment id")
    parser.add_argument("--out", type=Path, metavar="RUN", help="run directory (default: in runs/)")
    parser.add_argument(
        "--normalizer",
        metavar="FILE",
        help="SB3's VecNormalize, or none (default: vecnormalize.pkl beside the zip)",
    )
    parsed, rest = parser.parse_known_args(arguments)
    if parsed.file.suffix != SUFFIXES[parsed.format]:
        raise UserError(f"{parsed.format}: a policy is a file *{SUFFIXES[parsed.format]}")
    settings = exchange.arguments(parsed.format, rest)

    from isobatch import weights

    if parsed.format == "sb3":
        given = {"normalizer": parsed.normalizer, "settings": settings}
        landed = weights.from_sb3(parsed.file, parsed.env, parsed.out, **given)
    elif parsed.normalizer is not None:
        raise UserError("--normalizer is for sb3: CleanRL does not save its statistics")
    else:
        landed = weights.from_cleanrl(parsed.file, parsed.env, parsed.out, settings=settings)
    run, recipe = landed.run.path, landed.run.recipe
    lines = [
        f"{run}: {recipe.algo} on {recipe.env}, from {landed.origin}.",
        f"Carried over: {', '.join(landed.carried)}.",
        *(f"! {note}." for note in landed.notes),
        "",
        "Next:",
    ]
    say("\n".join(wrapped("\n".join(lines))))
    say(f"isobatch eval {run} --deterministic")
    say(f"isobatch resume {run} --total-timesteps {2 * recipe.total_timesteps}")
    return 0
