"""The environments of a run: made for the batch of the moment, and again when N changes.

Where the recipe says so a part of them is made anew from time to time.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from isobatch import envs, scaling
from isobatch.batch import Batch
from isobatch.clock import OFF, Clock
from isobatch.envs import MakeEnv
from isobatch.envs.remade import EPISODES, Part, RemadeEnv, shares
from isobatch.envs.seeds import env_seeds, mixed_generator
from isobatch.envs.supervised import SupervisedEnv
from isobatch.envs.views import bare
from isobatch.errors import UserError
from isobatch.experience import Collector, Rollout, Single
from isobatch.experience.stagger import stagger
from isobatch.files import Folder
from isobatch.recipe import Recipe
from isobatch.run.journal import Journals
from isobatch.run.memory import refuse_too_large
from isobatch.scaling import adaptive
from isobatch.state import TrainState
from isobatch.text import counted, duration
from isobatch.update import chunk_rows


class Place(Protocol):
    """What a run needs of its environments, its own or a share of a cohort's."""

    made: int
    """Environments made so far, whose seeds are used up."""
    env: envs.BatchedEnv
    make_env: MakeEnv | None
    chunk_size: int

    def move(self, state: TrainState) -> dict[str, Any]:
        """Follow the schedule, or what was measured; say what moved, or why nothing could."""
        ...

    async def warm_up(self, state: TrainState) -> int:
        """Spread new environments over their episodes where asked; return the steps it took."""
        ...

    async def rollout(self, state: TrainState) -> Rollout:
        """Return the next rollout; the budget's last is cut so that it is never overrun."""
        ...

    def take_events(self, note: Callable[[str], None]) -> dict[str, Any]:
        """Return how many failed or were made anew since this was asked, as a row's columns."""
        ...

    def stopping(self, asked: bool) -> bool:
        """Say whether the run stops after this iteration, where this process is `asked` to."""
        ...

    def close(self) -> None:
        """Close them, once."""
        ...


class Share(NamedTuple):
    """One of equal parts of a run's environments: a shard."""

    place: int = 0
    count: int = 1

    def of(self, n_envs: int) -> int:
        """Return how many of `n_envs` environments are in it."""
        return n_envs // self.count

    def generator(self, device: torch.device, *numbers: int) -> torch.Generator:
        """Return random numbers of its own, which depend on `numbers` beside it."""
        if self.count == 1:
            return mixed_generator(*numbers, device=device)
        # The last number tells them from all others; zeros at the end would count for nothing.
        return mixed_generator(*numbers, self.place, SHARD, device=device)


WHOLE, SHARD = Share(), 0x5A
"""All environments; and what the random numbers of shards are mixed with."""


def warm_up_actor(state: TrainState, made: int, share: Share = WHOLE) -> Single:
    """Return who acts before training begins, with random numbers that `made` environments have."""
    generator = share.generator(state.action_generator.device, state.recipe.seed, made)
    return Single(state.model, state.observation_normalizer, generator)


