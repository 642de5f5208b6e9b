"""What is asked of a policy, and how much experience it takes to answer."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from isobatch import registry
from isobatch.batch import Shape
from isobatch.errors import UserError
from isobatch.noise.samples import Loss
from isobatch.recipe import Recipe
from isobatch.run.policy import Policy

MOST_ROWS, MOST_IMAGE_ROWS = 1 << 16, 1 << 15
"""Rows whose gradients are taken, unless the shapes asked for need more."""
FEWEST_ENVS, FEWEST_IMAGE_ENVS = 128, 32
"""Fewer leave the curve's intervals too wide to act on: whole returns are noisy."""
BATCHES, IMAGE_BATCHES = 5, 2
LONGER = 4
"""Rollouts are tried up to this many times their present length."""
NEGLIGIBLE = 0.01
"""Rewards k steps ahead are ignored once (gamma lambda)^k is below this; for whole returns lambda
is 1, and the value function stands in for them."""
MOST_AHEAD, MOST_IMAGE_AHEAD = 1024, 512
"""What looking on costs at most: so many steps of each environment, none of them differentiated."""


@dataclass(frozen=True)
class Question:
    """What is asked of a policy."""

    shapes: tuple[Shape, ...] = ()
    """Batch shapes to decompose; none: the recipe's own."""
    batches: int | None = None
    """Independent ones of each shape."""
    loss: Loss = "policy"
    """Whose gradient."""
    lambdas: tuple[float, ...] = ()
    """GAE's, beside the recipe's own, to measure the bias of short rollouts for."""
    speed: bool = True
    """Time each shape on this machine."""
    seed: int = 0


def check(recipe: Recipe, question: Question) -> None:
    """Refuse what cannot be measured, saying what can."""
    if not registry.find(recipe.algo).policy_gradient and question.loss == "policy":
        raise UserError(
            f"{recipe.algo} has no policy gradient, its policy follows the action values: use "
            "--loss value"
        )
    for shape in question.shapes or (_own(recipe),):
        if shape.n_envs * _batch_count(question, images=False) < 2:
            raise UserError(
                f"{shape.name} with one batch has no variance to estimate: use two environments "
                "or more, or --batches 2"
            )


def gae_lambda(recipe: Recipe) -> float:
    """Return the lambda of the recipe's advantages; REINFORCE's returns are those of 1."""
    return 1.0 if recipe.algorithm.whole_returns else recipe.objective.gae_lambda


def has_returns(recipe: Recipe) -> bool:
    """Say whether whole returns are what the recipe's advantages estimate.

    Those of PQN are of the policy that explores, its targets of the greedy one.
    """
    return recipe.algorithm.policy_gradient


class Plan(NamedTuple):
    """How much experience is collected, and what it is cut into."""

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


def make_plan(policy: Policy, question: Question) -> Plan:
    """Return what a question takes to answer."""
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
    wanted = {each for k in range(20) if samples % (each := 1 << k) == 0}
    wanted |= {shape.n_steps for shape in (*shapes, own)}
    lengths = sorted(each for each in wanted if each <= n_rows)
    lambdas = {gae_lambda(recipe), *question.lambdas} | ({1.0} if has_returns(recipe) else set())
    discount = recipe.objective.gamma * max(lambdas)
    ahead = _horizon(discount, MOST_IMAGE_AHEAD if images else MOST_AHEAD)
    return Plan(own, shapes, batches, samples, n_envs, n_rows, ahead, lengths)


def _own(recipe: Recipe) -> Shape:
    return recipe.batch.shape


def _batch_count(question: Question, images: bool) -> int:
    return question.batches or (IMAGE_BATCHES if images else BATCHES)


def _horizon(discount: float, most: int) -> int:
    """Return how many steps ahead an advantage depends on noticeably, `most` at most."""
    if discount >= 1:
        return most
    if discount == 0:
        return 1
    return max(1, min(most, math.ceil(math.log(NEGLIGIBLE) / math.log(discount))))
