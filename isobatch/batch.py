"""The batch: how much experience one iteration holds and how it is cut for gradient steps."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Any, NamedTuple

from isobatch.errors import UserError, shown
from isobatch.plain import LARGEST

SIZE = r"[1-9]\d{0,17}"
MOST_DIVIDED = 10**12
"""Rows of a rollout whose divisors are looked for."""
ADAPTIVE = "adaptive"
"""The schedule that has no stages: the batch follows what is measured."""


class Shape(NamedTuple):
    """N environments x T steps: the shape of a rollout."""

    n_envs: int
    n_steps: int

    @property
    def samples(self) -> int:
        """Rows of the rollout, N x T."""
        return self.n_envs * self.n_steps

    @property
    def name(self) -> str:
        """8x128."""
        return f"{self.n_envs}x{self.n_steps}"

    def __str__(self) -> str:
        return self.name

    @classmethod
    def parse(cls, text: str, what: str = "a shape") -> Shape:
        """Read 8x128; `what` names it in the error."""
        match = re.fullmatch(rf"\s*({SIZE})\s*x\s*({SIZE})\s*", text)
        if match is None:
            raise UserError(f"{what} must read like 8x128 (N x T), got {shown(text.strip())}")
        return cls(int(match[1]), int(match[2]))


@dataclass(frozen=True)
class Batch:
    """N environments x T steps, split into M minibatches, for E epochs.

    Everything else about the batch follows from these four and is a property, never stored.
    """

    n_envs: int = 8
    """Parallel environments, N."""
    n_steps: int = 128
    """Steps per environment in one rollout, T."""
    n_minibatches: int = 4
    """Minibatches per epoch, M: one gradient step each."""
    n_epochs: int = 4
    """Passes over one rollout, E."""

    def __post_init__(self) -> None:
        for field in fields(self):
            positive(field.name, getattr(self, field.name))
        if self.n_minibatches > self.rollout_size:
            raise UserError(
                f"n_minibatches {self.n_minibatches} exceeds the transitions of a rollout, "
                f"{self.rollout_size} (n_envs {self.n_envs} x n_steps {self.n_steps})",
                field="n_minibatches",
            )

    @property
    def shape(self) -> Shape:
        """N x T."""
        return Shape(self.n_envs, self.n_steps)

    @property
    def rollout_size(self) -> int:
        """Rows in one rollout, N x T: the paper's iteration batch size."""
        return self.shape.samples

    @property
    def minibatch_size(self) -> int:
        """Rows in one gradient step, N x T / M (rounded down): the optimization batch size."""
        return self.rollout_size // self.n_minibatches

    @property
    def most_rows(self) -> int:
        """Rows of the largest minibatch of a whole rollout, N x T / M rounded up."""
        return -(-self.rollout_size // self.n_minibatches)

    @property
    def grad_steps_per_iteration(self) -> int:
        """Gradient steps taken on one rollout, M x E."""
        return self.n_minibatches * self.n_epochs

    @classmethod
    def from_sb3(cls, *, n_envs: int, n_steps: int, batch_size: int, n_epochs: int) -> Batch:
        """Build from Stable-Baselines3's numbers, where `batch_size` is the minibatch."""
        rollout_size = positive("n_envs", n_envs) * positive("n_steps", n_steps)
        n_minibatches = minibatch_count(rollout_size, positive("batch_size", batch_size))
        return cls(n_envs, n_steps, n_minibatches, n_epochs)

    @classmethod
    def from_cleanrl(
        cls, *, num_envs: int, num_steps: int, num_minibatches: int, update_epochs: int
    ) -> Batch:
        """Build from CleanRL's numbers; its `batch_size` is the whole rollout and follows."""
        return cls(num_envs, num_steps, num_minibatches, update_epochs)

    def minibatches_for(self, n_steps: int) -> int:
        """Return how many minibatches a rollout of only `n_steps` steps is cut into.

        The budget's last rollout may be short. Its minibatches keep about the usual size, so that
        no gradient step is noisier than the others; 0 means it is too short for even one.
        """
        return min(self.n_minibatches, round(self.n_envs * n_steps / self.minibatch_size))


@dataclass(frozen=True)
class Stage:
    """A batch from some environment step on."""

    env_steps: int
    shape: Shape
    n_minibatches: int | None = None
    """None: as many as before."""

    @property
    def sizes(self) -> dict[str, Any]:
        """The fields of the batch it sets."""
        cut = {} if self.n_minibatches is None else {"n_minibatches": self.n_minibatches}
        return {**self.shape._asdict(), **cut}


def parse_schedule(text: str, total_timesteps: int) -> tuple[Stage, ...]:
    """Read `0:8x128, 100k:32x128x8, 50%:128x32`: from where on, N x T [x minibatches].

    Where is an environment step or a part of the budget. What is adaptive has no stages.
    """
    if text.strip() in ("", ADAPTIVE):
        return ()
    stages = tuple(_stage(part.strip(), total_timesteps) for part in text.split(","))
    for before, after in pairwise(stages):
        if after.env_steps <= before.env_steps:
            raise UserError(
                f"batch_schedule is out of order: {after.env_steps:,} comes after "
                f"{before.env_steps:,}",
                field="batch_schedule",
            )
    return stages


def _stage(text: str, total_timesteps: int) -> Stage:
    pattern = rf"(\d[\d_]{{0,17}}(?:\.\d{{1,17}})?)([kM%]?)\s*:\s*({SIZE}x{SIZE})(?:x(\d{{1,18}}))?"
    match = re.fullmatch(pattern, text)
    if match is None:
        raise UserError(
            f"batch_schedule must read like '0:8x128, 100k:32x128', step:N x T [x minibatches], "
            f"or be {ADAPTIVE}, got {shown(text)}",
            field="batch_schedule",
        )
    number, unit, shape, n_minibatches = match.groups()
    units = {"": 1, "k": 1_000, "M": 1_000_000, "%": total_timesteps / 100}
    return Stage(
        round(float(number.replace("_", "")) * units[unit]),
        Shape.parse(shape, "batch_schedule"),
        positive("n_minibatches", int(n_minibatches)) if n_minibatches else None,
    )


def positive(name: str, value: Any) -> int:
    """Return `value` if it is a whole number of at least 1; the error names the field."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise UserError(f"{name} must be a whole number, got {shown(value)}", field=name)
    if value < 1:
        raise UserError(f"{name} must be at least 1, got {shown(value)}", field=name)
    if value >= LARGEST:
        raise UserError(f"{name} must be below 2^63, got {shown(value)}", field=name)
    return value


def minibatch_count(rollout_size: int, minibatch_size: int) -> int:
    """Return M for minibatches of `minibatch_size` rows; the rollout must divide evenly."""
    if positive("minibatch_size", minibatch_size) > rollout_size:
        raise UserError(
            f"minibatch_size {minibatch_size} exceeds the transitions of a rollout, {rollout_size}"
        )
    if rollout_size % minibatch_size:
        raise UserError(
            f"minibatches of {minibatch_size} do not divide a rollout of {rollout_size} transitions"
            f"{_nearest_divisors(rollout_size, minibatch_size)}"
        )
    return rollout_size // minibatch_size


def _nearest_divisors(total: int, target: int) -> str:
    """Say which sizes near the target divide, of a rollout small enough to try them."""
    if total > MOST_DIVIDED:
        return ""
    small = [size for size in range(1, math.isqrt(total) + 1) if total % size == 0]
    divisors = {*small, *(total // size for size in small)}
    closest = sorted(sorted(divisors, key=lambda size: abs(size - target))[:2])
    return f"; the nearest that do: {' and '.join(str(size) for size in closest)}"
