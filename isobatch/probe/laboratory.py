"""One policy on the bench: collect once, differentiate once, and measure everything from that."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

import torch

from isobatch import algos
from isobatch.batch import Shape
from isobatch.envs import MakeEnv
from isobatch.errors import UserError
from isobatch.machine import give_back_memory, torch_threads
from isobatch.noise.samples import output_of
from isobatch.probe import curve
from isobatch.probe.batches import Batches, take_apart
from isobatch.probe.collection import Experience, collect
from isobatch.probe.credit import numbered
from isobatch.probe.gradients import Directions, directions
from isobatch.probe.plan import Plan, Question, check, gae_lambda, has_returns, make_plan
from isobatch.probe.reference import Kind, Returns, monte_carlo
from isobatch.recipe import Recipe
from isobatch.run.policy import Policy
from isobatch.run.timing import trial

MOST_ENVS, MOST_IMAGE_ENVS = 1024, 256
"""Wider shapes are not timed: making that many environments takes too long."""

Progress = Callable[[str, int, int], None]
"""(what, done so far, of how many or 0) -> None."""


@dataclass(frozen=True)
class Findings:
    """What one policy's gradients are like."""

    policy: Policy
    question: Question
    own: Shape
    samples: int
    """The size of batch the curve is for."""
    experience: Experience
    directions: Directions
    seconds: float
    batches: list[Batches]
    biases: list[curve.Bias]
    """Against GAE that looks on; the recipe's own lambda first."""
    returns: Returns | None
    """Whole returns; None where they are not what advantages estimate."""
    against_returns: curve.Bias | None
    """The bias of the recipe's own lambda against them."""
    curves: dict[Kind, list[curve.Point]]
    """Each reference's, the one to advise by first."""

    @property
    def reference(self) -> Kind:
        """What advice rests on: whole returns, where there are any."""
        return next(iter(self.curves))

    @property
    def curve(self) -> list[curve.Point]:
        """The curve that advice rests on."""
        return self.curves[self.reference]

    def bias(self, reference: Kind) -> curve.Bias:
        """Return the bias of the recipe's own lambda against a reference."""
        if reference == "monte-carlo":
            assert self.against_returns is not None
            return self.against_returns
        return self.biases[0]

    def is_decided(self, reference: Kind) -> bool:
        """Say whether a reference's gradient stands out of its noise, so that shapes compare."""
        known = any(math.isfinite(shape.error.value) for shape in self.curves[reference])
        return known and self.bias(reference).is_decided

    @property
    def has_advice(self) -> bool:
        """True where the reference to advise by tells its gradient from noise."""
        return self.is_decided(self.reference)

    def best(self, updates: int = 1, reference: Kind | None = None) -> curve.Point:
        """Return the shape with the smallest error to a sample.

        Over several `updates` at much the same policy noise averages out, and bias does not.
        """
        shapes = self.curves[reference or self.reference]
        return min(shapes, key=lambda shape: shape.error_over(updates))

    def best_per_second(self, reference: Kind | None = None) -> curve.Point | None:
        """Return the shape with the smallest error x seconds, where shapes were timed."""
        shapes = self.curves[reference or self.reference]
        timed = [(each, each.steps_per_second) for each in shapes]
        known = [(each, speed) for each, speed in timed if speed is not None]
        if not known:
            return None
        return min(known, key=lambda pair: pair[0].error.value / pair[1])[0]


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
        experience = _collected(policy, plan, question, make_env, progress)
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
        timed = question.speed and make_env is None and untimed(recipe) is None
        progress("timing shapes" if timed else "comparing shapes", 0, 0)
        seconds = cache(_iteration_seconds(recipe, images)) if timed else None
        curves: dict[Kind, list[curve.Point]] = {
            each.kind: curve.curve(each, plan.samples, seconds)
            for each in (held, biases[0])
            if each is not None
        }
    return Findings(
        policy, question, plan.own, plan.samples, experience, found,
        time.perf_counter() - began, decomposed, biases, returns, held, curves,
    )  # fmt: skip


def untimed(recipe: Recipe) -> str | None:
    """Say why shapes cannot be timed here: learning needs a function that is not registered."""
    try:
        algos.check(recipe)
    except UserError as error:
        return str(error)
    return None


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
        output_of(policy.model, question.of),
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
