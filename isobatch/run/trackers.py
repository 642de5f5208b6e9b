"""Trackers: sinks that show a run's numbers elsewhere, in TensorBoard or in W&B.

Each works in a thread of its own, which opens it, writes to it and closes it: training neither
waits for a disk or a network nor stops where they fail. The x-axis is `env_steps`.
"""

from __future__ import annotations

import math
import os
import secrets
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from threading import Event, Lock, Thread
from typing import Any, NamedTuple

from isobatch.errors import UserError, nearest
from isobatch.files import Folder
from isobatch.machine import fingerprint
from isobatch.noise import online
from isobatch.recipe import Recipe
from isobatch.run.reading import read_evaluations
from isobatch.run.sinks import Sink
from isobatch.text import say

Named = Callable[[Mapping[str, Any]], dict[str, float]]
"""From a row to its numbers, by group and name."""
PATIENCE = 30.0
"""Seconds that a run waits at its end for what is not written yet."""
ANSWER_SECONDS, UPLOAD_SECONDS = 10.0, 5.0
"""How long W&B's server has to answer, and at the end for what is not uploaded yet."""
EVERY_SECONDS = 1.0
"""How often rows are written: threads that take turns at every row cost training more."""
FLUSH_SECONDS = 10
"""How long TensorBoard's events may wait for the disk."""
GROUPS = {
    "rollout": (
        "episodes", "episode_return", "episode_length", "epsilon", "warmup_steps", "env_faults",
        "envs_remade",
    ),
    "batch": (
        "n_envs", "n_steps", "n_minibatches", "n_epochs", "rollout_size", "minibatch_size", "rows",
        "rows_learned", "rows_waiting", "rows_dropped", "updates_per_sample", "age_iterations",
        "age_env_steps", "age_grad_steps", "cohort_width",
    ),
    "time": (
        "iterations", "epochs", "grad_steps", "seconds", "steps_per_second", "env_seconds",
        "acting_seconds", "learning_seconds", "other_seconds", "probe_seconds",
    ),
    "diagnostics": tuple(name for name in online.COLUMNS if name != "probe_seconds"),
}  # fmt: skip
"""Where a row's columns are shown; others, an algorithm's own among them, under train."""
DIAGNOSTICS = (
    "weight_norm", "kurtosis", "policy_variance", "importance_ess", "rank", "dormant", "coverage",
    "visited",
)  # fmt: skip
"""Parts of the names of other diagnostics, which have the actor or the critic in theirs too."""
_GROUP = {column: group for group, columns in GROUPS.items() for column in columns}


@cache
def group_of(column: str) -> str:
    """Return the group that a row's column is shown in."""
    is_diagnostic = any(part in column for part in DIAGNOSTICS)
    return _GROUP.get(column, "diagnostics" if is_diagnostic else "train")


def named(row: Mapping[str, Any]) -> dict[str, float]:
    """Return a row's numbers by group and name; what is no number or not finite is left out."""
    return {
        f"{group_of(column)}/{column}": value
        for column, value in row.items()
        if column != "env_steps" and _is_number(value)
    }


def named_evaluation(row: Mapping[str, Any]) -> dict[str, float]:
    """The same of an evaluation, all under eval."""
    where = ("mark", "env_steps", "iterations")
    return {
        f"eval/{column}": value
        for column, value in row.items()
        if column not in where and _is_number(value)
    }


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


class About(NamedTuple):
    """What a tracker is told of a run when it starts."""

    recipe: Recipe
    system: dict[str, Any]
    """What computes it: versions, CPU, threads."""
    path: Path
    env_steps: int
    """Where it starts, or goes on."""


class Tracker(Sink):
    """A sink that does its work in a thread of its own; what fails there is raised here once."""

    def start(self, recipe: Recipe, path: str, env_steps: int) -> None:
        """Open it, in its thread."""
        self._failure: Exception | None = None
        self._rows: deque[tuple[int, Named, dict[str, Any]]] = deque()
        self._over = Event()
        about = About(recipe, fingerprint(), Path(path), env_steps)
        self._thread = Thread(target=self._work, args=(about,), daemon=True)
        self._thread.start()

    def row(self, row: dict[str, Any]) -> None:
        """Have a row's numbers written."""
        self._put(row["env_steps"], named, row)

    def evaluation(self, row: dict[str, Any]) -> None:
        """The same of an evaluation, at its mark."""
        self._put(row["mark"], named_evaluation, row)

    def stop(self) -> None:
        """Wait until everything is written, but not for ever."""
        self._over.set()
        try:
            self._thread.join(PATIENCE)
        except KeyboardInterrupt:
            return  # Asked to stop, the run has waited long enough: the rest is given up.
        self._raise_failure()
        if self._thread.is_alive():
            raise TimeoutError(f"it was not done {PATIENCE:.0f} s after the run's end")

    def _put(self, env_steps: int, names: Named, row: dict[str, Any]) -> None:
        self._raise_failure()
        self._rows.append((env_steps, names, row))

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _work(self, about: About) -> None:
        try:
            self._open(about)
            try:
                over = False
                while not over:
                    over = self._over.wait(EVERY_SECONDS)
                    while self._rows:
                        env_steps, names, row = self._rows.popleft()
                        self._write(env_steps, names(row))
            finally:
                self._close()
        except Exception as error:
            self._failure = error

    @abstractmethod
    def _open(self, about: About) -> None: ...

    @abstractmethod
    def _write(self, env_steps: int, values: dict[str, float]) -> None: ...

    @abstractmethod
    def _close(self) -> None: ...


