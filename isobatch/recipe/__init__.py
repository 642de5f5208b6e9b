"""The recipe: everything that defines a run, in tables with their bounds; TOML in and out."""

from isobatch.plain import literal
from isobatch.recipe.checks import memory_size
from isobatch.recipe.flags import as_flags
from isobatch.recipe.tables import (
    ENVS_PER_SEGMENT,
    USERS_OWN,
    Coefficients,
    Environment,
    Exploration,
    Model,
    Normalize,
    Objective,
    Optimizer,
    RateSchedule,
    Recipe,
    Schedule,
    check_budget,
)
from isobatch.recipe.toml import refuse_batch_size

__all__ = [
    "ENVS_PER_SEGMENT",
    "USERS_OWN",
    "Coefficients",
    "Environment",
    "Exploration",
    "Model",
    "Normalize",
    "Objective",
    "Optimizer",
    "RateSchedule",
    "Recipe",
    "Schedule",
    "as_flags",
    "check_budget",
    "literal",
    "memory_size",
    "refuse_batch_size",
]
