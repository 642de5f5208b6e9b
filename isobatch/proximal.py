"""Which policy limits the step: an average of recent ones."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn


class Ewma:
    """Bias-corrected exponentially weighted average of a module's parameters.

    W <- b W + 1,  avg <- avg + (theta - avg) / W,  W = 1 at the start,

    which weights theta from k updates ago by b^k. Parameters only: buffers keep their
    values from the start. Its
    centre of mass is 1 / (1 - b) - 1 updates (Hilton et al. 2021, section 4).
    """

    def __init__(self, module: nn.Module, decay: float) -> None:
        self.decay = decay
        self.module = copy.deepcopy(module).requires_grad_(False)
        self.weight = 1.0
        self._source = list(module.parameters())
        self._average = list(self.module.parameters())

    @torch.no_grad()
    def update(self) -> None:
        """Take in the source's parameters as they are now."""
        self.weight = self.decay * self.weight + 1
        for average, current in zip(self._average, self._source, strict=True):
            average.lerp_(current, 1 / self.weight)

    def change_decay(self, decay: float) -> None:
        """Go on with another decay; what the average remembers is worth as many samples as before.

        W <- 1 + (W - 1) com' / com: a settled average, W - 1 = com, is one of the new decay.
        """
        if 0 < self.decay != decay:
            ratio = decay * (1 - self.decay) / (self.decay * (1 - decay))
            self.weight = 1 + (self.weight - 1) * ratio
        self.decay = decay

    @torch.no_grad()
    def reset(self) -> None:
        """Begin anew from the source's parameters as they are now."""
        self.weight = 1.0
        for average, current in zip(self._average, self._source, strict=True):
            average.copy_(current)

    def state_dict(self) -> dict[str, Tensor]:
        """Return what a checkpoint keeps."""
        return self.module.state_dict() | {
            "ewma_weight": torch.tensor(self.weight, dtype=torch.float64)
        }

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore from `state_dict`."""
        parameters = dict(state)
        self.weight = float(parameters.pop("ewma_weight"))
        self.module.load_state_dict(parameters)
