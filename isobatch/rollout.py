"""Collecting experience: N environments, T steps, time-major."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from isobatch.envs import BatchedEnv, Observation, Step
from isobatch.envs.spaces import ActionNotFinite, ObservationLayout
from isobatch.errors import UserError
from isobatch.models import ActorCritic
from isobatch.models.acting import Prepare, acting


@dataclass
class Rollout:
    """One iteration's experience, time-major, on the training device.

    Only rows that are `valid` are transitions; the others never enter a loss, count or moment.
    """

    observations: Observation
    """[T+1, N, ...]; row t+1 follows row t, and the last row is acted on in the next rollout."""
    actions: Tensor
    """[T, N, K] in policy form."""
    params: Tensor
    """[T, N, P]: the acting policy's distribution parameters."""
    logp: Tensor
    """[T, N]: the acting policy's log-probability of the action."""
    values: Tensor
    """[T+1, N]: acting-time values of `observations`."""
    rewards: Tensor
    """[T, N] as the environment gave them for training."""
    terminated: Tensor
    truncated: Tensor
    valid: Tensor
    """[T, N] bool."""
    first: Tensor
    """[T, N] bool: the row begins an episode."""
    final_values: Tensor | None
    """[T, N]: value of the final observation where an episode was truncated and the environment
    reset in the same step; None where `observations` itself holds the final ones."""
    scores: Tensor
    """[T, N] the environment's own rewards."""
    over: Tensor
    """[T, N] bool: a whole episode (game) ended."""

    @property
    def n_valid(self) -> int:
        """Transitions in the rollout."""
        return int(self.valid.sum())


