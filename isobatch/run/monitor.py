"""What a run measures of its own networks while it trains: the columns of `--diagnostics`.

Nothing here changes what is learned: weights are read, no random number of the run's is drawn.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from isobatch.advantages import gae
from isobatch.diagnostics import (
    dormant_fraction,
    effective_rank,
    feature_rank,
    gradient_kurtosis,
    gradient_norm_kurtosis,
    importance_ess,
    policy_variance,
    singular_values,
    srank,
)
from isobatch.diagnostics.networks import mean_magnitudes
from isobatch.experience import Rollout
from isobatch.models import ActorCritic, Agent
from isobatch.models.agent import evaluation_mode
from isobatch.models.encoders import Encoder, MlpEncoder
from isobatch.models.q_network import QNetwork
from isobatch.noise.samples import norms, output_of
from isobatch.recipe import Recipe
from isobatch.state import TrainState

EVERY_ROWS = 16_384
"""Rows of experience from one measurement to the next: a measurement costs as much as learning
from some hundred rows."""
MOST_ITERATIONS = 10
"""Iterations from one measurement to the next, at most."""
ESS_ROWS = 1024
"""Rows of the rollout whose importance weights are computed."""
NORM_ROWS = 128
"""Rows of the rollout whose gradients are computed one by one. Always as many where there are: the
largest kurtosis that n numbers can have is about n."""
AT_ONCE = 64
"""Held-out rows that go through a network at once."""

Columns = dict[str, float | None]


class Part(NamedTuple):
    """A network of its own: the policy's, the value function's, or the one of both."""

    suffix: str
    """What its columns end with: nothing where there is one network."""
    encoder: Encoder
    own: MlpEncoder | None
    """Hidden layers after the encoder: the policy's, where the encoder is shared."""
    parameters: slice
    """Where its parameters are in the flat vector."""


