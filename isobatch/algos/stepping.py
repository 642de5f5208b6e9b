"""What the algorithms share when they take gradient steps."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from typing import Any

import torch
from torch import Tensor

from isobatch.algos.learner import Context
from isobatch.clock import OFF, Clock
from isobatch.machine import THREAD_WORK, gradient_threads
from isobatch.models.encoders import CustomEncoder
from isobatch.objectives import BUILT_IN
from isobatch.recipe import Objective
from isobatch.state import TrainState
from isobatch.update import CompiledGradient, Evaluate, Gather, Stepper, worth_compiling
from isobatch.update.optimize import FlatOptimizer, scheduled
from isobatch.update.replicas import Replicas

NOT_READ = (
    "gamma", "gae_lambda", "clip_range", "clip_range_vf", "clip_range_schedule", "target_kl",
)  # fmt: skip
"""Settings that no loss reads, so that a compiled one serves all their values."""


def make_stepper(
    context: Context, evaluate: Evaluate, optimizer: FlatOptimizer, may_compile: bool = True
) -> Stepper:
    """Return what takes gradient steps under the recipe in force; compiled where that pays."""
    state, recipe = context.state, context.state.recipe
    parameters, name = state.parameters, loss_name(state, evaluate)
    compiled, replicas = None, None
    if may_compile and context.is_alone and pays_to_compile(state):
        capacity = recipe.batch.most_rows
        compiled = CompiledGradient(state.model, parameters, evaluate, capacity, name)
    on_cpu = parameters.vector.device.type == "cpu"
    if compiled is None and context.is_alone and on_cpu:
        replicas = _replicas(state)
    stepper = Stepper(
        state.model,
        parameters,
        optimizer,
        evaluate,
        recipe.optimizer,
        context.chunk_size,
        compiled,
        replicas,
        name,
    )
    if context.clock is not OFF:
        _watch(context.clock, stepper)
    return stepper


def _watch(clock: Clock, stepper: Stepper) -> None:
    """Time a stepper's gradients, without the gathering of rows, and its steps.

    A compiled gradient's first call compiles it.
    """
    compute, sections = stepper.gradient, iter(["compiling"] if stepper.compiled else [])

    def gradient(rows: Tensor, gather: Gather) -> dict[str, Tensor]:
        with clock.section(next(sections, "gradient")):
            return compute(rows, clock.timing("gather", gather))

    stepper.gradient = gradient
    clock.watch(stepper, "optimizer", "step")


def pays_to_compile(state: TrainState, runs: int = 1) -> bool:
    """Say whether the update is to be compiled, of a run or of several at once."""
    recipe, choice = state.recipe, state.recipe.machine.compile
    # Not the budget of the moment: resuming may change it, and compiled bits are others.
    budget = state.counters.budget or recipe.total_timesteps
    on_cpu, size = state.parameters.vector.device.type == "cpu", state.parameters.vector.numel()
    # What is worth two threads has little dispatch to save, and compiled has one thread.
    small = on_cpu and not state.has_images and recipe.batch.most_rows * size < 2 * THREAD_WORK
    small = small and not any(True for _ in state.model.buffers())
    return choice == "on" or (
        choice == "auto" and small and worth_compiling(recipe.batch, budget, runs)
    )


def loss_name(state: TrainState, evaluate: Evaluate) -> str | None:
    """Return all that losses depend on beside their arguments and this package's code.

    None where that is not known: a module or an objective of the user's own.
    """
    objective = state.recipe.objective.objective
    if objective not in BUILT_IN or any(
        isinstance(part, CustomEncoder) for part in state.model.modules()
    ):
        return None
    distribution = state.model.distribution
    loss = evaluate.func if isinstance(evaluate, partial) else evaluate
    own = evaluate.keywords if isinstance(evaluate, partial) else {}
    parts = [
        f"{loss.__module__}.{loss.__qualname__}",
        *(f"{name} {_read(value)!r}" for name, value in own.items() if name != "distribution"),
        f"{type(distribution).__name__} {vars(distribution)}",
        f"measures KL {state.recipe.adapts_rate}",
        repr(state.recipe.model),
        repr(state.model),
    ]
    return "\n".join(parts)


def _read(value: Any) -> Any:
    """Return a loss's keyword, of settings only what a loss may read."""
    if not isinstance(value, Objective):
        return value
    return {k: v for k, v in asdict(value).items() if k not in NOT_READ}


def _replicas(state: TrainState) -> Replicas | None:
    """Return copies for as many threads as a gradient has; of a user's own module none.

    It may keep state or draw random numbers as it goes, which would depend on the threads.
    """
    count = gradient_threads()
    if count == 1 or any(isinstance(part, CustomEncoder) for part in state.model.modules()):
        return None
    return Replicas(state.model, state.parameters, count)


def learning_rate(state: TrainState, chosen: float = 0.0) -> float:
    """Return the step size now, by the recipe's schedule; of `chosen` instead of its own if given.

    One that follows the KL divergence is the state's own; one that was chosen does not follow it.
    """
    if state.adaptive_rate is not None and not chosen:
        return state.adaptive_rate.rate
    recipe, settings = state.recipe, state.recipe.optimizer
    return scheduled(
        chosen or settings.learning_rate,
        settings.learning_rate_schedule,
        state.counters.env_steps,
        recipe.total_timesteps,
    )


def mean_statistics(taken: list[dict[str, Tensor]]) -> dict[str, float]:
    """Average the minibatches' statistics."""
    if not taken:
        return {}
    averages = torch.stack([_side_by_side(each) for each in taken]).mean(0)
    return dict(zip(taken[0], averages.tolist(), strict=True))


def _side_by_side(statistics: dict[str, Tensor]) -> Tensor:
    """Return them as one tensor [S], on the device of the first: gradient norms are on the CPU."""
    device = next(iter(statistics.values())).device
    return torch.stack([each.to(device) for each in statistics.values()])
