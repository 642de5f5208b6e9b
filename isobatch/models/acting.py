"""Choosing actions while collecting: by PyTorch in general, by NumPy for small networks.

Acting on a handful of vectors, a PyTorch call costs several times the arithmetic it does; NumPy's
costs less, on views of the very same weights.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from isobatch.envs.step import Observation
from isobatch.models.actor_critic import ActorCritic
from isobatch.models.agent import Agent, Drawn
from isobatch.models.distributions import Distribution
from isobatch.models.encoders import MlpEncoder, only_mlp

Prepare = Callable[[Observation], Observation]
Act = Callable[[Observation], tuple[Tensor, Tensor | None]]
"""Observations -> (policy parameters [N, P], values [N] or None), as `ActorCritic.act`."""
Draw = Callable[[Observation, Tensor], Drawn]
"""(observations, noise [N, ...]) -> actions and what `Act` gives, as `Agent.draw`."""

NUMPY_ROWS = 64
"""Up to this many rows NumPy is the faster."""
ACTIVATIONS = {"tanh": np.tanh, "relu": lambda x: np.maximum(x, 0, out=x)}


def drawing(model: Agent, prepare: Prepare, n_rows: int) -> Draw:
    """Return how actions are drawn for `n_rows` environments with the model as it is now."""
    if model.uses_sde:
        return lambda observation, noise: model.draw(prepare(observation), noise)
    return _sampling(acting(model, prepare, n_rows), model.distribution)


def drawing_together(models: Sequence[Agent], prepare: Prepare, n_rows: int) -> Draw:
    """Return the same for several models, the k-th in the k-th `n_rows` of the environments."""
    if not models[0].uses_sde:
        return _sampling(acting_together(models, prepare, n_rows), models[0].distribution)
    together = _in_turn([model.draw for model in models], prepare)
    return lambda observation, noise: Drawn(*together(observation, noise))


def _sampling(act: Act, distribution: Distribution) -> Draw:
    def draw(observation: Observation, noise: Tensor) -> Drawn:
        params, values = act(observation)
        return Drawn(distribution.sample(params, noise), params, values)

    return draw


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
        return _in_turn([acting(model, _unchanged, n_rows) for model in models], prepare)
    together = _stacked(known)

    def act(observation: Observation) -> tuple[Tensor, Tensor | None]:
        vectors = prepare(observation)["vector"].numpy()
        params, values = together(vectors.reshape(len(models), n_rows, -1))
        merged = params.reshape(-1, params.shape[-1])
        return torch.from_numpy(merged), None if values is None else _flat(values)

    return act


def _in_turn(calls: Sequence[Callable[..., Any]], prepare: Prepare) -> Callable[..., Any]:
    """Return how each acts for its share of the observations, and of what is given beside them."""
    count = len(calls)

    def call(observation: Observation, *given: Tensor) -> tuple[Any, ...]:
        shares = {part: rows.chunk(count) for part, rows in prepare(observation).items()}
        beside = [each.chunk(count) for each in given]
        found = [
            own({part: rows[k] for part, rows in shares.items()}, *(each[k] for each in beside))
            for k, own in enumerate(calls)
        ]
        columns = zip(*found, strict=True)
        return tuple(None if each[0] is None else torch.cat(each) for each in columns)

    return call


def _unchanged(observation: Observation) -> Observation:
    return observation


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
    if model.uses_sde:
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
