"""Choosing actions while collecting: by PyTorch in general, by NumPy for small networks.

Acting on a handful of vectors, a PyTorch call costs several times the arithmetic it does; NumPy's
costs less, on views of the very same weights.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from isobatch.envs.step import Observation
from isobatch.models.actor_critic import ActorCritic
from isobatch.models.agent import Agent
from isobatch.models.encoders import MlpEncoder, ObservationEncoder

Prepare = Callable[[Observation], Observation]
Act = Callable[[Observation], tuple[Tensor, Tensor | None]]
"""Observations -> (policy parameters [N, P], values [N] or None), as `ActorCritic.act`."""

NUMPY_ROWS = 64
"""Up to this many rows NumPy is the faster."""
ACTIVATIONS = {"tanh": np.tanh, "relu": lambda x: np.maximum(x, 0, out=x)}


def acting(model: Agent, prepare: Prepare, n_rows: int) -> Act:
    """Return the fastest way to act for `n_rows` environments with the model as it is now."""
    if isinstance(model, ActorCritic) and n_rows <= NUMPY_ROWS:
        mlp = _small_mlp(model.actor.encoder)
        if mlp is not None and model.value_head.weight.device.type == "cpu":
            return _numpy_act(model, mlp, prepare)
    return lambda observation: model.act(prepare(observation))


def _small_mlp(encoder: torch.nn.Module) -> MlpEncoder | None:
    """Return the encoder's MLP if it is nothing else, of operations NumPy has."""
    if not isinstance(encoder, ObservationEncoder) or encoder.image is not None:
        return None
    mlp = encoder.vector
    if mlp is None or mlp.norms is not None:
        return None
    return mlp if mlp.activation.__name__ in ACTIVATIONS else None


def _numpy_act(model: ActorCritic, mlp: MlpEncoder, prepare: Prepare) -> Act:
    activate = ACTIVATIONS[mlp.activation.__name__]
    hidden = [_weights(layer) for layer in mlp.linears]
    head, head_bias = _weights(model.actor.head)
    value, value_bias = _weights(model.value_head)
    free = None if model.actor.free is None else model.actor.free.detach().numpy()
    separate = model.critic_encoder is not None

    def act(observation: Observation) -> tuple[Tensor, Tensor | None]:
        features = prepare(observation)["vector"].numpy()
        for weight, bias in hidden:
            features = features @ weight
            features += bias
            features = activate(features)
        params = features @ head
        params += head_bias
        if free is not None:
            params = np.concatenate([params, np.broadcast_to(free, params.shape)], 1)
        if separate:
            return torch.from_numpy(params), None
        values = features @ value
        values += value_bias
        return torch.from_numpy(params), torch.from_numpy(values[:, 0])

    return act


def _weights(layer: torch.nn.Linear) -> tuple[np.ndarray, np.ndarray]:
    return layer.weight.detach().numpy().T, layer.bias.detach().numpy()
