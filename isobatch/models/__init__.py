"""Networks and the distributions over actions."""

from isobatch.models.actor_critic import Actor, ActorCritic, EncoderFactory

__all__ = ["Actor", "ActorCritic", "EncoderFactory"]
