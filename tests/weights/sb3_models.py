"""Small policies that Stable-Baselines3 itself trained and saved, and what they say."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3 import A2C, PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecEnv, VecNormalize

ROWS = 1000
SMALL: dict[str, Any] = {"n_steps": 32, "batch_size": 32, "n_epochs": 1, "device": "cpu"}


class Colours(gymnasium.Env):
    """Random pictures, channels last, and five actions."""

    observation_space = spaces.Box(0, 255, (36, 40, 3), np.uint8)
    action_space = spaces.Discrete(5)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self._picture(), {}

    def step(self, action):
        return self._picture(), float(action), bool(self.np_random.random() < 0.1), False, {}

    def _picture(self):
        return self.np_random.integers(0, 256, (36, 40, 3), np.uint8)


class Parts(gymnasium.Env):
    """Observations in a dict, and several choices at once."""

    observation_space = spaces.Dict(
        {"arm": spaces.Box(-5, 5, (2, 2), np.float32), "legs": spaces.Box(-1, 1, (3,), np.float32)}
    )
    action_space = spaces.MultiDiscrete([2, 3])

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        return self.observation_space.sample(), {}

    def step(self, action):
        ends = bool(self.np_random.random() < 0.1)
        return self.observation_space.sample(), float(action[0]), ends, False, {}


gymnasium.register("Colours-v0", lambda **_: Colours())
gymnasium.register("Parts-v0", lambda **_: Parts())


@dataclass
class Saved:
    """A model as it was trained, and the files it was saved to."""

    env: str
    model: Any
    path: Path
    normalizer: VecNormalize | None = None

    def observations(self, seed: int = 0) -> Any:
        """Return observations of the environment's own form, some of them far from usual."""
        space = self.model.env.observation_space
        space.seed(seed)
        rows = [space.sample() for _ in range(ROWS)]
        if isinstance(space, spaces.Dict):
            return {key: np.stack([row[key] for row in rows]) for key in rows[0]}
        found = np.stack(rows)
        if found.dtype == np.float32:
            found = np.random.default_rng(seed).normal(0, 3, found.shape).astype(np.float32)
        if found.ndim == 4:
            found = np.moveaxis(found, 1, -1)  # As the environment has them.
        return found


def answers(model: Any, observations: Any, normalizer: VecNormalize | None = None):
    """Return SB3's (deterministic actions, distribution parameters, values)."""
    seen = observations if normalizer is None else normalizer.normalize_obs(observations)
    actions, _ = model.predict(seen, deterministic=True)
    with torch.no_grad():
        tensors, _ = model.policy.obs_to_tensor(seen)
        params = _parameters(model.policy.get_distribution(tensors))
        values = model.policy.predict_values(tensors).flatten()
    return actions, params.numpy(), values.numpy()


def _parameters(distribution: Any) -> torch.Tensor:
    inner = distribution.distribution
    if isinstance(inner, list):
        return torch.cat([each.logits for each in inner], 1)
    if hasattr(inner, "logits"):
        return inner.logits
    return torch.cat([inner.mean, inner.stddev.log()], 1)


def _trained(algo: Any, policy: str, env: VecEnv | str, steps: int, **settings: Any) -> Any:
    return algo(policy, env, seed=3, **settings).learn(steps)


def _discrete(folder: Path) -> Saved:
    kwargs = {"net_arch": [32, 16], "activation_fn": torch.nn.ReLU}
    env = make_vec_env("CartPole-v1", 2)
    model = _trained(PPO, "MlpPolicy", env, 128, policy_kwargs=kwargs, gamma=0.98, **SMALL)
    return Saved("CartPole-v1", model, folder / "model.zip")


def _continuous(folder: Path) -> Saved:
    env = VecNormalize(make_vec_env("Pendulum-v1", 2, seed=5), gamma=0.97, clip_reward=5.0)
    model = _trained(PPO, "MlpPolicy", env, 256, learning_rate=lambda left: left * 1e-3, **SMALL)
    env.save(str(folder / "vecnormalize.pkl"))
    return Saved("Pendulum-v1", model, folder / "model.zip", env)


def _images(folder: Path) -> Saved:
    model = _trained(PPO, "CnnPolicy", make_vec_env("Colours-v0", 1), 64, **SMALL)
    return Saved("Colours-v0", model, folder / "model.zip")


def _images_apart(folder: Path) -> Saved:
    kwargs = {"share_features_extractor": False, "net_arch": {"pi": [8], "vf": []}}
    env = make_vec_env("Colours-v0", 1)
    model = _trained(PPO, "CnnPolicy", env, 32, policy_kwargs=kwargs, **SMALL)
    return Saved("Colours-v0", model, folder / "model.zip")


def _widths(folder: Path) -> Saved:
    kwargs = {"net_arch": {"pi": [24], "vf": [32, 16]}}
    env = make_vec_env("CartPole-v1", 2)
    model = _trained(PPO, "MlpPolicy", env, 128, policy_kwargs=kwargs, **SMALL)
    return Saved("CartPole-v1", model, folder / "model.zip")


def _a2c(folder: Path) -> Saved:
    env = make_vec_env("CartPole-v1", 4)
    return Saved("CartPole-v1", _trained(A2C, "MlpPolicy", env, 100), folder / "model.zip")


def _sde(folder: Path) -> Saved:
    env = make_vec_env("Pendulum-v1", 2)
    settings = {"use_sde": True, "sde_sample_freq": 4, "policy_kwargs": {"log_std_init": -1.0}}
    model = _trained(PPO, "MlpPolicy", env, 64, **settings, **SMALL)
    return Saved("Pendulum-v1", model, folder / "model.zip")


def _one_hot(folder: Path) -> Saved:
    env = make_vec_env("FrozenLake-v1", 2)
    model = _trained(PPO, "MlpPolicy", env, 64, **SMALL)
    return Saved("gymnasium:FrozenLake-v1", model, folder / "model.zip")


def _parts(folder: Path) -> Saved:
    env = VecNormalize(make_vec_env("Parts-v0", 2))
    model = _trained(PPO, "MultiInputPolicy", env, 64, **SMALL)
    env.save(str(folder / "vec_normalize.pkl"))
    return Saved("Parts-v0", model, folder / "model.zip", env)


MAKERS = {
    "discrete": _discrete, "continuous": _continuous, "images": _images,
    "images apart": _images_apart, "widths": _widths, "a2c": _a2c, "one-hot": _one_hot,
    "parts": _parts, "gSDE": _sde,
}  # fmt: skip


def saved(kind: str, folder: Path) -> Saved:
    """Train a policy of a kind and save it to `folder`."""
    made = MAKERS[kind](folder)
    made.model.save(made.path)
    return made
