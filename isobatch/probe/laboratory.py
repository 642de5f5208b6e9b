"""One policy on the bench: collect once, differentiate once, and measure everything from that."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from isobatch import algos
from isobatch.batch import Shape
from isobatch.envs import MakeEnv
from isobatch.errors import UserError
from isobatch.machine import give_back_memory, torch_threads
from isobatch.noise.clusters import Clusters
from isobatch.noise.scale import PARTS, NoiseScale, noise_of_clusters
from isobatch.noise.variance import Decomposition, decompose_clusters
from isobatch.probe import agreement, curve
from isobatch.probe.collection import Experience, collect
from isobatch.probe.gradients import Directions, Of, directions, output_of
from isobatch.recipe import Recipe
from isobatch.run.policy import Policy
from isobatch.run.timing import trial

MOST_ROWS, MOST_IMAGE_ROWS = 1 << 16, 1 << 15
"""Rows whose gradients are taken, unless the shapes asked for need more."""
FEWEST_ENVS, FEWEST_IMAGE_ENVS = 64, 32
"""Fewer leave the curve's intervals too wide to act on."""
BATCHES, IMAGE_BATCHES = 5, 2
LONGER = 4
"""Rollouts are tried up to this many times their present length."""
NEGLIGIBLE = 0.01
"""Rewards k steps ahead are ignored once (gamma lambda)^k is below this."""
MOST_AHEAD = 512
MOST_ENVS, MOST_IMAGE_ENVS = 1024, 256
"""Wider shapes are not timed: making that many environments takes too long."""

Progress = Callable[[str, int, int], None]
"""(what, done so far, of how many or 0) -> None."""


@dataclass(frozen=True)
class Question:
    """What is asked of a policy."""

    shapes: tuple[Shape, ...] = ()
    """Batch shapes to decompose; none: the recipe's own."""
    batches: int | None = None
    """Independent ones of each shape."""
    of: Of = "policy"
    lambdas: tuple[float, ...] = ()
    """GAE's, beside the recipe's own, to measure the bias of short rollouts for."""
    speed: bool = True
    """Time each shape on this machine."""
    seed: int = 0


@dataclass(frozen=True)
class Batches:
    """K batches of one shape, decomposed."""

    shape: Shape
    batches: int
    raw: Decomposition
    normalized: Decomposition | None
    """With advantages normalised in each batch; None of the value function."""
    across: tuple[float | None, float | None]
    """The variance of the K batches' gradients itself, raw and normalised; None of one batch."""
    noise: list[NoiseScale]
    agreement: agreement.Agreement
    lags: agreement.Lags


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
    """The recipe's own lambda first."""
    curve: list[curve.Point]

    @property
    def has_curve(self) -> bool:
        """True where the gradient stands out of its noise, so that some shape has an error."""
        return any(math.isfinite(shape.error.value) for shape in self.curve)

    def best(self, updates: int = 1) -> curve.Point:
        """Return the shape with the smallest error to a sample.

        Over several `updates` at much the same policy noise averages out, and bias does not.
        """
        return min(self.curve, key=lambda shape: shape.error_over(updates))

    @property
    def best_per_second(self) -> curve.Point | None:
        """The shape with the smallest error x seconds, where shapes were timed."""
        timed = [(each, each.steps_per_second) for each in self.curve]
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
    plan = _plan(policy, question)
    images = policy.observation_layout.image is not None
    with torch_threads(recipe.machine.threads, images):
        experience = _collected(policy, plan, question, make_env, progress)
        found = _directions(policy, question, experience, plan, progress)
        experience = replace(experience, rollout=replace(experience.rollout, observations={}))
        give_back_memory()  # Images are no longer needed, and are most of it.
        gamma, own_lambda = recipe.objective.gamma, gae_lambda(recipe)
        decomposed = []
        for k, shape in enumerate(plan.shapes):
            progress("decomposing variance", k, len(plan.shapes))
            decomposed.append(_batches(experience, found, shape, plan.batches, question, recipe))
        lambdas = dict.fromkeys((own_lambda, *question.lambdas))
        biases = []
        for k, each in enumerate(lambdas):
            progress("measuring bias", k, len(lambdas))
            biases.append(curve.bias(experience, found, plan.lengths, gamma, each))
        timed = question.speed and make_env is None and untimed(recipe) is None
        progress("timing shapes" if timed else "comparing shapes", 0, 0)
        seconds = _iteration_seconds(recipe, images) if timed else None
        shapes = curve.curve(biases[0], plan.samples, seconds)
    return Findings(
        policy, question, plan.own, plan.samples, experience, found,
        time.perf_counter() - began, decomposed, biases, shapes,
    )  # fmt: skip


def check(recipe: Recipe, question: Question) -> None:
    """Refuse what cannot be measured, saying what can."""
    if not recipe.algorithm.policy_gradient and question.of == "policy":
        raise UserError(
            f"{recipe.algo} has no policy gradient, its policy follows the action values: use "
            "--of value"
        )
    for shape in question.shapes or (_own(recipe),):
        if shape.n_envs * _batch_count(question, images=False) < 2:
            raise UserError(
                f"{shape.name} with one batch has no variance to estimate: use two environments "
                "or more, or --batches 2"
            )


