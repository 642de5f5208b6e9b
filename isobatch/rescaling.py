"""What to change for another batch: of a run, a recipe, an environment or another library."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from isobatch import exchange, importing, presets
from isobatch.errors import UserError
from isobatch.recipe import USERS_OWN, Recipe, as_flags
from isobatch.recipe.checks import is_finite
from isobatch.scaling import SIZES, Factors, Keep, Rescaled, advised_keep
from isobatch.scaling.answer import ORDER, Library, Setting
from isobatch.scaling.limits import Caution
from isobatch.text import folded

if TYPE_CHECKING:
    from isobatch.run.training import Run

LARGE = 0.1
"""An epsilon of this part of sqrt(v) is not small beside it."""


class Source(NamedTuple):
    """A tuned recipe, and what is known of where it comes from."""

    recipe: Recipe
    command: list[str] | None = None
    """Words that train it as it is; None where no command does."""
    run: Path | None = None
    """The run directory."""
    format: str | None = None
    given: Mapping[str, Any] = {}
    """The other library's settings, as given."""
    unknown: tuple[str, ...] = ()
    """What of them has no counterpart here."""
    budget: str = ""
    """Where the budget is an assumption: whose."""


def rescale(
    source: Recipe | Run | Mapping[str, Any] | str | Path,
    *,
    n_envs: int | None = None,
    n_steps: int | None = None,
    n_minibatches: int | None = None,
    minibatch_size: int | None = None,
    n_epochs: int | None = None,
    keep: Keep | None = None,
    betas: bool = False,
    grad_norm: bool = False,
    noise_scale: float | None = None,
    algo: str | None = None,
    library: str | None = None,
    to: str | None = None,
    env: str | None = None,
) -> Rescaled:
    """Return what to change for another batch; it prints like `isobatch rescale`.

    `source` is a recipe, a run, the path of either, or an environment id for its preset (`algo`
    chooses the algorithm). With `library` (sb3, zoo, cleanrl, rsl_rl, rl_games, ppo-ewma) it is a
    dictionary of that library's settings, and the answer uses its names; `env` then names the
    environment. `to` is the library to write settings for. The other arguments are those of
    `isobatch.scaling.rescale`, except that with `n_envs` alone the recommended option is used.
    """
    found = _find(source, algo, library, env)
    asked = (n_envs, n_steps, n_minibatches, minibatch_size, n_epochs)
    sizes = {name: size for name, size in zip(SIZES, asked, strict=True) if size is not None}
    if not sizes:
        raise UserError("to which batch? Give n_envs (--n-envs N), n_steps, minibatch_size ...")
    noise_scale = noise_scale or (_measured(found.run) if found.run else None)
    options = {"betas": betas, "grad_norm": grad_norm, "noise_scale": noise_scale}
    way = keep or advised_keep(found.recipe, sizes)[0]
    rescaled = found.recipe.rescale(**sizes, keep=way, **options)
    if found.run is not None and not betas:
        notes = _large_epsilon(found.recipe, rescaled.recipe, found.run)
        rescaled = rescaled.asked_with(notes=notes)
    return _spoken(rescaled, found, to)


def _find(
    source: Recipe | Run | Mapping[str, Any] | str | Path,
    algo: str | None,
    library: str | None,
    env: str | None,
) -> Source:
    """Return the tuned recipe that a source is."""
    if library is not None:
        if not isinstance(source, Mapping):
            raise UserError(f"the settings of {library} must be a dictionary")
        found = importing.read(library, source, env)
        return Source(
            found.recipe,
            format=library,
            given=source,
            unknown=found.unknown,
            budget=found.budget,
        )
    if isinstance(source, Mapping):
        raise UserError(f"whose settings? library must be one of {', '.join(exchange.formats())}")
    if isinstance(source, Recipe):
        return Source(source)
    path = source if isinstance(source, str | Path) else source.path
    name, path = str(path), Path(path)
    if not path.exists() and path.suffix != ".toml":
        words = ["isobatch", "train", name, *(["--algo", algo] if algo else [])]
        return Source(presets.preset(name, algo or "ppo"), words)
    if algo is not None:
        raise UserError("--algo is for the preset of an environment; the recipe has its own")
    file = path / "recipe.toml" if path.is_dir() else path
    recipe = Recipe.load(file)
    return Source(recipe, train_file(recipe, file), path if path.is_dir() else None)