class Environments:
    """Makes them, steps them, and moves them to another batch."""

    def __init__(
        self,
        recipe: Recipe,
        make_env: MakeEnv | None,
        device: torch.device,
        numbers: Mapping[str, Any] | None = None,
        again: Sequence[Mapping[str, int]] | None = None,
        clock: Clock = OFF,
        share: Share = WHOLE,
    ) -> None:
        """`numbers` are those of the checkpoint that the run goes on from, at its batch.

        Its environments are made `again` where it says which they were (`parts`), otherwise others
        with seeds not used yet. Of a `share` they are numbered on their own.
        """
        scaling.check_schedule(recipe)
        make_env = envs.maker_of(recipe, make_env)
        if recipe.reshape.is_adaptive and make_env is not None:
            make_env = _single(make_env)
        if recipe.environment.remake_steps:
            envs.refuse_remaking(recipe, make_env)
        self.asked, self.make_env, self.device, self._clock = recipe, make_env, device, clock
        self.begin = scaling.at(recipe, 0)
        """The recipe at the batch to begin with."""
        self.share = share
        self.made = 0
        """Environments of the share made so far, whose seeds are used up."""
        if numbers:
            self.begin = scaling.at_batch(recipe, Batch(**numbers["batch"]))
            self.made = -(-numbers["counters"]["environments"] // share.count)
        self.env = self._make(self.begin, again)
        self.image = self.env.observation_layout.image
        self.chunk_size = chunk_rows(self.image, recipe.model.encoder, recipe.machine.chunk_size)
        self._collector: Collector | None = None
        self.journals: Journals | None = None
        """Of the actions of the environments there are, where they are kept."""
        self._noted: set[str] = set()
        self._closed = False

    def keep_actions(self, folder: Folder) -> None:
        """Write down every action from now on."""
        if isinstance(bare(self.env), SupervisedEnv):
            raise UserError(
                "exact_resume: environments that are replaced when they fail cannot be brought "
                "back; choose vectorization sync or async",
                field="exact_resume",
            )
        self.journals = Journals(folder, self.share.place if self.share.count > 1 else None)

    @property
    def keeps_actions(self) -> bool:
        """Whether the run can be resumed exactly."""
        return self.journals is not None

    def first_says(self, due: bool) -> bool:
        """Return it: there is one worker."""
        return due

    @property
    def parts(self) -> list[dict[str, int]]:
        """Which environments there are: of each part its first one's number, and when it was made.

        Steps are those of the environments, since there are as many of them.
        """
        return [{"first": part.first, "made_at": part.made_at} for part in self._parts]

    def take_again(self, journal: Mapping[str, Any], note: Callable[[str], None]) -> None:
        """Take new environments through the actions of a journal, to where the old ones were."""
        assert self.journals is not None
        collector = self._new_collector()
        self.journals.load(journal["files"])
        begins = min(part.made_at for part in self._parts)
        steps = journal["steps"] - begins
        began, first = time.perf_counter(), True
        for actions, restarted in self.journals.since(begins):
            collector.repeat(actions, restarted)
            if first and restarted is None:
                seconds = (time.perf_counter() - began) * steps / len(actions)
                note(
                    f"replaying {counted(steps, 'step')} of every environment: about "
                    f"{duration(seconds)}"
                )
                first = False
        collector.steps_taken = journal["steps"]

    def move(self, state: TrainState) -> dict[str, Any]:
        """Follow the schedule, or what was measured; say what moved, or why nothing could."""
        before = state.recipe
        after, said = wanted(self.asked, state)
        if after.batch == before.batch:
            return said
        if after.batch.n_envs > state.steps_left:
            return {}
        self.follow(before, after)
        state.move(after)
        return {"reshaped": difference(before, after), **said}

    def follow(self, before: Recipe, after: Recipe) -> None:
        """Make other environments where there is to be another number of them."""
        if after.batch.n_envs != before.batch.n_envs:
            self.env.close()
            self.env, self._collector = self._make(after), None

    async def warm_up(self, state: TrainState) -> int:
        """Spread new environments over their episodes where asked; return the steps it took."""
        taken = self.spread(state)
        if taken:
            state.episodes.restart(state.recipe.batch.n_envs, under_way=True)
        return taken

    def spread(self, state: TrainState) -> int:
        """The same, and leave it to the caller to forget the episodes under way."""
        if self._collector is not None or not state.recipe.environment.stagger:
            return 0
        actor = warm_up_actor(state, self.made, self.share)
        return stagger(self.collector, actor, actor.generator)

    @property
    def collector(self) -> Collector:
        """What steps the environments there are."""
        if self._collector is None:
            collector = self._new_collector()
            if self.journals is not None:
                self.journals.files.clear()  # Those of the environments before.
                self.journals.begin(self.made, 0)
            return collector
        return self._collector

    def _new_collector(self) -> Collector:
        self._clock.watch(self.env, "environments", "reset", "step", "restart")
        self._collector = Collector(self.env, self.device, self.chunk_size)
        if self.journals is not None:
            self._collector.on_actions = partial(self._write_down, self._collector, self.journals)
        return self._collector

    def _write_down(
        self, collector: Collector, journals: Journals, actions: Tensor, restarted: Tensor | None
    ) -> None:
        """Add to the journal; where environments were made anew a new one begins."""
        journal = journals.files[-1]
        journal.add(actions, restarted)
        made_at = [part.made_at for part in self._parts]
        if max(made_at) > journal.begins:
            journals.begin(self.made, collector.steps_taken)
            journals.forget(min(made_at))

    @property
    def begun(self) -> Collector | None:
        """What steps them, once that has begun."""
        return self._collector

    def collect(self, state: TrainState) -> Rollout:
        """Collect one rollout; the budget's last is cut so that it is never overrun."""
        left = state.steps_left
        limit = left if left < state.recipe.batch.rollout_size else None
        return self.collect_by(state.actor, state.recipe.batch.n_steps, limit)

    def collect_by(self, actor: Single, n_steps: int, row_limit: int | None = None) -> Rollout:
        """Collect `n_steps` steps of an actor, or fewer so that there are `row_limit` rows."""
        return self.collector.collect(self._watched(actor), n_steps, row_limit=row_limit)

    def _watched(self, actor: Single) -> Single:
        """Time how it acts, and its values."""
        clock, drawing = self._clock, actor.drawing
        actor.drawing = lambda n_envs: clock.timing("acting", drawing(n_envs))
        clock.watch(actor, "acting", "noise", "values", "values_where")
        return actor

    async def rollout(self, state: TrainState) -> Rollout:
        """As `collect`, for a run that awaits its rollouts."""
        return self.collect(state)

    def take_events(self, note: Callable[[str], None]) -> dict[str, Any]:
        """Return how many failed or were made anew since this was asked, as a row's columns.

        `note` is told the first fault of each kind, and what delays that they are made anew.
        """
        if isinstance(self.env, RemadeEnv):
            return self._take_remade(self.env, note)
        env = bare(self.env)
        if not isinstance(env, SupervisedEnv):
            return {}
        faults, env.faults = env.faults, []
        for fault in faults:
            if fault.kind not in self._noted:
                self._noted.add(fault.kind)
                note(f"an environment failed and was replaced: {fault.text}")
        return {"env_faults": len(faults), **({"env_fault": faults[-1].text} if faults else {})}

    def _take_remade(self, env: RemadeEnv, note: Callable[[str], None]) -> dict[str, Any]:
        if env.delayed is not None and "delayed" not in self._noted:
            self._noted.add("delayed")
            ended = math.isfinite(env.delayed)
            found = (
                f"episodes are {env.delayed:.0f} steps long" if ended else "no episode has ended"
            )
            note(
                f"remake_steps {env.every:,}: {found}; environments are re-made after {EPISODES} "
                "of them"
            )
        remade, env.remade = env.remade, 0
        return {"envs_remade": remade}

    def stopping(self, asked: bool) -> bool:
        """Stop when asked."""
        return asked

    def close(self) -> None:
        """Close them, once."""
        if not self._closed:
            self._closed = True
            self.env.close()

    def _make(
        self, recipe: Recipe, again: Sequence[Mapping[str, int]] | None = None
    ) -> envs.BatchedEnv:
        refuse_too_large(recipe)
        every, n_envs = recipe.environment.remake_steps, self.share.of(recipe.batch.n_envs)
        sizes = shares(n_envs) if every else [n_envs]
        parts = self._parts = list[Part]()
        try:
            for size, saved in zip(sizes, again or [None] * len(sizes), strict=True):
                made = self._make_part(recipe, size, saved["first"] if saved else None)
                parts.append(replace(made, made_at=saved["made_at"]) if saved else made)
            refuse_too_large(recipe, parts[0].env.observation_layout)
        except BaseException:
            for part in parts:
                part.env.close()
            raise
        if not every:
            return parts[0].env
        return RemadeEnv(parts, every, partial(self._make_part, recipe))

    def _make_part(self, recipe: Recipe, count: int, first: int | None = None) -> Part:
        """Make some environments: those numbered from `first` on, or the next ones."""
        number = self.made if first is None else first
        seeds = self._seeds(count, number)
        env = envs.make(recipe, seeds, make_env=self.make_env)
        if first is None:
            self.made += count
        if isinstance(within := bare(env), SupervisedEnv):
            within.fresh_seed = self._fresh_seed
        return Part(env, number)

    def _fresh_seed(self) -> int:
        """Return the seed of one more environment."""
        (seed,) = self._seeds(1, self.made)
        self.made += 1
        return seed

    def _seeds(self, count: int, first: int) -> list[int]:
        """Return the seeds of environments of the share, from its `first` one on.

        Shards take turns among the numbers of a run's environments.
        """
        place, shards = self.share
        return env_seeds(self.asked.seed, count, first * shards + place, stride=shards)


def wanted(asked: Recipe, state: TrainState) -> tuple[Recipe, dict[str, str]]:
    """Return the recipe at the batch to go on with, and what is to be said of it."""
    if not asked.reshape.is_adaptive:
        return scaling.at(asked, state.counters.env_steps), {}
    if state.counters.iterations % asked.probe_interval:
        return state.recipe, {}  # Nothing was measured since it was last asked.
    decision = adaptive.decide(asked, state.recipe.batch, state.probe)
    if decision is None:
        return state.recipe, {}
    return scaling.at_batch(asked, decision.batch), {"decision": decision.why}


def _single(make_env: MakeEnv) -> MakeEnv:
    """Refuse a vector of the user's own, whose width is what it is, where N is to change."""
    make_env, width, _ = envs.inspect(make_env)
    if width is not None:
        raise UserError(
            "batch_schedule adaptive changes n_envs: make_env must return one environment, "
            "not a vector",
            field="batch_schedule",
        )
    return make_env


def difference(before: Recipe, after: Recipe) -> str:
    """Say which fields moved: n_envs 8 -> 32, learning_rate 0.001 -> 0.0005."""
    pairs = ((name, before.values[name], value) for name, value in after.values.items())
    return ", ".join(f"{name} {old:.4g} -> {new:.4g}" for name, old, new in pairs if old != new)
