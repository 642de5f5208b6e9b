"""The shapes that were asked for, compared: pair by pair over the same resamples."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from isobatch.batch import Shape
from isobatch.estimate import Estimate
from isobatch.noise.errors import GradientError
from isobatch.probe.curve import UPDATES, Bias, Point, errors, quantiles

CLEAR = 0.95
"""A shape with the smallest error in this share of bootstrap resamples is named; else none is."""


@dataclass(frozen=True)
class Comparison:
    """The errors of some shapes, over bootstrap resamples of the same environments."""

    shapes: tuple[Shape, ...]
    batches: tuple[float, ...]
    """Of each shape, how many batches' gradients are averaged."""
    errors: tuple[Estimate, ...]
    """bias^2 + variance / batches, relative to |G|^2."""
    wins: tuple[float, ...]
    """Share of all resamples in which a shape has the smallest error."""
    ratio: Estimate
    """The winner's error over the runner-up's; not a number where one of them is infinite."""

    @property
    def ranked(self) -> list[int]:
        """The shapes' places, the one that wins most often first."""
        return _ranked(self.wins, self.errors)

    @property
    def winner(self) -> Shape:
        """The shape that wins most often."""
        return self.shapes[self.ranked[0]]

    @property
    def runner_up(self) -> Shape:
        """The shape that wins most often but one."""
        return self.shapes[self.ranked[1]]

    @property
    def share(self) -> float:
        """How often the winner wins."""
        return self.wins[self.ranked[0]]

    @property
    def is_clear(self) -> bool:
        """True where the winner wins often enough to be named."""
        return self.share >= CLEAR


@dataclass(frozen=True)
class Comparisons:
    """Shapes compared over one update, over several, and at the same number of transitions."""

    update: Comparison
    updates: Comparison
    """Over `UPDATES` of them."""
    transitions: Comparison | None
    """Smaller rollouts averaged until they hold as many transitions as the largest; None where all
    shapes are of one size, so that it is the same as `update`."""


def compare(measured: Bias, shapes: Sequence[Shape]) -> Comparisons:
    """Compare two shapes or more against a reference."""
    lengths = {each.n_steps: each for each in measured.lengths}
    found = [errors(measured, lengths[shape.n_steps], shape.n_envs) for shape in shapes]
    largest = max(shape.samples for shape in shapes)
    evened = [largest / shape.samples for shape in shapes]
    return Comparisons(
        _compared(shapes, found, [1] * len(found)),
        _compared(shapes, found, [UPDATES] * len(found)),
        _compared(shapes, found, evened) if max(evened) > 1 else None,
    )


def to_compare(asked: Sequence[Shape], points: Sequence[Point]) -> tuple[Shape, ...]:
    """Return the shapes asked for; one alone is compared with the best other one of the curve."""
    others = [point for point in points if point.shape not in asked]
    if len(asked) > 1 or not others:
        return tuple(asked)
    return (*asked, most_often(others, over_updates=True).shape)


def most_often(points: Sequence[Point], over_updates: bool = False) -> Point:
    """Return the shape that has the smallest error most often, over one update or several."""

    def standing(point: Point) -> tuple[float, float]:
        if over_updates:
            return point.best_share_over_updates, -point.error_over(UPDATES)
        return point.best_share, -point.error.value

    return max(points, key=standing)


def _compared(
    shapes: Sequence[Shape], found: Sequence[GradientError], batches: Sequence[float]
) -> Comparison:
    totals = torch.stack([each.over(k) for each, k in zip(found, batches, strict=True)], 1)
    resamples = totals[1:]
    # Where every error is infinite nobody wins: the resample counts against all.
    best = torch.where(resamples.isfinite().any(1), resamples.argmin(1), -1)
    wins = tuple(float((best == k).double().mean()) for k in range(len(shapes)))
    estimates = tuple(quantiles(column) for column in totals.unbind(1))
    first, *rest = _ranked(wins, estimates)
    ratio = _ratio(totals[:, first], totals[:, rest[0]]) if rest else Estimate(math.nan)
    return Comparison(tuple(shapes), tuple(batches), estimates, wins, ratio)


def _ranked(wins: Sequence[float], errors: Sequence[Estimate]) -> list[int]:
    return sorted(range(len(wins)), key=lambda k: (-wins[k], errors[k].value))


def _ratio(above: Tensor, below: Tensor) -> Estimate:
    """Return the ratio of two errors [1 + R]; that of two infinite ones may be anything."""
    scattered = above / below
    defined = above[0].isfinite() and below[0].isfinite()
    low = quantiles(scattered.nan_to_num(nan=0.0, posinf=math.inf)).low
    high = quantiles(scattered.nan_to_num(nan=math.inf, posinf=math.inf)).high
    return Estimate(float(scattered[0]) if defined else math.nan, low, high)
