"""The policy gradient's noise while training, from one rollout by a few backward passes.

Rows of one environment depend on each other, environments do not: groups of environments tell how
uncertain the rollout's gradient is, random minibatches how uncertain that of single rows is, and
the rollout's two halves what rollouts half as long would give.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from isobatch import losses
from isobatch.envs.seeds import mixed_generator
from isobatch.experience import Rollout
from isobatch.models import ActorCritic, Agent
from isobatch.models.acting import Prepare
from isobatch.models.agent import evaluation_mode
from isobatch.noise.averages import Averages, Measured
from isobatch.noise.estimators import squared_gradient, two_batch_trace, variance
from isobatch.recipe import Recipe
from isobatch.update import minibatches

COLUMNS = (
    "noise_scale", "gradient_signal", "gradient_trace", "design_effect", "design_effect_half",
    "bias_half", "probe_seconds",
)  # fmt: skip
"""The statistics of a probed iteration; null in the others."""
GROUPS = 8
"""Environments are dealt into so many groups at most: passes over each half of each are what a
probe of a small network costs, however many environments there are."""
MINIBATCHES = 4
"""Random minibatches at most."""


class GroupSums:
    """Gradient sums s_g over groups of n_g rows, of which only their own sums are kept.

    Groups are independent; their sizes may differ. What `estimators` need of them, with
    s_g = n_g g_g: sum n_g^2 |g_g - m|^2 = sum |s_g|^2 - 2 <m, sum n_g s_g> + |m|^2 sum n_g^2.
    """

    sampled = 1

    def __init__(self, zero: Tensor) -> None:
        self.n_clusters = self.rows = self.rows_squared = self.rows_cubed = 0
        self._total = self._weighted = zero
        self._squares = 0.0

    def add(self, total: Tensor, rows: int) -> None:
        """Take in a group's gradient sum [P]; one without rows is none."""
        if rows:
            self.n_clusters += 1
            self.rows += rows
            self.rows_squared += rows**2
            self.rows_cubed += rows**3
            self._total = self._total + total
            self._weighted = self._weighted + rows * total
            self._squares += _dot(total, total)

    @property
    def mean_square(self) -> float:
        """|m|^2, m = sum s_g / sum n_g."""
        return _dot(self._total, self._total) / self.rows**2

    @property
    def between_squared(self) -> float:
        """sum n_g^2 |g_g - m|^2."""
        across = 2 * _dot(self._total, self._weighted) / self.rows
        return self._squares - across + self.rows_squared * self.mean_square


class GradientSums(Protocol):
    """Sums of the policy gradient over some rows of a rollout."""

    zero: Tensor
    """[P]."""
    chunk_size: int

    def __call__(self, rows: Tensor, weightings: Sequence[Tensor]) -> list[Tensor]:
        """Return the sums [P] over flat rows [b], one for each weighting [T, N] of all rows."""
        ...


class PolicyGradient:
    """The actor's gradient at ratio 1, -sum_i w_i grad log pi(a_i | s_i), of a rollout's rows."""

    def __init__(
        self,
        model: ActorCritic,
        prepare: Prepare,
        rollout: Rollout,
        chunk_size: int,
    ) -> None:
        self.actor, self.distribution = model.actor, model.distribution
        self.chunk_size = chunk_size
        self.parameters = [each for each in model.actor.parameters() if each.requires_grad]
        self.observations = rollout.acted_on(prepare)
        self.actions = rollout.actions.flatten(0, 1)
        self.zero = self.parameters[0].new_zeros(sum(each.numel() for each in self.parameters))

    def __call__(self, rows: Tensor, weightings: Sequence[Tensor]) -> list[Tensor]:
        """Return the sums [P] over flat rows [b], one for each weighting [T, N] of all rows."""
        sums = [self.zero for _ in weightings]
        for chunk in rows.split(self.chunk_size) if len(rows) else ():
            observation = {k: v.index_select(0, chunk) for k, v in self.observations.items()}
            params = self.actor(observation)
            logp = self.distribution.log_prob(params, self.actions.index_select(0, chunk))
            for k, weights in enumerate(weightings):
                loss = losses.policy_gradient_loss(logp, weights.flatten().index_select(0, chunk))
                # Not backward(), which would add to the gradient that training is to step along.
                parts = torch.autograd.grad(
                    loss.sum(),
                    self.parameters,
                    retain_graph=k + 1 < len(weightings),
                    allow_unused=True,
                    materialize_grads=True,
                )
                sums[k] = sums[k] + torch.cat([part.flatten() for part in parts])
        return sums


class ShardedGradient:
    """The same over all shards of a rollout, each differentiated by who owns it."""

    def __init__(
        self, model: ActorCritic, prepare: Prepare, rollout: Rollout, chunk_size: int
    ) -> None:
        assert rollout.shards is not None
        self.shards, self.chunk_size = rollout.shards, chunk_size
        self.own = {
            place: PolicyGradient(model, prepare, rollout.of_shard(place), chunk_size)
            for place in rollout.shards.own
        }
        size = sum(each.numel() for each in model.actor.parameters() if each.requires_grad)
        self.zero = next(model.actor.parameters()).new_zeros(size)

    def __call__(self, rows: Tensor, weightings: Sequence[Tensor]) -> list[Tensor]:
        """Return the sums [P] over flat rows [b], one for each weighting [T, N] of all rows."""
        found = []
        for place, gradient in self.own.items():
            columns = self.shards.columns(place)
            own = [weights[:, columns].contiguous() for weights in weightings]
            found.append(torch.cat(gradient(self.shards.local(rows, place), own)))
        total = self.shards.world.folded(found, self.zero.repeat(len(weightings)))
        return list(total.chunk(len(weightings)))


