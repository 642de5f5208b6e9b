"""Optimisers over a model's parameters as one vector, and the schedules of their step size."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor, nn

from isobatch.recipe import Optimizer, RateSchedule

RATE_FACTOR = 1.5
"""By how much a step size that follows the KL divergence changes at once, as in rsl_rl."""


class FlatParameters:
    """A module's parameters and gradients laid end to end in two tensors.

    The module's own parameters become views, so nothing else changes; zeroing, clipping and
    stepping become one operation each, which for small networks halves their cost.
    """

    def __init__(self, module: nn.Module) -> None:
        named = _trainable(module)
        # A clone is dense even where the parameter is a slice, and keeps its order in memory.
        dense = {name: each.detach().clone() for name, each in named}
        self._orders = {name: _memory_order(each) for name, each in dense.items()}
        self.vector = nn.Parameter(torch.cat([_entries(each) for each in dense.values()]))
        self.gradient = torch.zeros_like(self.vector)
        self.vector.grad = self.gradient
        self.lay(module, self.vector.detach(), self.gradient)

    def share(self, module: nn.Module) -> Tensor:
        """Give a copy of the module these very weights; return its own gradients, end to end."""
        gradient = torch.zeros_like(self.gradient)
        self.lay(module, self.vector.detach(), gradient)
        return gradient

    def move(self, module: nn.Module, vector: Tensor, gradient: Tensor) -> None:
        """Keep parameters and gradients of the module in these two from now on."""
        with torch.no_grad():
            vector.copy_(self.vector)
        self.vector, self.gradient = nn.Parameter(vector), gradient
        self.vector.grad = gradient
        self.lay(module, vector, gradient)

    def lay(self, module: nn.Module, vector: Tensor, gradient: Tensor) -> None:
        """Make a module's parameters and gradients views of these, [P] or stacked [S, P]."""
        weights, gradients = self.views(vector), self.views(gradient)
        for name, each in _trainable(module):
            each.grad = None
            each.data, each.grad = weights[name], gradients[name]

    def views(self, vector: Tensor) -> dict[str, Tensor]:
        """Return a vector's parts in the parameters' shapes, under the module's names for them.

        Of vectors stacked, [S, P], the parts are stacked: [S, ...].
        """
        parts = vector.split([math.prod(shape) for shape, _ in self._orders.values()], -1)
        before = vector.ndim - 1
        return {
            name: part.view(*part.shape[:-1], *shape).permute(
                *range(before), *(before + axis for axis in order)
            )
            for (name, (shape, order)), part in zip(self._orders.items(), parts, strict=True)
        }


class FlatOptimizer(Protocol):
    """An optimiser of `FlatParameters`: an update rule and its state."""

    def step(self, settings: Optimizer, learning_rate: float) -> None:
        """Move the parameters along the gradient in place."""
        ...

    def rescale_noise(self, factor: float) -> None:
        """Go on with gradients whose noise has `factor` times the variance it had."""
        ...

    def state_dict(self) -> dict[str, Tensor]:
        """Return what a checkpoint keeps."""
        ...

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore from `state_dict`."""
        ...


class Adam:
    """Adam (Kingma & Ba 2014) on flat parameters.

    m <- m + (1 - b1)(g - m),  v <- b2 v + (1 - b2) g^2,
    theta <- theta - lr m' / (sqrt(v') + eps),  m' = m / (1 - b1^t), v' = v / (1 - b2^t)
    """

    def __init__(self, parameters: FlatParameters) -> None:
        self.parameters = parameters
        self.mean = torch.zeros_like(parameters.gradient)
        self.square = torch.zeros_like(parameters.gradient)
        self.count = 0

    @torch.no_grad()
    def step(self, settings: Optimizer, learning_rate: float) -> None:
        """Take one step.

        By the kernel of torch.optim.Adam(fused=True): one pass over the parameters, not six. By
        way of torch.optim it would cost a small network what it saves.
        """
        self.count += 1
        torch._fused_adam_(  # pyright: ignore[reportPrivateImportUsage]
            [self.parameters.vector], [self.parameters.gradient], [self.mean], [self.square],
            [], [torch.tensor(float(self.count), device=self.mean.device)],
            lr=learning_rate, beta1=settings.adam_beta1, beta2=settings.adam_beta2,
            weight_decay=0.0, eps=settings.adam_eps, amsgrad=False, maximize=False,
        )  # fmt: skip

    def _take_in_gradient(self, settings: Optimizer) -> None:
        beta1, beta2 = settings.adam_beta1, settings.adam_beta2
        gradient = self.parameters.gradient
        self.count += 1
        self.mean.lerp_(gradient, 1 - beta1)
        self.square.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)

    def rescale_noise(self, factor: float) -> None:
        """v is the mean square of gradients that are mostly noise; m forgets in ten steps."""
        self.square.mul_(factor)

    def state_dict(self) -> dict[str, Tensor]:
        """Return what a checkpoint keeps."""
        return {"mean": self.mean, "square": self.square, "count": torch.tensor(self.count)}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore from `state_dict`."""
        self.mean.copy_(state["mean"])
        self.square.copy_(state["square"])
        self.count = int(state["count"])


