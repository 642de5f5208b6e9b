"""A policy that one of CleanRL's ppo scripts saved: a state dict, and the script's arguments."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from isobatch import exchange, files
from isobatch.errors import UserError
from isobatch.exchange.networks import apart
from isobatch.origin import Origin
from isobatch.weights import torch_file
from isobatch.weights.landing import Foreign, Landed, land
from isobatch.weights.names import Layers, widths

NATURE = {"convolutions.": "network.", "dense.": "network.7."}
IMPALA = {
    **{f"stages.{3 * k}.convolution.": f"network.{k}.conv." for k in range(3)},
    **{
        f"stages.{3 * k + 1 + block}.{ours}.": f"network.{k}.res_block{block}.{theirs}."
        for k in range(3)
        for block in range(2)
        for ours, theirs in (("first", "conv0"), ("second", "conv1"))
    },
    "dense.": "network.5.",
}
SCRIPTS = {
    "aux_critic.weight": "ppg_procgen",
    "actor_mean.0.weight": "ppo_continuous_action",
    "network.0.weight": "ppo_atari",
    "network.0.conv.weight": "ppo_procgen",
    "actor.0.weight": "ppo",
}
"""The script that names a weight so."""


def from_cleanrl(
    path: str | Path,
    env: str,
    out: str | Path | None = None,
    *,
    settings: Mapping[str, Any] | None = None,
) -> Landed:
    """Make a run directory of weights that one of CleanRL's ppo scripts saved.

    The file holds nothing else: `settings` are the script's arguments where they were not its
    defaults, and the script itself where the names of its weights do not tell it.
    """
    path, settings = Path(path), dict(settings or {})
    content = files.read(path, torch_file.MOST)
    weights = torch_file.state_dict(content, str(path))
    script = next((each for name, each in SCRIPTS.items() if name in weights), None)
    if script is None:
        raise UserError(
            f"{path} is not of CleanRL's {', '.join(SCRIPTS.values())}: it begins with "
            f"{next(iter(weights))}"
        )
    imported = exchange.read("cleanrl", {"script": script} | settings, env)
    recipe, notes = imported.recipe, [*imported.unknown, *imported.notes]
    layers, fields = _layers(script, weights)
    recipe = recipe.replace(**fields)
    if "actor_logstd" in weights:  # A row.
        weights["actor_logstd"] = weights["actor_logstd"].flatten()
    notes.append("the optimiser's averages: CleanRL does not save them; begun anew")
    if recipe.normalize.normalize_observations:
        notes.append(
            "observation statistics: CleanRL does not save them, so the policy acts on unknown "
            "scales until isobatch resume has measured them"
        )
    elif recipe.normalize.normalize_rewards:
        notes.append("reward statistics: CleanRL does not save them; begun anew")
    batch = recipe.batch.rollout_size
    steps = recipe.total_timesteps // batch * batch
    digest = hashlib.sha256(content).hexdigest()
    foreign = Foreign(
        source=str(path),
        origin=Origin(f"CleanRL {script}", path.name, digest, steps),
        recipe=recipe,
        weights=weights,
        layers=layers,
        notes=tuple(notes),
    )
    return land(foreign, out)


def _layers(script: str, weights: Mapping[str, Tensor]) -> tuple[Layers, dict[str, Any]]:
    """Return the names of a script's layers, and the recipe's fields of the widths of its MLPs."""
    if "network.0.weight" in weights or "network.0.conv.weight" in weights:
        image = NATURE if script == "ppo_atari" else IMPALA
        heads = ("actor.", "critic.")
        return Layers("", "", *heads, log_std="", auxiliary="aux_critic.", image=image), {}
    actor, critic = "actor_mean." if script == "ppo_continuous_action" else "actor.", "critic."
    # The last layer is the head.
    policy, value = (widths(weights, prefix)[:-1] for prefix in (actor, critic))
    layers = Layers(
        policy=actor,
        value=critic,
        action_head=f"{actor}{2 * len(policy)}.",
        value_head=f"{critic}{2 * len(value)}.",
        log_std="actor_logstd",
    )
    return layers, apart(policy, value)
