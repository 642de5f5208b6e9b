"""A recipe at another batch: what users hold, which prints as the answer."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from isobatch.recipe import Recipe
from isobatch.scaling import layout
from isobatch.scaling.answer import Answer, Asked, answer, notes
from isobatch.scaling.keep import Keep, advised_keep
from isobatch.scaling.rules import Change, Moved, Options, move
from isobatch.scaling.ways import Way, way_taken, ways


@dataclass(frozen=True)
class Rescaled:
    """A recipe at another batch, how it came about, and what to know about it."""

    tuned: Recipe
    """As it was."""
    moved: Moved
    sizes: dict[str, int]
    """The sizes asked for."""
    keep: Keep | None
    options: Options
    asked: Asked

    @property
    def recipe(self) -> Recipe:
        """The recipe at the new batch."""
        return self.moved.recipe

    @property
    def changes(self) -> list[Change]:
        """Each field that moves, with its rule and reason."""
        return self.moved.changes

    @property
    def warnings(self) -> list[str]:
        """What is not kept the same, the most important first."""
        return [note.text for note in notes(self.tuned, self.moved, self.asked)]

    @cached_property
    def ways(self) -> tuple[Way, ...]:
        """The ways to as many environments, this one among them."""
        return ways(self.tuned, self.sizes, self.keep, self.options)

    @cached_property
    def answer(self) -> Answer:
        """The parts of the answer."""
        return answer(self.tuned, self.moved, self.ways, self.asked)

    def asked_with(self, **context: Any) -> Rescaled:
        """Return the same with more to say: `library`, `notes`, `paste` and so on of `Asked`."""
        return dataclasses.replace(self, asked=dataclasses.replace(self.asked, **context))

    def text(self, verbose: bool = False) -> str:
        """Return the answer in 80 columns; all rules and warnings with `verbose`."""
        return layout.text(self.answer, verbose)

    def __str__(self) -> str:
        return self.text()

    def __repr__(self) -> str:
        old, new = self.tuned.batch, self.recipe.batch
        return (
            f"<Rescaled {self.recipe.env}: {old.shape} in {old.n_minibatches} -> {new.shape} in "
            f"{new.n_minibatches}; print it for the answer>"
        )

    def _repr_html_(self) -> str:
        return layout.html(self.answer)


def rescale(
    recipe: Recipe,
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
) -> Rescaled:
    """Return the recipe at another batch, its hyperparameters moved by the rules.

    What of the batch is not given stays: with `n_envs` alone the number of minibatches, so that
    both batch sizes move together, as in the paper. `keep` says otherwise: rollout,
    minibatch-size or minibatches. `betas` moves Adam's decays and epsilon (or SGD's momentum) too,
    `grad_norm` the gradient's bound; `noise_scale` is the run's measured one.
    """
    given = {
        "n_envs": n_envs,
        "n_steps": n_steps,
        "n_minibatches": n_minibatches,
        "minibatch_size": minibatch_size,
        "n_epochs": n_epochs,
    }
    sizes = {name: size for name, size in given.items() if size is not None}
    options = Options(betas, grad_norm, noise_scale)
    advised, why = advised_keep(recipe, sizes)
    moved = move(recipe, sizes, keep, options)
    asked = Asked(
        way=way_taken(sizes, keep),
        advised=advised,
        why=why,
        paste_title="The rescaled recipe in Python:",
        paste=_replaced(recipe, moved.recipe),
    )
    return Rescaled(recipe, moved, sizes, keep, options, asked)


def _replaced(old: Recipe, new: Recipe) -> str:
    """Return the Python that makes the new recipe of the old one, '' where nothing moves."""
    differing = old.differing(new)
    arguments = ", ".join(f"{name}={value!r}" for name, value in differing.items())
    return f"recipe.replace({arguments})" if differing else ""
