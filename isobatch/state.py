"""The whole state of a run between two iterations: what a checkpoint saves and resuming needs."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from isobatch import __version__
from isobatch.advantages import AdvantageMoments
from isobatch.diagnostics import Seen
from isobatch.envs.spaces import ActionLayout, ObservationLayout
from isobatch.experience import EpisodeTracker, Single
from isobatch.machine import torch_threads
from isobatch.models import ActorCritic, Agent, EncoderFactory, make_agent
from isobatch.noise.averages import Averages
from isobatch.normalize import ObservationNormalizer, RewardNormalizer
from isobatch.proximal import Ewma
from isobatch.recipe import Recipe
from isobatch.scaling import Factors
from isobatch.update.optimize import (
    AdaptiveRate,
    FlatOptimizer,
    FlatParameters,
    make_optimizer,
)


@dataclass
class Counters:
    """How far a run has come, each count under its own name."""

    env_steps: int = 0
    """Transitions used; reset rows are none."""
    iterations: int = 0
    epochs: int = 0
    grad_steps: int = 0
    phase_iterations: int = 0
    """PPG: iterations of the policy phase under way."""
    restarts: int = 0
    """How often the run was resumed."""
    environments: int = 0
    """Environments made so far: the seeds that are used up."""
    warmup_steps: int = 0
    """Transitions taken to spread the environments over their episodes."""
    budget: int = 0
    """Environment steps asked for when the run began: what is decided once for a run follows
    these. 0 in runs of version 0.1.0."""
    seconds: float = 0.0
    """Training time, earlier sittings included."""
    workers: int = 1
    """Workers that the recipe's n_envs was asked for with."""


