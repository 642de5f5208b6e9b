"""From a rollout to what is learned from it: rewards, advantages, value targets."""

from __future__ import annotations

import torch
from torch import Tensor

from isobatch.advantages import gae
from isobatch.envs import Observation
from isobatch.experience import Rollout
from isobatch.state import TrainState


def flat_observations(state: TrainState, rollout: Rollout) -> Observation:
    """Return the observations acted on, normalised, as rows [T N, ...].

    Once for each rollout: the statistics stay as they are while it is learned from.
    """
    return rollout.acted_on(state.observation_normalizer)


def training_rewards(state: TrainState, rollout: Rollout) -> Tensor:
    """Return the rewards [T, N], normalised where the recipe says so. Once for each rollout."""
    if not state.recipe.normalize.normalize_rewards:
        return rollout.rewards
    return state.reward_normalizer(rollout.rewards, rollout.first, rollout.valid)


def advantages_and_targets(state: TrainState, rollout: Rollout) -> tuple[Tensor, Tensor]:
    """Normalise rewards where asked, and return (advantages, value targets) [T, N]."""
    gamma, gae_lambda = state.recipe.objective.gamma, state.recipe.objective.gae_lambda
    rewards, terminated = rollout.bootstrapped(training_rewards(state, rollout), gamma)
    return gae(rewards, rollout.values, terminated, rollout.truncated, gamma, gae_lambda)


def normalized(state: TrainState, advantages: Tensor, rollout: Rollout) -> Tensor:
    """Normalise advantages over the rollout or several iterations, as the recipe says."""
    kind = state.recipe.objective.advantage_normalization
    if kind in ("none", "minibatch"):
        return advantages
    state.advantage_moments.update(advantages, rollout.valid)
    return state.advantage_moments.normalize(advantages)


def change_at_half(state: TrainState, advantages: Tensor, rollout: Rollout) -> Tensor:
    """Return what raw advantages [T, N] would change by, were the rollout cut at h = T // 2.

    Bootstrapped there with V_h, the rows before lose what came to them from beyond; those after
    are a rollout of their own. In the unit the advantages are normalised to:

    A^h_t - A_t = -(gamma lambda)^(h - t) A_h  in the episode of row h,  else 0
    """
    half = len(advantages) // 2
    settings = state.recipe.objective
    done = (rollout.terminated | rollout.truncated)[:half]
    carry = settings.gamma * settings.gae_lambda * (~done).to(advantages.dtype)
    reach = carry.flip(0).cumprod(0).flip(0)
    change = torch.zeros_like(advantages)
    change[:half] = -reach * advantages[half]
    rescaled = settings.advantage_normalization in ("batch", "ewma")
    return change / state.advantage_moments.unit if rescaled else change


def explained_variance(rollout: Rollout, targets: Tensor) -> float:
    """1 - Var(target - value) / Var(target) over valid rows; 0 where the targets are constant."""
    wanted = targets[rollout.valid]
    given = rollout.values[:-1][rollout.valid]
    spread = float(wanted.var(correction=0))
    return 1 - float((wanted - given).var(correction=0)) / spread if spread > 0 else 0.0