class TensorBoard(Tracker):
    """Writes event files into the run's folder tensorboard."""

    def __init__(self) -> None:
        from torch.utils import tensorboard
        from torch.utils.tensorboard import summary

        self._tensorboard, self._summary = tensorboard, summary

    def _open(self, about: About) -> None:
        # Of rows that were cut and are made again TensorBoard shows the new ones. The last mark of
        # a budget may lie past its last row.
        steps = [about.env_steps, *(row["mark"] for row in read_evaluations(about.path))]
        self._writer = self._tensorboard.SummaryWriter(
            str(about.path / "tensorboard"),
            purge_step=max(steps) + 1 if about.env_steps else 0,
            flush_secs=FLUSH_SECONDS,
        )
        values = {name: _plain(value) for name, value in about.recipe.values.items()}
        shown = {"rollout/episode_return": 0, "eval/episode_return": 0}
        *begins, self._ends = self._summary.hparams(values, shown)
        for each in begins:
            self._events.add_summary(each)
        system = "".join(f"    {name} {value}\n" for name, value in about.system.items())
        self._writer.add_text("system", system, about.env_steps)

    def _write(self, env_steps: int, values: dict[str, float]) -> None:
        # In one event, 0.1 ms: a call of add_scalar for each took 4.
        kind = self._summary.Summary
        found = [kind.Value(tag=name, simple_value=each) for name, each in values.items()]
        self._events.add_summary(kind(value=found), env_steps)

    def _close(self) -> None:
        self._events.add_summary(self._ends)
        self._writer.close()

    @property
    def _events(self) -> Any:
        return self._writer.file_writer


class Wandb(Tracker):
    """Logs to W&B; where no API key is configured, to files that `wandb sync` uploads."""

    _one_at_a_time = Lock()
    """Several runs of a process are opened one by one."""

    def __init__(self) -> None:
        import wandb

        self._wandb = wandb

    def _open(self, about: About) -> None:
        wandb = self._wandb
        values = {name: _plain(value) for name, value in about.recipe.values.items()}
        with self._one_at_a_time:
            wandb.setup(wandb.Settings(silent=True))
            mode = self._mode(about.path)
            wandb.setup(wandb.Settings(mode=mode))  # Its telemetry is to stay offline too.
            self._run = wandb.init(
                project=os.environ.get("WANDB_PROJECT", "isobatch"),
                name="/".join(about.path.parts[-2:]),
                id=_run_id(about.path),
                resume="allow",
                dir=str(about.path.resolve()),  # Its own process may be in another folder.
                mode=mode,
                config=values | {"system": about.system},
                reinit="create_new",
                settings=wandb.Settings(
                    silent=True,
                    console="off",  # The terminal is the run's.
                    init_timeout=ANSWER_SECONDS,
                    finish_timeout=UPLOAD_SECONDS,
                ),
            )
        if self._run.url:
            say(f"W&B: {self._run.url}", error=True)

    def _mode(self, path: Path) -> Any:
        """Return W&B's mode: as WANDB_MODE says, but never one that would ask for a key."""
        mode = os.environ.get("WANDB_MODE", "online")
        if mode == "online" and not self._wandb.login(prompt=False, verify=False):
            say(
                "W&B: no API key is configured, so the run is kept offline; wandb login, then "
                f"wandb sync {path}/wandb/offline-run-* uploads it",
                error=True,
            )
            return "offline"
        return mode

    def _write(self, env_steps: int, values: dict[str, float]) -> None:
        self._run.log(values, step=env_steps)

    def _close(self) -> None:
        self._run.finish()


def _run_id(path: Path) -> str:
    """Return the name by which W&B knows a run, the same when it is resumed."""
    with Folder(path) as run, run.folder("wandb", make=True) as folder:
        if not folder.has("run-id"):
            folder.write("run-id", secrets.token_hex(4).encode())
        return folder.read("run-id", 100).decode().strip()


def _plain(value: Any) -> Any:
    """Return a recipe's value as a tracker shows it."""
    return " ".join(map(str, value)) if isinstance(value, tuple) else value


TRACKERS = {"tensorboard": TensorBoard, "wandb": Wandb}
"""By their names, which are those of their packages and of Isobatch's extras too."""


def check(names: str | Iterable[str]) -> tuple[str, ...]:
    """Return the names of trackers, each once; refuse those not known, or not installed here."""
    asked = tuple(dict.fromkeys([names] if isinstance(names, str) else names))
    for name in asked:
        if name not in TRACKERS:
            raise UserError(
                f"unknown tracker {name!r}; there are {', '.join(TRACKERS)}."
                f"{nearest(name, list(TRACKERS))}"
            )
        found = find_spec(name)
        if found is None or found.origin is None:  # A folder of that name is no package.
            raise UserError(f"{name} is not installed: pip install 'isobatch[{name}]'")
    return asked


def make(names: str | Iterable[str]) -> list[Sink]:
    """Return a sink for each of the trackers named; their packages are imported here."""
    try:
        return [TRACKERS[name]() for name in check(names)]
    except ImportError as error:
        raise UserError(f"a tracker cannot be imported: {error}") from None
