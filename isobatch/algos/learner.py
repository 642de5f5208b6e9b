"""What every algorithm is: something that learns from one rollout after another."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, NamedTuple, Protocol, TypeVar, runtime_checkable

from torch import Tensor

from isobatch.clock import OFF, Clock
from isobatch.experience import Rollout
from isobatch.recipe import Recipe
from isobatch.state import TrainState
from isobatch.update import Joinable, Stepper
from isobatch.world import ALONE, World

Made = TypeVar("Made")


class Learned(NamedTuple):
    """What came of one rollout; the loop counts it."""

    statistics: dict[str, float]
    """By column, those the iteration has."""
    epochs: int = 0
    """Passes over the rollout that were completed."""
    grad_steps: int = 0
    """Gradient steps taken."""
    phase_iterations: int | None = None
    """PPG: iterations of the policy phase under way, after this one; None: as before."""


TakeGradient = Callable[[Stepper, Tensor, Any], Awaitable[dict[str, Tensor]]]
"""As `Stepper.gradient`, of what gathers the rows: by the stepper itself, together with other runs'
steppers (`Joinable`), or by shards (`sharded.ByShard`)."""


async def own_gradient(stepper: Stepper, rows: Tensor, gather: Joinable) -> dict[str, Tensor]:
    """Let the stepper compute it."""
    return stepper.gradient(rows, gather)


@dataclass(frozen=True)
class Context:
    """What a learner works with."""

    state: TrainState
    """Networks, optimisers, averages, counters; `state.recipe` is the recipe in force, and may be
    another one at the next rollout."""
    chunk_size: int
    """Rows of one forward-backward pass."""
    directory: Path = field(default_factory=Path)
    """For files it may need while it runs."""
    note: Callable[[str], None] = lambda text: None
    """Is told what goes on in an iteration that takes long."""
    gradient: TakeGradient = own_gradient
    """How gradients are computed: by each stepper for itself, or for a cohort of runs at once."""
    clock: Clock = OFF
    """Times parts of learning, where a run is profiled."""
    world: World = ALONE
    """Who computes it: where that is by shards, rollouts have their observations there."""

    @property
    def is_alone(self) -> bool:
        """True where the run's gradients are its own affair."""
        return self.gradient is own_gradient


class Learner(Protocol):
    """Learns from one rollout after another, changing the run's state.

    Made with a `Context`. It writes no counters: what it did is in what it returns.
    """

    columns: tuple[str, ...]
    """The statistics an iteration may have."""

    def learn(self, rollout: Rollout) -> Learned:
        """Learn from a rollout, under `state.recipe`."""
        ...

    def close(self) -> None:
        """Give back what is held outside the state."""
        ...


@runtime_checkable
class Awaits(Protocol):
    """A learner that awaits its gradients (`Context.gradient`), and so may learn in a cohort."""

    async def learning(self, rollout: Rollout) -> Learned:
        """As `learn`."""
        ...


@runtime_checkable
class Holds(Protocol):
    """A learner that holds experience from one rollout to the next, outside the state.

    Where a run is to be resumed exactly, a checkpoint has it too.
    """

    def held(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return what is held: tensors, and plain data."""
        ...

    def hold(self, tensors: dict[str, Tensor], data: dict[str, Any]) -> None:
        """Hold again what `held` returned."""
        ...


def awaits(kind: Any) -> bool:
    """Say whether a learner's class may learn in a cohort.

    One that changes how it learns alone, by a `learn` or `improve` of its own over another's, may
    not: it would not be heard there.
    """

    def owner(name: str) -> type:
        return next(each for each in kind.__mro__ if name in vars(each))

    alone = [name for name in ("learn", "improve") if hasattr(kind, name)]
    return hasattr(kind, "learning") and all(
        issubclass(owner("learning"), owner(name)) for name in alone
    )


class Latest(Generic[Made]):
    """Something made for the recipe in force, and made anew when that is another one."""

    def __init__(self, make: Callable[[Recipe], Made]) -> None:
        self._make = make
        self._recipe: Recipe | None = None

    def __call__(self, recipe: Recipe) -> Made:
        """Return what was made for `recipe`."""
        if recipe is not self._recipe:
            self._made, self._recipe = self._make(recipe), recipe
        return self._made
