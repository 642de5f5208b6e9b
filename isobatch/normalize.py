"""Running statistics of observations and rewards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from isobatch.recipe import Normalize


class Moments(NamedTuple):
    """Of some rows [B, *shape], in float64."""

    mean: Tensor
    var: Tensor
    count: int


def moments_of(rows: Tensor) -> Moments:
    """Return the moments of rows [B, *shape]; of none, zeros."""
    rows = rows.double()
    if not len(rows):
        return Moments(rows.new_zeros(rows.shape[1:]), rows.new_zeros(rows.shape[1:]), 0)
    return Moments(rows.mean(0), rows.var(0, correction=0), len(rows))


class RunningMoments:
    """Mean and variance of all rows seen, merged batch by batch (Chan et al. 1979), in float64."""

    def __init__(self, shape: tuple[int, ...] = (), device: torch.device | str = "cpu") -> None:
        self.mean = torch.zeros(shape, dtype=torch.float64, device=device)
        self.var = torch.ones(shape, dtype=torch.float64, device=device)
        # A little weight on (0, 1), as the reference has, keeps the first division defined.
        self.count = torch.tensor(1e-4, dtype=torch.float64, device=device)

    def update(self, rows: Tensor) -> None:
        """Take in rows [B, *shape]."""
        self.merge(moments_of(rows))

    def merge(self, moments: Moments) -> None:
        """Take in rows by their moments."""
        mean, var, count = moments
        if not count:
            return
        total = self.count + count
        shift = mean - self.mean
        squares = self.var * self.count + var * count + shift**2 * self.count * count / total
        self.mean = self.mean + shift * count / total
        self.var = squares / total
        self.count = total

    def variances(self, rows: Tensor, valid: Tensor) -> Tensor:
        """Take in numbers [T, N] step by step; return the variance [T] after each step.

        With d = x - mean_0 and sums over all `valid` rows so far,
        Var_t = (n_0 Var_0 + sum d^2) / n_t - (sum d / n_t)^2.
        """
        apart = (rows.double() - self.mean) * valid
        count = self.count + valid.sum(1).cumsum(0)
        shift = apart.sum(1).cumsum(0) / count
        squares = self.var * self.count + (apart**2).sum(1).cumsum(0)
        found = squares / count - shift**2
        self.mean, self.var, self.count = self.mean + shift[-1], found[-1], count[-1]
        return found

    def state_dict(self) -> dict[str, Tensor]:
        """Return what a checkpoint keeps."""
        return {"mean": self.mean, "var": self.var, "count": self.count}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore from `state_dict`."""
        device = self.mean.device
        self.mean, self.var, self.count = (
            state[key].to(device) for key in ("mean", "var", "count")
        )


