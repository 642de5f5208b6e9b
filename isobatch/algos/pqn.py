"""PQN: Q-learning from parallel environments, without replay or target network.

Gallici et al. 2024. Layer normalisation keeps the values from running away; the targets are
lambda-returns over max Q, which GAE's recursion gives with V = max Q:

G_t = r_t + gamma (1 - d_t) (lambda G_{t+1} + (1 - lambda) max_a Q(s_{t+1}, a))
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from isobatch import losses
from isobatch.algos.estimates import (
    advantages_and_targets,
    explained_variance,
    flat_observations,
)
from isobatch.algos.learner import Context, Latest, Learned
from isobatch.algos.sharded import ByShard
from isobatch.algos.stepping import learning_rate, make_stepper, mean_statistics
from isobatch.experience import Rollout
from isobatch.models import QNetwork
from isobatch.recipe import Exploration
from isobatch.state import TrainState
from isobatch.turns import at_once
from isobatch.update import Call, Table, minibatches


class Samples(NamedTuple):
    """What the loss needs of b rows."""

    observation: dict[str, Tensor]
    actions: Tensor
    targets: Tensor


class Pqn:
    """Fits Q to the lambda-returns of each rollout; explores less and less."""

    columns: tuple[str, ...] = (
        "explained_variance", "learning_rate", "epsilon", "value_loss", "q_mean", "grad_norm",
    )  # fmt: skip

    def __init__(self, context: Context) -> None:
        assert isinstance(context.state.model, QNetwork)
        self.context, self.state, self.network = context, context.state, context.state.model
        self._stepper = Latest(lambda recipe: make_stepper(context, terms, context.state.optimizer))
        self._explore(self.state.counters.env_steps)

    def learn(self, rollout: Rollout) -> Learned:
        """Update the action values."""
        return at_once(self.learning(rollout))

    async def learning(self, rollout: Rollout) -> Learned:
        """The same in a cohort, where gradients are awaited."""
        if not rollout.n_valid:
            return Learned({})
        state, recipe = self.state, self.state.recipe
        stepper = self._stepper(recipe)
        _, targets = advantages_and_targets(state, rollout)
        step_size = learning_rate(state)
        statistics = {
            "explained_variance": explained_variance(rollout, targets),
            "learning_rate": step_size,
            "epsilon": self.network.epsilon,
        }
        gather = _gathering(state, rollout, targets)
        n_minibatches = min(recipe.batch.minibatches_for(len(rollout.actions)), rollout.n_valid)
        by, shuffle = recipe.objective.minibatches_by, state.shuffle_generator
        shards = self.context.world.shards
        epochs = recipe.batch.n_epochs if n_minibatches else 0
        taken: list[dict[str, Tensor]] = []
        for _ in range(epochs):
            for rows in minibatches(rollout.valid, n_minibatches, shuffle, by, shards):
                measured = await self.context.gradient(stepper, rows, gather)
                norm = stepper.step(step_size)
                taken.append(measured | {"grad_norm": torch.tensor(norm)})
        self._explore(state.counters.env_steps + rollout.n_valid)
        return Learned(statistics | mean_statistics(taken), epochs, len(taken))

    def close(self) -> None:
        """Hold on to nothing."""

    def _explore(self, env_steps: int) -> None:
        recipe = self.state.recipe
        self.network.epsilon = epsilon(recipe.exploration, env_steps / recipe.total_timesteps)


def epsilon(settings: Exploration, spent: float) -> float:
    """Return the probability of a random action once `spent` of the budget is: linear, then flat.

    e = start + (end - start) min(1, spent / fraction)
    """
    if spent >= settings.epsilon_fraction:
        return settings.epsilon_end
    part = spent / settings.epsilon_fraction
    return settings.epsilon_start + (settings.epsilon_end - settings.epsilon_start) * part


def terms(call: Call, samples: Samples) -> tuple[Tensor, dict[str, Tensor]]:
    """Return per-sample losses (Q(s, a) - G)^2 / 2 [b] and their statistics, each [b]."""
    chosen = call(samples.observation).gather(1, samples.actions).squeeze(1)
    loss = losses.value_loss(chosen, samples.targets)
    return loss, {"value_loss": loss, "q_mean": chosen}


def _gathering(state: TrainState, rollout: Rollout, targets: Tensor) -> Any:
    """Return what picks a rollout's rows for the loss, or what picks each shard's."""
    if rollout.shards is None:
        return Gathering(state, rollout, targets)
    return ByShard(rollout, lambda own, columns: Gathering(state, own, targets[:, columns]))


class Gathering:
    """Picks a rollout's rows for the loss."""

    scalars: Mapping[str, Tensor] = {}

    def __init__(self, state: TrainState, rollout: Rollout, targets: Tensor) -> None:
        observations = flat_observations(state, rollout)
        vectors = {"actions": rollout.actions.flatten(0, 1)}
        if "vector" in observations:
            vectors["vector"] = observations.pop("vector")
        self.images = observations
        self.table = Table(vectors, {"targets": targets.flatten()})

    def __call__(self, rows: Tensor) -> Samples:
        """Return the samples of flat rows [b]."""
        images = {part: each.index_select(0, rows) for part, each in self.images.items()}
        samples = self.samples(self.table.take(rows), self.scalars)
        return samples._replace(observation=samples.observation | images)

    def take(self, rows: Tensor, out: Tensor) -> None:
        """Write what the loss needs of flat rows [b], but for images, to `out` [b, C]."""
        self.table.take(rows, out)

    def samples(self, matrix: Tensor, scalars: Mapping[str, Tensor]) -> Samples:
        """Return the samples of rows taken [b, C], by this gathering and others like it."""
        found = self.table.unpack(matrix)
        vector = {"vector": found["vector"]} if "vector" in found else {}
        return Samples(vector, found["actions"], found["targets"])
