"""isobatch rescale --from verl, trl, openrlhf or areal."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from isobatch import language
from isobatch.cli.flags import Parser, usage, whole_between
from isobatch.errors import UserError
from isobatch.language.words import FILES
from isobatch.plain import LARGEST
from isobatch.text import say


def is_asked(arguments: Sequence[str]) -> bool:
    """Say whether `--from` names a library of language-model RL."""
    for place, word in enumerate(arguments):
        name, _, value = word.partition("=")
        if name == "--from":
            return (value or "".join(arguments[place + 1 : place + 2])) in language.LIBRARIES
    return False


def rescale(arguments: list[str]) -> int:
    """Say what to change in a library's settings for other devices or another batch."""
    parser = Parser(
        prog="isobatch rescale",
        description="What batch size means in a library of language-model RL, and what to change "
        "for other devices or another batch. Settings are read as text; nothing is run.",
        usage=usage(
            f"isobatch rescale --from {'|'.join(language.LIBRARIES)} FILE|KEY=VALUE ... "
            "--devices N",
            "isobatch rescale --from ... FILE|KEY=VALUE ... --after FILE|KEY=VALUE ...",
        ),
    )
    parser.add_argument(
        "--from", dest="format", choices=language.LIBRARIES, required=True, help="the library"
    )
    parser.add_argument(
        "--devices", type=whole_between(1, LARGEST - 1), metavar="N", help="devices that train"
    )
    parser.add_argument(
        "--keep",
        choices=("batch", "per-device"),
        help="with --devices: hold the batch, or let it grow with them (default: what the library "
        "does if nothing else is touched)",
    )
    parser.add_argument("--betas", action="store_true", help="rescale Adam's betas too")
    parser.add_argument("--grad-norm", action="store_true", help="rescale gradient clipping too")
    parser.add_argument(
        "--verbose", action="store_true", help="add the rule and reason of each change, and details"
    )
    parser.add_argument(
        "--after",
        nargs=argparse.REMAINDER,
        default=[],
        metavar="...",
        help="last: settings of the new batch, or a file with all settings",
    )
    parsed, words = parser.parse_known_args(arguments)
    if not words:
        raise UserError(f"which settings? isobatch rescale --from {parsed.format} FILE --devices N")
    resized = language.rescale(
        parsed.format,
        language.parse(words),
        devices=parsed.devices,
        after=language.parse(parsed.after),
        whole=any(word.endswith(FILES) for word in parsed.after),
        keep=parsed.keep,
        betas=parsed.betas,
        grad_norm=parsed.grad_norm,
    )
    say(resized.text(parsed.verbose))
    return 0