class Monitor:
    """Measures at some iterations, between learning and counting."""

    def __init__(self, state: TrainState) -> None:
        recipe = state.recipe
        self._level = recipe.probe.diagnostics
        self._parts = parts(state.model) if self._level != "off" else []
        self._seldom = interval(recipe)
        self._every = 1 if self._level == "full" else self._seldom
        self.columns = self._columns(state.model)

    def __call__(self, state: TrainState, rollout: Rollout) -> Columns:
        """Return the iteration's columns, null where nothing is measured."""
        if self._level == "off":
            return {}
        found: Columns = dict.fromkeys(self.columns)
        self._see(state, rollout)
        # Of images one measurement costs half of an iteration: 1.5 times the time if in each.
        every = self._seldom if "image" in state.seen.held else self._every
        if state.counters.iterations % every or not state.seen.held:
            return found
        with evaluation_mode(state.model), torch.no_grad():
            found |= self._of_weights(state)
            found |= self._of_features(state)
            if isinstance(state.model, ActorCritic):
                found |= _of_policy(state, rollout)
        found["state_coverage"] = state.seen.coverage.coverage
        if self._level == "full":
            found["visited_entropy"] = state.seen.visits.entropy
            if not state.counters.iterations % self._seldom:
                found |= self._of_samples(state, rollout)
        return {name: _number(value) for name, value in found.items()}

    def _see(self, state: TrainState, rollout: Rollout) -> None:
        """Take the rollout's transitions into what was seen."""

        def hashes(own: Rollout, columns: slice) -> Tensor:
            rows = {part: each[:-1].flatten(0, 1) for part, each in own.observations.items()}
            found = state.seen.coverage.hashes(rows).view(np.int64)
            return torch.from_numpy(found).view(len(own.actions), -1)

        found, rows = rollout.by_shard(hashes), rollout.valid.flatten().nonzero().squeeze(1)
        state.seen.take_in(
            found.flatten()[rows.cpu()].numpy().view(np.uint64),
            lambda some: _observed(rollout, rows[some.to(rows.device)]),
            rollout.row_bytes,
            count_visits=self._level == "full",
        )

    def _columns(self, model: Agent) -> tuple[str, ...]:
        """Return the names of what is measured, in the order of a row."""
        if self._level == "off":
            return ()
        ranks = ("srank", "effective_rank") if self._level == "full" else ()
        acts = isinstance(model, ActorCritic)
        norms = ("gradient_norm_kurtosis",) if acts and self._level == "full" else ()
        kurtoses = ("gradient_kurtosis", *norms)
        apart = ("weight_norm", *kurtoses, "feature_rank", *ranks, "dormant_fraction")
        policy = ("policy_variance", "importance_ess") if acts else ()
        named = [f"{name}{part.suffix}" for name in apart for part in self._parts]
        visits = ("visited_entropy",) if self._level == "full" else ()
        return tuple(dict.fromkeys(["weight_norm", *named, *policy, "state_coverage", *visits]))

    def _of_weights(self, state: TrainState) -> Columns:
        """Of all weights, and of the gradient that the last step was taken along."""
        weights, gradient = state.parameters.vector, state.parameters.gradient
        found: Columns = {"weight_norm": float(torch.linalg.vector_norm(weights))}
        for part in self._parts:
            own = weights[part.parameters]
            found[f"weight_norm{part.suffix}"] = float(torch.linalg.vector_norm(own))
            found[f"gradient_kurtosis{part.suffix}"] = gradient_kurtosis(gradient[part.parameters])
        return found

    def _of_features(self, state: TrainState) -> Columns:
        """Of each network's activations on the held-out observations."""
        prepared = state.observation_normalizer(state.seen.held)
        found: Columns = {}
        for part in self._parts:
            suffix, (features, magnitudes) = part.suffix, _activations(part, prepared)
            spectrum = singular_values(features)
            found[f"feature_rank{suffix}"] = feature_rank(spectrum)
            if self._level == "full":
                found[f"srank{suffix}"] = srank(spectrum)
                found[f"effective_rank{suffix}"] = effective_rank(spectrum)
            found[f"dormant_fraction{suffix}"] = dormant_fraction(magnitudes)
        return found

    def _of_samples(self, state: TrainState, rollout: Rollout) -> Columns:
        """Of the gradients of single rows, which take longest."""
        rows, model = spread_rows(rollout, NORM_ROWS), state.model
        if not len(rows) or not isinstance(model, ActorCritic):
            return {}
        with evaluation_mode(model):
            found = {
                part.suffix: gradient_norms(part, state, rollout, rows) for part in self._parts
            }
        return {
            f"gradient_norm_kurtosis{suffix}": gradient_norm_kurtosis(each)
            for suffix, each in found.items()
        }


