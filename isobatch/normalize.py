"""Running statistics of observations and rewards."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class RunningMoments:
    """Mean and variance of all rows seen, merged batch by batch (Chan et al. 1979), in float64."""

    def __init__(self, shape: tuple[int, ...] = (), device: torch.device | str = "cpu") -> None:
        self.mean = torch.zeros(shape, dtype=torch.float64, device=device)
        self.var = torch.ones(shape, dtype=torch.float64, device=device)
        # A little weight on (0, 1), as the reference has, keeps the first division defined.
        self.count = torch.tensor(1e-4, dtype=torch.float64, device=device)

    def update(self, rows: Tensor) -> None:
        """Take in rows [B, *shape]."""
        if not len(rows):
            return
        rows = rows.double()
        mean, var, count = rows.mean(0), rows.var(0, correction=0), len(rows)
        total = self.count + count
        shift = mean - self.mean
        squares = self.var * self.count + var * count + shift**2 * self.count * count / total
        self.mean = self.mean + shift * count / total
        self.var = squares / total
        self.count = total

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

    R_t = r_t + gamma R_{t-1} (1 - first_t);  r'_t = clip(r_t / sqrt(Var R + 1e-8))

    The whole rollout enters the statistics before it is divided by them (Cobbe et al. 2020).
    """

    def __init__(
        self,
        n_envs: int,
        gamma: float = 0.99,
        clip: float = 10.0,
        device: torch.device | str = "cpu",
    ) -> None:
        self.gamma = gamma
        self.clip = clip
        self.moments = RunningMoments(device=device)
        self.running = torch.zeros(n_envs, device=device)

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
        self.moments.update(returns.reshape(-1) if valid is None else returns[valid])
        return self.scaled(rewards)

    def scaled(self, rewards: Tensor) -> Tensor:
        """Divide rewards by the deviation as it stands."""
        scale = (self.moments.var + 1e-8).sqrt().to(rewards.dtype)
        return torch.clamp(rewards / scale, -self.clip, self.clip)

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

    The statistics are frozen within an iteration, so that the policy that acted and the policy
    that is updated read the same observation, and take in the rollout after the update.
    """

    CLIP = 10.0

    def __init__(self, width: int | None, device: torch.device | str = "cpu") -> None:
        self.moments = RunningMoments((width,), device) if width else None
        self._refresh()

    def __call__(self, observation: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the observation with 'vector' [..., D] normalised and clipped at 10."""
        if self.moments is None:
            return observation
        vector = (observation["vector"] - self._shift) * self._scale
        return observation | {"vector": vector.clamp_(-self.CLIP, self.CLIP)}

    def update(self, rows: Tensor) -> None:
        """Take in vectors [B, D]."""
        if self.moments is not None:
            self.moments.update(rows)
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
        joined = cls(None)
        if each[0].moments is not None:
            joined.moments = each[0].moments
            joined._shift = torch.stack([own._shift for own in each]).repeat_interleave(n_rows, 0)
            joined._scale = torch.stack([own._scale for own in each]).repeat_interleave(n_rows, 0)
        return joined

    def _refresh(self) -> None:
        if self.moments is not None:
            self._shift = self.moments.mean.float()
            self._scale = (self.moments.var + 1e-8).rsqrt().float()
