"""Experience: what N environments did for T steps under a policy."""

from isobatch.experience.actor import Actor, Several, Single, chunked
from isobatch.experience.collect import Collector
from isobatch.experience.episodes import EpisodeScores, EpisodeTracker
from isobatch.experience.play import Evaluation, drawing, play, play_together
from isobatch.experience.rollout import BY_STEP, Rollout, concatenate, from_tensors, to_tensors
from isobatch.experience.shards import Shards

__all__ = [
    "Actor",
    "BY_STEP",
    "Collector",
    "EpisodeScores",
    "EpisodeTracker",
    "Evaluation",
    "Rollout",
    "Several",
    "Shards",
    "Single",
    "chunked",
    "concatenate",
    "drawing",
    "from_tensors",
    "play",
    "play_together",
    "to_tensors",
]
