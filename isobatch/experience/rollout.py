"""One iteration's experience, time-major."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from isobatch.envs import Observation
from isobatch.experience.shards import Shards
from isobatch.normalize import Moments, moments_of
from isobatch.world import ALONE, World

BY_STEP = (
    "actions", "params", "logp", "rewards", "terminated", "truncated", "valid", "first", "scores",
    "over",
)  # fmt: skip
"""The fields of a rollout that have T rows and are always there."""
SOMETIMES = ("final_values", "params_prox", "logp_before", "dropped")
"""Those that may be None."""


@dataclass
class Rollout:
    """One iteration's experience, time-major, on the training device.

    Only rows that are `valid` are transitions; the others never enter a loss, count or moment.
    """

    observations: Observation
    """[T+1, N, ...]; row t+1 follows row t, and the last row is acted on in the next rollout. Empty
    where they are in `shards`."""
    actions: Tensor
    """[T, N, K] in policy form."""
    params: Tensor
    """[T, N, P]: the acting policy's distribution parameters."""
    logp: Tensor
    """[T, N]: the acting policy's log-probability of the action."""
    values: Tensor
    """[T+1, N]: acting-time values of `observations`."""
    rewards: Tensor
    """[T, N] as the environment gave them for training."""
    terminated: Tensor
    """[T, N] bool: the task ended in this row; nothing follows."""
    truncated: Tensor
    """[T, N] bool: the time limit ended it; the final observation's value follows."""
    valid: Tensor
    """[T, N] bool."""
    first: Tensor
    """[T, N] bool: the row begins an episode."""
    final_values: Tensor | None
    """[T, N]: value of the final observation where an episode was truncated and the environment
    reset in the same step; None where `observations` itself holds the final ones."""
    scores: Tensor
    """[T, N] the environment's own rewards."""
    over: Tensor
    """[T, N] bool: a whole episode (game) ended."""
    params_prox: Tensor | None = None
    """[T, N, P]: parameters of the policy that limits the step; None: the one that acted."""
    logp_before: Tensor | None = None
    """[T, N]: log-probability under the policy as it was before this update; None: `logp`."""
    dropped: Tensor | None = None
    """[T, N] bool: the environment was replaced, its episode is lost; None: that cannot be."""
    vectors: Tensor | None = None
    """[T+1, N, D]: the vector part of `observations` normalised as it was acted on, where the
    statistics were updated at every step; None: they are still those of acting."""
    shards: Shards | None = None
    """The observations of a run that is computed by shards."""
    collect_seconds: float = 0.0
    """Wall-clock time of collecting it; in a cohort, of collecting those of all its runs."""
    env_seconds: float = 0.0
    """Of that, time in the environments."""

    @property
    def n_valid(self) -> int:
        """Transitions in the rollout."""
        return int(self.valid.sum())

    @property
    def n_envs(self) -> int:
        """Environments, N."""
        return self.valid.shape[1]

    def acted_on(
        self, prepare: Callable[[Observation], Observation], rows: Tensor | None = None
    ) -> Observation:
        """Return the observations acted on, normalised: flat [T N, ...], or `rows` of these.

        `prepare` normalises by the run's statistics, which stay as they are while it is learned
        from, unless they were updated at every step.
        """
        if self.shards is not None:
            assert rows is not None, "all observations of a sharded rollout are in no one place"
            return prepare(self.shards.picked(rows))
        parts = self.observations
        if self.vectors is not None:
            parts = parts | {"vector": self.vectors}
        flat = {part: each[:-1].flatten(0, 1) for part, each in parts.items()}
        if rows is not None:
            flat = {part: each[rows] for part, each in flat.items()}
        return prepare(flat) if self.vectors is None else flat

    @property
    def row_bytes(self) -> int:
        """The size of one observation."""
        if self.shards is not None:
            return self.shards.row_bytes
        parts = self.observations.values()
        return sum(each[0, :1].numel() * each.element_size() for each in parts)

    def vector_moments(self) -> list[Moments]:
        """Return the moments of the vectors acted on in valid rows, by shard."""
        if self.shards is not None:
            return self.shards.vector_moments(self.valid)
        return [moments_of(self.observations["vector"][:-1][self.valid])]

    def by_shard(self, compute: Callable[[Rollout, slice], Tensor]) -> Tensor:
        """Return what `compute` gives, [T, N, ...], of each shard's rollout and its columns.

        Of a rollout that is not sharded, of itself.
        """
        if self.shards is None:
            return compute(self, slice(None))
        shards = self.shards
        own = [compute(self.of_shard(place), shards.columns(place)) for place in shards.own]
        return torch.cat(shards.world.gather(own), 1)

    def of_shard(self, place: int) -> Rollout:
        """Return the rollout of a shard that this worker owns, with its observations."""
        assert self.shards is not None
        return replace(
            self.share(place, self.shards.n_envs), observations=dict(self.shards.own[place])
        )

    def bootstrapped(self, rewards: Tensor, gamma: float) -> tuple[Tensor, Tensor]:
        """Return (rewards, terminated) [T, N] for which the value that follows a row is the next's.

        Where environments reset in the same step the next row is another episode's: the final
        value then enters with the reward, and the row counts as an end.
        """
        if self.final_values is None:
            return rewards, self.terminated
        return rewards + gamma * self.final_values, self.terminated | self.truncated

    def since(self, step: int) -> Rollout:
        """Return the rollout from row `step` on."""
        return self._part(lambda rows: rows[step:], lambda rows: rows[step:], self.shards)

    def until(self, step: int) -> Rollout:
        """Return the rollout up to row `step`, with the observation that follows."""
        return self._part(lambda rows: rows[:step], lambda rows: rows[: step + 1], self.shards)

    def share(self, place: int, n_envs: int) -> Rollout:
        """Return the rollout of the `place`-th `n_envs` environments alone."""
        which = slice(place * n_envs, (place + 1) * n_envs)
        return self._part(lambda rows: rows[:, which], lambda rows: rows[:, which])

    def _part(
        self,
        rows: Callable[[Tensor], Tensor],
        seen: Callable[[Tensor], Tensor],
        shards: Shards | None = None,
    ) -> Rollout:
        """Return what `rows` takes of the fields with T rows, and `seen` of those with T + 1."""
        fields: dict[str, Any] = {
            name: None if getattr(self, name) is None else rows(getattr(self, name))
            for name in (*BY_STEP, *SOMETIMES)
        }
        return Rollout(
            observations={part: seen(each) for part, each in self.observations.items()},
            values=seen(self.values),
            vectors=None if self.vectors is None else seen(self.vectors),
            shards=None if shards is None else shards.mapped(seen),
            collect_seconds=self.collect_seconds,
            env_seconds=self.env_seconds,
            **fields,
        )


