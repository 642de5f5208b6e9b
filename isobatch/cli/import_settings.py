"""isobatch import."""

from __future__ import annotations

from pathlib import Path

from isobatch import exchange, files, importing, rescaling
from isobatch.cli.flags import Parser, usage
from isobatch.cli.import_weights import FORMS, import_weights, is_weights
from isobatch.errors import UserError
from isobatch.text import folded, say


def import_settings(arguments: list[str]) -> int:
    """isobatch import: another library's settings as a recipe, at the batch they have."""
    parser = Parser(
        prog="isobatch import",
        description="Read another library's settings as a recipe: what was read, what has no "
        "counterpart here and what that does to learning. A trained policy becomes a run: weights, "
        "optimiser and statistics; no code in its file is run.",
        usage=usage(
            "isobatch import FORMAT FILE [ENV] [KEY=VALUE ...] [--write FILE]",
            "isobatch import FORMAT KEY=VALUE ... [--env ID] [--write FILE]",
            *FORMS,
        ),
    )
    parser.add_argument("format", metavar="FORMAT", help=f"{', '.join(exchange.formats())}")
    parser.add_argument("--env", metavar="ID", help="environment id, if the settings have none")
    parser.add_argument("--write", type=Path, metavar="FILE", help="save the recipe")
    policy = parser.add_argument_group("a trained policy, which becomes a run")
    policy.add_argument("--out", type=Path, metavar="RUN", help="run directory (default: in runs/)")
    policy.add_argument(
        "--normalizer",
        metavar="FILE",
        help="SB3's VecNormalize, or none (default: vecnormalize.pkl beside the zip)",
    )
    # What is left is the library's, in order: its flags keep their values beside them.
    parsed, rest = parser.parse_known_args(arguments)
    if any(map(is_weights, rest)):
        if parsed.write is not None:
            raise UserError("--write is for settings: a policy's recipe is in its run directory")
        given = parsed.env, parsed.out, parsed.normalizer
        return import_weights(parsed.format, rest, *given)
    if parsed.out is not None or parsed.normalizer is not None:
        raise UserError("--out and --normalizer are for a trained policy: a .zip or .cleanrl_model")
    found = importing.from_words(parsed.format, rest, parsed.env)
    if parsed.write is not None:
        files.save(parsed.write, found.recipe.to_toml().encode())
    say(importing.answer(found, versus_preset=parsed.write is None))
    runs = not importing.not_here(found.recipe.env)
    if parsed.write is not None:
        then = rescaling.saved(found.recipe, parsed.write) if runs else f"saved to {parsed.write}"
        say(f"\n{then}")
    elif runs:
        named = [found.asked] if found.asked else []
        command = ["isobatch", "train", *named, "--from", parsed.format, *found.words]
        say(f"\nTrain with:\n{folded(command)}")
    return 0
