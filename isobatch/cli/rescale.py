"""isobatch rescale."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from isobatch import exchange, files, rescaling
from isobatch.cli import language
from isobatch.cli.flags import Parser, positive_number, usage, whole_between
from isobatch.errors import UserError
from isobatch.plain import LARGEST
from isobatch.scaling import KEEPS, SIZES, Rescaled
from isobatch.scaling.limits import Caution
from isobatch.text import say


def rescale(arguments: list[str]) -> int:
    """isobatch rescale: a recipe, run, preset or another library's settings at another batch."""
    if language.is_asked(arguments):
        return language.rescale(arguments)
    parser = Parser(
        prog="isobatch rescale",
        description="Adapt a recipe tuned at one batch to another, by the rules of arXiv "
        "2110.00641, section 4.",
        usage=usage(
            "isobatch rescale RECIPE|RUN|ENV --n-envs N [options]",
            "isobatch rescale --from FORMAT NAME=VALUE ... --n-envs N",
        ),
    )
    parser.add_argument("--algo", metavar="NAME", help="with ENV: whose preset (default: ppo)")
    for name in SIZES:
        flag = "--" + name.replace("_", "-")
        size = whole_between(1, LARGEST - 1)
        parser.add_argument(flag, type=size, metavar="N", help=f"new {name}")
    parser.add_argument(
        "--keep",
        choices=KEEPS,
        help="what stays when N or T changes: the rollout size, the minibatch size or the number "
        "of minibatches (default: rollout if only N grows and n_steps still covers GAE's "
        "horizon, else minibatches)",
    )
    parser.add_argument(
        "--betas",
        action="store_true",
        help="rescale Adam's betas and epsilon (SGD's momentum) too",
    )
    parser.add_argument("--grad-norm", action="store_true", help="rescale max_grad_norm too")
    parser.add_argument(
        "--noise-scale",
        type=positive_number,
        metavar="ROWS",
        help="measured gradient noise scale, to compare minibatches with (default: the run's)",
    )
    parser.add_argument(
        "--from",
        dest="format",
        metavar="FORMAT",
        help=f"convert from another library: {', '.join(exchange.formats())}; for language models "
        "verl, trl, openrlhf or areal (see --from verl --help)",
    )
    parser.add_argument("--to", metavar="FORMAT", help="print the result in one of these formats")
    parser.add_argument("--env", metavar="ID", help="environment id, if the source has none")
    parser.add_argument("--write", type=Path, metavar="FILE", help="save the rescaled recipe")
    parser.add_argument(
        "--verbose", action="store_true", help="add the rule and reason of each change, and details"
    )
    # The source is what is left, in order: another library's flags keep their values beside them.
    parsed, words = parser.parse_known_args(arguments)
    rescaled = rescaling.rescale(
        _source(parsed.format, words),
        **{name: getattr(parsed, name) for name in SIZES},
        keep=parsed.keep,
        betas=parsed.betas,
        grad_norm=parsed.grad_norm,
        noise_scale=parsed.noise_scale,
        algo=parsed.algo,
        library=parsed.format,
        to=parsed.to,
        env=parsed.env,
    )
    if parsed.write is not None:
        files.save(parsed.write, rescaled.recipe.to_toml().encode())
        rescaled = _saved(rescaled, parsed.write, pasted=parsed.to is not None)
    say(rescaled.text(parsed.verbose))
    return 0


def _saved(rescaled: Rescaled, file: Path, pasted: bool) -> Rescaled:
    """Return the answer with the saved recipe as what is trained, beside what is to be pasted."""
    said = rescaling.saved(rescaled.recipe, file)
    if pasted:
        return rescaled.asked_with(paste=f"{rescaled.asked.paste}\n\n{said}")
    # What is trained here lacks what the library alone has.
    notes = tuple(Caution(note.text) for note in rescaled.asked.notes)
    return rescaled.asked_with(notes=notes, paste_title="", paste=said)


def _source(format: str | None, words: list[str]) -> Any:
    """Return another library's settings, or the name of a recipe, run or environment."""
    if format is not None:
        return exchange.arguments(format, words)
    flags = [word for word in words if word.startswith("-")]
    if flags:
        raise UserError(f"unrecognized arguments: {' '.join(flags)}")
    if len(words) != 1:
        raise UserError("which recipe? isobatch rescale RECIPE.toml|RUN|ENV --n-envs N")
    return words[0]
