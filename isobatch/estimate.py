"""A measured number and how sure it is."""

from __future__ import annotations

import math
from typing import NamedTuple


class Estimate(NamedTuple):
    """A number and its interval; not-a-number where there is too little data for one."""

    value: float
    low: float = math.nan
    high: float = math.nan

    @classmethod
    def around(cls, value: float, low: float, high: float) -> Estimate:
        """Return an estimate whose interval holds it.

        Both quantiles of a skewed bootstrap may lie on one side of the estimate. The interval is
        then widened to it, so that it holds the truth no less often.
        """
        return cls(value, min(low, value), max(high, value))

    def __mul__(self, factor: float) -> Estimate:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Return it in another unit; `factor` must be positive."""
        return Estimate(self.value * factor, self.low * factor, self.high * factor)

    @property
    def json(self) -> list[float | None]:
        """[value, low, high], None for what is not finite."""
        return [each if math.isfinite(each) else None for each in self]
