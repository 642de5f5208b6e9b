"""VecNormalize's statistics of observations and rewards, from the pickle that SB3 saves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from isobatch.envs.spaces import ObservationLayout
from isobatch.errors import UserError, understanding
from isobatch.weights import inert

MOST = 2**26
"""Bytes of the pickle."""
NORMALIZER = ("stable_baselines3.common.vec_env.vec_normalize", "VecNormalize")
MOMENTS = ("stable_baselines3.common.running_mean_std", "RunningMeanStd")
SPACES = ("gymnasium.spaces.", "gym.spaces.", "numpy.random.", "gym.utils.seeding")
"""Modules of spaces, and of the random numbers that spaces draw from."""
Moments = dict[str, Tensor]
"""mean, var and count, as `RunningMoments` loads them."""


class _Admitted:
    def __contains__(self, name: object) -> bool:
        return name in (NORMALIZER, MOMENTS) or (
            isinstance(name, tuple) and str(name[0]).startswith(SPACES)
        )


class Statistics(NamedTuple):
    """What VecNormalize did with observations and rewards."""

    observations: dict[tuple[str, ...], Moments] | None
    """By the path to each array, () where there is one; None where they are left as they are."""
    rewards: Moments | None
    gamma: float
    clip_reward: float
    clip_obs: float
    epsilon: float

    def of(self, layout: ObservationLayout, source: str) -> Moments | None:
        """Return the moments of the vector that a layout makes of observations."""
        if self.observations is None:
            return None
        if layout.image is not None:
            raise UserError(f"{source} normalises images, which Isobatch does not")
        missing = [leaf.path for leaf in layout.leaves if leaf.path not in self.observations]
        if missing:
            named = ".".join(missing[0]) or "observations that are one array"
            raise UserError(f"{source} has no statistics of {named}")
        by_leaf = [self.observations[leaf.path] for leaf in layout.leaves]
        found = {
            part: torch.cat([each[part].flatten() for each in by_leaf]) for part in ("mean", "var")
        }
        if len(found["mean"]) != layout.vector:
            raise UserError(
                f"{source} has statistics of {len(found['mean'])} numbers, observations have "
                f"{layout.vector}"
            )
        return {**found, "count": by_leaf[0]["count"]}


def read(content: bytes, source: str) -> Statistics:
    """Read the pickle as records; nothing in it runs."""
    record = inert.load(content, source, _Admitted())
    if not isinstance(record, inert.Record) or record.of != NORMALIZER:
        raise UserError(f"{source} is not a VecNormalize that Stable-Baselines3 saved")
    with understanding(source):
        state: Mapping[str, Any] = record.state
        observations = None
        if state["norm_obs"]:
            found = state["obs_rms"]
            by_key = found if isinstance(found, dict) else {None: found}
            observations = {
                () if key is None else (str(key),): _moments(each) for key, each in by_key.items()
            }
        numbers = {
            name: float(inert.array(state[name]))
            for name in ("gamma", "clip_reward", "clip_obs", "epsilon")
        }
        rewards = _moments(state["ret_rms"]) if state["norm_reward"] else None
        return Statistics(observations, rewards, **numbers)


def _moments(record: Any) -> Moments:
    if not isinstance(record, inert.Record) or record.of != MOMENTS:
        raise ValueError("no RunningMeanStd")
    found = {name: inert.array(record.state[name]) for name in ("mean", "var", "count")}
    if not all(np.isfinite(each).all() for each in found.values()) or (found["var"] < 0).any():
        raise ValueError("statistics that are not finite")
    if found["mean"].shape != found["var"].shape or found["count"].size != 1:
        raise ValueError("statistics of different shapes")
    return {name: torch.from_numpy(each.copy()) for name, each in found.items()}