def measure(
    gradient: GradientSums,
    valid: Tensor,
    advantages: Tensor,
    change: Tensor,
    n_minibatches: int,
    generator: torch.Generator,
) -> Measured:
    """Measure the gradient's noise over the valid rows of a rollout, all [T, N].

    `change` is what `advantages` would change by, were the rollout cut at T // 2.
    """
    steps, n_envs = valid.shape
    rows = torch.arange(steps * n_envs, device=valid.device).view(steps, n_envs)
    early, late = slice(0, steps // 2), slice(steps // 2, steps)
    whole, first, second, shift, cut = (GroupSums(gradient.zero) for _ in range(5))
    for group in torch.arange(n_envs).tensor_split(min(n_envs, GROUPS)):
        span = slice(int(group[0]), int(group[-1]) + 1)
        one, two = (rows[part, span][valid[part, span]] for part in (early, late))
        early_sum, change_sum = gradient(one, (advantages, change))
        (late_sum,) = gradient(two, (advantages,))
        first.add(early_sum, len(one))
        second.add(late_sum, len(two))
        whole.add(early_sum + late_sum, len(one) + len(two))
        shift.add(change_sum, len(one) + len(two))
        cut.add(early_sum + late_sum + change_sum, len(one) + len(two))
    trace = _trace(gradient, valid, advantages, n_minibatches, generator, whole)
    grouped = whole.n_clusters > 1
    halved = first.n_clusters > 1 and second.n_clusters > 1
    # The two-batch |G|^2 takes rows for independent, which those of one environment are not: on
    # CartPole it came out up to ten times too large. Groups of environments are.
    alone = whole.mean_square - trace / whole.rows
    signal = squared_gradient(whole) if grouped else alone
    bias = squared_gradient(shift) if halved else None
    return Measured(
        rows=whole.rows,
        signal=signal,
        trace=trace,
        variance=variance(whole) if grouped else None,
        half_variance=(variance(first) + variance(second)) / 2 if halved else None,
        bias=bias,
        # |G + d|^2 = |G|^2 + 2 <d, G> + |d|^2
        bias_along=None if bias is None else (squared_gradient(cut) - signal - bias) / 2,
    )


def _trace(
    gradient: GradientSums,
    valid: Tensor,
    advantages: Tensor,
    n_minibatches: int,
    generator: torch.Generator,
    whole: GroupSums,
) -> float:
    """Return S by the two-batch estimate of McCandlish et al. 2018, appendix A.

    S = (|g_s|^2 - |g_b|^2) / (1 / B_s - 1 / B_b), the mean over a few random minibatches. Since S
    does not depend on their size they are no larger than a chunk, and half a rollout at most.
    """
    count = min(max(2, n_minibatches, whole.rows // gradient.chunk_size), whole.rows)
    found = []
    for part in minibatches(valid, count, generator)[:MINIBATCHES]:
        (total,) = gradient(part, (advantages,))
        small = _dot(total, total) / len(part) ** 2
        found.append(two_batch_trace(small, whole.mean_square, len(part), whole.rows))
    return sum(found) / len(found)


def is_due(recipe: Recipe, iterations: int, rollout: Rollout) -> bool:
    """Say whether a run that has had so many iterations is probed in the next one.

    The budget's last, shorter rollout has another shape and is left out.
    """
    interval = recipe.probe_interval
    whole = len(rollout.actions) == recipe.batch.n_steps and rollout.n_valid > 1
    return interval > 0 and (iterations + 1) % interval == 0 and whole


def probe(
    averages: Averages,
    model: Agent,
    prepare: Prepare,
    rollout: Rollout,
    advantages: Tensor,
    change: Tensor,
    *,
    n_minibatches: int,
    chunk_size: int,
    seed: tuple[int, int],
) -> dict[str, float]:
    """Measure a rollout before it is learned from, average, and return the row's columns.

    `advantages` and `change` [T, N] are as in `measure`; `seed` is the run's and the iteration.
    Nothing that training reads is touched.
    """
    began = time.perf_counter()
    assert isinstance(model, ActorCritic)
    kind = PolicyGradient if rollout.shards is None else ShardedGradient
    with evaluation_mode(model.actor):
        measured = measure(
            kind(model, prepare, rollout, chunk_size),
            rollout.valid,
            advantages,
            change,
            n_minibatches,
            mixed_generator(*seed),
        )
    averages.update(measured)
    return {
        "gradient_signal": measured.signal,
        "gradient_trace": measured.trace,
        **averages.columns,
        "probe_seconds": time.perf_counter() - began,
    }


def _dot(one: Tensor, other: Tensor) -> float:
    """Return the inner product of two vectors, in double precision."""
    return float(one.double() @ other.double())
