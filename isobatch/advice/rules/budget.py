"""Rules about what the data and the budget allow."""

from __future__ import annotations

import math

from isobatch.advice.finding import Finding
from isobatch.advice.history import History
from isobatch.advice.rules.changes import cuts, power_of_two
from isobatch.advice.rules.rule import NOTHING, OURS, note, rule, to, warning
from isobatch.scaling.horizon import horizon

FEW_ITERATIONS, FEW_STEPS = 15, 200


@rule(
    f"the budget holds under {FEW_ITERATIONS} iterations, or under {FEW_STEPS} gradient steps (not "
    "of a2c and reinforce, which take one an iteration)",
    OURS,
)
def few_updates(run: History) -> Finding | None:
    """The run is over before the policy has changed often."""
    batch = run.batch
    iterations = run.recipe.total_timesteps / batch.rollout_size
    steps = iterations * batch.grad_steps_per_iteration
    if iterations >= FEW_ITERATIONS and (steps >= FEW_STEPS or not cuts(run)):
        return None
    total = run.recipe.total_timesteps
    if iterations >= FEW_ITERATIONS:
        return warning(
            steps,
            FEW_STEPS,
            f"{total:,} environment steps are {steps:,.0f} gradient steps, under {FEW_STEPS}: "
            "the policy changes too rarely to learn much",
            "split rollouts into more minibatches",
            to(n_minibatches=min(32, max(4, 2 * batch.n_minibatches))),
        )
    wanted = max(1, total // (FEW_ITERATIONS * 2))
    # Rollouts no shorter than GAE looks ahead: fewer environments instead.
    reach = horizon(run.recipe.objective.gamma, run.recipe.objective.gae_lambda)
    least = 2 ** math.ceil(math.log2(min(reach, batch.n_steps)))
    n_steps = min(batch.n_steps, max(least, power_of_two(max(1, wanted // batch.n_envs))))
    n_envs = min(batch.n_envs, power_of_two(max(1, wanted // n_steps)))
    return warning(
        iterations,
        FEW_ITERATIONS,
        f"{total:,} environment steps are {iterations:.3g} iterations of {batch.rollout_size:,}, "
        f"under {FEW_ITERATIONS}: the policy that acts changes too rarely to learn much",
        "collect smaller rollouts, or train for longer",
        to(n_envs=n_envs, n_steps=n_steps, n_minibatches=min(4, n_envs * n_steps))
        if cuts(run)
        else to(n_envs=n_envs, n_steps=n_steps),
    )


FEW_EPISODES = 2.0


@rule(f"the budget gives each environment under {FEW_EPISODES:.0f} episodes", OURS)
def long_episodes(run: History) -> Finding | None:
    """With many environments, each is stepped too seldom to see the end of its episodes."""
    length = run.median("episode_length", 1)
    if not length or length <= 0:
        return None
    each = run.recipe.total_timesteps / run.batch.n_envs
    if each / length >= FEW_EPISODES:
        return None
    fitting = max(1, int(run.recipe.total_timesteps / (10 * length)))
    return warning(
        each / length,
        FEW_EPISODES,
        f"episodes of {length:,.0f} steps, and the budget gives each of {run.batch.n_envs:,} "
        f"environments {each:,.0f}: {each / length:.2g} episodes, under {FEW_EPISODES:.0f}",
        "use fewer environments, or train for longer",
        to(n_envs=min(fitting, run.batch.n_envs))
        if fitting < run.batch.n_envs
        else to(total_timesteps=math.ceil(10 * length * run.batch.n_envs)),
    )


@rule(
    "n_steps under GAE's horizon 1 / (1 - gamma lambda), lambda under 1",
    "arXiv 2110.00641, footnote 4",
)
def short_rollout(run: History) -> Finding | None:
    """Rollouts end before GAE has seen what it would look at: the value function must stand in.

    A note only: it spoke of good runs as often as of bad ones (docs/tasks/advise.md).
    """
    settings, n_steps = run.recipe.objective, run.batch.n_steps
    reach = horizon(settings.gamma, settings.gae_lambda)
    # With lambda 1 the returns of n steps are what is wanted, as in A2C.
    if n_steps >= reach or settings.gae_lambda == 1 or run.algorithm.whole_returns:
        return None
    wanted = 2 ** math.ceil(math.log2(2 * reach))
    fewer = max(min(8, run.batch.n_envs), run.batch.rollout_size // wanted)
    return note(
        n_steps,
        reach,
        f"rollouts of {n_steps} steps, and GAE looks {reach:.3g} ahead (1 / (1 - gamma lambda)): "
        "the rest is left to the value function",
        "collect longer rollouts, from fewer environments for the same size",
        to(n_envs=fewer, n_steps=wanted),
    )


BEYOND = 2.0


@rule(
    f"minibatches over {BEYOND:.0f} x the measured noise scale (a note if over 1 x it)",
    "McCandlish et al. 2018",
)
def beyond_noise(run: History) -> Finding | None:
    """The gradient is known better than a step needs: smaller minibatches take more steps."""
    scale, rows = run.median("noise_scale", 1), run.batch.minibatch_size
    if scale is None or scale <= 0 or rows <= scale:
        return None
    cut = min(run.batch.rollout_size // 32, 2 ** math.ceil(math.log2(rows / scale)))
    more = max(1, cut) * run.batch.n_minibatches
    fixed = not cuts(run)
    return (warning if rows > BEYOND * scale else note)(
        rows,
        scale,
        f"minibatches of {rows:,} rows, and a measured noise scale of {scale:,.0f}: beyond it more "
        "rows hardly make a step better",
        "collect smaller rollouts" if fixed else "split rollouts into more minibatches",
        NOTHING if fixed or more > run.batch.rollout_size else to(n_minibatches=more),
    )
