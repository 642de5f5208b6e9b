"""isobatch show."""

from __future__ import annotations

from pathlib import Path

from isobatch import files
from isobatch.cli.flags import Parser, load_recipe
from isobatch.pages import diagram
from isobatch.text import say


def show(arguments: list[str]) -> int:
    """Draw the batch of a recipe or run."""
    parser = Parser(
        prog="isobatch show",
        description="Draw the batch: rollout, minibatches, updates, with their sizes.",
        usage="isobatch show RECIPE|RUN|ENV [--svg FILE]",
    )
    parser.add_argument(
        "source", metavar="RECIPE|RUN|ENV", help="recipe file, run directory or environment id"
    )
    parser.add_argument("--svg", type=Path, metavar="FILE", help="also write an SVG image")
    parsed = parser.parse_args(arguments)

    from isobatch.presets import preset

    path = Path(parsed.source)
    recipe = load_recipe(path) if path.exists() or path.suffix == ".toml" else preset(parsed.source)
    if parsed.svg is not None:
        files.save(parsed.svg, diagram.svg(recipe).encode())
    say(diagram.text(recipe))
    return 0
