"""Environments that are made anew from time to time, a quarter of them at a time.

For simulators that leak, and so that resuming a run exactly need not take its environments through
all of it again. A row in which an environment is made anew is no transition: its episode is
dropped, and the observation is the first of the new one's, as in a reset row.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from isobatch.envs.faults import EnvironmentFailed
from isobatch.envs.step import BatchedEnv, Divisible, Observation, Step

PARTS = 4
EPISODES = 20
"""Least mean episode lengths that an environment lives."""


@dataclass
class Part:
    """Environments in consecutive rows that are made together."""

    env: BatchedEnv
    first: int
    """Its first one's number among all that the run ever made; their seeds follow from it."""
    made_at: int = 0
    """Steps that had been taken when they were made."""


def shares(n_envs: int) -> list[int]:
    """Return how many environments each part has."""
    parts = min(PARTS, n_envs)
    return [n_envs // parts + (place < n_envs % parts) for place in range(parts)]


class RemadeEnv:
    """Parts that each are made anew in turn. They must reset on the next step.

    In a step the oldest part is made anew if it is `every` steps old and 20 mean lengths of its
    episodes, and no other is younger than `every` / 4. So it depends on nothing but the actions
    since the parts there are were made. Parts that are brought back by these actions begin at the
    step of the oldest; one that was made later waits for its own, and nothing is made meanwhile.
    """

    def __init__(self, parts: list[Part], every: int, make: Callable[[int], Part]) -> None:
        """`make` makes a part of so many environments with seeds that were not used yet."""
        sample = parts[0].env
        self.name = sample.name
        self.observation_layout, self.action_layout = (
            sample.observation_layout,
            sample.action_layout,
        )
        self.parts, self.every, self._make = parts, every, make
        self._envs = [_divisible(part) for part in parts]
        self._sizes = [part.env.n_envs for part in parts]
        self.n_envs = sum(self._sizes)
        self.remade = 0
        """Environments made anew that no one has taken note of yet."""
        self.delayed: float | None = None
        """The mean episode length that delays it beyond `every`, infinite where none ended."""
        self.steps = 0
        self._waiting: dict[int, Observation] = {}
        """The first observations of parts whose time has not come."""
        self._has_score = self._has_over = False
        self._no = torch.zeros(self.n_envs, dtype=torch.bool)

    def reset(self) -> Observation:
        """Start all environments."""
        self.steps = min(part.made_at for part in self.parts)
        shown = [part.env.reset() for part in self.parts]
        self._waiting = {
            place: each
            for place, each in enumerate(shown)
            if self.parts[place].made_at > self.steps
        }
        self._transitions = torch.zeros(self.n_envs, dtype=torch.int64)
        self._ended = torch.zeros(self.n_envs, dtype=torch.int64)
        self._plan()
        return _joined(shown)

    def step(self, actions: Tensor) -> Step:
        """Step all environments; `actions` [N, K] in policy form."""
        return self._step(actions, None, self._due())

    def restart(self, which: Tensor, actions: Tensor) -> Step:
        """Begin a new episode in some environments, `which` [N] bool, then step all."""
        return self._step(actions, which.split(self._sizes), None)

    @contextmanager
    def stepping(self) -> Iterator[None]:
        """Hold what the parts hold."""
        with ExitStack() as held:
            for part in self.parts:
                held.enter_context(part.env.stepping())
            yield

    def close(self) -> None:
        """Close all parts."""
        for part in self.parts:
            part.env.close()

    def _step(self, actions: Tensor, restarted: tuple[Tensor, ...] | None, due: int | None) -> Step:
        own = actions.split(self._sizes)
        restarts = {place for place, each in enumerate(restarted or ()) if bool(each.any())}
        apart = {due, *self._waiting, *restarts}
        taken: list[Step] = []
        place = 0
        try:
            for place, env in enumerate(self._envs):
                if place not in apart:
                    env.send(own[place])
            for place, env in enumerate(self._envs):
                if place not in apart:
                    taken.append(env.receive())
                elif place == due:
                    taken.append(self._renewed(place))
                elif restarted is not None and place not in self._waiting:
                    taken.append(self.parts[place].env.restart(restarted[place], own[place]))
                else:
                    taken.append(_no_step(self._waiting[place], self._sizes[place]))
        except EnvironmentFailed as error:
            raise self._located(error, place) from error.__cause__
        self.steps += 1
        for each in [each for each in self._waiting if self.parts[each].made_at <= self.steps]:
            del self._waiting[each]
        step = self._one(taken, self._no if due is None else self._flags(due))
        self._transitions += step.valid
        self._ended += step.ended & step.valid
        return step

    def _due(self) -> int | None:
        """Return which part is to be made anew in this step, if one is."""
        if self.steps < self._earliest:
            return None
        place = min(range(len(self.parts)), key=lambda each: self.parts[each].made_at)
        of_it = self._flags(place)
        ended = int(self._ended[of_it].sum())
        length = int(self._transitions[of_it].sum()) / ended if ended else math.inf
        if self.steps - self.parts[place].made_at >= EPISODES * length:
            return place
        self.delayed = length
        return None

    def _renewed(self, place: int) -> Step:
        """Make a part anew; return its row."""
        count = self._sizes[place]
        self.parts[place].env.close()
        part = self.parts[place] = self._make(count)
        part.made_at = self.steps + 1
        self._envs[place] = _divisible(part)
        of_it = self._flags(place)
        self._transitions[of_it] = self._ended[of_it] = 0
        self.remade += count
        self._plan()
        return _no_step(part.env.reset(), count)

    def _plan(self) -> None:
        """Set the step before which nothing is to be made anew."""
        made = [part.made_at for part in self.parts]
        self._earliest = max(min(made) + self.every, max(made) + self.every / len(made))

    def _flags(self, place: int) -> Tensor:
        """Return [N] bool: the environments of a part."""
        flags = torch.zeros(self.n_envs, dtype=torch.bool)
        flags.split(self._sizes)[place][:] = True
        return flags

    def _one(self, taken: list[Step], dropped: Tensor) -> Step:
        """Return the steps of the parts as one."""
        self._has_score |= any(step.score is not None for step in taken)
        self._has_over |= any(step.over is not None for step in taken)
        return Step(
            observation=_joined([step.observation for step in taken]),
            reward=torch.cat([step.reward for step in taken]),
            terminated=torch.cat([step.terminated for step in taken]),
            truncated=torch.cat([step.truncated for step in taken]),
            valid=torch.cat([step.valid for step in taken]),
            score=torch.cat([step.scored for step in taken]) if self._has_score else None,
            over=torch.cat([step.ended for step in taken]) if self._has_over else None,
            dropped=dropped,
        )

    def _located(self, error: EnvironmentFailed, place: int) -> EnvironmentFailed:
        """Say which environments the error counts: a part's own, since it was made."""
        first, made_at = sum(self._sizes[:place]), self.parts[place].made_at
        last = first + self._sizes[place] - 1
        which = f"of environments {first} to {last}, made at step {made_at}"
        return EnvironmentFailed(f"{error} ({which})")


def _divisible(part: Part) -> Divisible:
    assert isinstance(part.env, Divisible), part.env
    return part.env


def _joined(parts: list[Observation]) -> Observation:
    return {name: torch.cat([each[name] for each in parts]) for name in parts[0]}


def _no_step(observation: Observation, count: int) -> Step:
    """Return a row that is no transition."""
    no = torch.zeros(count, dtype=torch.bool)
    return Step(observation, torch.zeros(count), no, no, no)