def interval(recipe: Recipe) -> int:
    """Return the iterations from one measurement to the next."""
    return max(1, min(MOST_ITERATIONS, EVERY_ROWS // recipe.batch.rollout_size))


def parts(model: Agent) -> list[Part]:
    """Return the networks of a model, each with its parameters in the flat vector."""
    if isinstance(model, QNetwork):
        return [Part("", model.encoder, None, slice(None))]
    if not isinstance(model, ActorCritic):
        return []
    if model.critic_encoder is None:
        return [Part("", model.actor.encoder, model.actor.hidden, slice(None))]
    # The policy's come first: the model registers it before the critic.
    size = sum(each.numel() for each in model.actor.parameters() if each.requires_grad)
    actor = Part("_actor", model.actor.encoder, model.actor.hidden, slice(0, size))
    return [actor, Part("_critic", model.critic_encoder, model.value_hidden, slice(size, None))]


def _activations(part: Part, observations: dict[str, Tensor]) -> tuple[Tensor, list[Tensor]]:
    """Return features [H, F], and of each layer the units' mean magnitudes, [chunks, units].

    The features are what the head sees: without hidden layers the observations.
    """
    features, magnitudes = list[Tensor](), list[list[Tensor]]()
    for rows in _chunks(observations):
        layers = part.encoder.activations(rows)
        encoded = layers[-1] if layers else part.encoder(rows)
        own = [] if part.own is None else part.own.activations(encoded)
        layers = [*layers, *own]
        features.append(layers[-1] if layers else encoded)
        magnitudes.append([mean_magnitudes(layer) for layer in layers])
    return torch.cat(features), [torch.stack(layer) for layer in zip(*magnitudes, strict=True)]


def _chunks(observations: dict[str, Tensor]) -> Iterator[dict[str, Tensor]]:
    """Go through images a few at a time; vectors are small."""
    count = len(next(iter(observations.values())))
    step = AT_ONCE if "image" in observations else count
    for first in range(0, count, step):
        yield {part: each[first : first + step] for part, each in observations.items()}


def _of_policy(state: TrainState, rollout: Rollout) -> Columns:
    """Of the policy that acted, and of the one it became: ratios of the two are the weights."""
    valid = rollout.valid.flatten()
    logp = rollout.logp.flatten()[valid]
    if not len(logp):
        return {}
    rows = spread_rows(rollout, ESS_ROWS)
    return {
        "policy_variance": policy_variance(logp),
        "importance_ess": importance_ess(_log_ratios(state, rollout, rows)),
    }


def spread_rows(rollout: Rollout, most: int) -> Tensor:
    """Return `most` valid rows at most, evenly spread over a rollout: flat, [b]."""
    rows = rollout.valid.flatten().nonzero().squeeze(1)
    return rows[:: -(-len(rows) // most)] if len(rows) else rows


def gradient_norms(part: Part, state: TrainState, rollout: Rollout, rows: Tensor) -> Tensor:
    """Return the norms of the gradients of single rows' losses, [b], by the networks as they are.

    Policy: |w A| |grad log pi(a|s)|, the surrogate's without clipping, w = pi / pi_behav
    Value:  |v - target| |grad v(s)|
    """
    observation, actions = _prepared(state, rollout, rows), rollout.actions.flatten(0, 1)[rows]
    advantages, targets = _estimates(state, rollout)
    if part.suffix == "_critic":
        with torch.no_grad():
            scale = state.model.values(observation) - targets.flatten()[rows]
        output = output_of(state.model, "value")
    else:
        with torch.no_grad():
            scale = _log_ratios(state, rollout, rows).exp() * advantages.flatten()[rows]
        output = output_of(state.model, "policy")
    return scale.abs() * norms(output, observation, actions)


def _estimates(state: TrainState, rollout: Rollout) -> tuple[Tensor, Tensor]:
    """Return (advantages, value targets) [T, N] without touching the running statistics.

    Advantages are centred over the rollout where the recipe normalises them; their unit is no
    matter to a kurtosis.
    """
    settings, rewards = state.recipe.objective, rollout.rewards
    if state.recipe.normalize.normalize_rewards:
        rewards = state.reward_normalizer.scaled(rewards)
    rewards, terminated = rollout.bootstrapped(rewards, settings.gamma)
    advantages, targets = gae(
        rewards,
        rollout.values,
        terminated,
        rollout.truncated,
        settings.gamma,
        settings.gae_lambda,
    )
    if settings.advantage_normalization != "none":
        advantages = advantages - advantages[rollout.valid].mean()
    return advantages, targets


def _log_ratios(state: TrainState, rollout: Rollout, rows: Tensor) -> Tensor:
    """Return log pi(a|s) - log pi_behav(a|s) of flat rows, [b]."""
    params, _ = state.model.act(_prepared(state, rollout, rows))
    now = state.model.distribution.log_prob(params, rollout.actions.flatten(0, 1)[rows])
    return now - rollout.logp.flatten()[rows]


def _observed(rollout: Rollout, rows: Tensor) -> dict[str, Tensor]:
    """Return the observations of flat rows [b, ...], as the environment gave them."""
    if rollout.shards is not None:
        return rollout.shards.picked(rows)
    return {part: each[:-1].flatten(0, 1)[rows] for part, each in rollout.observations.items()}


def _prepared(state: TrainState, rollout: Rollout, rows: Tensor) -> dict[str, Tensor]:
    """Return the observations of flat rows [b, ...], normalised."""
    return rollout.acted_on(state.observation_normalizer, rows)


def _number(value: float | None) -> float | None:
    """Return what JSON has: null for what is no number."""
    return value if value is not None and math.isfinite(value) else None
