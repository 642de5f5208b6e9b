"""What a study will cost: time measured on this machine in a few seconds, and disk."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

from isobatch.envs.catalog import resolve
from isobatch.experience.play import MOST_ENVS
from isobatch.machine import give_back_memory
from isobatch.recipe import Recipe
from isobatch.run.timing import cohort_trial, trial
from isobatch.study.design import Cell, Study
from isobatch.study.together import COHORT, LEAST, Kinds

ROW_BYTES = 900
"""One line of metrics."""
COPIES = 7
"""Model-sized tensors a finished run keeps: policy, and two checkpoints with Adam's moments."""
START_SECONDS = 1.0
"""Making environments and networks, writing the first and last checkpoints."""
LONGEST_EPISODE = 1000
"""Steps of an evaluation's longest episode at most, where the time limit is not sooner."""


@dataclass(frozen=True)
class Cost:
    """Estimated cost of one run of an arm in an environment, and how its runs are trained."""

    seconds: float
    bytes: int
    together: int = 1
    """How many runs are trained at a time."""
    why_alone: str = ""
    """Where it is one."""


def estimate(study: Study, workers: int) -> dict[tuple[str, str], Cost]:
    """Return the cost of a run of each (arm, environment), from a few steps of each."""
    kinds, costs = Kinds(study), dict[tuple[str, str], Cost]()
    few = f"fewer than {LEAST} similar runs for each job"
    for env, arm in itertools.product(study.envs, study.arms):
        recipe = study.recipe(Cell(arm, env, study.seeds[0]))
        together = kinds.at_a_time(arm, env, workers)
        why = "" if together > 1 else kinds.why_alone(arm, env) or few
        costs[arm, env] = replace(run_cost(recipe, study.evaluate, together), why_alone=why)
        give_back_memory()  # 2 GB for DM Control, which the driver would keep beside its workers.
    return costs


def run_cost(recipe: Recipe, evaluate: int = 0, together: int = 1) -> Cost:
    """Time some steps and learning from them, `together` with as many runs, and multiply.

    How long an episode is cannot be known before: in evaluations, while training and after it, the
    longest is taken to reach the time limit, or `LONGEST_EPISODE`; a warm-up to be the longest
    there is.
    """
    with trial(recipe) as timed:
        step, learn, size = timed.step_seconds(), timed.row_seconds(), timed.weight_bytes
        warmup_steps, images = timed.most_warmup_steps, timed.state.has_images
        evaluating = evaluating_after = timed.evaluation_step_seconds()
    n_steps, rows = recipe.total_timesteps / recipe.batch.n_envs, recipe.total_timesteps
    if together > 1 and not images:
        with cohort_trial(recipe, together, COHORT) as cohort:
            step, learn = cohort.step_seconds(), cohort.row_seconds()
            evaluating = cohort.evaluation_step_seconds()
    marks, episodes = recipe.evaluation.marks(rows), recipe.evaluation.episodes(rows)
    limit = resolve(recipe.env).time_limit(recipe.environment) or LONGEST_EPISODE
    evaluated = evaluating * len(marks) * _rounds(episodes) + evaluating_after * _rounds(evaluate)
    copies = COPIES + max(0, recipe.machine.keep_policies - 1)
    return Cost(
        step * (warmup_steps + n_steps)
        + learn * rows
        + evaluated * min(limit, LONGEST_EPISODE)
        + START_SECONDS,
        int(rows / recipe.batch.rollout_size * ROW_BYTES + copies * size),
        together,
    )


def _rounds(episodes: int) -> int:
    """Return how many episodes an evaluation's environments play, one after the other."""
    return -(-episodes // MOST_ENVS)
