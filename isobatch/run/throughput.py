"""How many environments pay on this machine: steps/s and memory of a recipe over n_envs."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

from isobatch.errors import UserError
from isobatch.recipe import Recipe
from isobatch.text import columns, size

SECONDS = 50.0
"""All sizes together take about as long."""
PAYS = 1.1
"""A doubling pays if it gives so many times the steps/s."""
LARGEST = 2**14
UNPAID = 2
"""Doublings in a row that do not pay, after which none is tried."""


class Rate(NamedTuple):
    """A recipe's speed at a number of environments."""

    n_envs: int
    collecting: float
    """Seconds that collecting takes for each environment step."""
    learning: float
    """Seconds that learning takes for each."""
    memory: float
    """Bytes the run needs at its peak, about."""

    @property
    def steps_per_second(self) -> float:
        """Environment steps a second."""
        return 1 / (self.collecting + self.learning)


class Rates(NamedTuple):
    """What was measured, ascending, and why no larger number was tried."""

    rates: list[Rate]
    stopped: str


def measure(
    recipe: Recipe, seconds: float = SECONDS, seen: Callable[[Rate], None] = lambda rate: None
) -> Rates:
    """Time a recipe over 1, 2, 4, ... environments and its own; `seen` hears of each.

    Rollouts keep their steps and minibatches their rows: what grows is how many there are.
    """
    began, rates, last = time.perf_counter(), [], 0.0
    for n_envs in _sizes(recipe.batch.n_envs):
        left = seconds - (time.perf_counter() - began)
        if rates and 2 * last > left and n_envs > recipe.batch.n_envs:
            return Rates(rates, f"{seconds:.0f} s are over")
        before = time.perf_counter()
        try:
            rates.append(_time(_with(recipe, n_envs)))
        except UserError as error:
            if error.field != "n_envs" or not rates:
                raise
            return Rates(rates, str(error))
        last = time.perf_counter() - before
        seen(rates[-1])
        if n_envs > recipe.batch.n_envs and _idle_doublings(rates) >= UNPAID:
            return Rates(rates, "")
    return Rates(rates, f"{LARGEST:,} environments are the most that is tried")


def _sizes(own: int) -> Iterator[int]:
    """Yield 1, 2, 4, ... and the recipe's own number."""
    doubled = {2**k for k in range(LARGEST.bit_length()) if 2**k <= LARGEST}
    yield from sorted(doubled | {own})


def _with(recipe: Recipe, n_envs: int) -> Recipe:
    """Return the recipe with other environments, and minibatches of as many rows."""
    if "n_minibatches" in recipe.algorithm.fixes:
        return recipe.replace(n_envs=n_envs)
    rows = n_envs * recipe.batch.n_steps
    return recipe.replace(n_envs=n_envs, n_minibatches=max(1, rows // recipe.batch.minibatch_size))


def _time(recipe: Recipe) -> Rate:
    """Time a few steps of acting and learning."""
    from isobatch.run.memory import ROW_BYTES, refuse_too_large
    from isobatch.run.timing import ROWS, trial

    refuse_too_large(recipe)
    shortened = recipe
    if "n_minibatches" in recipe.algorithm.fixes:
        # One minibatch: it is the timed rollout, or there would be no gradient step in it.
        steps = max(8, -(-ROWS // recipe.batch.n_envs))
        shortened = recipe.replace(n_steps=min(recipe.batch.n_steps, steps))
    with trial(shortened) as begun:
        layout = begun.collector.env.observation_layout
        refuse_too_large(recipe, layout)
        step = begun.step_seconds() / recipe.batch.n_envs
        row = begun.row_seconds()
        timed = begun.rollout.n_valid
        held = begun.rollout.observations.values()
        each = ROW_BYTES + sum(part.element_size() * part[0, 0].numel() for part in held)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        whole = peak + max(0, recipe.batch.rollout_size - timed) * each
    return Rate(recipe.batch.n_envs, step, row, whole)


def _idle_doublings(rates: list[Rate]) -> int:
    """Return how many of the last sizes are not worth it against the best smaller one."""
    best = _worthwhile(rates)
    return len([rate for rate in rates if rate.n_envs > best.n_envs])


def _worthwhile(rates: list[Rate]) -> Rate:
    """Return the largest size that pays: each before it is beaten by `PAYS`."""
    best = rates[0]
    for rate in rates[1:]:
        if rate.steps_per_second > PAYS * best.steps_per_second:
            best = rate
    return best


def answer(found: Rates, own: int) -> list[str]:
    """Return what the rates come down to, the answer first."""
    rates, best = found.rates, _worthwhile(found.rates)
    at_own = next(rate for rate in rates if rate.n_envs == own)
    largest = rates[-1]
    ratio = best.steps_per_second / at_own.steps_per_second
    many = f"{best.n_envs:,} environment{'s' if best.n_envs > 1 else ''}"
    if best is at_own:
        first = f"{many}, the recipe's own: {best.steps_per_second:,.0f} steps/s"
    else:
        first = f"{many}: {ratio:.1f}x the steps/s of the recipe's {own:,}"
    if best is not largest:
        first += f"; no gain beyond {best.n_envs:,} (tried up to {largest.n_envs:,})"
    elif found.stopped:
        first += f"; it still rises there, but {found.stopped}"
    lines = [first]
    if best.n_envs != own:
        lines.append(
            f"Another number of environments is another batch: isobatch rescale RECIPE --n-envs "
            f"{best.n_envs} adapts the recipe to it."
        )
    return lines


def table(rates: list[Rate]) -> list[str]:
    """Return the numbers behind the answer."""
    rows = [("n_envs", "steps/s", "collecting", "learning", "memory")]
    for rate in rates:
        whole = rate.collecting + rate.learning
        rows.append(
            (
                f"{rate.n_envs:,}",
                f"{rate.steps_per_second:,.0f}",
                f"{rate.collecting / whole:.0%}",
                f"{rate.learning / whole:.0%}",
                size(rate.memory),
            )
        )
    return columns(rows)
