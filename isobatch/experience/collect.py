"""Collecting experience: N environments, T steps, time-major."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from isobatch.envs import BatchedEnv, Observation, Step
from isobatch.envs.spaces import ActionNotFinite
from isobatch.errors import UserError
from isobatch.experience.actor import Actor
from isobatch.experience.copies import CopyWatch
from isobatch.experience.rollout import Rollout
from isobatch.normalize import Following


@dataclass
class Collector:
    """Steps the environments with a policy; knows where each environment stands."""

    env: BatchedEnv
    device: torch.device
    chunk_size: int
    observation: Observation = field(init=False)
    first: Tensor = field(init=False)
    steps_taken: int = 0
    followed: bool = False
    """Whether statistics that are updated by step have taken in `observation`."""
    on_actions: Callable[[Tensor, Tensor | None], None] | None = None
    """Is given the actions [T, N, K] of steps taken; with the restarts [N] before the only one."""

    def __post_init__(self) -> None:
        self.observation = self._on_device(self.env.reset())
        self.first = torch.ones(self.env.n_envs, dtype=torch.bool, device=self.device)
        self._float = torch.zeros((), device=self.device)
        self._copies = CopyWatch(self.env)

    @torch.no_grad()
    def collect(
        self,
        actor: Actor,
        n_steps: int,
        row_limit: int | None = None,
    ) -> Rollout:
        """Collect up to `n_steps` steps of every environment.

        With `row_limit`, stop before the transitions could exceed it: the data budget's last
        rollout is shortened so that it is never overrun.
        """
        began, self._env_seconds, n_envs = time.perf_counter(), 0.0, self.env.n_envs
        draw, noise = actor.drawing(n_envs), actor.noise(n_steps, n_envs, self._float)
        record = Recorder(
            n_steps, self.device, has_images=self.env.observation_layout.image is not None
        )
        record.see(self.observation)
        follow = self._follow(actor)
        counted = 0
        with self.env.stepping():
            for t in range(n_steps):
                if row_limit is not None and counted + n_envs > row_limit:
                    break
                action, params, values = draw(self.observation, noise[t])
                step = self._step(action, t)
                self.observation = self._on_device(step.observation)
                record.add(action, params, values, step)
                record.see(self.observation)
                if follow is not None:
                    follow.see(self.observation, _acted_on_next(step))
                if row_limit is not None:
                    counted += int(step.valid.sum())
        observations = record.observations()
        self._check_finite(record, observations)
        self.steps_taken += record.length
        rollout = self._rollout(actor, record, observations, follow)
        if self.on_actions is not None:
            self.on_actions(rollout.actions, None)
        self._copies.see(rollout)
        rollout.collect_seconds = time.perf_counter() - began
        rollout.env_seconds = self._env_seconds
        return rollout

    @torch.no_grad()
    def advance(self, actor: Actor, restarted: Tensor | None = None) -> Tensor:
        """Take a step that nothing is kept of, and return where [N] it was a transition.

        Environments that are `restarted` [N] begin a new episode before it.
        """
        n_envs = self.env.n_envs
        (noise,) = actor.noise(1, n_envs, self._float)
        action = actor.drawing(n_envs)(self.observation, noise).actions
        step = self.env.step(action) if restarted is None else self.env.restart(restarted, action)
        self.observation, self.followed = self._on_device(step.observation), False
        self.first = (step.terminated | step.truncated | ~step.valid).to(self.device)
        self.steps_taken += 1
        if self.on_actions is not None:
            self.on_actions(action[None], restarted)
        return step.valid

    def repeat(self, actions: Tensor, restarted: Tensor | None) -> None:
        """Take steps again, of actions [T, N, K] that were given to `on_actions`.

        What they lead to has been taken into the statistics.
        """
        with self.env.stepping():
            for action in actions:
                step = (
                    self.env.step(action)
                    if restarted is None
                    else self.env.restart(restarted, action)
                )
                self.observation = self._on_device(step.observation)
        self.followed = True

    def _follow(self, actor: Actor) -> Following | None:
        """Begin to take in every step where the statistics are updated by step."""
        follow = actor.following()
        if follow is not None and self.followed:
            follow.remember()
        elif follow is not None:
            follow.see(self.observation)
        self.followed = follow is not None
        return follow

    def _step(self, action: Tensor, t: int) -> Step:
        began = time.perf_counter()
        try:
            step = self.env.step(action)
            self._env_seconds += time.perf_counter() - began
            return step
        except ActionNotFinite as error:
            # Usually the environment's own doing: say so if it is.
            self._refuse("an observation", self.observation, self.steps_taken + t)
            raise UserError(f"{self.env.name}, step {self.steps_taken + t}: {error}") from None

    def _rollout(
        self,
        actor: Actor,
        record: Recorder,
        observations: Observation,
        follow: Following | None,
    ) -> Rollout:
        seen = observations
        if follow is not None:
            actor, seen = actor.plain, follow.seen(observations)
        actions, params = record.stacked("actions"), record.stacked("params")
        terminated, truncated = record.stacked("terminated"), record.stacked("truncated")
        valid, rewards = record.stacked("valid"), record.stacked("reward")
        done = terminated | truncated
        over = record.stacked("over") if "over" in record else done
        dropped = record.stacked("dropped") if "dropped" in record else None
        if dropped is not None:
            # Its last transition led to where it was lost: valued like a truncation, no episode.
            truncated[:-1] |= dropped[1:] & valid[:-1] & ~done[:-1]
            done = terminated | truncated
        logp = actor.distribution.log_prob(params.flatten(0, 1), actions.flatten(0, 1))
        return Rollout(
            observations=observations,
            actions=actions,
            params=params,
            logp=logp.view(rewards.shape),
            values=self._values(actor, seen, record),
            rewards=rewards,
            terminated=terminated,
            truncated=truncated,
            valid=valid,
            first=self._first_rows(done, valid),
            final_values=self._final_values(actor, truncated, record, follow),
            scores=record.stacked("score") if "score" in record else rewards,
            over=over,
            dropped=dropped,
            vectors=None if follow is None else seen["vector"],
        )

    def _values(self, actor: Actor, observations: Observation, record: Recorder) -> Tensor:
        """Return values [T+1, N]: those computed while acting, or all of them now, in chunks."""
        if "values" not in record:
            return actor.values(observations, self.chunk_size)
        last = {part: rows[-1:] for part, rows in observations.items()}
        return torch.cat([record.stacked("values"), actor.values(last, self.chunk_size)])

    def _final_values(
        self, actor: Actor, truncated: Tensor, record: Recorder, follow: Following | None
    ) -> Tensor | None:
        """Value the final observations of truncated episodes, where they were given apart."""
        if not record.finals:
            return None
        final_values = torch.zeros(truncated.shape, device=self.device)
        for t, final in record.finals.items():
            ended = truncated[t]
            if bool(ended.any()):
                seen = self._on_device(final)
                seen = seen if follow is None else follow.seen_at(t + 1, seen)
                final_values[t, ended] = actor.values_where(seen, ended)
        return final_values

    def _first_rows(self, done: Tensor, valid: Tensor) -> Tensor:
        """Mark the rows that begin an episode, and remember it for the next rollout.

        A row is first after a done row, or, where a reset row lies between, after that one.
        """
        ended = done | ~valid
        begins = torch.cat([self.first[None], ended[:-1]]) & valid
        self.first = ended[-1]
        return begins

    def _check_finite(self, record: Recorder, observations: Observation) -> None:
        """Refuse rewards and observations that are not finite, naming environment and step."""
        before = self.steps_taken
        self._refuse("a reward", {"": record.stacked("reward")}, before + 1)
        self._refuse("an observation", observations, before)
        truncated = record.stacked("truncated")
        for t, final in record.finals.items():
            rows = {
                part: torch.where(_like(truncated[t], tensor), tensor, 0)
                for part, tensor in self._on_device(final).items()
            }
            self._refuse("a final observation", rows, before + t + 1)

    def _refuse(self, what: str, parts: Observation, step: int) -> None:
        """Raise where a part [N, ...] of one step, or [T, N, ...] of several, is not finite."""
        for part, tensor in parts.items():
            if not tensor.is_floating_point() or bool(torch.isfinite(tensor).all()):
                continue
            axes = len(self.env.observation_layout.shapes.get(part, ()))
            rows = tensor.reshape(-1, self.env.n_envs, *tensor.shape[tensor.ndim - axes :])
            bad = (~torch.isfinite(rows)).flatten(2).any(2) if axes else ~torch.isfinite(rows)
            row, index = (int(place) for place in bad.nonzero()[0])
            raise UserError(
                f"{self.env.name} gave {what} that is not finite "
                f"(environment {index}, step {step + row})"
            )

    def _on_device(self, observation: Observation) -> Observation:
        if self.device.type == "cpu":
            return observation
        return {part: tensor.to(self.device) for part, tensor in observation.items()}


class Recorder:
    """What was seen and done at each step, in order.

    Rows are kept as they come and stacked at the end. Beside images they are written in place:
    small blocks kept between a convolution's large ones would fragment the memory.
    """

    def __init__(self, n_steps: int, device: torch.device, has_images: bool) -> None:
        self.finals: dict[int, Observation] = {}
        self.length = 0
        self._n_steps, self._device, self._in_place = n_steps, device, has_images
        self._seen: list[Observation] = []
        self._rows: list[dict[str, Tensor | None]] = []
        self._columns: dict[str, Tensor] = {}

    def __contains__(self, name: str) -> bool:
        if self._in_place:
            return name in self._columns
        return self._rows[0][name] is not None

    def see(self, observation: Observation) -> None:
        """Add an observation: one more of them than of steps."""
        if self._in_place:
            for part, tensor in observation.items():
                self._write(f"observation {part}", tensor)
        else:
            self._seen.append(observation)

    def add(self, action: Tensor, params: Tensor, values: Tensor | None, step: Step) -> None:
        """Add one step, before the observation that follows it is seen."""
        row = {
            "actions": action,
            "params": params,
            "values": values,
            "reward": step.reward,
            "terminated": step.terminated,
            "truncated": step.truncated,
            "valid": step.valid,
            "score": step.score,
            "over": step.over,
            "dropped": step.dropped,
        }
        if step.final is not None:
            self.finals[self.length] = step.final
        if self._in_place:
            for name, tensor in row.items():
                if tensor is not None:
                    self._write(name, tensor)
        else:
            self._rows.append(row)
        self.length += 1

    def stacked(self, name: str) -> Tensor:
        """Return a column [T, N, ...]."""
        if not self._in_place and name not in self._columns:
            rows = [row[name] for row in self._rows]
            self._columns[name] = torch.stack([row for row in rows if row is not None])
        return self._columns[name][: self.length].to(self._device)

    def observations(self) -> Observation:
        """Return the observations [T+1, N, ...]."""
        if not self._in_place:
            parts = self._seen[0]
            return {part: torch.stack([each[part] for each in self._seen]) for part in parts}
        return {
            name.removeprefix("observation "): column[: self.length + 1]
            for name, column in self._columns.items()
            if name.startswith("observation ")
        }

    def _write(self, name: str, row: Tensor) -> None:
        if name not in self._columns:
            shape = (self._n_steps + 1, *row.shape)
            self._columns[name] = torch.empty(shape, dtype=row.dtype, device=self._device)
        self._columns[name][self.length] = row


def _acted_on_next(step: Step) -> Tensor | None:
    """Return where [N] a step's observation is acted on next; None: everywhere.

    Where environments reset on the next step the final observation of an episode is not.
    """
    ended = step.terminated | step.truncated
    return None if step.final is not None or not bool(ended.any()) else ~ended


def _like(flags: Tensor, tensor: Tensor) -> Tensor:
    """View flags [N] so that they broadcast over [N, ...]."""
    return flags.view(-1, *[1] * (tensor.ndim - 1))
