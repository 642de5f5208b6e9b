"""Experience: what N environments did for T steps under a policy."""

from isobatch.experience.actor import Actor, Several, Single, chunked
from isobatch.experience.collect import Collector
from isobatch.experience.episodes import EpisodeScores, EpisodeTracker
from isobatch.experience.play import Evaluation, play
from isobatch.experience.rollout import BY_STEP, Rollout, concatenate, from_tensors, to_tensors

__all__ = [
    "Actor",
    "BY_STEP",
    "Collector",
    "EpisodeScores",
    "EpisodeTracker",
    "Evaluation",
    "Rollout",
    "Several",
    "Single",
    "chunked",
    "concatenate",
    "from_tensors",
    "play",
    "to_tensors",
]
