"""Rollouts of random data, for learning that can be followed by hand."""

from typing import Any

import torch
from gymnasium import spaces

from isobatch.algos import Context
from isobatch.envs.spaces import ActionLayout, ObservationLayout
from isobatch.experience import Rollout
from isobatch.recipe import Recipe
from isobatch.state import TrainState

STEPS, ENVS = 16, 4
SPACE = spaces.Box(-1, 1, (3,))
OBSERVATIONS = ObservationLayout.of(SPACE, "hand-made")
ACTIONS = {
    "discrete": ActionLayout.of(spaces.Discrete(3), "hand-made"),
    "continuous": ActionLayout.of(spaces.Box(-1, 1, (2,)), "hand-made"),
}
PLAIN = Recipe(env="hand-made").replace(
    n_envs=ENVS, n_steps=STEPS, n_minibatches=1, n_epochs=1, learning_rate=0.05,
    optimizer="sgd", gamma=0.9, gae_lambda=0.8, compile="off", hidden_sizes=(16,),
)  # fmt: skip


def begin(recipe, actions="discrete", encoder=None) -> Any:
    return TrainState.begin(recipe, OBSERVATIONS, ACTIONS[actions], torch.device("cpu"), encoder)


def made(kind, state, recipe=None, chunk_size=1000, **context) -> Any:
    """Return a learner of a state, whose recipe in force is the one given."""
    if recipe is not None:
        state.recipe = recipe
    return kind(Context(state, chunk_size, **context))


def learn(learner, rollout) -> Any:
    """Return the statistics of learning from a rollout, its steps counted as the loop does."""
    learned, counters = learner.learn(rollout), learner.state.counters
    counters.epochs += learned.epochs
    counters.grad_steps += learned.grad_steps
    if learned.phase_iterations is not None:
        counters.phase_iterations = learned.phase_iterations
    return learned.statistics


def experience(state, seed=0):
    """Return a rollout of random data acted on by the state's policy, with next-step resets."""
    random = torch.Generator().manual_seed(seed)
    vectors = torch.randn(STEPS + 1, ENVS, 3, generator=random)
    flat = state.observation_normalizer({"vector": vectors.flatten(0, 1)})
    with torch.no_grad():
        params, values = state.model(flat)
    params, values = params.view(STEPS + 1, ENVS, -1)[:-1], values.view(STEPS + 1, ENVS)
    distribution = state.model.distribution
    noise = distribution.noise((STEPS * ENVS,), params, random)
    actions = distribution.sample(params.flatten(0, 1), noise)
    logp = distribution.log_prob(params.flatten(0, 1), actions)
    fate = torch.rand(STEPS, ENVS, generator=random)
    fate[4, 0], fate[9, 1] = 0.0, 1.0
    terminated, truncated = fate < 0.08, fate > 0.92
    valid = torch.ones(STEPS, ENVS, dtype=torch.bool)
    for t in range(1, STEPS):
        valid[t] = ~((terminated | truncated)[t - 1] & valid[t - 1])
    terminated, truncated = terminated & valid, truncated & valid
    first = torch.cat([torch.ones(1, ENVS, dtype=torch.bool), ~valid[:-1]])
    rewards = torch.randn(STEPS, ENVS, generator=random)
    return Rollout(
        observations={"vector": vectors},
        actions=actions.view(STEPS, ENVS, -1),
        params=params,
        logp=logp.view(STEPS, ENVS),
        values=values,
        rewards=rewards,
        terminated=terminated,
        truncated=truncated,
        valid=valid,
        first=first,
        final_values=None,
        scores=rewards,
        over=terminated | truncated,
    )


def weights(state):
    return state.parameters.vector.detach()
