"""What a study sets out to test: statements about two arms, or about two gains."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from isobatch.errors import UserError, refuse_unknown
from isobatch.recipe.checks import Bound, Positive, as_field, refuse_misfits
from isobatch.study.checks import refuse_control

Measure = Literal["score", "curve"]
Contrast = str | tuple[str, str]
"""An arm's scores, or the gain of one arm over another, seed by seed."""


def _is_contrast(value: Any) -> bool:
    return isinstance(value, str) or (
        isinstance(value, tuple)
        and len(value) == 2
        and all(isinstance(each, str) for each in value)
    )


Side = Annotated[Any, Bound(_is_contrast, "must be an arm's name, or [arm, over arm]")]


@dataclass(frozen=True)
class Claim:
    """A statement about two arms that the study supports, contradicts or leaves undecided."""

    text: str
    better: Side
    than: Side
    source: str = ""
    measure: Measure = "score"
    """The final score, or the area under the learning curve."""
    margin: Positive | None = None
    """With a margin the claim is that the two differ by less than it, in normalised score."""
    column: str = ""
    """A metric instead of a score: its mean over the second half of the budget, which is claimed to
    be larger in `better`. Compared by rank, since metrics have no common unit."""

    def __post_init__(self) -> None:
        refuse_misfits(self)
        for name in ("text", "source", "column"):
            refuse_control(getattr(self, name), name)
        if self.column and (self.margin is not None or self.measure != "score"):
            raise UserError("a claim on a column has neither measure nor margin", "column")
        if isinstance(self.better, str) != isinstance(self.than, str):
            raise UserError("a claim compares two arms, or two gains [arm, over arm]", "better")

    @property
    def of(self) -> str:
        """What is compared: a column of the metrics, or `measure`."""
        return self.column or self.measure

    @property
    def arms(self) -> list[str]:
        """The arms it is about."""
        return [*_arms_of(self.better), *_arms_of(self.than)]


def read_claims(tables: Any) -> tuple[Claim, ...]:
    """Build a study's claims from the tables of its file."""
    if not isinstance(tables, list):
        raise UserError("claims are tables [[claims]]", field="claims")
    return tuple(_claim(table, number) for number, table in enumerate(tables, 1))


def _claim(data: Any, number: int) -> Claim:
    place = f"claim {number}"
    if not isinstance(data, dict):
        raise UserError(f"{place} must be a table [[claims]]", field="claims")
    refuse_unknown(data, {item.name for item in dataclasses.fields(Claim)}, place, "field")
    missing = [name for name in ("text", "better", "than") if name not in data]
    if missing:
        raise UserError(f"{place} has no {missing[0]}", field="claims")
    try:
        return Claim(**{name: as_field(value) for name, value in data.items()})
    except UserError as error:
        raise UserError(f"{place}: {error}", field="claims") from None


def _arms_of(contrast: Contrast) -> list[str]:
    return [contrast] if isinstance(contrast, str) else list(contrast)