class RewardNormalizer:
    """Divide rewards by the running deviation of the discounted return; nothing is subtracted.

    R_t = r_t + gamma R_{t-1} (1 - first_t);  r'_t = clip(r_t / sqrt(Var R + epsilon))

    The whole rollout enters the statistics before it is divided by them (Cobbe et al. 2020). With
    `by_step` each step does, and is divided by what they then are (SB3's VecNormalize, Gymnasium).
    """

    def __init__(
        self,
        n_envs: int,
        gamma: float = 0.99,
        clip: float = 10.0,
        device: torch.device | str = "cpu",
        epsilon: float = 1e-8,
        by_step: bool = False,
    ) -> None:
        self.gamma, self.epsilon, self.by_step = gamma, epsilon, by_step
        self.clip = clip
        self.moments = RunningMoments(device=device)
        self.running = torch.zeros(n_envs, device=device)

    @classmethod
    def of(
        cls, settings: Normalize, n_envs: int, device: torch.device | str = "cpu"
    ) -> RewardNormalizer:
        """Return the one that a recipe's settings ask for."""
        return cls(
            n_envs,
            settings.reward_gamma,
            settings.reward_clip,
            device,
            settings.normalize_epsilon,
            settings.update_statistics == "step",
        )

    def __call__(self, rewards: Tensor, first: Tensor, valid: Tensor | None = None) -> Tensor:
        """Normalise rewards [T, N]; `first` [T, N] marks the row that begins an episode.

        Rows that are not `valid` are no part of the statistics.
        """
        carry = self.gamma * (~first).to(rewards.dtype)
        running = []
        for reward, keep in zip(rewards.unbind(), carry.unbind(), strict=True):
            self.running = torch.addcmul(reward, keep, self.running)
            running.append(self.running)
        returns = torch.stack(running)
        if self.by_step:
            counted = torch.ones_like(first) if valid is None else valid
            return self._divided(rewards, self.moments.variances(returns, counted)[:, None])
        self.moments.update(returns.reshape(-1) if valid is None else returns[valid])
        return self.scaled(rewards)

    def scaled(self, rewards: Tensor) -> Tensor:
        """Divide rewards by the deviation as it stands."""
        return self._divided(rewards, self.moments.var)

    def _divided(self, rewards: Tensor, variance: Tensor) -> Tensor:
        scaled = rewards / (variance + self.epsilon).sqrt().to(rewards.dtype)
        return torch.clamp(scaled, -self.clip, self.clip)

    def restart(self, n_envs: int) -> None:
        """Begin the running returns anew, for `n_envs` new environments."""
        self.running = self.running.new_zeros(n_envs)

    def state_dict(self) -> dict[str, Tensor]:
        """Return what a checkpoint keeps; the running returns end with their environments."""
        return self.moments.state_dict()

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore from `state_dict`."""
        self.moments.load_state_dict(state)


class ObservationNormalizer:
    """Centre and scale the vector part of observations; images pass through.

    x' = clip((x - mean) / sqrt(Var + epsilon))

    The statistics are frozen within an iteration, so that the policy that acted and the policy
    that is updated read the same observation, and take in the rollout after the update. With
    `by_step` they take in each step before it is acted on (`Following`).
    """

    def __init__(
        self,
        width: int | None,
        device: torch.device | str = "cpu",
        clip: float = 10.0,
        epsilon: float = 1e-8,
        by_step: bool = False,
    ) -> None:
        self.moments = RunningMoments((width,), device) if width else None
        self.clip, self.epsilon, self.by_step = clip, epsilon, by_step
        self._refresh()

    @classmethod
    def of(
        cls, settings: Normalize, width: int | None, device: torch.device | str = "cpu"
    ) -> ObservationNormalizer:
        """Return the one that a recipe's settings ask for, of vectors of this width."""
        return cls(
            width if settings.normalize_observations else None,
            device,
            settings.observation_clip,
            settings.normalize_epsilon,
            settings.update_statistics == "step",
        )

    def __call__(self, observation: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the observation with 'vector' [..., D] normalised and clipped."""
        if self.moments is None:
            return observation
        vector = self.normalized(observation["vector"], self._shift, self._scale)
        return observation | {"vector": vector}

    def normalized(self, vector: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
        """Return vectors normalised by a mean, `shift`, and the inverse of a deviation, `scale`."""
        normal = (vector - shift) * scale
        return normal.clamp_(-self.clip, self.clip) if self.clip else normal

    @property
    def now(self) -> tuple[Tensor, Tensor]:
        """The statistics as they are: what `normalized` subtracts and multiplies by, [D] each."""
        return self._shift, self._scale

    def update(self, rows: Tensor) -> None:
        """Take in vectors [B, D]."""
        self.merge([moments_of(rows)])

    def merge(self, parts: Sequence[Moments]) -> None:
        """Take in vectors by the moments of parts of them, in their order."""
        if self.moments is not None:
            for each in parts:
                self.moments.merge(each)
            self._refresh()

    def state_dict(self) -> dict[str, Tensor]:
        """Return what a checkpoint keeps."""
        return self.moments.state_dict() if self.moments else {}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore from `state_dict`."""
        if self.moments is not None:
            self.moments.load_state_dict(state)
            self._refresh()

    @classmethod
    def joined(cls, each: Sequence[ObservationNormalizer], n_rows: int) -> ObservationNormalizer:
        """Return, as they are now, several as one: the k-th for the k-th `n_rows` of the rows."""
        first = each[0]
        joined = cls(None, clip=first.clip, epsilon=first.epsilon)
        if first.moments is not None:
            joined.moments = first.moments
            joined._shift = torch.stack([own._shift for own in each]).repeat_interleave(n_rows, 0)
            joined._scale = torch.stack([own._scale for own in each]).repeat_interleave(n_rows, 0)
        return joined

    def _refresh(self) -> None:
        if self.moments is not None:
            self._shift = self.moments.mean.float()
            self._scale = (self.moments.var + self.epsilon).rsqrt().float()


class Following:
    """Statistics that take in each step's observations, and each step as it was seen through them.

    So what was acted on stays as it was, whatever the statistics become (SB3's VecNormalize).
    """

    def __init__(self, normalizer: ObservationNormalizer) -> None:
        self._normalizer = normalizer
        self._statistics: list[tuple[Tensor, Tensor]] = []

    def see(self, observation: dict[str, Tensor], new: Tensor | None = None) -> None:
        """Take in the rows `new` [N] of an observation [N, ...], all of them where None."""
        rows = observation["vector"]
        self._normalizer.update(rows if new is None else rows[new])
        self.remember()

    def remember(self) -> None:
        """Note that the next observation is seen through the statistics as they are."""
        self._statistics.append(self._normalizer.now)

    def seen(self, observations: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the observations [T+1, N, ...] of all steps as they were seen."""
        shift, scale = (torch.stack(each)[:, None] for each in zip(*self._statistics, strict=True))
        vector = self._normalizer.normalized(observations["vector"], shift, scale)
        return observations | {"vector": vector}

    def seen_at(self, step: int, observation: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return an observation [N, ...] as it was seen at the `step`-th of these steps."""
        vector = self._normalizer.normalized(observation["vector"], *self._statistics[step])
        return observation | {"vector": vector}
