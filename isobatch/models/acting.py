"""Choosing actions while collecting: by PyTorch in general, by NumPy for small networks.

Acting on a handful of vectors, a PyTorch call costs several times the arithmetic it does; NumPy's
costs less, on views of the very same weights.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from isobatch.envs.step import Observation
from isobatch.models.actor_critic import ActorCritic
from isobatch.models.agent import Agent
from isobatch.models.encoders import MlpEncoder, only_mlp

Prepare = Callable[[Observation], Observation]
Act = Callable[[Observation], tuple[Tensor, Tensor | None]]
"""Observations -> (policy parameters [N, P], values [N] or None), as `ActorCritic.act`."""

NUMPY_ROWS = 64
"""Up to this many rows NumPy is the faster."""
ACTIVATIONS = {"tanh": np.tanh, "relu": lambda x: np.maximum(x, 0, out=x)}


def acting(model: Agent, prepare: Prepare, n_rows: int) -> Act:
    """Return the fastest way to act for `n_rows` environments with the model as it is now."""
    network = _network(model) if n_rows <= NUMPY_ROWS else None
    if network is None:
        return lambda observation: model.act(prepare(observation))

    def act(observation: Observation) -> tuple[Tensor, Tensor | None]:
        params, values = network(prepare(observation)["vector"].numpy())
        return torch.from_numpy(params), None if values is None else torch.from_numpy(values)

    return act


def acting_together(models: Sequence[Agent], prepare: Prepare, n_rows: int) -> Act:
    """Return how several models act at once, the k-th in the k-th `n_rows` of the environments.

    `prepare` is for the observations of all.
    """
    networks = [_network(model) for model in models] if n_rows <= NUMPY_ROWS else []
    known = [each for each in networks if each is not None]
    if len(known) < len(models):
        return _acting_in_turn(models, prepare, n_rows)
    together = _stacked(known)

    def act(observation: Observation) -> tuple[Tensor, Tensor | None]:
        vectors = prepare(observation)["vector"].numpy()
        params, values = together(vectors.reshape(len(models), n_rows, -1))
        merged = params.reshape(-1, params.shape[-1])
        return torch.from_numpy(merged), None if values is None else _flat(values)

    return act


def _acting_in_turn(models: Sequence[Agent], prepare: Prepare, n_rows: int) -> Act:
    acts = [acting(model, lambda prepared: prepared, n_rows) for model in models]

    def act(observation: Observation) -> tuple[Tensor, Tensor | None]:
        shares = {part: rows.chunk(len(acts)) for part, rows in prepare(observation).items()}
        found = [
            own({part: rows[k] for part, rows in shares.items()}) for k, own in enumerate(acts)
        ]
        values = [value for _, value in found if value is not None]
        return torch.cat([params for params, _ in found]), torch.cat(values) if values else None

    return act


Layer = tuple[np.ndarray, np.ndarray]
"""Weight [..., inputs, outputs] and bias [..., 1, outputs]."""


class Network(NamedTuple):
    """A small actor-critic in NumPy: views of one model's weights, or several models' stacked."""

    activation: str
    encoder: list[Layer]
    policy: list[Layer]
    """What follows for the policy: its own hidden layers and its head."""
    value: list[Layer] | None
    """The same for values; None where these have an encoder of their own, and cost extra."""
    free: np.ndarray | None
    """[..., 1, outputs]: policy parameters that are the same for every observation."""

    def __call__(self, features: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        """Return policy parameters [..., N, P] and values [..., N] for vectors [..., N, D]."""
        features = self._hidden(features, self.encoder)
        params = self._headed(features, self.policy)
        if self.free is not None:
            params = np.concatenate([params, np.broadcast_to(self.free, params.shape)], -1)
        return params, None if self.value is None else self._headed(features, self.value)[..., 0]

    def _hidden(self, features: np.ndarray, layers: Sequence[Layer]) -> np.ndarray:
        activate = ACTIVATIONS[self.activation]
        for layer in layers:
            features = activate(_linear(features, layer))
        return features

    def _headed(self, features: np.ndarray, layers: Sequence[Layer]) -> np.ndarray:
        *hidden, head = layers
        return _linear(self._hidden(features, hidden), head)


def _linear(features: np.ndarray, layer: Layer) -> np.ndarray:
    weight, bias = layer
    product = features @ weight
    product += bias
    return product


def _network(model: Agent) -> Network | None:
    """Return the model in NumPy, None where it is more than a small actor-critic on the CPU."""
    if not isinstance(model, ActorCritic) or model.value_head.weight.device.type != "cpu":
        return None
    mlp = _small_mlp(model.actor.encoder)
    if mlp is None:
        return None
    actor, free = model.actor, model.actor.free
    value = [*model.value_hidden.linears, model.value_head]
    return Network(
        activation=mlp.activation.__name__,
        encoder=[_weights(layer) for layer in mlp.linears],
        policy=[_weights(layer) for layer in (*actor.hidden.linears, actor.head)],
        value=None if model.critic_encoder is not None else [_weights(layer) for layer in value],
        free=None if free is None else free.detach().numpy()[None],
    )


def _stacked(networks: Sequence[Network]) -> Network:
    """Return networks of one architecture as one, along a new first axis."""

    def stack(parts: Sequence[list[Layer]]) -> list[Layer]:
        return [
            (np.stack([weight for weight, _ in same]), np.stack([bias for _, bias in same]))
            for same in zip(*parts, strict=True)
        ]

    values = [each.value for each in networks if each.value is not None]
    free = [each.free for each in networks if each.free is not None]
    return Network(
        activation=networks[0].activation,
        encoder=stack([each.encoder for each in networks]),
        policy=stack([each.policy for each in networks]),
        value=stack(values) if values else None,
        free=np.stack(free) if free else None,
    )


def _small_mlp(encoder: torch.nn.Module) -> MlpEncoder | None:
    """Return the encoder's MLP if it is nothing else, of operations NumPy has."""
    mlp = only_mlp(encoder)
    return mlp if mlp is not None and mlp.is_plain else None


def _weights(layer: torch.nn.Linear) -> Layer:
    return layer.weight.detach().numpy().T, layer.bias.detach().numpy()[None]


def _flat(values: np.ndarray) -> Tensor:
    return torch.from_numpy(values.reshape(-1))
