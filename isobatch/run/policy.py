"""A trained policy on its own: load it, ask it for actions, evaluate it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from isobatch import envs
from isobatch.envs import Observation
from isobatch.envs.catalog import require_trusted
from isobatch.envs.seeds import evaluation_seeds
from isobatch.envs.spaces import ActionLayout, ObservationLayout, add_batch_axis
from isobatch.errors import UserError, understanding
from isobatch.experience.play import MOST_ENVS, Evaluation, play
from isobatch.models import Agent, EncoderFactory, make_agent
from isobatch.normalize import ObservationNormalizer
from isobatch.recipe import Recipe
from isobatch.run import store
from isobatch.state import TrainState, under


class Policy:
    """A policy with its observation statistics and spaces; it needs no environment."""

    def __init__(
        self,
        recipe: Recipe,
        observations: ObservationLayout,
        actions: ActionLayout,
        model: Agent,
        normalizer: ObservationNormalizer,
        env_steps: int = 0,
        reward_moments: dict[str, Tensor] | None = None,
    ) -> None:
        self.recipe = recipe
        self.observation_layout = observations
        self.action_layout = actions
        self.model = model.eval()
        self.normalizer = normalizer
        self.env_steps = env_steps
        """Environment steps it was trained for."""
        self.reward_moments = reward_moments
        """The reward normaliser's, as its `load_state_dict` takes them, where the file has them."""
        self._generator = torch.Generator().manual_seed(recipe.seed)

    @torch.inference_mode()
    def predict(self, observation: Any, deterministic: bool = False) -> Any:
        """Return the action for one observation, or actions for a batch of them.

        `observation` is the environment's own: an array, a number or a dict, with or without a
        leading batch axis; the action has the environment's own form, with the same axis.
        """
        batched = self._is_batch(observation)
        parts = self.observation_layout.encode(
            observation if batched else add_batch_axis(observation)
        )
        params, _ = self.model.act(self.normalizer(parts))
        native = self.action_layout.native(self.choose(params, deterministic).numpy())
        return native if batched else native[0]

    def choose(self, params: Tensor, deterministic: bool) -> Tensor:
        """Return the most likely actions [B, K] of policy parameters [B, P], or draw them."""
        distribution = self.model.distribution
        if deterministic:
            return distribution.mode(params)
        noise = distribution.noise((len(params),), params, self._generator)
        return distribution.sample(params, noise)

    def actor(self, deterministic: bool = False) -> Callable[[Observation], Tensor]:
        """Return a function from encoded observations to actions [N, K] in policy form."""

        def act(observation: Observation) -> Tensor:
            params, _ = self.model.act(self.normalizer(observation))
            return self.choose(params, deterministic)

        return act

    def values(self, observation: Any) -> np.ndarray:
        """Return the values [B] of a batch of observations."""
        with torch.inference_mode():
            parts = self.observation_layout.encode(observation)
            return self.model.values(self.normalizer(parts)).numpy()

    def _is_batch(self, observation: Any) -> bool:
        leaf = self.observation_layout.leaves[0]
        for key in leaf.path:
            observation = observation[key]
        return np.ndim(observation) > len(leaf.shape)


def save(
    run: store.RunDirectory,
    state: TrainState,
    env: envs.BatchedEnv,
    keep: Literal["last", "part", "best"] = "last",
) -> None:
    """Write the policy file of a run: the last, one of a part of the budget, or the best."""
    parts = {
        "model": state.model.state_dict(),
        "observation": state.observation_normalizer.state_dict(),
        "reward": state.reward_normalizer.state_dict(),
    }
    tensors: dict[str, Tensor] = {}
    for part, entries in parts.items():
        tensors.update({f"{part}.{name}": value for name, value in entries.items()})
    description = {
        "observations": env.observation_layout.to_json(),
        "actions": env.action_layout.to_json(),
        "env_steps": state.counters.env_steps,
    }
    run.save_policy(tensors, description, keep)


def load(
    path: str | Path,
    encoder: EncoderFactory | torch.nn.Module | None = None,
    at: float | None = None,
    best: bool = False,
) -> Policy:
    """Load the policy of a run directory; `encoder` is needed only if the run used your own.

    `at` is a fraction of the budget, in [0, 1], and loads the nearest saved policy. `best` loads
    the policy with the highest evaluation while training. Without either, the last one is loaded.
    """
    if at is not None and not 0 <= at <= 1:
        raise UserError(f"at must lie in [0, 1], a fraction of the budget, got {at}")
    tensors, description = store.read_policy(path, at, best)
    recipe = Recipe.load(Path(path) / "recipe.toml")
    with understanding(f"the policy of {path}"):
        observations = ObservationLayout.from_json(description["observations"])
        actions = ActionLayout.from_json(description["actions"])
        env_steps = int(description["env_steps"])
    model = make_agent(recipe, observations, actions, encoder)
    normalizer = ObservationNormalizer.of(recipe.normalize, observations.vector)
    with understanding(f"the policy of {path}"):
        model.load_state_dict(under(tensors, "model"))
        normalizer.load_state_dict(under(tensors, "observation"))
    reward_moments = under(tensors, "reward") or None
    return Policy(recipe, observations, actions, model, normalizer, env_steps, reward_moments)


def evaluate(
    path: str | Path,
    episodes: int = 20,
    *,
    deterministic: bool = False,
    seed: int = 0,
    best: bool = False,
    env: str | None = None,
    make_env: envs.MakeEnv | None = None,
    encoder: EncoderFactory | torch.nn.Module | None = None,
) -> Evaluation:
    """Play full episodes with a run's policy, with environment seeds that training does not use.

    Every environment plays the same number of episodes (to within one), so that short episodes are
    not over-represented. Actions are sampled, or with `deterministic` the most likely ones. `best`
    plays the policy with the highest evaluation while training. `env` repeats a `module:Id`, as in
    `resume`.
    """
    policy = load(path, encoder, best=best)
    recipe = policy.recipe
    require_trusted(recipe.env, env)
    n_envs = min(episodes, MOST_ENVS)
    make_env = envs.maker_of(recipe, make_env)
    if make_env is not None:
        make_env, width, _ = envs.inspect(make_env)
        n_envs = width or n_envs
    seeds = evaluation_seeds(recipe.seed, n_envs, seed)
    arena = envs.make(recipe, seeds, make_env=make_env, training=False)
    try:
        played = play(policy.actor(deterministic), arena, episodes)
    finally:
        arena.close()
    return replace(played, actions="deterministic" if deterministic else recipe.eval_actions)
