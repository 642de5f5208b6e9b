"""What a study will cost: time measured on this machine in a few seconds, and disk."""

from __future__ import annotations

from dataclasses import dataclass

from isobatch.recipe import Recipe
from isobatch.run.timing import trial
from isobatch.study.design import Cell, Study

ROW_BYTES = 900
"""One line of metrics."""
COPIES = 7
"""Model-sized tensors a finished run keeps: policy, and two checkpoints with Adam's moments."""
START_SECONDS = 1.0
"""Making environments and networks, writing the first and last checkpoints."""


@dataclass(frozen=True)
class Cost:
    """Estimated cost of one run."""

    seconds: float
    bytes: int


def estimate(study: Study) -> dict[tuple[str, str], Cost]:
    """Return the cost of a run of each (arm, environment), from a few steps of each."""
    return {
        (arm, env): run_cost(study.recipe(Cell(arm, env, study.seeds[0])), study.evaluate)
        for env in study.envs
        for arm in study.arms
    }


def run_cost(recipe: Recipe, evaluate: int = 0) -> Cost:
    """Time some steps and learning from them, and multiply.

    How long an episode is cannot be known before: evaluation, while training and after it, is
    taken as a tenth of the run (5% to 27% were measured), and a warm-up as the longest there is.
    """
    batch = recipe.batch
    with trial(recipe) as timed:
        step, learn, size = timed.step_seconds(), timed.row_seconds(), timed.weight_bytes
        warmup = step * timed.most_warmup_steps
    iterations = recipe.total_timesteps / batch.rollout_size
    acting = step * (recipe.total_timesteps / batch.n_envs)
    learning = learn * recipe.total_timesteps
    evaluating = 0.1 * (acting + learning) if evaluate or recipe.evaluation.eval_marks else 0.0
    copies = COPIES + max(0, recipe.machine.keep_policies - 1)
    return Cost(
        warmup + acting + learning + evaluating + START_SECONDS,
        int(iterations * ROW_BYTES + copies * size),
    )