@dataclass
class Collector:
    """Steps the environments with a policy; knows where each environment stands."""

    env: BatchedEnv
    device: torch.device
    chunk_size: int
    observation: Observation = field(init=False)
    first: Tensor = field(init=False)
    steps_taken: int = 0

    def __post_init__(self) -> None:
        self.observation = self._on_device(self.env.reset())
        self.first = torch.ones(self.env.n_envs, dtype=torch.bool, device=self.device)
        self._steps: list[Step] = []

    @torch.no_grad()
    def collect(
        self,
        model: ActorCritic,
        prepare: Prepare,
        generator: torch.Generator,
        n_steps: int,
        row_limit: int | None = None,
    ) -> Rollout:
        """Collect up to `n_steps` steps of every environment.

        With `row_limit`, stop before the transitions could exceed it: the data budget's last
        rollout is shortened so that it is never overrun.
        """
        n_envs = self.env.n_envs
        act, distribution = acting(model, prepare, n_envs), model.distribution
        noise = distribution.noise((n_steps, n_envs), model.value_head.weight, generator).unbind()
        seen = ObservationBuffer(self.env.observation_layout, n_steps + 1, n_envs, self.device)
        seen.append(self.observation)
        actions, params, values = [], [], []
        self._steps = steps = []
        counted = 0
        for t in range(n_steps):
            if row_limit is not None and counted + n_envs > row_limit:
                break
            step_params, step_values = act(self.observation)
            action = distribution.sample(step_params, noise[t])
            step = self._step(action)
            self.observation = self._on_device(step.observation)
            seen.append(self.observation)
            actions.append(action)
            params.append(step_params)
            values.append(step_values)
            steps.append(step)
            if row_limit is not None:
                counted += int(step.valid.sum())
        self.steps_taken += len(steps)
        observations = seen.stacked()
        self._check_finite(observations)
        return self._assemble(model, prepare, observations, actions, params, values)

    def _step(self, action: Tensor) -> Step:
        try:
            return self.env.step(action)
        except ActionNotFinite as error:
            # Usually the environment's own doing: say so if it is.
            self.steps_taken += len(self._steps)
            self._check_finite({part: tensor[None] for part, tensor in self.observation.items()})
            raise UserError(f"{self.env.name}, step {self.steps_taken}: {error}") from None

    def _assemble(
        self,
        model: ActorCritic,
        prepare: Prepare,
        observations: Observation,
        actions: list[Tensor],
        params: list[Tensor],
        values: list[Tensor | None],
    ) -> Rollout:
        steps, device = self._steps, self.device
        stacked_actions, stacked_params = torch.stack(actions), torch.stack(params)
        terminated = torch.stack([step.terminated for step in steps]).to(device)
        truncated = torch.stack([step.truncated for step in steps]).to(device)
        valid = torch.stack([step.valid for step in steps]).to(device)
        rewards = torch.stack([step.reward for step in steps]).to(device)
        over = terminated | truncated
        first = self._first_rows(over, valid)
        if steps[0].score is not None:
            scores = torch.stack([_given(step.score) for step in steps]).to(device)
            over = torch.stack([_given(step.over) for step in steps]).to(device)
        else:
            scores = rewards
        logp = model.distribution.log_prob(
            stacked_params.flatten(0, 1), stacked_actions.flatten(0, 1)
        )
        return Rollout(
            observations=observations,
            actions=stacked_actions,
            params=stacked_params,
            logp=logp.view(rewards.shape),
            values=self._values(model, prepare, observations, values),
            rewards=rewards,
            terminated=terminated,
            truncated=truncated,
            valid=valid,
            first=first,
            final_values=self._final_values(model, prepare, truncated),
            scores=scores,
            over=over,
        )

    def _values(
        self,
        model: ActorCritic,
        prepare: Prepare,
        observations: Observation,
        acting: list[Tensor | None],
    ) -> Tensor:
        """Return values [T+1, N]: those computed while acting, or all of them now, in chunks."""
        if acting[0] is not None:
            last = model.values(prepare(self.observation))
            return torch.stack([*(_given(value) for value in acting), last])
        flat = {part: tensor.flatten(0, 1) for part, tensor in observations.items()}
        rows = len(acting) + 1, self.env.n_envs
        return chunked_values(model, prepare, flat, self.chunk_size).view(rows)

    def _final_values(
        self, model: ActorCritic, prepare: Prepare, truncated: Tensor
    ) -> Tensor | None:
        """Value the final observations of truncated episodes, where they were given apart."""
        if all(step.final is None for step in self._steps):
            return None
        final_values = torch.zeros(truncated.shape, device=self.device)
        for t, step in enumerate(self._steps):
            if step.final is not None and bool(truncated[t].any()):
                rows = {p: o.to(self.device)[truncated[t]] for p, o in step.final.items()}
                final_values[t, truncated[t]] = model.values(prepare(rows))
        return final_values

    def _first_rows(self, done: Tensor, valid: Tensor) -> Tensor:
        """Mark the rows that begin an episode, and remember it for the next rollout.

        A row is first after a done row, or, where a reset row lies between, after that one.
        """
        ended = done | ~valid
        begins = torch.cat([self.first[None], ended[:-1]]) & valid
        self.first = ended[-1]
        return begins

    def _check_finite(self, observations: Observation) -> None:
        """Refuse rewards and observations that are not finite, naming the environment.

        `observations` [t, N, ...] are the last t seen.
        """
        given = dict(observations)
        if self._steps:
            given["reward"] = torch.stack([step.reward for step in self._steps])
        for part in observations if any(step.final for step in self._steps) else ():
            given[f"final {part}"] = torch.stack([_ended(step, part) for step in self._steps])
        for part, tensor in given.items():
            if not tensor.is_floating_point() or bool(torch.isfinite(tensor).all()):
                continue
            bad = (~torch.isfinite(tensor)).reshape(*tensor.shape[:2], -1).any(2)
            row, index = (int(place) for place in bad.nonzero()[0])
            what = "a reward" if part == "reward" else "an observation"
            raise UserError(
                f"{self.env.name} gave {what} that is not finite "
                f"(environment {index}, step {self.steps_taken - len(tensor) + row + 1})"
            )

    def _on_device(self, observation: Observation) -> Observation:
        if self.device.type == "cpu":
            return observation
        return {part: tensor.to(self.device) for part, tensor in observation.items()}