def to_tensors(rollouts: Iterable[Rollout]) -> dict[str, Tensor]:
    """Return rollouts as tensors by dotted names: `0.rewards`, `0.observations.vector`, ...

    Of sharded ones too the observations are whole, gathered from all workers.
    """
    tensors: dict[str, Tensor] = {}
    for place, rollout in enumerate(rollouts):
        shards = rollout.shards
        seen = rollout.observations if shards is None else shards.gathered()
        for part, rows in seen.items():
            tensors[f"{place}.observations.{part}"] = rows
        for name in ("values", "vectors", *BY_STEP, *SOMETIMES):
            rows = getattr(rollout, name)
            if rows is not None:
                tensors[f"{place}.{name}"] = rows
    return tensors


def from_tensors(tensors: Mapping[str, Tensor], world: World = ALONE) -> list[Rollout]:
    """Return the rollouts that `to_tensors` was given, by whatever workers."""
    found: dict[int, dict[str, Any]] = {}
    for key, rows in tensors.items():
        place, _, name = key.partition(".")
        fields = found.setdefault(int(place), {"observations": {}})
        if name.startswith("observations."):
            fields["observations"][name.removeprefix("observations.")] = rows
        else:
            fields[name] = rows
    if world.is_sharded:
        for fields in found.values():
            fields["shards"] = Shards.dealt(world, fields["observations"])
            fields["observations"] = {}
    return [Rollout(**{"final_values": None, **found[place]}) for place in sorted(found)]


def concatenate(*rollouts: Rollout) -> Rollout:
    """Join rollouts of the same environments in time, each right after the one before it.

    The last observations and values of one are the first of the next.
    """
    final_values = None
    if any(each.final_values is not None for each in rollouts):
        parts = [
            torch.zeros_like(each.rewards) if each.final_values is None else each.final_values
            for each in rollouts
        ]
        final_values = torch.cat(parts)
    vectors = [each.vectors for each in rollouts if each.vectors is not None]
    joined: dict[str, Any] = {
        name: torch.cat([getattr(each, name) for each in rollouts]) for name in BY_STEP
    }
    return Rollout(
        observations={
            part: _joined([each.observations[part] for each in rollouts])
            for part in rollouts[0].observations
        },
        values=_joined([each.values for each in rollouts]),
        vectors=_joined(vectors) if vectors else None,
        final_values=final_values,
        shards=_joined_shards([each.shards for each in rollouts if each.shards is not None]),
        **joined,
    )


def _joined_shards(shards: Sequence[Shards]) -> Shards | None:
    """Join the observations of rollouts in time."""
    if not shards:
        return None
    first = shards[0]
    own = {
        place: {part: _joined([each.own[place][part] for each in shards]) for part in parts}
        for place, parts in first.own.items()
    }
    return replace(first, own=own)


def _joined(columns: Sequence[Tensor]) -> Tensor:
    """Join columns [T+1, N, ...] in time; the last row of one is the first of the next."""
    *before, last = columns
    return torch.cat([*(each[:-1] for each in before), last])
