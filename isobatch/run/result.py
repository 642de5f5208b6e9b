"""A run as Python has it: recipe, metrics and evaluations as plain data, table and figure."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from isobatch.errors import UserError, one_line
from isobatch.recipe import Recipe
from isobatch.run import store

if TYPE_CHECKING:
    from pandas import DataFrame  # pyright: ignore[reportMissingImports]
    from plotly.graph_objects import Figure


@dataclass(frozen=True, init=False, repr=False)
class Run:
    """A run on disk; `isobatch.Run("runs/mine")` opens an existing one."""

    path: Path
    """Its directory."""
    interrupted: bool = False
    """True where the run was stopped before its budget was spent."""

    def __init__(self, path: str | Path, interrupted: bool = False) -> None:
        object.__setattr__(self, "path", Path(path))
        object.__setattr__(self, "interrupted", interrupted)

    @property
    def _there(self) -> Path:
        """Its directory, where a run is in it: one that was refused has none."""
        if not (self.path / "recipe.toml").is_file():
            raise UserError(f"{self.path} holds no run (there is no recipe.toml in it)")
        return self.path

    @property
    def recipe(self) -> Recipe:
        """The run's recipe."""
        return Recipe.load(self._there / "recipe.toml")

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """The run's rows, one per iteration."""
        return store.read_metrics(self._there)

    @property
    def evaluations(self) -> list[dict[str, Any]]:
        """The run's evaluations while training, one row per mark."""
        return store.read_evaluations(self._there)

    @property
    def profile(self) -> dict[str, Any] | None:
        """Where the time went since the last start or resume; None without `profile`."""
        return store.read_profile(self._there)

    def to_pandas(self, which: Literal["metrics", "evaluations"] = "metrics") -> DataFrame:
        """Return the metrics, a row per iteration, or the evaluations, a row per mark."""
        if which not in ("metrics", "evaluations"):
            raise UserError(f"which must be metrics or evaluations, got {which!r}")
        try:
            from pandas import DataFrame  # pyright: ignore[reportMissingImports]
        except ImportError:
            raise UserError("to_pandas needs pandas: pip install pandas") from None
        return DataFrame(self.metrics if which == "metrics" else self.evaluations)

    def plot(self, column: str | None = None) -> Figure:
        """Return a Plotly figure of a column of the metrics over environment steps.

        Without a column: the return, from evaluations if there are any, otherwise from training.
        """
        from plotly.graph_objects import Figure

        from isobatch.report import course, figures

        return Figure(figures.over_env_steps(course.read(self.path), column))

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r}: {', '.join(self._facts().values())})"

    def _repr_html_(self) -> str:
        """Show it in a notebook: a small table."""
        facts = {"run": str(self.path), **self._facts()}
        cells = (f"<tr><th>{escape(k)}</th><td>{escape(v)}</td></tr>" for k, v in facts.items())
        return f"<table>{''.join(cells)}</table>"

    def _facts(self) -> dict[str, str]:
        """Return what it trains, its batch, how far it is and what it came to, in words."""
        try:
            recipe, rows = self.recipe, self.metrics
        except (UserError, OSError) as error:
            return {"unreadable": one_line(error)}
        batch, last = recipe.batch, rows[-1] if rows else {}
        score = last.get("episode_return")
        return {
            "trains": f"{recipe.algo} on {recipe.env}, seed {recipe.seed}",
            "batch": f"{batch.n_envs} x {batch.n_steps}, {batch.n_minibatches} minibatches of "
            f"{batch.minibatch_size:,}, epochs {batch.n_epochs}",
            "env steps": f"{last.get('env_steps', 0):,} of {recipe.total_timesteps:,} env steps",
            "return": "no episode ended" if score is None else f"training return {score:.2f}",
        }
