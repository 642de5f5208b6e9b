"""The environments of a run that is computed by shards, and how its workers' rollouts become one.

A worker collects the rollouts of its shards. Their numbers are gathered, so that every worker has
those of all environments; observations stay where they are (`experience.shards`). With them goes
what one worker knows and all must: an error, a request to stop, environments that failed.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from isobatch import envs, registry, scaling
from isobatch.batch import Batch
from isobatch.clock import OFF, Clock
from isobatch.envs import MakeEnv
from isobatch.envs.seeds import env_seeds
from isobatch.errors import UserError
from isobatch.experience import BY_STEP, Rollout, Shards
from isobatch.files import Folder
from isobatch.recipe import Recipe
from isobatch.run.environments import Environments, Share, difference, wanted
from isobatch.state import TrainState
from isobatch.text import counted
from isobatch.update import chunk_rows
from isobatch.world import World

SHARD_NOISE = 0x5B
"""What the randomness of actions is mixed with."""


def refuse_unshardable(recipe: Recipe, make_env: MakeEnv | None = None) -> None:
    """Refuse what cannot be computed by shards, in one line."""
    shards = recipe.machine.shards
    if shards == 1:
        return
    batches = [recipe.batch, *(scaling.at(recipe, each).batch for each in _stage_steps(recipe))]
    for batch in batches:
        if batch.n_envs % shards:
            raise UserError(
                f"n_envs {batch.n_envs} cannot be dealt to {shards} equal shards: choose a "
                "multiple, or another --shards",
                field="shards",
            )
    why = None
    normalize = recipe.normalize
    by_step = normalize.update_statistics == "step"
    if by_step and (normalize.normalize_observations or normalize.normalize_rewards):
        why = "update_statistics step needs the observations of all environments at every step"
    elif recipe.reshape.is_adaptive:
        why = "batch_schedule adaptive changes n_envs as it goes"
    elif recipe.machine.exact_resume and recipe.machine.elastic == "rescale":
        why = "exact_resume keeps environments, whose number elastic rescale changes"
    elif not isinstance(registry.find(recipe.algo).learner, str):
        why = f"the algorithm {recipe.algo} is your own, and may look at all observations"
    elif recipe.machine.overlap:
        why = "overlap collects and learns in two threads of one process"
    elif recipe.machine.compile == "on":
        why = "compile on is for updates of one process"
    elif make_env is not None and envs.inspect(make_env)[1] is not None:
        why = "make_env returns a vector of environments, which cannot be divided"
    if why is not None:
        raise UserError(f"shards {shards}: {why}", field="shards")


def _stage_steps(recipe: Recipe) -> list[int]:
    """Return the steps at which stages of a batch schedule begin."""
    return [stage.env_steps for stage in scaling.stages(recipe)]


class ShardedEnvironments:
    """Environments of the shards that this worker owns, and the rollouts of all."""

    def __init__(
        self,
        world: World,
        recipe: Recipe,
        make_env: MakeEnv | None,
        device: torch.device,
        numbers: Mapping[str, Any] | None = None,
        again: Sequence[Sequence[Mapping[str, int]]] | None = None,
        clock: Clock = OFF,
    ) -> None:
        """`numbers` are those of the checkpoint that the run goes on from.

        Its environments are made `again` where it says which each shard had.
        """
        scaling.check_schedule(recipe)
        self.world, self.asked, self.device = world, recipe, device
        self.make_env = envs.maker_of(recipe, make_env)
        refuse_unshardable(recipe, self.make_env)
        if recipe.environment.remake_steps:
            envs.refuse_remaking(recipe, self.make_env)
        self.begin = scaling.at(recipe, 0)
        """The recipe at the batch to begin with."""
        if numbers:
            self.begin = scaling.at_batch(recipe, Batch(**numbers["batch"]))
        self._numbers, self._again, self._clock = numbers, again, clock
        if again is not None and len(again) != world.shards:
            raise UserError(f"{counted(len(again), 'shard')} cannot go on as {world.shards}")
        self.made = numbers["counters"]["environments"] if numbers else 0
        # What environments are like; a worker without a shard has no others. It is never stepped.
        self.env = envs.make(recipe, env_seeds(recipe.seed, 1), make_env=self.make_env)
        self.image = self.env.observation_layout.image
        self.chunk_size = chunk_rows(self.image, recipe.model.encoder, recipe.machine.chunk_size)
        self._own: dict[int, Environments] | None = None
        self._events: dict[str, Any] = {}
        self._asked = self._stops = False
        """Whether this worker was asked to stop; and whether any was, as all of them know."""
        self._closed = False

    @property
    def own(self) -> dict[int, Environments]:
        """The environments of each shard owned, made when first needed."""
        if self._own is None:
            self._own = {
                place: Environments(
                    self.asked,
                    self.make_env,
                    self.device,
                    self._numbers,
                    None if self._again is None else self._again[place],
                    self._clock,
                    share=Share(place, self.world.shards),
                )
                for place in self.world.owned
            }
        return self._own

    def keep_actions(self, folder: Folder) -> None:
        """Write down every action from now on, each shard's in a file of its own."""
        for each in self.own.values():
            each.keep_actions(folder)

    @property
    def keeps_actions(self) -> bool:
        """Whether the run can be resumed exactly."""
        return self.asked.machine.exact_resume

    def first_says(self, due: bool) -> bool:
        """Return what the first worker says: all write down where their environments are."""
        return self.world.told(due)[0]

    def move(self, state: TrainState) -> dict[str, Any]:
        """Follow the schedule; say what moved."""
        before = state.recipe
        after, said = wanted(self.asked, state)
        if after.batch == before.batch or after.batch.n_envs > state.steps_left:
            return {}
        self.world.agreed(lambda: [each.follow(before, after) for each in self.own.values()])
        state.move(after)
        return {"reshaped": difference(before, after), **said}

    async def warm_up(self, state: TrainState) -> int:
        """Spread new environments over their episodes where asked; return the steps it took."""
        if not state.recipe.environment.stagger:
            return 0
        own = self.world.agreed(lambda: sum(each.spread(state) for each in self.own.values()))
        taken = sum(self.world.told(own))
        if taken:
            state.episodes.restart(state.recipe.batch.n_envs, under_way=True)
        return taken

    async def rollout(self, state: TrainState) -> Rollout:
        """Collect the next rollout of the shards owned, and return that of all."""
        error, own = None, dict[int, Rollout]()
        try:
            own = {place: self._collected(place, state) for place in self.own}
        except UserError as raised:
            error = raised
        columns = {place: _columns(rollout) for place, rollout in own.items()}
        said = {
            "error": None if error is None else str(error),
            "stop": self._asked,
            "made": max((each.made for each in self.own.values()), default=0),
            "events": [each.take_events(_silent) for each in self.own.values()],
            "names": sorted({name for each in columns.values() for name in each}),
            "weights": zlib.crc32(state.parameters.vector.detach().cpu().numpy().data),
        }
        told = self.world.told(said)
        if error is not None:
            raise error
        self._take_in(told)
        names = sorted({name for each in told for name in each["names"]})
        gathered = self.world.gather_named(
            [
                {name: each[name] if name in each else _absent(own[place], name) for name in names}
                for place, each in columns.items()
            ]
        )
        return self._joined(own, gathered)

    def take_events(self, note: Callable[[str], None]) -> dict[str, Any]:
        """Return how many failed or were made anew since this was asked, as a row's columns."""
        events, self._events = self._events, {}
        if "env_fault" in events:
            note(f"an environment failed and was replaced: {events['env_fault']}")
        return events

    def stopping(self, asked: bool) -> bool:
        """Stop when all workers know that one was asked to: rollouts tell them."""
        self._asked |= asked
        return self._stops or (asked and self.world.size == 1)

    def close(self) -> None:
        """Close them, once."""
        if not self._closed:
            self._closed = True
            self.env.close()
            for each in (self._own or {}).values():
                each.close()

    def _collected(self, place: int, state: TrainState) -> Rollout:
        """Collect a shard's rollout, with random numbers of the shard's and the iteration's.

        The budget's last rollouts are cut as if all rows were transitions, so that no shard need
        know of the others' resets; what is then left goes into further ones.
        """
        recipe, left = state.recipe, state.steps_left
        numbers = (recipe.seed, state.counters.iterations, place, SHARD_NOISE)
        actor = state.acting_with(Share(place, self.world.shards).generator(self.device, *numbers))
        n_steps = min(recipe.batch.n_steps, left // recipe.batch.n_envs)
        return self.own[place].collect_by(actor, n_steps)

    def _take_in(self, told: list[dict[str, Any]]) -> None:
        """Know what the workers know; what ends one ends all."""
        for worker, each in enumerate(told):
            if each["error"] is not None:
                raise UserError(each["error"])
            if each["weights"] != told[0]["weights"]:
                raise UserError(
                    f"worker {worker} has other weights than worker 0: their machines round "
                    "differently; use machines with one kind of CPU and one version of PyTorch"
                )
        self._stops = any(each["stop"] for each in told)
        self.made = self.world.shards * max(each["made"] for each in told)
        for event in (event for each in told for event in each["events"]):
            for name, value in event.items():
                self._events[name] = value + self._events.get(name, type(value)())

    def _joined(self, own: Mapping[int, Rollout], gathered: list[dict[str, Tensor]]) -> Rollout:
        """Return the rollout of all environments from those of all shards."""
        fields = {
            name: torch.cat([each[name] for each in gathered], 1).to(self.device)
            for name in gathered[0]
        }
        layout = self.env.observation_layout
        row_bytes = sum(
            math.prod(shape) * layout.dtypes[part].itemsize for part, shape in layout.shapes.items()
        )
        shards = Shards(
            self.world,
            {place: rollout.observations for place, rollout in own.items()},
            fields["valid"].shape[1] // self.world.shards,
            row_bytes,
        )
        return Rollout(
            observations={},
            shards=shards,
            collect_seconds=sum(each.collect_seconds for each in own.values()),
            env_seconds=sum(each.env_seconds for each in own.values()),
            **{"final_values": None, "dropped": None, **fields},
        )


def _columns(rollout: Rollout) -> dict[str, Tensor]:
    """Return the numbers of a shard's rollout, [T, n, ...] each, but for values [T+1, n]."""
    names = ("values", *BY_STEP, "final_values", "dropped")
    found = {name: getattr(rollout, name) for name in names}
    return {name: each for name, each in found.items() if each is not None}


def _absent(like: Rollout, name: str) -> Tensor:
    """Return what stands for final values or dropped episodes in a shard that had none."""
    return torch.zeros_like(like.rewards if name == "final_values" else like.valid)


def _silent(text: str) -> None:
    """Leave it to the row to say that environments failed."""
