"""What counts as 0 and as 1 in an environment, so that scores can be averaged over tasks.

scores.csv has a random and a reference score for each environment, and where each comes from. They
are the same whatever a study compares; a study's own lowest and highest scores are never used.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from isobatch.errors import UserError, shown
from isobatch.recipe.checks import is_finite
from isobatch.text import counted


@dataclass(frozen=True)
class Scale:
    """The returns that count as 0 and as 1, and where they come from."""

    low: float
    high: float
    source: str

    def normalized(self, score: float) -> float:
        """(score - low) / (high - low)."""
        return (score - self.low) / (self.high - self.low)


def constants(env_id: str) -> Scale | None:
    """Return the scale of an environment, or None where the table has none.

    `gymnasium:Id` and `tensor:Id` play by the rules of EnvPool's Id.
    """
    return table().get(env_id.removeprefix("gymnasium:").removeprefix("tensor:"))


def given_scale(env_id: str, numbers: Any) -> Scale:
    """Return the scale a study gives for an environment: {random = ..., reference = ...}."""
    place = f"scores of {shown(env_id)}"
    if not isinstance(numbers, dict) or set(numbers) != {"random", "reference"}:
        raise UserError(f"{place} must be {{random = ..., reference = ...}}", field="scores")
    for name, value in numbers.items():
        if not is_finite(value):
            raise UserError(f"{place}: {name} must be a number, got {shown(value)}", field="scores")
    if not 0 < numbers["reference"] - numbers["random"] < math.inf:
        raise UserError(f"{place}: reference must be above random", field="scores")
    return Scale(float(numbers["random"]), float(numbers["reference"]), "given by the study")


def not_normalised(envs: Sequence[str]) -> str:
    """Say in a line that environments have no scale, and what the user can give."""
    named = ", ".join(envs[:3]) + (f" and {counted(len(envs) - 3, 'other')}" if envs[3:] else "")
    return (
        f"scores of {named} cannot be normalised: no random and reference score is known. Give "
        f'them in the study\'s file: [scores] "{envs[0]}" = {{ random = ..., reference = ... }}'
    )


@cache
def table() -> dict[str, Scale]:
    """Return the scales that come with Isobatch, by environment."""
    text = (resources.files("isobatch") / "scores.csv").read_text("utf-8")
    return {
        row["environment"]: Scale(
            float(row["random"]),
            float(row["reference"]),
            f"0: {row['random_source']}; 1: {row['reference_source']}",
        )
        for row in csv.DictReader(text.splitlines())
    }
