"""rejax as a peer: training compiled as one function, and mapped over the seeds.

rejax clips values and single entries of the gradient where the others clip its norm, and keeps no
score of training episodes: the return reached is that of its own evaluation, after the clock has
stopped.
"""

import time

import jax
import numpy as np
from rejax import PPO

from benchmarks.peers.cases import Case
from benchmarks.peers.record import Cannot, Task, serve

ENVS = ("CartPole-v1", "Pendulum-v1")
"""Those of the cases that gymnax has."""


def agent(case: Case) -> PPO:
    """Return rejax's PPO for the case."""
    return PPO.create(
        env=case.env,
        agent_kwargs={"hidden_layer_sizes": case.hidden_sizes, "activation": "tanh"},
        num_envs=case.n_envs,
        num_steps=case.n_steps,
        num_minibatches=case.n_minibatches,
        num_epochs=case.n_epochs,
        total_timesteps=case.total_timesteps,
        eval_freq=case.total_timesteps,
        skip_initial_evaluation=True,
        learning_rate=case.learning_rate,
        gamma=case.gamma,
        gae_lambda=case.gae_lambda,
        clip_eps=case.clip_range,
        ent_coef=case.ent_coef,
        vf_coef=case.vf_coef,
        max_grad_norm=case.max_grad_norm,
        normalize_observations=case.normalize,
        normalize_rewards=case.normalize,
        reward_normalization_discount=case.gamma,
    )


def train(task: Task) -> list[float | None]:
    """Train all seeds at once: every iteration is warm, since compiling comes before the first."""
    case = task.case
    if case.env not in ENVS or case.encoder != "mlp":
        raise Cannot(f"gymnax has no {case.env}")
    full = agent(case)
    silent = full.replace(eval_callback=lambda algo, state, rng: ())
    keys = jax.vmap(jax.random.PRNGKey)(np.array(task.seeds))
    begin = time.monotonic()
    compiled = jax.jit(jax.vmap(silent.train)).lower(keys).compile()
    task.watch.compile_seconds = time.monotonic() - begin
    task.watch.begin(warm_up=0)
    states, _ = jax.block_until_ready(compiled(keys))
    iterations = -(-case.total_timesteps // case.rollout_size)
    task.watch.mark(iterations * case.rollout_size * len(task.seeds))
    task.watch.finish()
    evaluate = jax.jit(jax.vmap(lambda state: full.eval_callback(full, state, state.rng)))
    _, returns = evaluate(states)
    return [float(value) for value in np.asarray(returns).mean(axis=1)]


if __name__ == "__main__":
    serve(train, ("rejax", "gymnax", "jax", "jaxlib", "flax"))
