"""A recipe tuned at one batch carried over to another: rules, their limits, batch schedules."""

from isobatch.scaling.factors import Factors
from isobatch.scaling.keep import KEEPS, Keep, advised_keep
from isobatch.scaling.rescaled import Rescaled, rescale
from isobatch.scaling.rules import SIZES, Change
from isobatch.scaling.schedule import at, at_batch, check_schedule, stages

__all__ = [
    "KEEPS",
    "SIZES",
    "Change",
    "Factors",
    "Keep",
    "Rescaled",
    "advised_keep",
    "at",
    "at_batch",
    "check_schedule",
    "rescale",
    "stages",
]
