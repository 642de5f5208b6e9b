"""What goes wrong in environments, said in one line: which of them, at which step, what."""

from __future__ import annotations

import os
import sys
import traceback
from typing import Any

import numpy as np

from isobatch.envs.spaces import ObservationLayout
from isobatch.errors import UserError, one_line

TRACEBACK = "ISOBATCH_TRACEBACK"
"""Environment variable: where it is set, an environment's own exception is printed whole."""


class EnvironmentFailed(UserError):
    """An environment raised, died or did not answer; what it raised is its `__cause__`."""


def failed(name: str, step: int, error: Exception, index: int | None = None) -> UserError:
    """Return the error to raise from `error`, which an environment raised in a step (0: reset)."""
    if os.environ.get(TRACEBACK):
        traceback.print_exception(error, file=sys.stderr)
    which = "" if index is None else f"environment {index}, "
    return EnvironmentFailed(f"{name} failed ({which}step {step}): {described(error)}")


def described(error: Exception) -> str:
    """Return an exception's type and message on one line."""
    return f"{type(error).__name__}: {one_line(error)}".removesuffix(": ")


def misfit(observation: Any, layout: ObservationLayout) -> str | None:
    """Say what of one environment's observation is not as its space says, None where all is."""
    for leaf in layout.leaves:
        value, where = observation, ""
        for key in leaf.path:
            where += f" {key!r}"
            try:
                value = value[key]
            except (KeyError, IndexError, TypeError):
                return f"an observation without{where}"
        try:
            array = np.asarray(value)
        except ValueError:
            return f"an observation{where} that is not an array"
        if array.dtype.kind not in "biuf":
            return f"an observation{where} of type {array.dtype}, not a number"
        if array.shape != leaf.shape:
            return f"an observation{where} of shape {array.shape}, not {leaf.shape}"
    return None