@dataclass
class TrainState:
    """Networks, optimiser, averages, normalisers, generators and counters."""

    recipe: Recipe
    """In force now: the run's own, at the batch of the moment. `move` replaces it."""
    model: Agent
    parameters: FlatParameters
    """The model's parameters, as the optimiser sees them."""
    optimizer: FlatOptimizer
    value_optimizer: FlatOptimizer | None
    """The value function's own, where it has epochs of its own."""
    auxiliary_optimizer: FlatOptimizer | None
    """The auxiliary phase's own."""
    adaptive_rate: AdaptiveRate | None
    """The step size, where it follows the KL divergence."""
    proximal: Ewma | None
    advantage_moments: AdvantageMoments
    observation_normalizer: ObservationNormalizer
    reward_normalizer: RewardNormalizer
    action_generator: torch.Generator
    shuffle_generator: torch.Generator
    episodes: EpisodeTracker
    probe: Averages
    """Of the gradient's noise, where it is measured."""
    seen: Seen
    """What diagnostics look at."""
    counters: Counters
    machine: dict[str, Any] | None = None
    """What computed the run's first rows (`machine.fingerprint`); None where nobody wrote it down,
    as in earlier versions."""

    @classmethod
    def begin(
        cls,
        recipe: Recipe,
        observations: ObservationLayout,
        actions: ActionLayout,
        device: torch.device,
        encoder: EncoderFactory | torch.nn.Module | None = None,
    ) -> TrainState:
        """Build the state of a run that has not begun; all randomness comes from the seed."""
        # On one thread: an orthogonal matrix's last bits depend on how many computed it.
        with torch.random.fork_rng(devices=[]), torch_threads(1, images=False):
            torch.manual_seed(recipe.seed)
            model = make_agent(recipe, observations, actions, encoder).to(device)
        if observations.image:
            model.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
        parameters = FlatParameters(model)
        settings, n_envs = recipe.normalize, recipe.batch.n_envs
        averaged = recipe.objective.advantage_normalization == "ewma"

        def another(wanted: bool) -> FlatOptimizer | None:
            return make_optimizer(parameters, recipe.optimizer) if wanted else None

        return cls(
            recipe=recipe,
            model=model,
            parameters=parameters,
            optimizer=make_optimizer(parameters, recipe.optimizer),
            value_optimizer=another(recipe.trains_value_apart),
            auxiliary_optimizer=another(recipe.is_phasic),
            adaptive_rate=AdaptiveRate(recipe.optimizer.learning_rate)
            if recipe.adapts_rate
            else None,
            proximal=_average(model, recipe),
            advantage_moments=AdvantageMoments(
                recipe.objective.advantage_decay if averaged else 0.0
            ),
            observation_normalizer=ObservationNormalizer.of(settings, observations.vector, device),
            reward_normalizer=RewardNormalizer.of(settings, n_envs, device),
            action_generator=torch.Generator(device).manual_seed(recipe.seed),
            shuffle_generator=torch.Generator().manual_seed(recipe.seed + 1),
            episodes=EpisodeTracker(n_envs),
            probe=Averages(),
            seen=Seen(),
            counters=Counters(budget=recipe.total_timesteps),
        )

    @property
    def actor(self) -> Single:
        """The policy as it acts in training."""
        return self.acting_with(self.action_generator)

    def acting_with(self, generator: torch.Generator) -> Single:
        """Return the policy as it acts in training, with these random numbers."""
        hold = self.recipe.noise_hold
        return Single(self.model, self.observation_normalizer, generator, hold, trains=True)

    @property
    def has_images(self) -> bool:
        """True where the model convolves."""
        return any(isinstance(part, torch.nn.Conv2d) for part in self.model.modules())

    def tensors(self) -> dict[str, Tensor]:
        """Return every tensor of the state by a dotted name."""
        tensors: dict[str, Tensor] = {}
        parts: dict[str, dict[str, Tensor]] = {
            "model": self.model.state_dict(),
            "observation": self.observation_normalizer.state_dict(),
            "reward": self.reward_normalizer.state_dict(),
            "generator": {
                "action": self.action_generator.get_state(),
                "shuffle": self.shuffle_generator.get_state(),
            },
            "seen": self.seen.state_dict(),
        }
        parts |= {name: each.state_dict() for name, each in self._optional().items()}
        for part, entries in parts.items():
            tensors.update({f"{part}.{name}": value for name, value in entries.items()})
        return tensors

    @property
    def steps_left(self) -> int:
        """Environment steps the budget still holds."""
        return self.recipe.total_timesteps - self.counters.env_steps

    def move(self, recipe: Recipe) -> None:
        """Go on with the hyperparameters and the batch of another recipe.

        Weights and averages stay, worth what they are worth at the new batch; what belongs to
        single environments begins anew.
        """
        before, self.recipe = self.recipe, recipe
        if recipe.reshape.rescale:
            self._rescale_noise(before, recipe)
        self._rescale_phase(before.phasic.n_policy_iterations)
        if self.proximal is not None:
            self.proximal.change_decay(recipe.objective.proximal_decay)
        if recipe.objective.advantage_normalization == "ewma":
            self.advantage_moments.decay = recipe.objective.advantage_decay
        self.probe.restart(reshaped=recipe.batch.shape != before.batch.shape)
        n_envs = recipe.batch.n_envs
        if len(self.reward_normalizer.running) != n_envs:
            self.reward_normalizer.restart(n_envs)
            self.episodes.restart(n_envs)

    def _rescale_noise(self, before: Recipe, after: Recipe) -> None:
        """Let the optimisers expect the noise of the new minibatches, whose variance goes as 1 / B.

        Unscaled, Adam's second moment would hold steps at another size than the rules want for
        some 1 / (1 - beta2) of them.
        """
        factor = Factors(before.batch, after.batch).opt
        for each in (self.optimizer, self.value_optimizer):
            if each is not None:
                each.rescale_noise(factor)
        if self.auxiliary_optimizer is not None:
            old, new = (each.phasic.minibatch_rows(each.batch) for each in (before, after))
            self.auxiliary_optimizer.rescale_noise(old / new)

    def _rescale_phase(self, before: int) -> None:
        """Keep the part of its data that the policy phase under way has had."""
        now = self.recipe.phasic.n_policy_iterations
        if now != before:
            done = round(self.counters.phase_iterations * now / before)
            self.counters.phase_iterations = min(done, now - 1)

    def _optional(self) -> dict[str, FlatOptimizer | AdaptiveRate | Ewma]:
        """The optimisers, the step size that adapts and the average there are."""
        parts = {
            "optimizer": self.optimizer,
            "value_optimizer": self.value_optimizer,
            "auxiliary_optimizer": self.auxiliary_optimizer,
            "adaptive_rate": self.adaptive_rate,
            "proximal": self.proximal,
        }
        return {name: each for name, each in parts.items() if each is not None}

    def numbers(self) -> dict[str, Any]:
        """Return everything else of the state, as plain data."""
        return {
            "version": __version__,
            "counters": asdict(self.counters),
            "episodes": self.episodes.state_dict(),
            "advantage_moments": self.advantage_moments.state_dict(),
            "probe": self.probe.state_dict(),
            "batch": asdict(self.recipe.batch),
            "machine": self.machine,
        }

    def load(self, tensors: dict[str, Tensor], numbers: dict[str, Any]) -> None:
        """Restore what `tensors` and `numbers` returned."""
        self.model.load_state_dict(under(tensors, "model"))
        self.observation_normalizer.load_state_dict(under(tensors, "observation"))
        self.reward_normalizer.load_state_dict(under(tensors, "reward"))
        self.action_generator.set_state(tensors["generator.action"])
        self.shuffle_generator.set_state(tensors["generator.shuffle"])
        for name, each in self._optional().items():
            each.load_state_dict(under(tensors, name))
        self.advantage_moments.load_state_dict(numbers["advantage_moments"])
        self.episodes.load_state_dict(numbers["episodes"])
        self.probe.load_state_dict(numbers["probe"])
        self.seen.load_state_dict(under(tensors, "seen"))
        self.counters = Counters(**numbers["counters"])
        self.machine = numbers.get("machine")


def _average(model: Agent, recipe: Recipe) -> Ewma | None:
    if not recipe.averages_policy or not isinstance(model, ActorCritic):
        return None
    return Ewma(model.actor, recipe.objective.proximal_decay)


def under(tensors: dict[str, Tensor], part: str) -> dict[str, Tensor]:
    """Return the tensors whose dotted name begins with `part`, by the rest of it."""
    prefix = f"{part}."
    return {
        name.removeprefix(prefix): value
        for name, value in tensors.items()
        if name.startswith(prefix)
    }
