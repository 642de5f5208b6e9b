"""The batch that follows what the probe measures: minibatches the noise, N against T the error.

A decision is a function of the recipe, the batch in use and the probe's averages, nothing else; a
checkpoint holds the last two. Each moves one size by a factor of two, its hyperparameters by the
rules from the recipe's own batch, and waits for `PROBES_PER_MOVE` probes since the batch last
moved. By then the averages that a move made worthless, those of another N x T, have begun anew; the
noise of single rows depends on neither and is averaged on.

Errors are those of `isobatch.noise.errors`, by which the laboratory compares shapes too. Their
reference is rollouts without end at the recipe's own lambda and value function: what that function
gets wrong, a run in training does not see.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple, Protocol

from isobatch.batch import Batch
from isobatch.recipe import Recipe

PROBES_PER_MOVE = 5
"""Probes at one batch before it may move again."""
FRACTION = 0.5
"""Rows of a minibatch over the noise scale. A row is worth 1 / (1 + B / noise scale) of what it is
in the smallest batches (McCandlish et al. 2018, section 2.2): here two thirds. Rows are what the
budget counts, and `scaling.limits` too lets perfect scaling end here."""
TOO_FAR = 2.0
"""Minibatches move when they are this many times too small or large: the next size is then the
nearest, and there is as far to go before moving back."""
MINIBATCH_FACTOR = 8
"""Minibatches stay within this factor of the recipe's own."""
LEAST_ROWS = 16
"""No minibatch is made smaller than this."""
ENVS_FACTOR = 4
"""N stays within this factor of the recipe's own."""
UNDECIDED = "undecided"
"""How the sentence of a decision begins that could not be made."""
GAIN = 0.1
"""N and T move when that takes this part off the predicted error."""


class Error(Protocol):
    """The error of a shape's gradient: `isobatch.noise.errors.GradientError`."""

    @property
    def total(self) -> float:
        """bias^2 + variance, over |G|^2."""
        ...


class Measurements(Protocol):
    """What probes in training have measured, averaged: `isobatch.noise.averages.Averages`."""

    probes: int
    """Taken since the batch last moved."""

    @property
    def has_signal(self) -> bool:
        """True where the squared gradient is significantly different from zero."""
        ...

    @property
    def signal_error(self) -> float:
        """Standard error of its average."""
        ...

    @property
    def noise_scale(self) -> float | None:
        """In rows; None while it cannot be estimated."""
        ...

    @property
    def errors(self) -> Mapping[float, Error] | None:
        """Of rollouts of as many rows, T times 1/2, 1 and 2; None where unknown."""
        ...

    def mean(self, name: str) -> float | None:
        """Return an average, None where it is not known."""
        ...


class Decision(NamedTuple):
    """A batch to go on with, and the numbers behind it in a sentence."""

    batch: Batch
    why: str


def decide(recipe: Recipe, batch: Batch, measured: Measurements) -> Decision | None:
    """Return the batch to go on with after `batch`, None where nothing is to be said.

    `recipe` is as it was asked for, whose own batch bounds the others. Without a gradient that is
    distinguishable from its noise there is neither a noise scale nor an error to compare: the
    batch stays.
    """
    if measured.probes < PROBES_PER_MOVE:
        return None
    if not measured.has_signal:
        return Decision(batch, _undecided(measured))
    return _minibatches(recipe, batch, measured) or _shape(recipe, batch, measured)


def _undecided(measured: Measurements) -> str:
    return (
        f"{UNDECIDED}: the squared gradient, {measured.mean('signal') or 0.0:.3g} +- "
        f"{measured.signal_error:.2g}, is not significantly different from zero; the batch stays"
    )


def _minibatches(recipe: Recipe, batch: Batch, measured: Measurements) -> Decision | None:
    """Bring the minibatch towards `FRACTION` of the noise scale."""
    noise_scale = measured.noise_scale
    if "n_minibatches" in recipe.algorithm.fixes or noise_scale is None:
        return None
    wanted, size = FRACTION * noise_scale, batch.minibatch_size
    if size / TOO_FAR < wanted < size * TOO_FAR:
        return None
    count = batch.n_minibatches / 2 if wanted > size else batch.n_minibatches * 2
    if count != int(count) or batch.rollout_size % count:
        return None
    moved = replace(batch, n_minibatches=int(count))
    own = recipe.batch.minibatch_size
    least = max(own / MINIBATCH_FACTOR, min(LEAST_ROWS, own))
    if not least <= moved.minibatch_size <= own * MINIBATCH_FACTOR:
        return None
    return Decision(
        moved,
        f"noise scale {noise_scale:,.0f} against minibatches of {size:,}: "
        f"{moved.n_minibatches:,} instead of {batch.n_minibatches:,}",
    )


def _shape(recipe: Recipe, batch: Batch, measured: Measurements) -> Decision | None:
    """Trade environments for steps, or back, where that lessens the gradient's error."""
    errors = measured.errors
    if errors is None:
        return None
    now = errors[1.0]
    able = {_longer(batch, factor): errors[factor] for factor in _factors(recipe, batch)}
    best = min(able, key=lambda moved: able[moved].total, default=None)
    if best is None or not able[best].total <= (1 - GAIN) * now.total < math.inf:
        return None
    return Decision(
        best,
        f"gradient error {able[best]} predicted for {best.n_envs} x {best.n_steps} against {now} "
        f"of {batch.n_envs} x {batch.n_steps}",
    )


def _factors(recipe: Recipe, batch: Batch) -> Iterator[float]:
    """Yield what T may be multiplied by within the bounds, N divided by the same."""
    own = recipe.batch.n_envs
    if batch.rollout_size % batch.n_minibatches:
        return  # The rules take even minibatches only.
    if batch.n_steps % 2 == 0 and batch.n_steps >= 4 and 2 * batch.n_envs <= ENVS_FACTOR * own:
        yield 0.5
    # Two environments at least: one alone would have no variance to measure.
    if batch.n_envs % 2 == 0 and batch.n_envs >= max(4, 2 * own / ENVS_FACTOR):
        yield 2.0


def _longer(batch: Batch, factor: float) -> Batch:
    return replace(batch, n_envs=int(batch.n_envs / factor), n_steps=int(batch.n_steps * factor))
