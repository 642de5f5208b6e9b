"""What of a study is refused before anything is made of it: names, sizes, what is no arm."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from isobatch.batch import positive
from isobatch.errors import UserError, nearest, shown
from isobatch.recipe.checks import HALF, is_finite
from isobatch.run.store import safe_name
from isobatch.scaling import SIZES

RESCALING = ("rescale_from", "scale_envs", "keep", "hold")
"""What an arm may say of its reference, beside recipe fields."""
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""Characters that a terminal obeys; tab and newline are text."""
MOST_SEEDS, MOST_ARMS, MOST_CELLS = 10_000, 1_000, 100_000
LONGEST_KEY = 220
"""Bytes of a run's name on disk, which is its arm, environment and seed; files add to it."""

Arms = Mapping[str, Any]


def refuse_arms(arms: Arms) -> None:
    """Refuse arms that are no tables of fields."""
    for arm, fields in arms.items():
        refuse_control(arm, "arms")
        if not isinstance(fields, dict):
            raise UserError(f"arm {shown(arm)} must be a table of recipe fields", field="arms")
    if not arms:
        raise UserError("there are no arms: add [arms] or [grid]", field="arms")


def refuse_control(text: str, field: str, printed: bool = True) -> None:
    """Refuse a text with characters that a terminal would obey, or, if `printed`, cannot show."""
    if CONTROL.search(text) or (printed and HALF.search(text)):
        raise UserError(f"{field}: {shown(text)} has invalid characters", field=field)


def refuse_sizes(envs: Sequence[str], seeds: Sequence[int], arms: Collection[str]) -> None:
    """Refuse more runs than a study can keep in view, and names that are too long for a disk."""
    if len(arms) > MOST_ARMS:
        raise UserError(f"{len(arms):,} arms are more than {MOST_ARMS:,}", field="arms")
    cells = len(envs) * len(seeds) * len(arms)
    if cells > MOST_CELLS:
        raise UserError(f"{cells:,} runs are more than {MOST_CELLS:,}", field="seeds")
    longest = {
        "arms": max(arms, key=lambda each: len(safe_name(each))),
        "envs": max(envs, key=lambda each: len(safe_name(each))),
    }
    lengths = {field: len(safe_name(name)) for field, name in longest.items()}
    total = sum(lengths.values()) + len(str(max(seeds)))
    if total > LONGEST_KEY:
        field = max(lengths, key=lambda each: lengths[each])
        raise UserError(
            f"{field}: the name {shown(longest[field])} is too long: arm, environment and seed "
            f"together have {total} characters, and at most {LONGEST_KEY} fit in a file's name",
            field=field,
        )


def refuse_doubles(**names: Sequence[Any]) -> None:
    """Refuse names that are there twice, or would be one on disk."""
    for field, items in names.items():
        taken: dict[str, Any] = {}
        for item in items:
            key = safe_name(str(item))
            if key in taken:
                same = (
                    "appears twice"
                    if taken[key] == item
                    else f"and {shown(taken[key])} are one name on disk"
                )
                raise UserError(f"{field}: {shown(item)} {same}", field=field)
            taken[key] = item


def refuse_reference(arms: Arms, arm: str, fields: Mapping[str, Any]) -> None:
    """Refuse an arm that is rescaled from none, and what it cannot say of its reference."""
    reference, place = fields.get("rescale_from"), f"arm {shown(arm)}"
    if reference is None:
        for name in RESCALING:
            if fields.get(name):
                said = f"{place} has {name} {shown(fields[name])} but no rescale_from"
                raise UserError(said, field="arms")
        return
    if "scale_envs" in fields and "n_envs" in fields:
        raise UserError(f"{place} has n_envs and scale_envs: give one or the other", field="arms")
    known = isinstance(reference, str) and reference in arms
    if not known or "rescale_from" in arms[reference]:
        others = [name for name, each in arms.items() if "rescale_from" not in each]
        hint = nearest(reference, others) if isinstance(reference, str) else ""
        raise UserError(
            f"{place} is rescaled from {shown(reference)}, which is not an arm with its own "
            f"batch.{hint}",
            field="arms",
        )
    held = fields.get("hold", [])
    if not isinstance(held, list | tuple) or not all(isinstance(each, str) for each in held):
        raise UserError(f"{place}: hold must be a list of fields, got {shown(held)}", field="arms")
    for name in SIZES:
        if name in fields:
            try:
                positive(name, fields[name])
            except UserError as error:
                raise UserError(f"{place}: {error}", field="arms") from None


def scaled_envs(n_envs: int, scale: Any) -> int:
    """Return `n_envs` times `scale`, a positive number, which must come to a whole one."""
    if not is_finite(scale) or scale <= 0:
        raise UserError(
            f"scale_envs must be a positive number, got {shown(scale)}", field="scale_envs"
        )
    scaled = n_envs * scale
    if not math.isfinite(scaled) or scaled < 1 or scaled != round(scaled):
        raise UserError(
            f"scale_envs {scale:g} of {n_envs} environments is {scaled:g}, not a whole number",
            field="scale_envs",
        )
    return round(scaled)
