"""The run directory: recipe, metrics, checkpoints and policy, whole after a kill at any moment.

    recipe.toml          what was asked for
    metrics.jsonl        one row per iteration, append-only
    evaluations.jsonl    one row per evaluation while training, where there are any
    checkpoints/*        the last two whole states, sealed
    policy.safetensors   what `eval` and `load` use, sealed
    policies/*           the same at parts of the budget, for probing

A sealed file is safetensors with its plain data and a hash of both in the header; it is written
beside, fsynced and renamed, so that it is there whole or not at all. No pickles.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import math
import os
import re
import shutil
import tempfile
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from isobatch.errors import DamagedFile, InUse, UserError, one_line
from isobatch.recipe import Recipe

CLOCK_COLUMNS = ("seconds", "steps_per_second", "time", "probe_seconds")
"""Metrics that depend on the clock; all others are the same for the same recipe."""
KEPT_CHECKPOINTS = 2
EVALUATIONS = "evaluations.jsonl"


def write_sealed(path: Path, tensors: dict[str, Tensor], data: dict[str, Any]) -> None:
    """Write tensors and plain data to `path` at once: there whole, or not at all."""
    from safetensors.torch import save

    plain = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    text = json.dumps(data, allow_nan=False, sort_keys=True)
    header = {"data": text, "sha256": _digest(plain, text)}
    write_atomically(path, save(plain, metadata=header))


def read_sealed(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read what `write_sealed` wrote; raise `DamagedFile` if a byte of it changed."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        text = header["data"]
        if _digest(tensors, text) != header["sha256"]:
            raise DamagedFile(f"{path} is damaged: its hash does not match")
        return tensors, json.loads(text)
    except (SafetensorError, OSError, KeyError, ValueError) as error:
        if isinstance(error, DamagedFile | FileNotFoundError):
            raise
        raise DamagedFile(f"{path} is damaged: {one_line(error)}") from error


class RunDirectory:
    """A run on disk, held by one process at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._made: list[Path] = []
        self._lock = None
        self._metrics = None

    @classmethod
    def create(cls, path: str | Path, recipe: Recipe) -> RunDirectory:
        """Make a new run directory; it appears with its recipe in it or not at all."""
        path = Path(path)
        refuse_taken(path)
        made = [parent for parent in path.parents if not parent.exists()]
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            beside = Path(tempfile.mkdtemp(prefix=f".{path.name}-", dir=path.parent))
        except OSError as error:
            raise UserError(f"cannot make the run directory {path}: {error.strerror}") from None
        try:
            beside.chmod(0o755)
            (beside / "checkpoints").mkdir()
            write_atomically(beside / "recipe.toml", recipe.to_toml().encode())
            write_atomically(beside / "metrics.jsonl", b"")
            os.rename(beside, path)
        except OSError as error:
            shutil.rmtree(beside, ignore_errors=True)
            raise UserError(f"cannot make the run directory {path}: {error.strerror}") from None
        _sync_directory(path.parent)
        run = cls(path)
        run._made = made
        run.hold()
        return run

    @classmethod
    def open(cls, path: str | Path) -> RunDirectory:
        """Open an existing run directory to go on with it."""
        path = Path(path)
        if not (path / "recipe.toml").is_file():
            raise UserError(f"{path} holds no run (there is no recipe.toml in it)")
        run = cls(path)
        run.hold()
        return run

    def hold(self) -> None:
        """Keep other processes from writing here until this one ends or calls `release`."""
        self._lock = open(self.path / ".lock", "w")  # noqa: SIM115 - held until release()
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._lock.close()
            raise InUse(f"{self.path} is in use: another process is training there") from None

    def release(self) -> None:
        """Let go of the directory."""
        for file in (self._metrics, self._lock):
            if file is not None:
                file.close()
        self._metrics = self._lock = None

    def discard(self) -> None:
        """Remove a run that came to nothing, and the folders made for it."""
        self.release()
        shutil.rmtree(self.path)
        for folder in self._made:
            if not any(folder.iterdir()):
                folder.rmdir()

    @property
    def recipe(self) -> Recipe:
        """The recipe as saved."""
        return Recipe.load(self.path / "recipe.toml")

    def save_recipe(self, recipe: Recipe) -> None:
        """Replace the recipe (a longer budget, on resuming)."""
        write_atomically(self.path / "recipe.toml", recipe.to_toml().encode())

    def append(self, row: dict[str, Any]) -> None:
        """Add one row to the metrics; numbers that are not finite become null."""
        if self._metrics is None:
            file = self.path / "metrics.jsonl"
            self._metrics = file.open("a", encoding="utf-8")
        clean = {key: _finite(value) for key, value in row.items()}
        self._metrics.write(json.dumps(clean, allow_nan=False) + "\n")
        self._metrics.flush()

    def metrics(self) -> list[dict[str, Any]]:
        """Return all whole rows of the metrics."""
        return read_metrics(self.path)

    def cut_metrics(self, iterations: int) -> None:
        """Drop rows past `iterations`, and a last row that was only half written."""
        rows = [row for row in self.metrics() if row["iterations"] <= iterations]
        text = "".join(json.dumps(row) + "\n" for row in rows)
        write_atomically(self.path / "metrics.jsonl", text.encode())

    def save_checkpoint(
        self, tensors: dict[str, Tensor], data: dict[str, Any], iterations: int
    ) -> None:
        """Write a checkpoint after the rows it stands for are on disk; keep the last two."""
        if self._metrics is not None:
            os.fsync(self._metrics.fileno())
        folder = self.path / "checkpoints"
        folder.mkdir(exist_ok=True)
        write_sealed(folder / f"{iterations:09d}.safetensors", tensors, data)
        for old in sorted(folder.glob("[0-9]*.safetensors"))[:-KEPT_CHECKPOINTS]:
            old.unlink()

    def last_checkpoint(self) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """Return the newest checkpoint that is whole, or None where there is none."""
        for path in sorted((self.path / "checkpoints").glob("[0-9]*.safetensors"), reverse=True):
            try:
                return read_sealed(path)
            except DamagedFile:
                path.rename(path.with_suffix(".damaged"))
        return None

    def save_policy(
        self,
        tensors: dict[str, Tensor],
        data: dict[str, Any],
        keep: Literal["last", "part", "best"] = "last",
    ) -> None:
        """Write the policy file; of a part of the budget, also one that later ones leave alone.

        The best of the evaluations is a file of its own.
        """
        if keep != "last":
            name = "best" if keep == "best" else f"{data['env_steps']:012d}"
            kept = self.path / "policies" / f"{name}.safetensors"
            kept.parent.mkdir(exist_ok=True)
            write_sealed(kept, tensors, data)
        if keep != "best":
            write_sealed(self.path / "policy.safetensors", tensors, data)

    def append_evaluation(self, row: dict[str, Any]) -> None:
        """Add one row to the evaluations, on disk when this returns."""
        with open(self.path / EVALUATIONS, "a", encoding="utf-8") as file:
            file.write(json.dumps(row, allow_nan=False) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def evaluations(self) -> list[dict[str, Any]]:
        """Return all whole rows of the evaluations, none where there are none."""
        return read_evaluations(self.path)

    def cut_evaluations(self, env_steps: int) -> None:
        """Drop evaluations at marks past `env_steps`: they are played again."""
        if (self.path / EVALUATIONS).exists():
            rows = [row for row in self.evaluations() if 0 < env_steps >= row["mark"]]
            text = "".join(json.dumps(row) + "\n" for row in rows)
            write_atomically(self.path / EVALUATIONS, text.encode())

    def cut_policies(self, env_steps: int) -> None:
        """Drop kept policies past `env_steps`: they are made again."""
        for kept, file in kept_policies(self.path).items():
            if kept > env_steps:
                file.unlink()


def read_checkpoint(path: str | Path) -> dict[str, Tensor] | None:
    """Return the tensors of a run's newest whole checkpoint, None where there is none."""
    for file in sorted((Path(path) / "checkpoints").glob("[0-9]*.safetensors"), reverse=True):
        with contextlib.suppress(DamagedFile):
            return read_sealed(file)[0]
    return None


def refuse_taken(path: Path) -> None:
    """Refuse an output directory that holds anything."""
    if (path / "recipe.toml").exists():
        raise UserError(f"{path} holds another run: resume it, or choose another --out")
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise UserError(f"{path} exists and is not an empty directory: choose another --out")


def read_metrics(path: str | Path, most: int | None = None) -> list[dict[str, Any]]:
    """Return the rows of a run's metrics.jsonl; a half-written last line is left out.

    With `most`, about that many rows evenly spread, the last among them: enough to draw a curve.
    """
    return _read_rows(Path(path) / "metrics.jsonl", most)


def read_evaluations(path: str | Path) -> list[dict[str, Any]]:
    """Return the rows of a run's evaluations, one a mark; none where it has not been evaluated."""
    file = Path(path) / EVALUATIONS
    return _read_rows(file) if file.exists() else []


def _read_rows(file: Path, most: int | None = None) -> list[dict[str, Any]]:
    lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
    if lines and not lines[-1].endswith("\n"):
        del lines[-1]
    stride = 1 if most is None else max(1, len(lines) // most)
    rows = []
    for number in range((len(lines) - 1) % stride, len(lines), stride):
        try:
            rows.append(json.loads(lines[number]))
        except json.JSONDecodeError:
            raise DamagedFile(f"{file}, line {number + 1} is not JSON") from None
    return rows


def kept_policies(path: str | Path) -> dict[int, Path]:
    """Return the policies kept in the course of a run, by their environment steps."""
    files = (Path(path) / "policies").glob("[0-9]*.safetensors")
    return {int(file.stem): file for file in sorted(files)}


def read_policy(
    path: str | Path, at: float | None = None, best: bool = False
) -> tuple[dict[str, Tensor], dict[str, Any]]:
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
    try:
        last = read_sealed(file)
        if at is None:
            return last
        wanted = at * Recipe.load(Path(path) / "recipe.toml").total_timesteps
        policies = kept_policies(path) | {last[1]["env_steps"]: file}
        nearest = policies[min(policies, key=lambda steps: abs(steps - wanted))]
        return last if nearest == file else read_sealed(nearest)
    except DamagedFile as error:
        raise UserError(str(error)) from None


def safe_name(text: str) -> str:
    """Return `text` with everything but letters, digits, dot and dash made a dash."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip(".-") or "run"


def _digest(tensors: dict[str, Tensor], text: str) -> str:
    digest = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file beside and rename it: there whole, or not at all."""
    beside = path.with_name(f".{path.name}.new")
    with open(beside, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(beside, path)
    _sync_directory(path.parent)


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
