"""One policy on the bench: collect once, differentiate once, and measure everything from that."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path

import torch

from isobatch import algos
from isobatch.envs import MakeEnv
from isobatch.errors import UserError
from isobatch.machine import give_back_memory, torch_threads
from isobatch.noise.samples import output_of
from isobatch.probe import curve
from isobatch.probe.batches import take_apart
from isobatch.probe.collapse import exploration
from isobatch.probe.collection import Experience, collect
from isobatch.probe.compare import compare, to_compare
from isobatch.probe.credit import numbered
from isobatch.probe.findings import Findings
from isobatch.probe.gradients import Directions, directions
from isobatch.probe.plan import Plan, Question, check, gae_lambda, has_returns, make_plan
from isobatch.probe.reference import Kind, monte_carlo
from isobatch.recipe import Recipe
from isobatch.run.policy import Policy
from isobatch.run.timing import trial

MOST_ENVS, MOST_IMAGE_ENVS = 1024, 256
"""Wider shapes are not timed: making that many environments takes too long."""

PACKAGE = Path(__file__).parents[1]
Progress = Callable[[str, int, int], None]
"""(what, done so far, of how many or 0) -> None."""


def investigate(
    policy: Policy,
    question: Question,
    *,
    make_env: MakeEnv | None = None,
    progress: Progress = lambda what, done, total: None,
) -> Findings:
    """Measure the gradients of a policy as it is."""
    began = time.perf_counter()
    recipe = policy.recipe
    check(recipe, question)
    plan = make_plan(policy, question)
    images = policy.observation_layout.image is not None
    with torch_threads(recipe.machine.threads, images):
        with _caught_warnings() as cautions:
            experience = _collected(policy, plan, question, make_env, progress)
        spread = None
        if recipe.algorithm.policy_gradient:
            distribution = policy.model.distribution
            spread = exploration(distribution, policy.action_layout, experience.rollout)
        found = _directions(policy, question, experience, plan, progress)
        rollout = experience.rollout
        pairs = numbered(rollout.observations, rollout.actions[: plan.n_rows])
        experience = replace(experience, rollout=replace(rollout, observations={}))
        del rollout
        give_back_memory()  # Images are no longer needed, and are most of it.
        decomposed = []
        for k, shape in enumerate(plan.shapes):
            progress("decomposing variance", k, len(plan.shapes))
            decomposed.append(
                take_apart(experience, found, pairs, shape, plan.batches, question, recipe)
            )
        gamma = recipe.objective.gamma
        lambdas = dict.fromkeys((gae_lambda(recipe), *question.lambdas))
        biases = []
        for k, each in enumerate(lambdas):
            progress("measuring bias", k, len(lambdas))
            biases.append(curve.bias(experience, found, plan.lengths, gamma, each))
        returns = held = None
        if has_returns(recipe):
            returns = monte_carlo(experience, plan.n_rows, gamma)
            held = curve.against_returns(biases[0], returns.advantages, experience, found, gamma)
        reason = untimed(recipe) if question.speed else None
        timed = question.speed and make_env is None and reason is None
        progress("timing shapes" if timed else "comparing shapes", 0, 0)
        seconds = cache(_iteration_seconds(recipe, images)) if timed else None
        references = by_use(
            [
                (each, curve.curve(each, plan.samples, seconds))
                for each in (held, biases[0])
                if each is not None
            ]
        )
        curves: dict[Kind, list[curve.Point]] = {each.kind: line for each, line in references}
        advising, line = references[0]
        compared = compare(advising, to_compare(plan.shapes, line))
    return Findings(
        policy, question, plan.own, plan.samples, experience, found,
        time.perf_counter() - began, decomposed, biases, returns, held, curves, compared, spread,
        reason, cautions,
    )  # fmt: skip


Measured = tuple[curve.Bias, list[curve.Point]]
"""A reference, and the curve of the shapes against it."""


def by_use(references: list[Measured]) -> list[Measured]:
    """Return the references, the one to advise by first: the first that tells, or as they are.

    Monte-Carlo returns come before GAE, and their gradient is noisier. GAE does not see the value
    function's errors, which shapes mostly have in common.
    """
    return sorted(references, key=lambda each: not curve.tells(*each))


def untimed(recipe: Recipe) -> str | None:
    """Say why shapes cannot be timed here: learning needs a function that is not registered."""
    try:
        algos.check(recipe)
    except UserError as error:
        return str(error)
    return None


@contextmanager
def _caught_warnings() -> Iterator[list[str]]:
    """Keep what Isobatch warns of meanwhile, for the answer to say; others are shown as ever."""
    said: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        yield said
    for each in caught:
        if each.category is UserWarning and Path(each.filename).is_relative_to(PACKAGE):
            said.append(str(each.message))
        else:
            warnings.warn_explicit(each.message, each.category, each.filename, each.lineno)


def _collected(
    policy: Policy,
    plan: Plan,
    question: Question,
    make_env: MakeEnv | None,
    progress: Progress,
) -> Experience:
    done = 0

    def acted(steps: int) -> None:
        nonlocal done
        progress("collecting rollouts", done, 0)
        done += steps * plan.n_envs

    experience = collect(
        policy,
        plan.n_envs,
        plan.n_rows + plan.n_ahead,
        plan.n_rows,
        seed=question.seed,
        make_env=make_env,
        progress=acted,
    )
    if policy.recipe.algorithm.whole_returns and not policy.recipe.objective.baseline:
        nothing = torch.zeros_like(experience.rollout.values)
        experience = replace(experience, rollout=replace(experience.rollout, values=nothing))
    return experience


def _directions(
    policy: Policy, question: Question, experience: Experience, plan: Plan, progress: Progress
) -> Directions:
    done, total = 0, plan.n_envs * plan.n_rows

    def differentiated(rows: int) -> None:
        nonlocal done
        done += rows
        progress("computing gradients", done, total)

    rollout = experience.rollout
    return directions(
        output_of(policy.model, question.loss),
        policy.normalizer(rollout.observations),
        rollout.actions[: plan.n_rows],
        differentiated,
    )


def _iteration_seconds(recipe: Recipe, images: bool) -> Callable[[int, int], float | None]:
    """Return a function from (n_envs, n_steps) to the seconds of one iteration, or None.

    Learning takes a row the same time in every shape, and is timed once.
    """
    with trial(recipe) as own:
        row = own.row_seconds()

    def seconds(n_envs: int, n_steps: int) -> float | None:
        if n_envs > (MOST_IMAGE_ENVS if images else MOST_ENVS):
            return None
        shaped = recipe.replace(n_envs=n_envs, n_steps=n_steps, n_minibatches=1)
        with trial(shaped) as each:
            return each.step_seconds() * n_steps + row * n_envs * n_steps

    return seconds
