"""A network of action values, acting greedily but for random moments."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from isobatch.envs.spaces import ActionLayout, ObservationLayout
from isobatch.errors import UserError
from isobatch.models.agent import Agent
from isobatch.models.distributions import EpsilonGreedy
from isobatch.models.encoders import EncoderFactory, make_encoder
from isobatch.models.layers import linear, make_head
from isobatch.recipe import Model


class QNetwork(Agent):
    """Encoder and one value for each of A actions: [B, ...] -> [B, A]."""

    def __init__(
        self,
        observations: ObservationLayout,
        actions: ActionLayout,
        model: Model,
        encoder: EncoderFactory | nn.Module | None = None,
    ) -> None:
        super().__init__()
        if actions.kind != "categorical" or len(actions.counts) != 1:
            raise UserError(
                f"pqn is for one discrete action at a time; here are {_described(actions)}"
            )
        (count,) = actions.counts
        self.distribution = EpsilonGreedy(count)
        self.encoder = make_encoder(observations, model, encoder)
        self.head = make_head(self.encoder.n_features, count, model.init, gain=1.0)
        self.epsilon = 0.0
        """Probability of a random action: training sets it; a policy that is loaded has none."""

    def forward(self, observation: dict[str, Tensor]) -> Tensor:
        """Return action values [B, A]."""
        return linear(self.encoder(observation), self.head)

    def act(self, observation: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Return (action values and epsilon [B, A + 1], the largest values [B])."""
        values = self(observation)
        epsilon = values.new_full((len(values), 1), self.epsilon)
        return torch.cat([values, epsilon], 1), values.amax(1)

    def values(self, observation: dict[str, Tensor]) -> Tensor:
        """Return the largest action values [B]."""
        return self(observation).amax(1)


def _described(actions: ActionLayout) -> str:
    kind = {"categorical": "discrete", "binary": "yes-or-no"}.get(actions.kind, "continuous")
    return f"{len(actions.counts)} {kind}"
