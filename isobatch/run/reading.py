"""Reading a run directory: its rows, policies and checkpoints, and whose they are."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any

from torch import Tensor

from isobatch.errors import DamagedFile, UserError, understanding
from isobatch.files import MOST_TEXT, Folder
from isobatch.plain import from_json
from isobatch.recipe import Recipe
from isobatch.rows import EVALUATIONS, METRICS, read_rows
from isobatch.run.sealed import Sealed, read_in, read_sealed

PROFILE = "profile.json"
SEALED = re.compile(r"([0-9]{1,18})\.safetensors")
"""Names of checkpoints and of kept policies: iterations, or environment steps."""


def read_metrics(path: str | Path, most: int | None = None) -> list[dict[str, Any]]:
    """Return the rows of a run's metrics.jsonl; a half-written last line is left out.

    With `most`, about that many rows evenly spread, the last among them: enough to draw a curve.
    """
    with Folder(path) as folder:
        return read_rows(folder, METRICS, most)


def read_evaluations(path: str | Path) -> list[dict[str, Any]]:
    """Return the rows of a run's evaluations, one a mark; none where it has not been evaluated."""
    with Folder(path) as folder:
        return read_rows(folder, EVALUATIONS) if folder.has(EVALUATIONS) else []


def read_profile(path: str | Path) -> dict[str, Any] | None:
    """Return where a run's time went, None where that was not asked for."""
    with Folder(path) as folder:
        if not folder.has(PROFILE):
            return None
        return from_json(folder.read(PROFILE, MOST_TEXT).decode(), str(folder.path / PROFILE))


def kept_policies(path: str | Path) -> dict[int, Path]:
    """Return the policies kept in the course of a run, by their environment steps."""
    with Folder(path) as run:
        if not run.has("policies"):
            return {}
        with run.folder("policies") as folder:
            return {number(name): folder.path / name for name in numbered(folder)}


def read_policy(path: str | Path, at: float | None = None, best: bool = False) -> Sealed:
    """Return tensors and description of a run's last policy, of that nearest `at`, or the best.

    `at` is a fraction of the run's budget.
    """
    file = Path(path) / ("policies/best.safetensors" if best else "policy.safetensors")
    if best and not file.is_file():
        raise UserError(
            f"{path} has no best policy: it was not evaluated while training (--eval-marks)"
        )
    if not file.is_file():
        raise UserError(f"{path} holds no policy yet: there is no policy.safetensors in it")
    recipe = Recipe.load(Path(path) / "recipe.toml")
    last = read_sealed(file)
    with understanding(str(file)):
        if at is not None:
            wanted = at * recipe.total_timesteps
            policies = kept_policies(path) | {last[1]["env_steps"]: file}
            file = policies[min(policies, key=lambda steps: abs(steps - wanted))]
            last = read_sealed(file)
        refuse_foreign(last[1], recipe, file)
    return last


def refuse_foreign(data: dict[str, Any], recipe: Recipe, path: Path) -> None:
    """Raise `DamagedFile` where a sealed file belongs to a run of another recipe.

    The budget and what belongs to the machine may be others.
    """
    if "recipe" not in data:
        return  # Earlier versions did not say.
    own = Recipe.from_toml(data["recipe"], f"the recipe in {path}")
    free = {"total_timesteps", *(each.name for each in fields(recipe.machine))}
    other = [
        name
        for name, value in recipe.values.items()
        if name not in free and own.values.get(name) != value
    ]
    if other:
        raise DamagedFile(
            f"{path} was written with another recipe: {other[0]} was "
            f"{own.values.get(other[0])!r}, recipe.toml has {recipe.values[other[0]]!r}"
        )


def iterations_saved(path: str | Path) -> int:
    """Return the iterations of a run's newest checkpoint, whole or not; 0 where there is none."""
    with (
        suppress(FileNotFoundError, DamagedFile),
        Folder(path) as run,
        run.folder("checkpoints") as folder,
    ):
        return max((number(name) for name in numbered(folder)), default=0)
    return 0


def read_checkpoint(path: str | Path) -> dict[str, Tensor] | None:
    """Return the tensors of a run's newest whole checkpoint, None where there is none."""
    newest = _newest_checkpoint(path)
    return newest[0] if newest else None


def read_numbers(path: str | Path) -> dict[str, Any]:
    """Return the plain data of a run's newest whole checkpoint, none where there is none."""
    newest = _newest_checkpoint(path)
    return newest[1] if newest else {}


def _newest_checkpoint(path: str | Path) -> Sealed | None:
    with (
        suppress(FileNotFoundError, DamagedFile),
        Folder(path) as run,
        run.folder("checkpoints") as folder,
    ):
        for name in reversed(numbered(folder)):
            with suppress(DamagedFile):
                return read_in(folder, name)
    return None


def numbered(folder: Folder) -> list[str]:
    """Return the sealed files that are named by a number, in its order."""
    return sorted((name for name in folder.names() if SEALED.fullmatch(name)), key=number)


def number(name: str) -> int:
    """Return the number that names a sealed file."""
    return int(name.partition(".")[0])
