"""What Stable-Baselines3 needs to train on EnvPool's environments, and an IMPALA encoder."""

from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Box, Dict, Discrete, flatten_space
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.vec_env import VecEnv
from stable_baselines3.common.vec_env.base_vec_env import VecEnvStepReturn
from torch import Tensor, nn

from isobatch.envs.qt import preload_qt


def seeds_of(seed: int, n_envs: int) -> list[int]:
    """Return a seed for each environment."""
    return (np.random.SeedSequence(seed).generate_state(n_envs) >> 1).tolist()  # EnvPool's: int32


class EnvPoolVecEnv(VecEnv):
    """An EnvPool pool in synchronous mode, seen as a Stable-Baselines3 vector environment.

    EnvPool resets a finished environment on the step after the last one, while Stable-Baselines3
    expects the reset observation at once and the final one in the info. So the environments that
    have just finished are reset apart from the others, within the step that finished them.
    Observations that are dictionaries become one vector. Episodes are scored as Isobatch scores
    them: by the game's own rewards, until the game is over.
    """

    def __init__(self, env_id: str, n_envs: int, seed: int, **options: Any) -> None:
        preload_qt()  # EnvPool looks for Qt once, when it is imported
        import envpool

        self.pool = envpool.make(
            env_id, env_type="gymnasium", num_envs=n_envs, seed=seeds_of(seed, n_envs), **options
        )
        self.inner = self.pool.observation_space
        outer = flatten_space(self.inner) if isinstance(self.inner, Dict) else self.inner
        super().__init__(n_envs, outer, self.pool.action_space)
        self.scores = np.zeros(n_envs)
        self.sent = np.zeros(0)

    def flat(self, observations: Any) -> np.ndarray:
        """Return observations of a dictionary's entries side by side, Discrete ones one-hot."""
        if not isinstance(self.inner, Dict):
            return observations
        parts = []
        for key, space in self.inner.spaces.items():
            rows = np.asarray(observations[key])
            one_hot = isinstance(space, Discrete)
            parts.append(np.eye(space.n)[rows] if one_hot else rows.reshape(len(rows), -1))
        return np.concatenate(parts, 1).astype(np.float32)

    def reset(self) -> np.ndarray:
        """Reset every environment and return the first observations."""
        return self.flat(self.pool.reset()[0])

    def step_async(self, actions: np.ndarray) -> None:
        """Send one action to each environment."""
        self.sent = actions
        self.pool.send(actions)

    def step_wait(self) -> VecEnvStepReturn:
        """Return observations, rewards, dones and infos, finished environments already reset."""
        observations, rewards, terminated, truncated, more = self.pool.recv()
        observations, dones = self.flat(observations), terminated | truncated
        self.scores += more.get("reward", rewards)
        over = (more["terminated"] != 0) | truncated if "terminated" in more else dones
        infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        for index in np.flatnonzero(over):
            infos[index]["episode"] = {"r": self.scores[index], "l": more["elapsed_step"][index]}
        self.scores[over] = 0
        finished = np.flatnonzero(dones)
        for index in finished:
            infos[index]["terminal_observation"] = observations[index].copy()
            infos[index]["TimeLimit.truncated"] = bool(truncated[index])
        if finished.size:
            # A step resets what has ended, whatever its action. `reset` would begin a new game
            # where a life was lost; SB3's AtariWrapper goes on with the next life.
            fresh, *_, which = self.pool.step(self.sent[finished], finished.astype(np.int32))
            observations[which["env_id"]] = self.flat(fresh)
        return observations, rewards, dones, infos

    def close(self) -> None:
        """Close the pool."""
        self.pool.close()

    def get_attr(self, attr_name: str, indices: int | Iterable[int] | None = None) -> list[Any]:
        """Return the pool's attribute, once for each environment asked for."""
        return [getattr(self.pool, attr_name) for _ in self._get_indices(indices)]

    def set_attr(
        self, attr_name: str, value: Any, indices: int | Iterable[int] | None = None
    ) -> None:
        """Refuse: the environments live in C++ and have no Python attributes."""
        raise AttributeError(f"an EnvPool environment has no attribute {attr_name} to set")

    def env_method(
        self,
        method_name: str,
        *method_args: Any,
        indices: int | Iterable[int] | None = None,
        **method_kwargs: Any,
    ) -> list[Any]:
        """Refuse: the environments live in C++ and have no Python methods."""
        raise AttributeError(f"an EnvPool environment has no method {method_name}")

    def env_is_wrapped(
        self, wrapper_class: type, indices: int | Iterable[int] | None = None
    ) -> list[bool]:
        """Return False for each environment: none has a Gymnasium wrapper."""
        return [False for _ in self._get_indices(indices)]


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions, each after a ReLU, added to their input."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return the input plus its residual."""
        return x + self.layers(x)


def impala_stage(in_channels: int, out_channels: int) -> nn.Sequential:
    """Return a convolution, a pooling that halves the image, and two residual blocks."""
    return nn.Sequential(
        nn.Conv2d(in_channels, out_channels, 3, padding=1),
        nn.MaxPool2d(3, stride=2, padding=1),
        ResidualBlock(out_channels),
        ResidualBlock(out_channels),
    )


class ImpalaFeatures(BaseFeaturesExtractor):
    """The IMPALA encoder: stages of 16, 32 and 32 channels, then 256 features."""

    def __init__(self, observation_space: Box, features_dim: int = 256) -> None:
        super().__init__(observation_space, features_dim)
        channels = (observation_space.shape[0], 16, 32, 32)
        stages = [impala_stage(*pair) for pair in pairwise(channels)]
        self.trunk = nn.Sequential(*stages, nn.ReLU(), nn.Flatten())
        with torch.no_grad():
            flat = self.trunk(torch.zeros(1, *observation_space.shape)).shape[1]
        self.head = nn.Sequential(nn.Linear(flat, features_dim), nn.ReLU())

    def forward(self, observations: Tensor) -> Tensor:
        """Return the features of observations already divided by 255."""
        return self.head(self.trunk(observations))
