"""What the algorithms share when they take gradient steps."""

from __future__ import annotations

import torch
from torch import Tensor

from isobatch.algos.learner import Context
from isobatch.clock import OFF, Clock
from isobatch.models.encoders import CustomEncoder
from isobatch.recipe import Recipe
from isobatch.state import TrainState
from isobatch.update import CompiledGradient, Evaluate, Gather, Stepper, worth_compiling
from isobatch.update.optimize import FlatOptimizer, scheduled
from isobatch.update.replicas import Replicas


def make_stepper(
    context: Context, evaluate: Evaluate, optimizer: FlatOptimizer, may_compile: bool = True
) -> Stepper:
    """Return what takes gradient steps under the recipe in force; compiled where that pays."""
    state, recipe = context.state, context.state.recipe
    parameters, choice = state.parameters, recipe.machine.compile
    on_cpu = parameters.vector.device.type == "cpu"
    # Not the budget of the moment: resuming may change it, and compiled bits are others.
    budget = state.counters.budget or recipe.total_timesteps
    small = on_cpu and not state.has_images and not any(True for _ in state.model.buffers())
    compiled, replicas = None, None
    pays = choice == "on" or (choice == "auto" and small and worth_compiling(recipe.batch, budget))
    if may_compile and context.is_alone and pays:
        capacity = recipe.batch.most_rows
        with context.clock.section("compiling"):
            compiled = CompiledGradient(state.model, parameters, evaluate, capacity)
    if compiled is None and context.is_alone and on_cpu and state.has_images:
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


def _replicas(state: TrainState) -> Replicas | None:
    """Return copies for as many threads as PyTorch may use; of a user's own module none.

    It may keep state or draw random numbers as it goes, which would depend on the threads.
    """
    count = torch.get_num_threads()
    if count == 1 or any(isinstance(part, CustomEncoder) for part in state.model.modules()):
        return None
    return Replicas(state.model, state.parameters, count)


def learning_rate(recipe: Recipe, env_steps: int) -> float:
    """Return the step size at `env_steps`."""
    settings = recipe.optimizer
    return scheduled(
        settings.learning_rate, settings.learning_rate_schedule, env_steps, recipe.total_timesteps
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
