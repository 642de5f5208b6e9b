"""Which numbers of a rollout's rows the losses need, and those that the proximal policy gives."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from isobatch.algos.estimates import flat_observations
from isobatch.algos.sharded import ByShard
from isobatch.envs import Observation
from isobatch.experience import Rollout
from isobatch.objectives import Samples
from isobatch.state import TrainState
from isobatch.update import Table, minibatches


class Gathering:
    """Picks a rollout's rows for the loss, and looks at them through the proximal policy."""

    def __init__(
        self,
        state: TrainState,
        rollout: Rollout,
        advantages: Tensor,
        targets: Tensor,
        ranges: Mapping[str, float],
        weights: Tensor | None = None,
    ) -> None:
        settings = state.recipe.objective
        self.distribution, self.proximal = state.model.distribution, state.proximal
        self.valid, self.settings = rollout.valid, settings
        self.shuffle = state.shuffle_generator
        self.exact_kl = settings.objective == "kl" and settings.kl_estimator == "exact"
        self.by_minibatch = settings.advantage_normalization == "minibatch"
        self._minibatch = torch.empty(0, dtype=torch.long)
        self.moments: tuple[Tensor, Tensor] | None = None
        """Of the minibatch's advantages, deviation and mean, where it is more than these rows."""
        observations = flat_observations(state, rollout)
        vector = observations.pop("vector", None)
        self.images = observations
        actions, params, logp_prox = rollout.actions.flatten(0, 1), rollout.params, rollout.logp
        if rollout.params_prox is not None:
            params = rollout.params_prox
            logp_prox = self.distribution.log_prob(params.flatten(0, 1), actions)
        vectors = {"vector": vector, "actions": actions}
        if self.exact_kl:
            vectors["params_prox"] = params.flatten(0, 1)
        if state.recipe.adapts_rate:
            vectors["params_before"] = params.flatten(0, 1)
        numbers = {
            "logp_behav": rollout.logp,
            "logp_prox": logp_prox,
            "advantages": advantages,
            "targets": targets,
            "logp_before": rollout.logp_before,
            "weights": weights,
            "values_behav": rollout.values[:-1] if "clip_range_vf" in ranges else None,
        }
        self.table = Table(
            {name: each for name, each in vectors.items() if each is not None},
            {name: each.flatten() for name, each in numbers.items() if each is not None},
        )
        self.is_weighted = weights is not None
        device = self.table.matrix.device
        self.scalars: Mapping[str, Tensor] = {
            name: torch.tensor(each, device=device) for name, each in ranges.items()
        }

    def minibatches(self, count: int) -> Iterator[Tensor]:
        """Partition the rows anew and go through the parts."""
        for rows in minibatches(self.valid, count, self.shuffle, self.settings.minibatches_by):
            self.begin_minibatch(rows)
            yield rows

    def begin_minibatch(self, rows: Tensor) -> None:
        """Remember the minibatch, where the recipe normalises by its own moments."""
        self._minibatch = rows

    def _normalize(self, matrix: Tensor) -> None:
        """Normalise advantages by the moments of the minibatch that rows [b, C] are of."""
        place = self.table.place("advantages")
        advantages = values = matrix[:, place]
        if self.moments is not None:
            std, mean = self.moments
            advantages.sub_(mean).div_(std + 1e-8)
            return
        if len(values) != len(self._minibatch):  # A chunk of it, or padded.
            values = self.table.matrix[self._minibatch, place]
        if len(values) > 1:
            std, mean = torch.std_mean(values)
            advantages.sub_(mean).div_(std + 1e-8)

    @torch.no_grad()
    def __call__(self, rows: Tensor) -> Samples:
        """Return the samples of flat rows [b]."""
        images = {part: each.index_select(0, rows) for part, each in self.images.items()}
        return self._samples(self._take(rows, images), self.scalars, images)

    @torch.no_grad()
    def take(self, rows: Tensor, out: Tensor) -> None:
        """Write what the losses need of flat rows [b], but for images, to `out` [b, C]."""
        self._take(rows, {}, out)

    def samples(self, matrix: Tensor, scalars: Mapping[str, Tensor]) -> Samples:
        """Return the samples of rows taken [b, C], by this gathering and others like it."""
        return self._samples(matrix, scalars, {})

    def _take(
        self, rows: Tensor, images: Mapping[str, Tensor], out: Tensor | None = None
    ) -> Tensor:
        table = self.table
        matrix = table.take(rows, out)
        if self.by_minibatch:
            self._normalize(matrix)
        if self.is_weighted:
            matrix[:, table.place("advantages")].mul_(matrix[:, table.place("weights")])
        if self.proximal is not None:
            found = table.unpack(matrix)
            params = self.proximal.module(_observation(found, images))
            logp = self.distribution.log_prob(params, found["actions"])
            matrix[:, table.place("logp_prox")] = logp
            if self.exact_kl:
                table.vector(matrix, "params_prox").copy_(params)
        return matrix

    def _samples(
        self, matrix: Tensor, scalars: Mapping[str, Tensor], images: Mapping[str, Tensor]
    ) -> Samples:
        found = self.table.unpack(matrix)
        return Samples(
            observation=_observation(found, images),
            actions=found["actions"],
            logp_behav=found["logp_behav"],
            logp_prox=found["logp_prox"],
            params_prox=found.get("params_prox"),
            advantages=found["advantages"],
            targets=found["targets"],
            clip_range=scalars["clip_range"],
            logp_before=found.get("logp_before"),
            params_before=found.get("params_before"),
            values_behav=found.get("values_behav"),
            clip_range_vf=scalars.get("clip_range_vf"),
        )


class ShardedGathering(ByShard[Gathering]):
    """The same of a rollout that is computed by shards."""

    def __init__(
        self,
        state: TrainState,
        rollout: Rollout,
        advantages: Tensor,
        targets: Tensor,
        ranges: Mapping[str, float],
        weights: Tensor | None = None,
    ) -> None:
        def make(own: Rollout, columns: slice) -> Gathering:
            weighted = None if weights is None else weights[:, columns]
            parts = advantages[:, columns], targets[:, columns]
            return Gathering(state, own, *parts, ranges, weighted)

        super().__init__(rollout, make)
        self._valid, self._advantages = rollout.valid, advantages.flatten()
        self._shuffle, self._settings = state.shuffle_generator, state.recipe.objective

    def minibatches(self, count: int) -> Iterator[Tensor]:
        """Partition the rows of all shards anew and go through the parts."""
        by_minibatch = self._settings.advantage_normalization == "minibatch"
        settings = self._settings.minibatches_by, self.shards.world.shards
        for rows in minibatches(self._valid, count, self._shuffle, *settings):
            if by_minibatch:
                moments = _moments(self._advantages[rows])
                for each in self.own.values():
                    each.moments = moments
            yield rows


def _moments(values: Tensor) -> tuple[Tensor, Tensor]:
    """Return deviation and mean [] of some advantages; a single one is left as it is."""
    if len(values) > 1:
        std, mean = torch.std_mean(values)
        return std, mean
    return values.new_ones(()), values.new_zeros(())


def _observation(found: Mapping[str, Tensor], images: Mapping[str, Tensor]) -> Observation:
    """Return the observation of rows: their images, and the vectors among what was found."""
    return {**images, **({"vector": found["vector"]} if "vector" in found else {})}
