"""From a policy read elsewhere to a run directory: to evaluate, to probe, to train on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from isobatch import algos, envs
from isobatch.envs.seeds import env_seeds
from isobatch.errors import UserError
from isobatch.models import ActorCritic
from isobatch.origin import Origin
from isobatch.recipe import Recipe
from isobatch.run import policy, store
from isobatch.run.result import Run
from isobatch.run.training import choose_device, default_path
from isobatch.state import Counters, TrainState
from isobatch.weights.names import Layers, carried, names
from isobatch.weights.normalizer import Statistics


class OptimizerState(NamedTuple):
    """What an optimiser remembers of each parameter, under the library's names."""

    parts: dict[str, dict[str, Tensor]]
    """By the name of the part here: mean, square."""
    count: int


@dataclass(frozen=True)
class Foreign:
    """A policy as another library's file has it."""

    source: str
    """The file, as messages name it."""
    origin: Origin
    recipe: Recipe
    weights: Mapping[str, Tensor]
    layers: Layers
    spare: Iterable[str] = ()
    """What names of weights begin with that are there twice."""
    optimizer: OptimizerState | None = None
    statistics: Statistics | None = None
    statistics_source: str = ""
    notes: tuple[str, ...] = ()
    """A line for each thing that is not carried over, or was not known."""


class Landed(NamedTuple):
    """A run directory with a policy from elsewhere."""

    run: Run
    origin: Origin
    carried: list[str]
    """What came along: weights, the optimiser's averages, statistics."""
    notes: tuple[str, ...]
    """A line for each thing that is not carried over, or was not known."""


def land(foreign: Foreign, out: str | Path | None) -> Landed:
    """Make a run directory that holds the policy, with a checkpoint to go on from.

    Nothing is written unless all of it fits the environment. Without `out`, one in runs/.
    """
    recipe = foreign.recipe
    out = default_path(recipe) if out is None else Path(out)
    store.refuse_taken(out)
    algos.check(recipe)
    env = envs.make(recipe, env_seeds(recipe.seed, 1))
    try:
        state = TrainState.begin(
            recipe,
            env.observation_layout,
            env.action_layout,
            choose_device(recipe.machine.device),
        )
        _fill(state, foreign, env)
        directory = store.RunDirectory.create(out, recipe)
        try:
            foreign.origin.write(directory.folder)
            directory.save_checkpoint(state.tensors(), state.numbers(), iterations=0)
            policy.save(directory, state, env)
        except BaseException:
            directory.discard()
            raise
        directory.release()
    finally:
        env.close()
    return Landed(Run(out), foreign.origin, _carried(foreign), foreign.notes)


def _carried(foreign: Foreign) -> list[str]:
    statistics = foreign.statistics
    parts = {
        "weights": True,
        "the optimiser's averages": foreign.optimizer is not None,
        "observation statistics": statistics is not None and statistics.observations is not None,
        "reward statistics": statistics is not None and statistics.rewards is not None,
    }
    return [name for name, is_there in parts.items() if is_there]


def _fill(state: TrainState, foreign: Foreign, env: envs.BatchedEnv) -> None:
    """Give a state that has just begun the weights and averages of the policy."""
    if not isinstance(state.model, ActorCritic):
        raise UserError(f"{state.recipe.algo} has no policy that could be read from weights")
    if any(env.action_layout.start) and env.action_layout.kind == "categorical":
        raise UserError(f"{env.name}: actions do not begin at 0, as those of {foreign.source} do")
    own = state.model.state_dict()
    fits = (names(foreign.layers, state.model), foreign.source, env.name, foreign.spare)
    state.model.load_state_dict(carried(foreign.weights, own, *fits))
    if foreign.optimizer is not None:
        remembered = state.optimizer.state_dict()
        for part, found in foreign.optimizer.parts.items():
            views = state.parameters.views(remembered[part])
            for name, value in carried(found, views, *fits[:-1]).items():
                views[name].copy_(value)
        count = torch.tensor(foreign.optimizer.count)
        state.optimizer.load_state_dict(remembered | {"count": count})
    if foreign.statistics is not None:
        source = foreign.statistics_source
        moments = foreign.statistics.of(env.observation_layout, source)
        if moments is not None:
            state.observation_normalizer.load_state_dict(moments)
        if foreign.statistics.rewards is not None:
            state.reward_normalizer.load_state_dict(foreign.statistics.rewards)
    state.counters = Counters(
        env_steps=foreign.origin.env_steps, budget=state.recipe.total_timesteps
    )
