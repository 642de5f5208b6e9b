"""Where a run's rows go: its metrics file, the terminal, and whatever a user adds.

All are sinks: told when the run starts, of every row and evaluation, of notes within long
iterations, and when it stops. Several listen at once. One that raises is reported once and never
stops the run; only the metrics file, without which there is no run, may.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from isobatch.batch import Batch
from isobatch.errors import UserError, one_line
from isobatch.recipe import Recipe
from isobatch.text import counted, say, size

if TYPE_CHECKING:
    from isobatch.run.store import RunDirectory

LINE_SECONDS = 10.0
"""Plain output gets a line about this often."""
METHODS = ("start", "row", "note", "stop")
"""What a sink must have."""


class Sink:
    """Receives the events of a run. The methods do nothing: override those you need."""

    def start(self, recipe: Recipe, path: str, env_steps: int) -> None:
        """A run starts, or resumes, at `env_steps`; `path` is its directory."""

    def row(self, row: dict[str, Any]) -> None:
        """An iteration ended: its row of metrics."""

    def evaluation(self, row: dict[str, Any]) -> None:
        """The policy was evaluated while training: the evaluation's row."""

    def note(self, text: str) -> None:
        """A progress message within a long iteration."""

    def announce(self, text: str) -> None:
        """A message that is shown once and stays."""

    def stop(self) -> None:
        """The run stops: its budget is spent, or it was asked to, or it failed."""


class Sinks(Sink):
    """Several sinks as one: `required` ones first, whose errors are the run's."""

    def __init__(self, required: Iterable[Sink], others: Iterable[Sink]) -> None:
        self._required, self._others = list(required), list(others)
        self._failed: set[int] = set()
        for sink in self._others:
            missing = [name for name in METHODS if not callable(getattr(sink, name, None))]
            if missing:
                raise UserError(
                    f"the sink {_name(sink)} has no method {missing[0]}: subclass isobatch.Sink, "
                    f"or give it {', '.join(METHODS)}"
                )

    def start(self, recipe: Recipe, path: str, env_steps: int) -> None:
        """Tell all."""
        self._tell(lambda sink: sink.start(recipe, path, env_steps))

    def row(self, row: dict[str, Any]) -> None:
        """Tell all, each with a row of its own."""
        self._tell(lambda sink: sink.row(dict(row)))

    def evaluation(self, row: dict[str, Any]) -> None:
        """Tell those that listen to evaluations; sinks that are no `Sink` need not."""
        self._tell(lambda sink: _evaluation(sink)(dict(row)))

    def note(self, text: str) -> None:
        """Tell all."""
        self._tell(lambda sink: sink.note(text))

    def announce(self, text: str) -> None:
        """Tell those that listen to it; sinks that are no `Sink` need not."""
        self._tell(lambda sink: getattr(sink, "announce", lambda text: None)(text))

    def stop(self) -> None:
        """Tell all."""
        self._tell(lambda sink: sink.stop())

    def _tell(self, call: Callable[[Sink], None]) -> None:
        for sink in self._required:
            call(sink)
        for place, sink in enumerate(self._others):
            try:
                call(sink)
            except Exception as error:
                if place not in self._failed:
                    self._failed.add(place)
                    reason = f"{type(error).__name__}: {one_line(error)}"
                    say(
                        f"isobatch: the sink {_name(sink)} failed ({reason}); training continues, "
                        "further errors of this sink are not shown",
                        error=True,
                    )


class MetricsFile(Sink):
    """Adds each row to the run's metrics.jsonl."""

    def __init__(self, directory: RunDirectory) -> None:
        self._directory = directory

    def row(self, row: dict[str, Any]) -> None:
        """Append a line."""
        self._directory.append(row)


def headline(recipe: Recipe) -> str:
    """Say in one line what a run trains and with what batch."""
    batch = recipe.batch
    return (
        f"{recipe.algo} on {recipe.env}, {environments_by_steps(batch)} = "
        f"{counted(batch.rollout_size, 'transition')}, "
        f"{counted(batch.n_minibatches, 'minibatch', 'minibatches')} of "
        f"{batch.minibatch_size:,}, {counted(batch.n_epochs, 'epoch')}, seed {recipe.seed}"
    )


def environments_by_steps(batch: Batch) -> str:
    """Return 8 envs x 128 steps."""
    return f"{counted(batch.n_envs, 'env')} x {counted(batch.n_steps, 'step')}"


def readings(row: dict[str, Any]) -> str:
    """Say in a few words how a run is doing."""
    parts = [f"{row['steps_per_second']:,.0f} steps/s"]
    if row.get("episode_return") is not None:
        parts.append(f"return {row['episode_return']:.4g}")
    if row.get("approx_kl") is not None:
        parts.append(f"KL {row['approx_kl']:.4f}")
    if row.get("clip_fraction") is not None:
        parts.append(f"clip fraction {row['clip_fraction']:.1%}")
    if row.get("age_iterations"):
        parts.append(f"staleness {counted(round(row['age_iterations']), 'iteration')}")
    if row.get("rows_learned") == 0:
        waiting = counted(round(row["rows_waiting"]), "transition")
        parts.append(f"{waiting} waiting for episodes to end")
    if row.get("rows_dropped"):
        parts.append(f"{counted(round(row['rows_dropped']), 'transition')} dropped")
    if row.get("env_faults"):
        parts.append(counted(row["env_faults"], "environment fault"))
    if row.get("envs_remade"):
        parts.append(f"{counted(row['envs_remade'], 'environment')} re-made")
    if row.get("epsilon") is not None:
        parts.append(f"epsilon {row['epsilon']:.2f}")
    if row.get("phase_memory_bytes") is not None:
        parts.append(_phase(row))
    if row.get("noise_scale") is not None:
        parts.append(f"noise scale {row['noise_scale']:,.0f}")
    return "  ".join(parts)


def began_at(row: Mapping[str, Any]) -> int:
    """Return the environment steps at which a row's iteration began."""
    return row["env_steps"] - row.get("rows", 0)


def reshaping(row: dict[str, Any]) -> str:
    """Say what of the batch moved before this iteration and why, or why nothing could; or ""."""
    decision = row.get("decision") or ""
    if not row.get("reshaped"):
        return decision
    return f"reshaped: {row['reshaped']}" + (f" ({decision})" if decision else "")


def _phase(row: dict[str, Any]) -> str:
    """Say which iteration of PPG's phase it is and where its observations are stored."""
    place = f"{size(row['phase_memory_bytes'])} in memory"
    if row["phase_disk_bytes"]:
        place += f", {size(row['phase_disk_bytes'])} on disk"
    return f"phase iteration {row['phase_iteration']:.0f}: {place}"


def _evaluation(sink: Sink) -> Callable[[dict[str, Any]], None]:
    return getattr(sink, "evaluation", lambda row: None)


def _name(sink: object) -> str:
    return type(sink).__name__
