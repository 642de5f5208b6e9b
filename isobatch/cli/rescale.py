"""isobatch rescale."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from isobatch import files
from isobatch.cli.flags import Parser, load_recipe, positive_number, whole_between
from isobatch.errors import UserError, printable
from isobatch.plain import LARGEST
from isobatch.recipe import Recipe
from isobatch.recipe.checks import is_finite
from isobatch.run.store import read_checkpoint, read_metrics
from isobatch.scaling import FITS, KEEPS, SIZES, Change, Factors, Rescaled, advised_keep
from isobatch.text import columns, counted, number, say


def rescale(arguments: list[str]) -> int:
    """isobatch rescale: a recipe, run, preset or another library's settings at another batch."""
    parser = Parser(
        prog="isobatch rescale",
        description="Adapt a recipe tuned at one batch to another, by the rules of arXiv "
        "2110.00641, section 4.",
        usage="isobatch rescale RECIPE|RUN|ENV --n-envs N [options], or isobatch rescale --from "
        "FORMAT NAME=VALUE ... --n-envs N",
    )
    parser.add_argument("--algo", metavar="NAME", help="with ENV: whose preset (default: ppo)")
    for name in SIZES:
        flag = "--" + name.replace("_", "-")
        size = whole_between(1, LARGEST - 1)
        parser.add_argument(flag, type=size, metavar="N", help=f"new {name}")
    parser.add_argument(
        "--keep",
        choices=KEEPS,
        help="what stays when N or T changes: the rollout's rows, the minibatch size or the number "
        "of minibatches (default: rollout where N alone grows and n_steps still covers GAE's "
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
    keep, why = (parsed.keep, "") if parsed.keep else advised_keep(recipe, sizes)
    options = {"betas": parsed.betas, "grad_norm": parsed.grad_norm, "noise_scale": noise_scale}
    rescaled = recipe.rescale(**sizes, keep=keep, **options)
    exported = None
    if parsed.to is not None:
        from isobatch import exchange

        # What the recipe was read from keeps what no recipe knows.
        kept = given if parsed.format == parsed.to else None
        exported = exchange.write(parsed.to, rescaled.recipe, kept)
    if parsed.write is not None:
        files.save(parsed.write, rescaled.recipe.to_toml().encode())
    if parsed.format is None and not parsed.betas:
        rescaled.warnings.extend(_large_epsilon(recipe, rescaled.recipe, Path(source[0])))
    say(report(recipe, rescaled, unknown))
    if why:
        say(f"\n--keep {keep} was chosen: {why}")
    others = other_ways(recipe, sizes, keep, options)
    if others:
        say("\n" + "\n".join(others))
    if exported is not None:
        say()
        say(exported.text)
        for line in exported.missing:
            say(f"! not expressible in {parsed.to}: {line}")
    if parsed.write is not None:
        say(f"written to {parsed.write}")
    return 0


def report(recipe: Recipe, rescaled: Rescaled, unknown: Iterable[str] = ()) -> str:
    """Return the changes as a table, and the warnings."""
    old, new = recipe.batch, rescaled.recipe.batch
    factors = Factors(old, new)
    lines = [
        f"{old.n_envs} x {old.n_steps} = {old.rollout_size:,} rows in "
        f"{counted(old.n_minibatches, 'minibatch', 'minibatches')} of {old.minibatch_size:,} -> "
        f"{new.n_envs} x {new.n_steps} = {new.rollout_size:,} rows in {new.n_minibatches} of "
        f"{new.minibatch_size:,}",
        f"old / new minibatch size: c_opt {number(factors.opt)}; "
        f"old / new rollout size: c_iter {number(factors.iter)}",
        f"in {recipe.total_timesteps:,} environment steps: {_updates(recipe)} -> "
        f"{_updates(rescaled.recipe)}",
        "",
        *table(rescaled.changes),
    ]
    if rescaled.warnings or unknown:
        lines.append("")
    lines += [f"! {warning}" for warning in rescaled.warnings]
    lines += [f"! differs in Isobatch: {printable(line)}" for line in unknown]
    return "\n".join(lines)


def other_ways(
    recipe: Recipe, sizes: dict[str, int], chosen: str | None, options: dict[str, Any]
) -> list[str]:
    """Return what the other ways to the same N or T would do, a line each."""
    if not {"n_envs", "n_steps"} & sizes.keys() or sizes.keys() - {"n_envs", "n_steps"}:
        return []
    lines = []
    for keep in KEEPS:
        if keep == (chosen or "minibatches"):
            continue
        try:
            other = recipe.rescale(**sizes, keep=keep, **options).recipe
        except UserError as error:
            lines.append(f"--keep {keep}: not possible: {error}")
            continue
        batch, rate = other.batch, other.optimizer.learning_rate
        moves = "stays" if rate == recipe.optimizer.learning_rate else f"-> {number(rate)}"
        lines.append(
            f"--keep {keep}: {batch.shape.n_envs} x {batch.shape.n_steps} in "
            f"{counted(batch.n_minibatches, 'minibatch', 'minibatches')} of "
            f"{batch.minibatch_size:,}, learning_rate {moves}, {_updates(other)}; {FITS[keep]}"
        )
    return ["other ways:", *lines] if lines else []


def _updates(recipe: Recipe) -> str:
    """Return how many iterations and gradient steps the budget holds."""
    iterations = recipe.total_timesteps // recipe.batch.rollout_size
    steps = iterations * recipe.batch.grad_steps_per_iteration
    return (
        f"{counted(iterations, 'iteration', 'iterations')}, "
        f"{counted(steps, 'gradient step', 'gradient steps')}"
    )


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
        raise UserError("which recipe? isobatch rescale RECIPE.toml|RUN|ENV --n-envs N")
    path = Path(source[0])
    if not path.exists() and path.suffix != ".toml":
        from isobatch.presets import preset

        return preset(source[0], parsed.algo or "ppo"), [], parsed.noise_scale
    if parsed.algo is not None:
        raise UserError("--algo is for the preset of an environment; the recipe has its own")
    recipe = load_recipe(path)
    return recipe, [], parsed.noise_scale or _measured(path)


def _measured(path: Path) -> float | None:
    """Return the last noise scale a run's metrics have, if any."""
    if not path.is_dir():
        return None
    rows = (row for row in read_metrics(path) if isinstance(row, dict))
    found = [each for each in (row.get("noise_scale") for row in rows) if is_finite(each) and each]
    return found[-1] if found else None


LARGE = 0.1
"""An epsilon of this part of sqrt(v) is not small beside it."""


def _large_epsilon(recipe: Recipe, rescaled: Recipe, path: Path) -> list[str]:
    """Say where Adam's epsilon is not small beside a run's sqrt(v): the root rule forgets it."""
    factors, epsilon = Factors(recipe.batch, rescaled.batch), recipe.optimizer.adam_eps
    if factors.opt == 1 or not path.is_dir() or recipe.optimizer.optimizer == "sgd":
        return []
    tensors = read_checkpoint(path)
    if tensors is None or "optimizer.square" not in tensors:
        return []
    square = tensors["optimizer.square"]
    if "optimizer.count" in tensors:  # Adam's, without the bias of its start.
        count = max(1, int(tensors["optimizer.count"]))
        square = square / (1 - recipe.optimizer.adam_beta2**count)
    seen = square[square > 0]  # A weight that never had a gradient takes no step.
    share = float((epsilon > LARGE * seen.sqrt()).double().mean()) if len(seen) else 0.0
    if share < LARGE:
        return []
    return [
        f"adam_eps {epsilon:g} is over a tenth of sqrt(v) for {share:.0%} of this run's weights, "
        f"so their steps do not follow the square root: --betas moves it to "
        f"{epsilon * math.sqrt(factors.opt):.3g} (x sqrt(c_opt))"
    ]
