"""Registers probe environments, so that commands reach them as probe_registry:Id."""

import gymnasium
import numpy as np
from gymnasium import spaces

STEER = spaces.Box(-1, 1, (1,), np.float32)
PAIR = spaces.Tuple([spaces.Discrete(2)] * 2)


def register(env_id, name, **settings):
    gymnasium.register(env_id, f"probe_envs:{name}", kwargs=settings)


register("Counter-v0", "Counter")
register("NanReward-v0", "Faulty", step=5, part="reward")
register("InfReward-v0", "Faulty", step=7, part="reward", value=np.inf)
register("NanObservation-v0", "Faulty", step=6, part="observation")
register("NanObservationSteered-v0", "Faulty", step=6, part="observation", actions=STEER)
register("TextObservation-v0", "Odd", observations=spaces.Text(8))
register("TupleAction-v0", "Odd", actions=PAIR)