class RAdam(Adam):
    """Rectified Adam (Liu et al. 2019): Adam whose step waits until its variance is known.

    rho_t = rho - 2 t b2^t / (1 - b2^t),  rho = 2 / (1 - b2) - 1. Above 5 the step is
    Adam's times sqrt((rho_t - 4)(rho_t - 2) rho / ((rho - 4)(rho - 2) rho_t)); up to there it is
    lr m', without the second moment.
    """

    @torch.no_grad()
    def step(self, settings: Optimizer, learning_rate: float) -> None:
        """Take one step."""
        beta1, beta2 = settings.adam_beta1, settings.adam_beta2
        self._take_in_gradient(settings)
        decayed = beta2**self.count
        longest = 2 / (1 - beta2) - 1
        length = longest - 2 * self.count * decayed / (1 - decayed)
        size = learning_rate / (1 - beta1**self.count)
        if length <= 5:
            self.parameters.vector.add_(self.mean, alpha=-size)
            return
        rectified = (length - 4) * (length - 2) * longest
        rectified /= (longest - 4) * (longest - 2) * length
        size *= math.sqrt(rectified * (1 - decayed))
        spread = self.square.sqrt().add_(settings.adam_eps)
        self.parameters.vector.addcdiv_(self.mean, spread, value=-size)


class RmsProp:
    """RMSprop (Tieleman & Hinton 2012) on flat parameters.

    v <- a v + (1 - a) g^2,  theta <- theta - lr g / (sqrt(v) + eps)
    """

    def __init__(self, parameters: FlatParameters) -> None:
        self.parameters = parameters
        self.square = torch.zeros_like(parameters.gradient)

    @torch.no_grad()
    def step(self, settings: Optimizer, learning_rate: float) -> None:
        """Take one step."""
        gradient, decay = self.parameters.gradient, settings.rms_decay
        self.square.mul_(decay).addcmul_(gradient, gradient, value=1 - decay)
        spread = self.square.sqrt().add_(settings.adam_eps)
        self.parameters.vector.addcdiv_(gradient, spread, value=-learning_rate)

    def rescale_noise(self, factor: float) -> None:
        """v is the mean square of gradients that are mostly noise."""
        self.square.mul_(factor)

    def state_dict(self) -> dict[str, Tensor]:
        """Return what a checkpoint keeps."""
        return {"square": self.square}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore from `state_dict`."""
        self.square.copy_(state["square"])


class Sgd:
    """Gradient descent with momentum on flat parameters: u <- mu u + g, theta <- theta - lr u."""

    def __init__(self, parameters: FlatParameters) -> None:
        self.parameters = parameters
        self.velocity = torch.zeros_like(parameters.gradient)

    @torch.no_grad()
    def step(self, settings: Optimizer, learning_rate: float) -> None:
        """Take one step."""
        self.velocity.mul_(settings.momentum).add_(self.parameters.gradient)
        self.parameters.vector.add_(self.velocity, alpha=-learning_rate)

    def rescale_noise(self, factor: float) -> None:
        """Nothing here depends on the size of the noise."""

    def state_dict(self) -> dict[str, Tensor]:
        """Return what a checkpoint keeps."""
        return {"velocity": self.velocity}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore from `state_dict`."""
        self.velocity.copy_(state["velocity"])


OPTIMIZERS: dict[str, Callable[[FlatParameters], FlatOptimizer]] = {
    "adam": Adam, "radam": RAdam, "rmsprop": RmsProp, "sgd": Sgd,
}  # fmt: skip


def make_optimizer(parameters: FlatParameters, settings: Optimizer) -> FlatOptimizer:
    """Return the recipe's optimiser."""
    return OPTIMIZERS[settings.optimizer](parameters)


class AdaptiveRate:
    """A step size that follows the KL divergence from the policy that acted, as rsl_rl has it.

    lr <- max(lr / 1.5, least) if KL > 2 desired,  min(1.5 lr, most) if 0 < KL < desired / 2
    """

    def __init__(self, rate: float) -> None:
        self.rate = rate

    def follow(self, kl: Tensor, settings: Optimizer) -> float:
        """Take in the mean KL of the minibatch that is stepped on next; return its step size."""
        if kl > 2 * settings.desired_kl:
            self.rate = max(settings.min_learning_rate, self.rate / RATE_FACTOR)
        elif 0 < kl < settings.desired_kl / 2:
            self.rate = min(settings.max_learning_rate, self.rate * RATE_FACTOR)
        return self.rate

    def state_dict(self) -> dict[str, Tensor]:
        """Return what a checkpoint keeps."""
        return {"rate": torch.tensor(self.rate, dtype=torch.float64)}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore from `state_dict`."""
        self.rate = float(state["rate"])


def scheduled(value: float, schedule: RateSchedule, env_steps: int, total_timesteps: int) -> float:
    """Return a hyperparameter at `env_steps`: linear to 0 at the budget's end, or as it is."""
    if schedule != "linear":
        return value
    return value * max(0.0, 1.0 - env_steps / total_timesteps)


def _trainable(module: nn.Module) -> list[tuple[str, nn.Parameter]]:
    return [(name, each) for name, each in module.named_parameters() if each.requires_grad]


def _memory_order(tensor: Tensor) -> tuple[list[int], list[int]]:
    """Return (shape with the axes as they lie in memory, the permutation back)."""
    axes = sorted(range(tensor.ndim), key=lambda axis: -tensor.stride(axis))
    return [tensor.shape[axis] for axis in axes], [axes.index(axis) for axis in range(tensor.ndim)]


def _entries(tensor: Tensor) -> Tensor:
    """Return a dense tensor's entries in the order they lie in memory."""
    return tensor.as_strided((tensor.numel(),), (1,))
