"""The spaces of a run's policy as Stable-Baselines3 wants them, and what of them it has not."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from isobatch.envs.spaces import ActionLayout, Leaf, ObservationLayout
from isobatch.errors import UserError
from isobatch.run.policy import Policy

FARTHEST = float(np.finfo(np.float32).max)
"""SB3 wants actions bounded."""


class SpacesOnly(gymnasium.Env):
    """An environment that has spaces and nothing else."""

    def __init__(self, observations: spaces.Space, actions: spaces.Space) -> None:
        self.observation_space, self.action_space = observations, actions

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        """SB3 looks at the spaces alone."""
        return self.observation_space.sample(), {}


def refuse(policy: Policy) -> None:
    """Refuse networks and spaces that SB3's own classes have not."""
    model, layout, actions = policy.recipe.model, policy.observation_layout, policy.action_layout
    leaves = layout.leaves
    kinds = {leaf.kind for leaf in leaves}
    why = {
        "layer_norm": model.layer_norm,
        f"encoder {model.encoder}": model.encoder not in ("auto", "mlp", "nature"),
        "images beside other observations": "image" in kinds and len(leaves) > 1,
        "images of two axes or of floats": "image" in kinds
        and (any(len(leaf.shape) != 3 for leaf in leaves) or layout.image_dtype != "uint8"),
        "observations in dicts of dicts": any(len(leaf.path) > 1 for leaf in leaves),
        "observations that do not begin at 0": any(any(leaf.start) for leaf in leaves),
        "actions that do not begin at 0": any(actions.start),
        "normalised observations of kinds other than Box": "onehot" in kinds
        and policy.recipe.normalize.normalize_observations,
    }
    for what, is_so in why.items():
        if is_so:
            raise UserError(f"Stable-Baselines3 has no counterpart of {what}")


def spaces_of(policy: Policy) -> tuple[spaces.Space, spaces.Space]:
    """Return the environment's own spaces as Gymnasium has them, else the layouts' spaces.

    SB3 compares them with those of an environment that it goes on with.
    """
    layouts = policy.observation_layout, policy.action_layout
    name = policy.recipe.env.removeprefix("gymnasium:")
    with suppress(Exception):  # Not installed, not registered, or made by a module of the user's.
        if ":" not in name:
            env = gymnasium.make(name, disable_env_checker=True)
            found = env.observation_space, env.action_space
            env.close()
            if (ObservationLayout.of(found[0], name), ActionLayout.of(found[1], name)) == layouts:
                return found
    leaves = policy.observation_layout.leaves
    if len(leaves) == 1 and not leaves[0].path:
        return _space(leaves[0], layouts[0]), _actions(layouts[1])
    by_key = {leaf.path[0]: _space(leaf, layouts[0]) for leaf in leaves}
    return spaces.Dict(by_key), _actions(layouts[1])


def _space(leaf: Leaf, layout: ObservationLayout) -> spaces.Space:
    if leaf.kind == "image":
        return spaces.Box(0, 255, leaf.shape, np.uint8)
    if leaf.kind == "onehot":
        return spaces.MultiDiscrete(list(leaf.counts)) if leaf.shape else spaces.Discrete(leaf.size)
    return spaces.Box(-np.inf, np.inf, leaf.shape, np.float32)


def _actions(layout: ActionLayout) -> spaces.Space:
    if layout.kind == "gaussian":
        bounds = np.clip(np.array([layout.low, layout.high]), -FARTHEST, FARTHEST)
        low, high = (each.astype(np.float32).reshape(layout.shape) for each in bounds)
        return spaces.Box(low, high, layout.shape, np.float32)
    if layout.kind == "binary":
        return spaces.MultiBinary(layout.shape)
    return (
        spaces.MultiDiscrete(list(layout.counts))
        if layout.shape
        else spaces.Discrete(layout.counts[0])
    )
