"""Experience for the laboratory: long trajectories of a frozen policy, in fresh environments."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from isobatch import envs
from isobatch.advantages import gae
from isobatch.algos.pqn import epsilon
from isobatch.envs import MakeEnv
from isobatch.envs.seeds import evaluation_seeds
from isobatch.errors import UserError
from isobatch.experience import BY_STEP, Collector, Rollout, Single, concatenate
from isobatch.experience.stagger import PIECE, burn_in
from isobatch.machine import give_back_memory
from isobatch.models import QNetwork
from isobatch.normalize import RewardNormalizer
from isobatch.run.policy import Policy
from isobatch.update import chunk_rows

SEED = 1500
"""The evaluation whose environments the laboratory begins with; few run as many."""


@dataclass(frozen=True)
class Experience:
    """What M environments did for L steps, each from a moment of its own on."""

    rollout: Rollout
    """[L, M], rewards as the value function knows them; fewer observations than that."""
    burn_in: int
    """Steps that came before."""
    episode_length: float | None
    """Mean length of the episodes that ended meanwhile; None: none did."""

    def advantages(self, n_steps: int, rows: int, gamma: float, gae_lambda: float) -> Tensor:
        """Return GAE [rows, M] of rollouts of `n_steps`, cut one after the other from step 0 on.

        Each is bootstrapped with the value at its own end; `rows` is a multiple of `n_steps`.
        """
        rollout, count = self.rollout, rows // n_steps
        rewards, terminated = rollout.bootstrapped(rollout.rewards, gamma)

        def cut(column: Tensor) -> Tensor:
            windows = column[: count * n_steps].unflatten(0, (count, n_steps))
            return windows.transpose(0, 1).flatten(1)

        after = rollout.values[n_steps : count * n_steps + 1 : n_steps].flatten()
        values = torch.cat([cut(rollout.values), after[None]])
        advantages, _ = gae(
            cut(rewards), values, cut(terminated), cut(rollout.truncated), gamma, gae_lambda
        )
        return advantages.unflatten(1, (count, -1)).transpose(0, 1).flatten(0, 1)

    def full_advantages(self, rows: int, gamma: float, gae_lambda: float) -> Tensor:
        """Return GAE [rows, M] that looks as far ahead as the trajectories go."""
        length = len(self.rollout.rewards)
        return self.advantages(length, length, gamma, gae_lambda)[:rows]


def collect(
    policy: Policy,
    n_envs: int,
    n_steps: int,
    n_seen: int,
    *,
    seed: int = 0,
    make_env: MakeEnv | None = None,
    progress: Callable[[int], None] = lambda steps: None,
) -> Experience:
    """Let a policy act in `n_envs` environments it was not trained in, for `n_steps` each.

    They are stepped until each has ended an episode, or for `BURN_IN` of them; then each one's
    trajectory begins at a random step of about an episode's length. So no two are in step, even
    where every episode is as long as the next. Observations of the first `n_seen` are kept.
    """
    recipe = policy.recipe
    seeds = evaluation_seeds(recipe.seed, n_envs, SEED + seed)
    env = envs.make(recipe, seeds, make_env=make_env)
    try:
        chunk = chunk_rows(env.observation_layout.image, recipe.model.encoder)
        collector = Collector(env, torch.device("cpu"), chunk)
        generator = torch.Generator().manual_seed(seed)
        actor = Single(policy.model, policy.normalizer, generator, recipe.noise_hold)
        _explore(policy)

        def act(steps: int) -> Rollout:
            progress(steps)
            return collector.collect(actor, steps)

        steps, length, spread = burn_in(act, env)
        begin = torch.randint(spread, (n_envs,), generator=generator)
        rollout = _staggered(act, begin, n_steps, n_seen)
    finally:
        env.close()
    give_back_memory()
    return Experience(replace(rollout, rewards=_rewards(policy, rollout)), steps, length)


def _explore(policy: Policy) -> None:
    """Let a Q-network choose at random as often as it did in training."""
    if isinstance(policy.model, QNetwork):
        recipe = policy.recipe
        spent = policy.env_steps / recipe.total_timesteps
        policy.model.epsilon = epsilon(recipe.exploration, spent)


def _staggered(act: Callable[[int], Rollout], begin: Tensor, n_steps: int, n_seen: int) -> Rollout:
    """Return every environment's `n_steps` from its own beginning [M] on.

    Of the observations only the first `n_seen` are kept, a piece at a time: images are large.
    """
    pieces: list[Rollout] = []
    seen: dict[str, Tensor] = {}
    total = n_steps + int(begin.max())
    for first in range(0, total, PIECE):
        piece = act(min(PIECE, total - first))
        row = first + torch.arange(len(piece.rewards))[:, None] - begin
        here = (row >= 0) & (row < n_seen)
        for part, rows in piece.observations.items():
            if part not in seen:
                seen[part] = rows.new_empty(n_seen, *rows.shape[1:])
            seen[part][row[here], here.nonzero()[:, 1]] = rows[:-1][here]
        pieces.append(replace(piece, observations={}))
    joined = concatenate(*pieces)

    def cut(column: Tensor, rows: int) -> Tensor:
        cuts = [column[start : start + rows, n] for n, start in enumerate(begin.tolist())]
        return torch.stack(cuts, 1)

    by_step: dict[str, Any] = {name: cut(getattr(joined, name), n_steps) for name in BY_STEP}
    return Rollout(
        observations=seen,
        values=cut(joined.values, n_steps + 1),
        final_values=None if joined.final_values is None else cut(joined.final_values, n_steps),
        **by_step,
    )


def _rewards(policy: Policy, rollout: Rollout) -> Tensor:
    """Return the rewards [L, M] in the unit the value function was trained in."""
    settings = policy.recipe.normalize
    if not settings.normalize_rewards or not policy.env_steps:
        return rollout.rewards
    if policy.reward_moments is None:
        raise UserError(
            "the policy file has no reward normalisation statistics: resume the run for one "
            "iteration to write them"
        )
    normalizer = RewardNormalizer.of(settings, 1)
    normalizer.load_state_dict(policy.reward_moments)
    return normalizer.scaled(rollout.rewards)