def untimed(recipe: Recipe) -> str | None:
    """Say why shapes cannot be timed here: learning needs a function that is not registered."""
    try:
        algos.check(recipe)
    except UserError as error:
        return str(error)
    return None


def gae_lambda(recipe: Recipe) -> float:
    """Return the lambda of the recipe's advantages; REINFORCE's returns are those of 1."""
    return 1.0 if recipe.algorithm.whole_returns else recipe.objective.gae_lambda


class _Plan(NamedTuple):
    own: Shape
    shapes: tuple[Shape, ...]
    batches: int
    samples: int
    n_envs: int
    n_rows: int
    """Rows of each environment that are differentiated."""
    n_ahead: int
    """Rows after them, which advantages look on to."""
    lengths: list[int]


def _plan(policy: Policy, question: Question) -> _Plan:
    recipe, images = policy.recipe, policy.observation_layout.image is not None
    own = _own(recipe)
    shapes = question.shapes or (own,)
    samples = shapes[0].samples
    batches = _batch_count(question, images)
    fewest = FEWEST_IMAGE_ENVS if images else FEWEST_ENVS
    n_envs = max(fewest, *(batches * shape.n_envs for shape in shapes))
    longest = max(shape.n_steps for shape in shapes)
    most = MOST_IMAGE_ROWS if images else MOST_ROWS
    n_rows = longest
    while n_rows * 2 <= min(LONGER * longest, samples, most // n_envs):
        n_rows *= 2
    wanted = {1 << k for k in range(20)} | {shape.n_steps for shape in (*shapes, own)}
    lengths = sorted(each for each in wanted if each <= n_rows and samples % each == 0)
    ahead = max(_horizon(recipe, each) for each in (gae_lambda(recipe), *question.lambdas))
    return _Plan(own, shapes, batches, samples, n_envs, n_rows, ahead, lengths)


def _own(recipe: Recipe) -> Shape:
    return recipe.batch.shape


def _batch_count(question: Question, images: bool) -> int:
    return question.batches or (IMAGE_BATCHES if images else BATCHES)


def _horizon(recipe: Recipe, gae_lambda: float) -> int:
    """Return how many steps ahead an advantage depends on noticeably."""
    discount = recipe.objective.gamma * gae_lambda
    if discount >= 1:
        return MOST_AHEAD
    if discount == 0:
        return 1
    return max(1, min(MOST_AHEAD, math.ceil(math.log(NEGLIGIBLE) / math.log(discount))))


def _collected(
    policy: Policy,
    plan: _Plan,
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
    policy: Policy, question: Question, experience: Experience, plan: _Plan, progress: Progress
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


def _batches(
    experience: Experience,
    found: Directions,
    shape: Shape,
    count: int,
    question: Question,
    recipe: Recipe,
) -> Batches:
    """Decompose K batches of a shape: each the first T steps of N environments."""
    n_envs, n_steps = shape
    total = count * n_envs
    objective = recipe.objective
    advantages = experience.advantages(n_steps, n_steps, objective.gamma, gae_lambda(recipe))
    scales = advantages[:, :total].T
    valid = experience.rollout.valid[:n_steps, :total].T
    vectors = found.vectors[:n_steps, :total].transpose(0, 1)
    squares = found.squares[:n_steps, :total].T
    raw = Clusters.scaled(scales, vectors, squares, valid, PARTS)
    within = _normalized(scales, valid, count)
    apart = question.of == "policy"
    normal = Clusters.scaled(within, vectors, squares, valid) if apart else None

    def batched(rows: Tensor) -> Tensor:
        return rows.unflatten(0, (count, n_envs))

    def means(rows: Tensor) -> Tensor:
        return agreement.batch_means(batched(rows), batched(vectors), batched(valid))

    return Batches(
        shape,
        count,
        raw=decompose_clusters(raw, n_envs, n_steps),
        normalized=decompose_clusters(normal, n_envs, n_steps) if normal else None,
        across=(
            _across(means(scales)),
            _across(means(within)) if apart else None,
        ),
        noise=list(noise_of_clusters(raw).values()),
        agreement=agreement.agreement(
            batched(scales), batched(vectors), batched(squares), batched(valid)
        ),
        lags=agreement.lagged(scales, vectors, squares, valid),
    )


def _normalized(scales: Tensor, valid: Tensor, count: int) -> Tensor:
    """Normalise advantages [K N, T] over each of K batches."""
    groups = scales.unflatten(0, (count, -1)).flatten(1)
    known = valid.unflatten(0, (count, -1)).flatten(1)
    rows = known.sum(1, keepdim=True).clamp(min=1)
    mean = torch.where(known, groups, 0).sum(1, keepdim=True) / rows
    spread = torch.where(known, groups - mean, 0).square().sum(1, keepdim=True) / rows
    return ((groups - mean) / (spread.sqrt() + 1e-8)).view_as(scales)


def _across(means: Tensor) -> float | None:
    """Return the variance of K batches' mean gradients [K, P], as they are."""
    if len(means) < 2:
        return None
    return float(means.double().var(0).sum())


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
