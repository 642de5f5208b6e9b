"""Policy and value networks: an encoder shared, two of them, or one the value does not train.

observation -> encoder -> own hidden layers, where there are any -> head, for policy and value each.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from isobatch.envs.spaces import ActionLayout, ObservationLayout
from isobatch.models.agent import Agent
from isobatch.models.distributions import distribution_of
from isobatch.models.encoders import Encoder, EncoderFactory, MlpEncoder, headed, make_encoder
from isobatch.models.layers import linear, make_head
from isobatch.recipe import Model


class Actor(nn.Module):
    """Encoder, own hidden layers and head: observation -> distribution parameters [B, P]."""

    def __init__(self, encoder: Encoder, actions: ActionLayout, model: Model) -> None:
        super().__init__()
        distribution = distribution_of(actions)
        self.encoder = encoder
        self.hidden = MlpEncoder(encoder.n_features, model.policy_hidden_sizes, model)
        width = self.hidden.n_features
        self.head = make_head(width, distribution.n_outputs, model.init, gain=0.01)
        free = distribution.n_params - distribution.n_outputs
        self.free = nn.Parameter(torch.full((free,), float(model.log_std_init))) if free else None

    def forward(self, observation: dict[str, Tensor]) -> Tensor:
        """Return the policy's parameters."""
        return self._with_free(headed(self.encoder, self.hidden, self.head, observation))

    def params(self, features: Tensor) -> Tensor:
        """Return the policy's parameters from what its hidden layers give."""
        return self._with_free(linear(features, self.head))

    def _with_free(self, outputs: Tensor) -> Tensor:
        if self.free is None:
            return outputs
        free = self.free[..., None, :].expand(*outputs.shape[:-1], -1)
        return torch.cat([outputs, free], -1)


class ActorCritic(Agent):
    """An `Actor` and a value function over the same observations.

    With an auxiliary head, PPG's: a second value function, on the policy's features, through which
    the auxiliary phase teaches its encoder what the first one knows.
    """

    def __init__(
        self,
        observations: ObservationLayout,
        actions: ActionLayout,
        model: Model,
        encoder: EncoderFactory | nn.Module | None = None,
        auxiliary: bool = False,
    ) -> None:
        super().__init__()
        self.architecture = model.architecture
        self.distribution = distribution_of(actions)
        first = make_encoder(observations, model, encoder)
        self.actor = Actor(first, actions, model)
        self.critic_encoder = (
            make_encoder(observations, model, encoder) if model.architecture == "dual" else None
        )
        self.value_hidden = MlpEncoder(first.n_features, model.value_hidden_sizes, model)
        self.value_head = make_head(self.value_hidden.n_features, 1, model.init, gain=1.0)
        # Last, so that the other weights are those of a model without it.
        self.auxiliary_head = (
            make_head(self.actor.hidden.n_features, 1, model.init, gain=1.0) if auxiliary else None
        )

    def forward(self, observation: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Return (policy parameters [B, P], values [B])."""
        if self.critic_encoder is not None:
            return self.actor(observation), self.values(observation)
        features = self.actor.encoder(observation)
        params = self.actor.params(self.actor.hidden(features))
        return params, self._value(observation, features)

    def with_auxiliary(self, observation: dict[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Return (policy parameters [B, P], values [B], the auxiliary head's values [B])."""
        assert self.auxiliary_head is not None
        features = self.actor.encoder(observation)
        own = self.actor.hidden(features)
        auxiliary = self.auxiliary_head(own).squeeze(1)
        return self.actor.params(own), self._value(observation, features), auxiliary

    def act(self, observation: dict[str, Tensor]) -> tuple[Tensor, Tensor | None]:
        """Return (policy parameters, values), the values None where they cost a second encoder.

        A separate critic is cheaper to run over the whole rollout at once, by `values`.
        """
        features = self.actor.encoder(observation)
        params = self.actor.params(self.actor.hidden(features))
        return params, None if self.critic_encoder else self._value(observation, features)

    def values(self, observation: dict[str, Tensor]) -> Tensor:
        """Return values [B]."""
        encoder = self.critic_encoder or self.actor.encoder
        return headed(encoder, self.value_hidden, self.value_head, observation).squeeze(-1)

    def _value(self, observation: dict[str, Tensor], features: Tensor) -> Tensor:
        if self.critic_encoder is not None:
            features = self.critic_encoder(observation)
        elif self.architecture == "detach":
            features = features.detach()
        return linear(self.value_hidden(features), self.value_head).squeeze(-1)
