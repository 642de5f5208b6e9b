"""Exact resuming: what a checkpoint needs beside the state to go on as if nothing had happened.

Environments cannot be saved, so they are made again with the same seeds and taken through the same
actions, each part through those since it was made; a hash of what they then show says whether they
are where they were. Beside that a checkpoint has what belongs to single environments (running
returns, scores of episodes under way) and what a learner holds from one rollout to the next.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from isobatch.algos import Learner
from isobatch.algos.learner import Holds
from isobatch.algos.phase_shards import files_of
from isobatch.envs import Observation
from isobatch.errors import UserError, understanding
from isobatch.files import Mark
from isobatch.machine import gradient_threads
from isobatch.run.environments import Environments
from isobatch.run.journal import file_name
from isobatch.run.sharded_environments import ShardedEnvironments
from isobatch.run.store import Checkpoint
from isobatch.state import TrainState, under

PREFIX = "exact"
HELD = "what the checkpoint has for exact resuming"


def machine() -> dict[str, Any]:
    """Return what the last bits of a run depend on beside its recipe."""
    return {
        "torch": torch.__version__,
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "threads": gradient_threads(),
    }


def refuse_other_machine(saved: dict[str, Any]) -> None:
    """Refuse to go on where the last bits would differ."""
    here = machine()
    other = [name for name in here if saved.get(name) != here[name]]
    if other:
        changed = ", ".join(f"{name} was {saved.get(name)}, is {here[name]}" for name in other)
        raise UserError(
            f"this machine may give other last bits ({changed}): --allow-inexact resumes anyway"
        )


def beside(
    state: TrainState, environments: Environments | ShardedEnvironments, learner: Learner
) -> tuple[dict[str, Tensor], dict[str, Any], set[str]]:
    """Return what a checkpoint has in addition, and the files it needs."""
    held, data = learner.held() if isinstance(learner, Holds) else ({}, {})
    tensors = {f"held.{name}": each for name, each in held.items()}
    tensors["running"] = state.reward_normalizer.running
    tensors["random"] = torch.get_rng_state()
    for name, each in state.episodes.under_way.tensors().items():
        tensors[f"under_way.{name}"] = each
    numbers: dict[str, Any] = {"held": data, "machine": machine()}
    if isinstance(environments, ShardedEnvironments):
        own = [_whereabouts(each) for each in environments.own.values()]
        told = environments.world.told(own)
        numbers["shards"] = [shard for worker in told for shard in worker]
    else:
        numbers |= _whereabouts(environments)
    needed = {name for name, _ in grown_files({PREFIX: numbers})}
    return {f"{PREFIX}.{name}": each for name, each in tensors.items()}, {PREFIX: numbers}, needed


def _whereabouts(environments: Environments) -> dict[str, Any]:
    """Return which environments there are, and how to bring others to where they are."""
    found: dict[str, Any] = {"parts": environments.parts, "journal": None}
    collector, journals = environments.begun, environments.journals
    if collector is not None and journals is not None:
        found["first"] = collector.first.tolist()
        found["journal"] = {
            "files": journals.saved(),
            "steps": collector.steps_taken,
            "observation": digest(collector.observation),
        }
    return found


def parts(numbers: dict[str, Any]) -> list[Any]:
    """Return which environments a checkpoint's run had, to make them again: by shard, if any."""
    own = numbers[PREFIX]
    return [shard["parts"] for shard in own["shards"]] if "shards" in own else own["parts"]


def bring_back(
    state: TrainState,
    environments: Environments | ShardedEnvironments,
    learner: Learner,
    checkpoint: Checkpoint,
    note: Callable[[str], None],
) -> None:
    """Bring environments, learner and what belongs to single environments to where they were."""
    own, numbers = under(checkpoint.tensors, PREFIX), checkpoint.numbers[PREFIX]
    refuse_other_machine(numbers["machine"])
    with understanding(HELD):
        state.reward_normalizer.running = own["running"].to(environments.device)
        state.episodes.under_way.load(under(own, "under_way"))
        if isinstance(environments, ShardedEnvironments):
            environments.world.agreed(lambda: _hold(learner, own, numbers))
            environments.world.agreed(lambda: _take_shards_again(environments, numbers, note))
        else:
            _hold(learner, own, numbers)
            if numbers["journal"] is not None:
                # Earlier versions kept it among the tensors.
                first = own["first"] if "first" in own else torch.tensor(numbers["first"])
                _take_again(environments, numbers["journal"], first, note)
        torch.set_rng_state(own["random"])


def _hold(learner: Learner, own: dict[str, Tensor], numbers: dict[str, Any]) -> None:
    with understanding(HELD):
        if isinstance(learner, Holds):
            learner.hold(under(own, "held"), numbers["held"])


def _take_shards_again(
    environments: ShardedEnvironments, numbers: dict[str, Any], note: Callable[[str], None]
) -> None:
    for place, each in environments.own.items():
        shard = numbers["shards"][place]
        if shard["journal"] is not None:
            _take_again(each, shard["journal"], torch.tensor(shard["first"]), note)


def _take_again(
    environments: Environments,
    journal: dict[str, Any],
    first: Tensor,
    note: Callable[[str], None],
) -> None:
    environments.take_again(journal, note)
    collector = environments.collector
    if digest(collector.observation) != journal["observation"]:
        raise UserError(
            f"{collector.env.name} is in another state after the same actions: it is not "
            "deterministic; --allow-inexact resumes in new environments"
        )
    collector.first = first.to(collector.device)


def grown_files(numbers: dict[str, Any]) -> Iterator[tuple[str, Mark]]:
    """Give the files that a checkpoint needs to be resumed exactly, and how far it needs them."""
    own = numbers.get(PREFIX) or {}
    yield from _journals(own)
    if phase := own.get("held", {}).get("phase"):
        yield from files_of(phase)


def _journals(own: dict[str, Any]) -> Iterator[tuple[str, Mark]]:
    """Give the journals that are needed, of all environments or of each shard's."""
    shards = enumerate(own["shards"]) if "shards" in own else [(None, own)]
    for place, shard in shards:
        for each in (shard.get("journal") or {"files": []})["files"]:
            yield file_name(each["number"], place), each["mark"]


def digest(observation: Observation) -> str:
    """Return a hash of what all environments show."""
    total = hashlib.sha256()
    for part in sorted(observation):
        rows = observation[part].detach().cpu().contiguous()
        total.update(f"{part} {rows.dtype} {tuple(rows.shape)}".encode())
        total.update(rows.reshape(-1).view(torch.uint8).numpy().data)
    return total.hexdigest()
