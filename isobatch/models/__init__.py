"""Networks and the distributions over actions."""

from torch import nn

from isobatch import registry
from isobatch.envs.spaces import ActionLayout, ObservationLayout
from isobatch.models.actor_critic import Actor, ActorCritic
from isobatch.models.agent import Agent
from isobatch.models.encoders import EncoderFactory
from isobatch.models.q_network import QNetwork
from isobatch.recipe import Recipe

__all__ = ["Actor", "ActorCritic", "Agent", "EncoderFactory", "QNetwork", "make_agent"]


def make_agent(
    recipe: Recipe,
    observations: ObservationLayout,
    actions: ActionLayout,
    encoder: EncoderFactory | nn.Module | None = None,
) -> Agent:
    """Return the networks the recipe's algorithm trains."""
    kind = registry.find(recipe.algo).model
    if kind == "q-network":
        return QNetwork(observations, actions, recipe.model, encoder)
    if kind == "actor-critic":
        return ActorCritic(observations, actions, recipe.model, encoder, auxiliary=recipe.is_phasic)
    return kind(recipe, observations, actions, encoder)
