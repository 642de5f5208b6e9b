"""isobatch rescale."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from isobatch.cli.flags import Parser, load_recipe, whole_number
from isobatch.errors import UserError
from isobatch.recipe import Recipe
from isobatch.run.store import read_metrics, write_atomically
from isobatch.scaling import SIZES, Change, Factors, Rescaled
from isobatch.text import columns, number


def rescale(arguments: list[str]) -> int:
    """isobatch rescale: a recipe, a run or another library's settings at another batch."""
    parser = Parser(
        prog="isobatch rescale",
        description="Adapt a recipe tuned at one batch to another, by the rules of arXiv "
        "2110.00641, section 4.",
        usage="isobatch rescale RECIPE|RUN --n-envs N [options], or isobatch rescale --from FORMAT "
        "NAME=VALUE ... --n-envs N",
    )
    for name in SIZES:
        flag = "--" + name.replace("_", "-")
        parser.add_argument(flag, type=whole_number, metavar="N", help=f"new {name}")
    parser.add_argument(
        "--betas", action="store_true", help="rescale Adam's betas (SGD's momentum) too"
    )
    parser.add_argument("--grad-norm", action="store_true", help="rescale max_grad_norm too")
    parser.add_argument(
        "--noise-scale",
        type=float,
        metavar="ROWS",
        help="measured gradient noise scale, to compare minibatches with (default: the run's)",
    )
    parser.add_argument(
        "--from",
        dest="format",
        metavar="FORMAT",
        help="convert from another library: sb3, zoo, cleanrl, rsl_rl or ppo-ewma",
    )
    parser.add_argument("--to", metavar="FORMAT", help="print the result in one of these formats")
    parser.add_argument("--env", metavar="ID", help="environment id, if the source has none")
    parser.add_argument("--write", type=Path, metavar="FILE", help="write the rescaled recipe")
    # The source is what is left, in order: another library's flags keep their values beside them.
    parsed, source = parser.parse_known_args(arguments)
    given = _given(parsed.format, source)
    recipe, unknown, noise_scale = _source(parsed, source, given)
    sizes = {name: getattr(parsed, name) for name in SIZES if getattr(parsed, name) is not None}
    if not sizes:
        raise UserError("to which batch? Give --n-envs, --n-steps, --minibatch-size ...")
    rescaled = recipe.rescale(
        **sizes, betas=parsed.betas, grad_norm=parsed.grad_norm, noise_scale=noise_scale
    )
    exported = None
    if parsed.to is not None:
        from isobatch import exchange

        # What the recipe was read from keeps what no recipe knows.
        kept = given if parsed.format == parsed.to else None
        exported = exchange.write(parsed.to, rescaled.recipe, kept)
    if parsed.write is not None:
        write_atomically(parsed.write, rescaled.recipe.to_toml().encode())
    print(report(recipe, rescaled, unknown))
    if exported is not None:
        print()
        print(exported.text)
        for line in exported.missing:
            print(f"! not expressible in {parsed.to}: {line}")
    if parsed.write is not None:
        print(f"written to {parsed.write}")
    return 0


def report(recipe: Recipe, rescaled: Rescaled, unknown: Iterable[str] = ()) -> str:
    """Return the changes as a table, and the warnings."""
    old, new = recipe.batch, rescaled.recipe.batch
    factors = Factors(old, new)
    lines = [
        f"{old.n_envs} x {old.n_steps} = {old.rollout_size:,} rows in {old.n_minibatches} "
        f"minibatches of {old.minibatch_size:,} -> {new.n_envs} x {new.n_steps} = "
        f"{new.rollout_size:,} rows in {new.n_minibatches} of {new.minibatch_size:,}",
        f"old / new minibatch size: c_opt {number(factors.opt)}; "
        f"old / new rollout size: c_iter {number(factors.iter)}",
        "",
        *table(rescaled.changes),
    ]
    if rescaled.warnings or unknown:
        lines.append("")
    lines += [f"! {warning}" for warning in rescaled.warnings]
    lines += [f"! differs in Isobatch: {line}" for line in unknown]
    return "\n".join(lines)


def table(changes: list[Change]) -> list[str]:
    """Return lines of field, old, new, rule and reason, in columns."""
    if not changes:
        return ["no field changes"]
    rows = [("field", "old", "new", "rule", "why")]
    rows += [(c.field, number(c.old), number(c.new), c.rule, c.reason) for c in changes]
    return columns(rows)


def _given(format: str | None, words: list[str]) -> dict[str, Any]:
    """Return another library's settings from the command line, or from the file it names."""
    if format is None:
        return {}
    from isobatch import exchange

    return exchange.arguments(format, words)


def _source(
    parsed: Any, source: list[str], given: dict[str, Any]
) -> tuple[Recipe, list[str], float | None]:
    """Return the tuned recipe, what of it has no counterpart, and its measured noise scale."""
    if parsed.format is not None:
        from isobatch import exchange

        imported = exchange.read(parsed.format, given, env=parsed.env)
        return imported.recipe, imported.unknown, parsed.noise_scale
    flags = [word for word in source if word.startswith("-")]
    if flags:
        raise UserError(f"unrecognized arguments: {' '.join(flags)}")
    if len(source) != 1:
        raise UserError("which recipe? isobatch rescale RECIPE.toml|RUN --n-envs N")
    path = Path(source[0])
    measured = parsed.noise_scale or _measured(path)
    return load_recipe(path), [], measured


def _measured(path: Path) -> float | None:
    """Return the last noise scale a run's metrics have, if any."""
    if not path.is_dir():
        return None
    found = [row["noise_scale"] for row in read_metrics(path) if row.get("noise_scale")]
    return found[-1] if found else None
