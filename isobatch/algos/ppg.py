"""Phasic Policy Gradient: PPO's policy phase, then an auxiliary phase over all of its data.

Cobbe et al. 2020. The auxiliary phase teaches the policy's encoder what the value function has
learned, through a second value head, while a clone loss holds the policy where it was.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from isobatch import losses
from isobatch.algos import ppo
from isobatch.algos.estimates import advantages_and_targets
from isobatch.algos.learner import Context, Latest, Learned
from isobatch.algos.phase import PhaseBatch
from isobatch.algos.phase_shards import Minibatch, Phase
from isobatch.algos.sharded import Gradients, Part
from isobatch.algos.stepping import learning_rate, make_stepper, mean_statistics
from isobatch.clock import OFF
from isobatch.envs import Observation
from isobatch.envs.spaces import ObservationLayout
from isobatch.errors import UserError
from isobatch.experience import Rollout, chunked
from isobatch.models import ActorCritic
from isobatch.models.distributions import Distribution
from isobatch.recipe import Recipe, memory_size
from isobatch.state import TrainState, under
from isobatch.text import counted
from isobatch.update import Stepper


class Samples(NamedTuple):
    """What the auxiliary losses need of b rows."""

    observation: dict[str, Tensor]
    targets: Tensor
    """[b]: value targets of the policy phase."""
    params: Tensor
    """[b, P]: the policy as it was before the auxiliary phase."""


class Ppg:
    """Policy phases of `n_policy_iterations`, each followed by an auxiliary phase."""

    columns: tuple[str, ...] = (
        *ppo.COLUMNS, "phase_iteration", "phase_memory_bytes", "phase_disk_bytes", "aux_rows",
        "aux_grad_steps", "aux_value_loss", "aux_true_value_loss", "aux_clone_kl", "aux_grad_norm",
    )  # fmt: skip

    @staticmethod
    def check(recipe: Recipe, observations: ObservationLayout) -> None:
        """Refuse a phase memory that cannot hold the rollout of one environment, as it is."""
        row = sum(
            math.prod(shape) * observations.dtypes[part].itemsize
            for part, shape in observations.shapes.items()
        )
        segment = row * recipe.batch.n_steps
        if memory_size(recipe.phasic.phase_memory) < segment:
            raise UserError(
                f"phase_memory {recipe.phasic.phase_memory} does not hold one segment: "
                f"{counted(recipe.batch.n_steps, 'step')} of {row:,} bytes: {segment:,} bytes",
                field="phase_memory",
            )

    def __init__(self, context: Context) -> None:
        self.context, self.state, self.note = context, context.state, context.note
        recipe = self.state.recipe
        memory, exact = memory_size(recipe.phasic.phase_memory), recipe.machine.exact_resume
        self.phase = Phase(context.world, memory, context.directory, keep_files=exact)
        self.policy = ppo.Ppo(context)
        self._stepper = Latest(self._make_stepper)

    def _make_stepper(self, recipe: Recipe) -> Stepper:
        """Return what steps along the auxiliary losses."""
        assert self.state.auxiliary_optimizer is not None
        evaluate = partial(
            terms,
            clone_coef=recipe.phasic.clone_coef,
            distribution=self.state.model.distribution,
        )
        untimed = replace(self.context, clock=OFF)  # The phase is timed as a whole.
        return make_stepper(untimed, evaluate, self.state.auxiliary_optimizer, may_compile=False)

    def learn(self, rollout: Rollout) -> Learned:
        """Learn as PPO does; after the phase's last rollout, have the auxiliary phase too."""
        if not rollout.n_valid:
            return Learned({})
        settings = self.state.recipe.phasic
        advantages, targets = advantages_and_targets(self.state, rollout)
        learned = self.policy.improve(rollout, advantages, targets)
        done = self.state.counters.phase_iterations + 1
        if settings.n_aux_epochs:
            with self.context.clock.section("auxiliary"):
                self.phase.add(rollout, {"targets": targets})
        in_memory, on_disk = self.phase.bytes()
        statistics = learned.statistics | {
            "phase_iteration": float(done),
            "phase_memory_bytes": float(in_memory),
            "phase_disk_bytes": float(on_disk),
        }
        if done >= settings.n_policy_iterations:
            with self.context.clock.section("auxiliary"):
                statistics |= self._auxiliary_phase()
            done = 0
        return learned._replace(statistics=statistics, phase_iterations=done)

    def held(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return the phase's data so far."""
        tensors, data = self.phase.held()
        return {f"phase.{name}": each for name, each in tensors.items()}, {"phase": data}

    def hold(self, tensors: dict[str, Tensor], data: dict[str, Any]) -> None:
        """Go on with them."""
        self.phase.hold(under(tensors, "phase"), data["phase"])

    def close(self) -> None:
        """Forget the phase's data."""
        self.phase.close()

    def _auxiliary_phase(self) -> dict[str, float]:
        state, recipe = self.state, self.state.recipe
        stepper, rows = self._stepper(recipe), self.phase.rows
        self._remember_policy()
        taken: list[dict[str, Tensor]] = []
        step_size = learning_rate(state, recipe.phasic.aux_learning_rate)
        for epoch in range(recipe.phasic.n_aux_epochs):
            size = recipe.phasic.segments(recipe.batch.n_envs)
            groups = self.phase.groups(size, state.shuffle_generator)
            for done, batch in enumerate(self.phase.batches(groups)):
                self.note(
                    f"auxiliary epoch {epoch + 1} of {recipe.phasic.n_aux_epochs}, "
                    f"minibatch {done + 1} of {len(groups)}"
                )
                measured = self._gradient(stepper, batch)
                norm = stepper.step(step_size)
                taken.append(measured | {"aux_grad_norm": torch.tensor(norm)})
        self.phase.clear()
        if state.proximal is not None:
            state.proximal.reset()
        return mean_statistics(taken) | {
            "aux_rows": float(rows),
            "aux_grad_steps": float(len(taken)),
        }

    def _gradient(self, stepper: Stepper, batch: Minibatch) -> dict[str, Tensor]:
        """Leave the gradient of a minibatch in place; return its mean statistics."""
        parts = [
            Part(torch.arange(len(each.numbers["targets"])), _gathering(self.state, each))
            for each in batch.parts
        ]
        gradient = self.context.gradient
        if isinstance(gradient, Gradients):
            return gradient.of(stepper, parts, batch.rows)
        return stepper.gradient(*parts[0])

    @torch.no_grad()
    def _remember_policy(self) -> None:
        """Keep the policy's parameters at every row, for the clone loss."""
        for buffer in self.phase.own.values():
            groups = [[segment] for segment in range(len(buffer))]
            for done, batch in enumerate(buffer.batches(groups)):
                self.note(f"auxiliary phase: policy of segment {done + 1} of {len(groups)}")
                params = chunked(self._policy, batch.observations, self.context.chunk_size)
                buffer.attach(batch.segments, "params", params)

    def _policy(self, observation: Observation) -> Tensor:
        """Return the policy's parameters [b, P]."""
        return self.state.model.act(_prepared(self.state, observation))[0]


def terms(
    call: Any, samples: Samples, clone_coef: float, distribution: Distribution
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the auxiliary losses [b] and their statistics, each [b].

    L = (v_aux - target)^2 / 2 + (v - target)^2 / 2 + clone_coef KL(pi_before, pi)
    """
    model: ActorCritic = call
    params, values, auxiliary = model.with_auxiliary(samples.observation)
    joint = losses.value_loss(auxiliary, samples.targets)
    true = losses.value_loss(values, samples.targets)
    kl = distribution.kl(samples.params, params)
    statistics = {"aux_value_loss": joint, "aux_true_value_loss": true, "aux_clone_kl": kl}
    return joint + true + clone_coef * kl, statistics


def _gathering(state: TrainState, batch: PhaseBatch) -> Callable[[Tensor], Samples]:
    """Return a function from rows [b] of a minibatch to their samples, on the training device."""
    device = state.parameters.vector.device

    @torch.no_grad()
    def gather(rows: Tensor) -> Samples:
        return Samples(
            _prepared(state, {part: each[rows] for part, each in batch.observations.items()}),
            batch.numbers["targets"][rows].to(device),
            batch.numbers["params"][rows].to(device),
        )

    return gather


def _prepared(state: TrainState, observation: Observation) -> Observation:
    """Bring observations to the training device and normalise them as when acting."""
    device = state.parameters.vector.device
    return state.observation_normalizer({k: v.to(device) for k, v in observation.items()})
