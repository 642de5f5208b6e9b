"""Policy and value networks: an encoder shared, two of them, or one the value does not train.

observation -> encoder -> own hidden layers, where there are any -> head, for policy and value each.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from isobatch.envs.spaces import ActionLayout, ObservationLayout
from isobatch.errors import UserError
from isobatch.models.agent import Agent, Drawn
from isobatch.models.distributions import distribution_of
from isobatch.models.encoders import Encoder, EncoderFactory, MlpEncoder, headed, make_encoder
from isobatch.models.layers import linear, make_head
from isobatch.recipe import Model

SDE_EPSILON = 1e-6
"""Added to gSDE's variance, as in Stable-Baselines3."""


class Actor(nn.Module):
    """Encoder, own hidden layers and head: observation -> distribution parameters [B, P].

    With gSDE (Raffin et al. 2020) the free parameters are a matrix of log standard deviations
    [L, K], one for each feature and action. An action is mu(s) + f(s) E with E ~ N(0, exp(free)^2),
    so that over E its variance is f(s)^2 exp(free)^2. The features f are those the head gets; this
    variance does not train them.
    """

    def __init__(self, encoder: Encoder, actions: ActionLayout, model: Model) -> None:
        super().__init__()
        distribution = distribution_of(actions)
        self.encoder = encoder
        self.hidden = MlpEncoder(encoder.n_features, model.policy_hidden_sizes, model)
        width = self.hidden.n_features
        self.head = make_head(width, distribution.n_outputs, model.init, gain=0.01)
        free = distribution.n_params - distribution.n_outputs
        if model.use_sde and not free:
            raise UserError("use_sde needs continuous actions", field="use_sde")
        self.uses_sde = model.use_sde
        shape = (width, free) if model.use_sde else (free,)
        self.free = nn.Parameter(torch.full(shape, float(model.log_std_init))) if free else None

    def forward(self, observation: dict[str, Tensor]) -> Tensor:
        """Return the policy's parameters."""
        if self.uses_sde:
            return self.params(self.hidden(self.encoder(observation)))
        return self._with_free(headed(self.encoder, self.hidden, self.head, observation))

    def params(self, features: Tensor) -> Tensor:
        """Return the policy's parameters from what its hidden layers give."""
        outputs = linear(features, self.head)
        if self.free is None or not self.uses_sde:
            return self._with_free(outputs)
        variance = features.detach().square() @ (2 * self.free).exp() + SDE_EPSILON
        return torch.cat([outputs, 0.5 * variance.log()], -1)

    def explored(self, params: Tensor, features: Tensor, noise: Tensor) -> Tensor:
        """Return actions [B, K] of gSDE, given a standard normal matrix for each [B, L, K]."""
        assert self.free is not None
        means, matrices = params.chunk(2, 1)[0], self.free.exp() * noise
        return means + torch.einsum("bl,blk->bk", features, matrices)

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
        self.architecture, self.uses_sde = model.architecture, model.use_sde
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
        _, params, values = self._acted(observation)
        return params, values

    def noise(self, shape: tuple[int, ...], like: Tensor, generator: torch.Generator) -> Tensor:
        """Draw the distribution's noise; of gSDE a matrix for each action, [*shape, L, K]."""
        if not self.uses_sde or self.actor.free is None:
            return super().noise(shape, like, generator)
        return like.new_empty((*shape, *self.actor.free.shape)).normal_(generator=generator)

    def draw(self, observation: dict[str, Tensor], noise: Tensor) -> Drawn:
        """Return actions of the policy, given the randomness [B, ...] of each."""
        if not self.uses_sde:
            return super().draw(observation, noise)
        features, params, values = self._acted(observation)
        return Drawn(self.actor.explored(params, features, noise), params, values)

    def _acted(self, observation: dict[str, Tensor]) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return what the policy's head gets, and as `act`."""
        features = self.actor.encoder(observation)
        own = self.actor.hidden(features)
        values = None if self.critic_encoder else self._value(observation, features)
        return own, self.actor.params(own), values

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
