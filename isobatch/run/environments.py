"""The environments of a run: made for the batch of the moment, and again when N changes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import torch

from isobatch import envs, scaling
from isobatch.batch import Batch
from isobatch.envs import MakeEnv
from isobatch.envs.seeds import env_seeds, mixed_generator
from isobatch.envs.supervised import SupervisedEnv
from isobatch.errors import UserError
from isobatch.experience import Collector, Rollout, Single
from isobatch.experience.stagger import stagger
from isobatch.files import Folder
from isobatch.recipe import Recipe
from isobatch.run.journal import Journal
from isobatch.run.memory import refuse_too_large
from isobatch.scaling import adaptive
from isobatch.state import TrainState
from isobatch.text import duration
from isobatch.update import chunk_rows


class Environments:
    """Makes them, steps them, and moves them to another batch."""

    def __init__(
        self,
        recipe: Recipe,
        make_env: MakeEnv | None,
        device: torch.device,
        numbers: Mapping[str, Any] | None = None,
        same: bool = False,
    ) -> None:
        """`numbers` are those of the checkpoint that the run goes on from, at its batch.

        With `same` its environments are made again, otherwise others with seeds not used yet.
        """
        scaling.check_schedule(recipe)
        if recipe.reshape.is_adaptive and make_env is not None:
            make_env = _single(make_env)
        self.asked, self.make_env, self.device = recipe, make_env, device
        self.begin = scaling.at(recipe, 0)
        """The recipe at the batch to begin with."""
        self.made = 0
        """Environments made so far, whose seeds are used up."""
        if numbers:
            self.begin = scaling.at_batch(recipe, Batch(**numbers["batch"]))
            again = self.begin.batch.n_envs if same else 0
            self.made = numbers["counters"]["environments"] - again
        self.env = self._make(self.begin)
        self.image = self.env.observation_layout.image
        self.chunk_size = chunk_rows(self.image, recipe.machine.chunk_size)
        self._collector: Collector | None = None
        self.journal: Journal | None = None
        """Of the actions of the environments there are, where they are kept."""
        self._keep_in: Folder | None = None
        self._noted: set[str] = set()
        self._closed = False

    def keep_actions(self, folder: Folder) -> None:
        """Write down every action from now on, in a file for each generation of environments."""
        if isinstance(self.env, SupervisedEnv):
            raise UserError(
                "exact_resume: environments that are replaced when they fail cannot be brought "
                "back; choose vectorization sync or async",
                field="exact_resume",
            )
        self._keep_in = folder

    def take_again(self, journal: Mapping[str, Any], note: Callable[[str], None]) -> None:
        """Take new environments through the actions of a journal, to where the old ones were."""
        collector, mark = self._new_collector(), journal["mark"]
        assert self.journal is not None
        self.journal.refuse_other(mark)
        self.journal.cut(mark)
        began, first = time.perf_counter(), True
        for actions, restarted in self.journal.blocks(mark):
            collector.repeat(actions, restarted)
            if first and restarted is None:
                share = len(actions) / max(1, journal["steps"])
                seconds = (time.perf_counter() - began) / share
                note(
                    f"taking the environments through {journal['steps']:,} steps again: about "
                    f"{duration(seconds)}"
                )
                first = False

    def move(self, state: TrainState) -> dict[str, Any]:
        """Follow the schedule, or what was measured; say what moved, or why nothing could."""
        before = state.recipe
        after, said = self._wanted(state)
        if after.batch == before.batch:
            return said
        if after.batch.n_envs > state.steps_left:
            return {}
        if after.batch.n_envs != before.batch.n_envs:
            self.env.close()
            self.env, self._collector, self.journal = self._make(after), None, None
        state.move(after)
        return {"reshaped": _difference(before, after), **said}

    def warm_up(self, state: TrainState) -> int:
        """Spread new environments over their episodes where asked; return the steps it took."""
        if self._collector is not None or not state.recipe.environment.stagger:
            return 0
        generator = mixed_generator(state.recipe.seed, self.made, device=self.device)
        actor = Single(state.model, state.observation_normalizer, generator)
        taken = stagger(self.collector, actor, generator)
        state.episodes.restart(state.recipe.batch.n_envs, under_way=True)
        return taken

    @property
    def collector(self) -> Collector:
        """What steps the environments there are."""
        if self._collector is None:
            self._new_collector()
            if self.journal is not None:
                self.journal.remove()  # What a run that was killed went on to do.
        assert self._collector is not None
        return self._collector

    def _new_collector(self) -> Collector:
        self._collector = Collector(self.env, self.device, self.chunk_size)
        if self._keep_in is not None:
            self.journal = Journal(self._keep_in, f"actions-{self.made:09d}.bin")
            self._collector.on_actions = self.journal.add
        return self._collector

    @property
    def begun(self) -> Collector | None:
        """What steps them, once that has begun."""
        return self._collector

    def collect(self, state: TrainState) -> Rollout:
        """Collect one rollout; the budget's last is cut so that it is never overrun."""
        left = state.steps_left
        return self.collector.collect(
            state.actor,
            state.recipe.batch.n_steps,
            row_limit=left if left < state.recipe.batch.rollout_size else None,
        )

    async def rollout(self, state: TrainState) -> Rollout:
        """As `collect`, for a run that awaits its rollouts."""
        return self.collect(state)

    def take_faults(self, note: Callable[[str], None]) -> dict[str, Any]:
        """Return how often environments failed since this was asked, as a row's columns.

        `note` is told the first fault of each kind.
        """
        if not isinstance(self.env, SupervisedEnv):
            return {}
        faults, self.env.faults = self.env.faults, []
        for fault in faults:
            if fault.kind not in self._noted:
                self._noted.add(fault.kind)
                note(f"an environment failed and was replaced: {fault.text}")
        return {"env_faults": len(faults), **({"env_fault": faults[-1].text} if faults else {})}

    def close(self) -> None:
        """Close them, once."""
        if not self._closed:
            self._closed = True
            self.env.close()

    def _wanted(self, state: TrainState) -> tuple[Recipe, dict[str, str]]:
        """Return the recipe at the batch to go on with, and what is to be said of it."""
        if not self.asked.reshape.is_adaptive:
            return scaling.at(self.asked, state.counters.env_steps), {}
        if state.counters.iterations % self.asked.probe_interval:
            return state.recipe, {}  # Nothing was measured since it was last asked.
        decision = adaptive.decide(self.asked, state.recipe.batch, state.probe)
        if decision is None:
            return state.recipe, {}
        return scaling.at_batch(self.asked, decision.batch), {"decision": decision.why}

    def _make(self, recipe: Recipe) -> envs.BatchedEnv:
        refuse_too_large(recipe)
        seeds = env_seeds(recipe.seed, recipe.batch.n_envs, first=self.made)
        env = envs.make(recipe, seeds, make_env=self.make_env)
        try:
            refuse_too_large(recipe, env.observation_layout)
        except UserError:
            env.close()
            raise
        self.made += recipe.batch.n_envs
        if isinstance(env, SupervisedEnv):
            env.fresh_seed = self._fresh_seed
        return env

    def _fresh_seed(self) -> int:
        """Return the seed of one more environment."""
        (seed,) = env_seeds(self.asked.seed, 1, first=self.made)
        self.made += 1
        return seed


def _single(make_env: MakeEnv) -> MakeEnv:
    """Refuse a vector of the user's own, whose width is what it is, where N is to change."""
    make_env, width = envs.inspect(make_env)
    if width is not None:
        raise UserError(
            "batch_schedule adaptive changes n_envs: make_env must return one environment, "
            "not a vector",
            field="batch_schedule",
        )
    return make_env


def _difference(before: Recipe, after: Recipe) -> str:
    """Say which fields moved: n_envs 8 -> 32, learning_rate 0.001 -> 0.0005."""
    pairs = ((name, before.values[name], value) for name, value in after.values.items())
    return ", ".join(f"{name} {old:.4g} -> {new:.4g}" for name, old, new in pairs if old != new)