class ObservationBuffer:
    """Observations in the order seen: images are copied into place, vectors stacked at the end."""

    def __init__(
        self, layout: ObservationLayout, length: int, n_envs: int, device: torch.device
    ) -> None:
        self._vectors: list[Tensor] = []
        self._has_vectors = layout.vector is not None
        self._images = None
        if layout.image is not None:
            shape = (length, n_envs, *layout.image)
            self._images = torch.empty(shape, dtype=layout.dtypes["image"], device=device)
        self._length = 0

    def append(self, observation: Observation) -> None:
        """Add one row [N, ...]."""
        if self._has_vectors:
            self._vectors.append(observation["vector"])
        if self._images is not None:
            self._images[self._length] = observation["image"]
        self._length += 1

    def stacked(self) -> Observation:
        """Return all rows [T, N, ...]."""
        parts: Observation = {}
        if self._images is not None:
            parts["image"] = self._images[: self._length]
        if self._has_vectors:
            parts["vector"] = torch.stack(self._vectors)
        return parts


class EpisodeTracker:
    """Returns and lengths of finished episodes, from the environments' own rewards."""

    WINDOW = 100

    def __init__(self, n_envs: int) -> None:
        self.returns: deque[float] = deque(maxlen=self.WINDOW)
        self.lengths: deque[int] = deque(maxlen=self.WINDOW)
        self.finished = 0
        self._return = np.zeros(n_envs)
        self._length = np.zeros(n_envs, np.int64)

    def update(self, rollout: Rollout) -> None:
        """Take in a rollout; episodes are recorded in the order they ended."""
        valid = rollout.valid.cpu().numpy()
        scores = np.cumsum(np.where(valid, rollout.scores.cpu().numpy(), 0.0), 0, dtype=float)
        steps = np.cumsum(valid, 0)
        scores += self._return
        steps += self._length
        ended = np.zeros_like(self._return), np.zeros_like(self._length)
        for t, n in np.argwhere(rollout.over.cpu().numpy() & valid):
            self.returns.append(float(scores[t, n] - ended[0][n]))
            self.lengths.append(int(steps[t, n] - ended[1][n]))
            self.finished += 1
            ended[0][n], ended[1][n] = scores[t, n], steps[t, n]
        self._return, self._length = scores[-1] - ended[0], steps[-1] - ended[1]

    @property
    def mean_return(self) -> float | None:
        """Mean return of the last 100 episodes, None before the first ended."""
        return float(np.mean(self.returns)) if self.returns else None

    @property
    def mean_length(self) -> float | None:
        """Mean length of the last 100 episodes, None before the first ended."""
        return float(np.mean(self.lengths)) if self.lengths else None

    def state_dict(self) -> dict:
        """Return what a checkpoint keeps; episodes under way are lost with their environments."""
        return {
            "returns": list(self.returns),
            "lengths": list(self.lengths),
            "finished": self.finished,
        }

    def load_state_dict(self, state: dict) -> None:
        """Restore from `state_dict`."""
        self.returns.extend(state["returns"])
        self.lengths.extend(state["lengths"])
        self.finished = state["finished"]


def chunked_values(
    model: ActorCritic, prepare: Prepare, rows: Observation, chunk_size: int
) -> Tensor:
    """Return values [B] of observation rows [B, ...], a chunk at a time."""
    count = len(next(iter(rows.values())))
    parts = []
    for start in range(0, count, chunk_size):
        chunk = {part: tensor[start : start + chunk_size] for part, tensor in rows.items()}
        parts.append(model.values(prepare(chunk)))
    return torch.cat(parts)


def _ended(step: Step, part: str) -> Tensor:
    """Return a same-step vector's final observations, zero where no episode ended."""
    last = step.observation[part] if step.final is None else step.final[part]
    ended = step.truncated if step.final is not None else torch.zeros_like(step.truncated)
    return torch.where(ended.view(-1, *[1] * (last.ndim - 1)), last, torch.zeros_like(last))


def _given(tensor: Tensor | None) -> Tensor:
    assert tensor is not None
    return tensor