def train_file(recipe: Recipe, file: Path) -> list[str] | None:
    """Return the words that train a recipe's file, None where the environment is Python's own."""
    if recipe.env == USERS_OWN:
        return None
    if ":" not in recipe.env:
        return ["isobatch", "train", "--recipe", str(file)]
    from isobatch import reproduce  # Takes seconds: it knows who makes environments.

    return shlex.split(reproduce.from_file(recipe, str(file)))


def saved(recipe: Recipe, file: Path) -> str:
    """Return where a recipe was saved, and how to train it."""
    command = train_file(recipe, file)
    then = f"train with:\n{folded(command)}" if command else "to train it, give --env ID"
    return f"saved to {file}; {then}"


def _spoken(rescaled: Rescaled, found: Source, to: str | None) -> Rescaled:
    """Return the answer in the names of the library asked from, with settings to paste."""
    target = to or found.format
    if target is None:
        return _own_command(rescaled, found)
    exported = exchange.write(target, rescaled.recipe, _given(target, found))
    notes = [Caution(f"not expressible in {target}: {line}") for line in exported.missing]
    # The library asked from keeps what it alone has.
    matters = target != found.format
    notes += [Caution(f"differs in Isobatch: {line}", matters) for line in found.unknown]
    is_command = exported.text.startswith("python ")
    return rescaled.asked_with(
        library=_library(rescaled, found),
        budget=found.budget,
        notes=(*rescaled.asked.notes, *notes),
        paste_title=f"Settings to paste ({exchange.title(target)}):",
        paste=folded(shlex.split(exported.text)) if is_command else exported.text,
    )


def _own_command(rescaled: Rescaled, found: Source) -> Rescaled:
    """Return the answer with the command that trains it, where there is one."""
    if found.command is None:
        return rescaled
    flags = as_flags(found.recipe.differing(rescaled.recipe))
    return rescaled.asked_with(paste_title="Train with:", paste=folded([*found.command, *flags]))


def _given(target: str, found: Source) -> dict[str, Any] | None:
    """Return the settings the recipe was read from, which keep what no recipe knows."""
    if target != found.format:
        return None
    return exchange.complete(target, found.given, found.recipe)


def _library(rescaled: Rescaled, found: Source) -> Library | None:
    """Return the names and settings of the library asked from."""
    if found.format is None:
        return None
    env = None if found.recipe.env == USERS_OWN else found.recipe.env
    names = exchange.names(found.format, found.given, env)
    values = exchange.compare(found.format, found.given, found.recipe, rescaled.recipe)
    batch = [names[field] for field in ORDER if names.get(field) in values]
    moved = [name for name, (old, new) in values.items() if old != new]
    return Library(names, [Setting(name, *values[name]) for name in dict.fromkeys(batch + moved)])


def _measured(path: Path) -> float | None:
    """Return the last noise scale a run's metrics have, if any."""
    from isobatch.run.reading import read_metrics

    rows = (row for row in read_metrics(path) if isinstance(row, dict))
    found = [each for each in (row.get("noise_scale") for row in rows) if is_finite(each) and each]
    return found[-1] if found else None


def _large_epsilon(recipe: Recipe, rescaled: Recipe, run: Path) -> tuple[Caution, ...]:
    """Say where Adam's epsilon is not small beside a run's sqrt(v): the root rule forgets it."""
    factors, epsilon = Factors(recipe.batch, rescaled.batch), recipe.optimizer.adam_eps
    if factors.opt == 1 or recipe.optimizer.optimizer == "sgd":
        return ()
    from isobatch.run.store import read_checkpoint

    tensors = read_checkpoint(run)
    if tensors is None or "optimizer.square" not in tensors:
        return ()
    square = tensors["optimizer.square"]
    if "optimizer.count" in tensors:  # Adam's, without the bias of its start.
        count = max(1, int(tensors["optimizer.count"]))
        square = square / (1 - recipe.optimizer.adam_beta2**count)
    seen = square[square > 0]  # A weight that never had a gradient takes no step.
    share = float((epsilon > LARGE * seen.sqrt()).double().mean()) if len(seen) else 0.0
    if share < LARGE:
        return ()
    text = (
        f"adam_eps {epsilon:g} is over a tenth of sqrt(v) for {share:.0%} of this run's weights, "
        f"so their steps do not follow the square root: --betas moves it to "
        f"{epsilon * math.sqrt(factors.opt):.3g} (x sqrt(c_opt))"
    )
    return (Caution(text),)
