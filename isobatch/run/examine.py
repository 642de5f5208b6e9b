"""Is a run whole? Each file by itself, and the files against each other; nothing is changed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from isobatch import origin
from isobatch.errors import UserError, one_line, system_error, understanding
from isobatch.files import UNFINISHED, Folder, Growing
from isobatch.origin import IMPORTED
from isobatch.recipe import Recipe
from isobatch.rows import Rows, read_rows
from isobatch.run.exact import grown_files
from isobatch.run.reading import EVALUATIONS, METRICS, PROFILE, SEALED, read_profile, refuse_foreign
from isobatch.run.sealed import read_in
from isobatch.text import counted


@dataclass(frozen=True)
class Finding:
    """One file of a run: what it holds, or what is wrong with it."""

    name: str
    said: str
    is_whole: bool = True


def examine(path: str | Path) -> list[Finding]:
    """Return a finding for every file of a run directory."""
    path = Path(path)
    if not (path / "recipe.toml").exists():
        raise UserError(f"{path} holds no run (there is no recipe.toml in it)")
    with Folder(path) as folder:
        return Examination(folder).findings


class Examination:
    """Reads every file of a run and writes down what it finds."""

    def __init__(self, run: Folder) -> None:
        self.findings: list[Finding] = []
        self._run, self._recipe, self._text = run, None, ""
        self._look("recipe.toml", self._read_recipe)
        self._look(METRICS, lambda: self._read_rows(METRICS))
        if run.has(EVALUATIONS):
            self._look(EVALUATIONS, lambda: self._read_rows(EVALUATIONS))
        if run.has("policy.safetensors"):
            self._look("policy.safetensors", lambda: self._read_sealed(run, "policy.safetensors"))
        if run.has(PROFILE):
            self._look(PROFILE, self._read_profile)
        if run.has(IMPORTED):
            self._look(IMPORTED, lambda: f"from {origin.read(run)}")
        self._sweepings(run, "")
        for inner in ("policies", "checkpoints"):
            if run.has(inner):
                self._look(f"{inner}/", lambda inner=inner: self._read_folder(inner))

    def _look(self, name: str, read: Callable[[], str]) -> None:
        try:
            with understanding(name):
                said, is_whole = read(), True
        except UserError as error:
            said, is_whole = one_line(error), False
        except OSError as error:
            said, is_whole = system_error(error), False
        self.findings.append(Finding(name, said, is_whole))

    def _read_recipe(self) -> str:
        text = self._text = self._run.read("recipe.toml").decode()
        recipe = self._recipe = Recipe.from_toml(text, "recipe.toml")
        return f"{recipe.algo} on {recipe.env}, {counted(recipe.total_timesteps, 'env step')}"

    def _read_rows(self, name: str) -> str:
        rows = read_rows(self._run, name)
        if name == METRICS:
            for place, row in enumerate(rows):
                if row["iterations"] != place + 1:
                    raise UserError(f"row {place + 1} is that of iteration {row['iterations']}")
        half = "" if self._run.read(name)[-1:] in (b"", b"\n") else ", and half a row"
        return counted(len(rows), "row") + half

    def _read_profile(self) -> str:
        profile = read_profile(self._run.path) or {}
        return f"of {counted(profile['iterations'], 'iteration')}"

    def _read_folder(self, inner: str) -> str:
        with self._run.folder(inner) as folder:
            self._sweepings(folder, f"{inner}/")
            names = [name for name in folder.names() if not UNFINISHED.fullmatch(name)]
            for name in names:
                if SEALED.fullmatch(name) or name == "best.safetensors":
                    read = self._read_checkpoint if inner == "checkpoints" else self._read_sealed
                    self._look(f"{inner}/{name}", lambda name=name, read=read: read(folder, name))
                else:
                    self.findings.append(Finding(f"{inner}/{name}", "not a run's file", False))
        return counted(len(names), "file")

    def _read_sealed(self, folder: Folder, name: str) -> str:
        _, data = read_in(folder, name)
        if self._recipe is not None:
            refuse_foreign(data, self._recipe, folder.path / name)
        return f"at {counted(data['env_steps'], 'env step')}"

    def _read_checkpoint(self, folder: Folder, name: str) -> str:
        _, data = read_in(folder, name)
        if self._recipe is not None:
            refuse_foreign(data, self._recipe, folder.path / name)
        if data.get("recipe", self._text) != self._text:
            raise UserError("recipe.toml is not what it was when this was saved")
        counters = data["counters"]
        if "metrics" in data:
            for rows in (METRICS, EVALUATIONS):
                Rows(self._run, rows).refuse_other(data[rows.partition(".")[0]])
        for file, mark in grown_files(data):
            Growing(self._run, file).refuse_other(mark)
        return (
            f"after {counted(counters['iterations'], 'iteration')}, "
            f"{counted(counters['env_steps'], 'env step')}"
        )

    def _sweepings(self, folder: Folder, prefix: str) -> None:
        for name in folder.names():
            if UNFINISHED.fullmatch(name):
                said = "half written by a process that was killed; resume removes it"
                self.findings.append(Finding(prefix + name, said))
