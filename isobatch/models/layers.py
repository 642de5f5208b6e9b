"""Linear layers, how they begin, and activations, of one network or several stacked.

Small networks' time goes into calling operations, so those of a stack are one operation to
autograd, with the gradient written out.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional

Layer = TypeVar("Layer", nn.Linear, nn.Conv2d)
_is_traced = ContextVar("is_traced", default=False)


def initialise(layer: Layer, init: str, gain: float = math.sqrt(2), scale: float = 1.0) -> Layer:
    """Initialise a Linear or Conv2d of an encoder and return it.

    `orthogonal`: orthogonal rows times `gain`. `reference`: PyTorch's uniform rows brought to
    length `scale`, which bounds each output at the start (Cobbe et al. 2020, their code). Biases
    are zero in both. `torch`, `torch-encoder`: weights and biases as PyTorch has made them.
    """
    if init in ("torch", "torch-encoder"):
        return layer
    with torch.no_grad():
        if init == "orthogonal":
            nn.init.orthogonal_(layer.weight, gain)
        else:
            rows = layer.weight.flatten(1)
            rows *= scale / rows.norm(dim=1, keepdim=True)
        if layer.bias is not None:
            layer.bias.zero_()
    return layer


def make_head(n_features: int, n_outputs: int, init: str, gain: float) -> nn.Linear:
    """Return a last layer, whose outputs begin small; `torch-encoder` has orthogonal heads."""
    init = "orthogonal" if init == "torch-encoder" else init
    return initialise(nn.Linear(n_features, n_outputs), init, gain, scale=0.1)


@contextmanager
def traced() -> Iterator[None]:
    """Have functions written for the compiler while the block lasts."""
    before = _is_traced.set(True)
    try:
        yield
    finally:
        _is_traced.reset(before)


def tanh(x: Tensor) -> Tensor:
    """Return tanh(x), for the compiler as 2 sigmoid(2x) - 1.

    They differ by 2e-7 at most. Compiled for the CPU a gradient takes two thirds of the time with
    the second; uncompiled it is more operations, and only large stacks gain (`_layer`).
    """
    if _is_traced.get() and x.device.type == "cpu":
        return torch.sigmoid(x * 2) * 2 - 1
    return torch.tanh(x)


ACTIVATIONS = {
    "tanh": tanh,
    "relu": functional.relu,
    "elu": functional.elu,
    "gelu": functional.gelu,
    "silu": functional.silu,
    "leaky_relu": functional.leaky_relu,
}
"""With PyTorch's defaults: the exact GELU, a slope of 0.01 of the leaky ReLU."""


def linear(rows: Tensor, layer: nn.Linear) -> Tensor:
    """Return the layer's outputs for rows [B, D].

    Where its weights are those of S layers stacked, [S, outputs, D], for rows [S, B, D].
    """
    if layer.weight.ndim == 3:
        return stacked(rows, [], layer)
    return functional.linear(rows, layer.weight, layer.bias)


def stacked(
    rows: Tensor,
    hidden: Sequence[nn.Linear],
    head: nn.Linear | None = None,
    activation: str | None = None,
) -> Tensor:
    """Return what rows [S, B, D] come to after layers with stacked weights.

    y <- f(y_s W_s^T + b_s) for each of S networks and one layer after the other; f is tanh or
    relu, and nothing for the head.
    """
    layers = [*hidden, *([] if head is None else [head])]
    kinds = [activation] * len(hidden) + [None] * (head is not None)
    return _Stacked.apply(
        kinds, rows, *[part for each in layers for part in (each.weight, each.bias)]
    )


class _Stacked(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, kinds: list[str | None], rows: Tensor, *weights: Tensor) -> Tensor:
        seen = [rows]
        for kind, weight, bias in zip(kinds, weights[::2], weights[1::2], strict=True):
            seen.append(_layer(seen[-1], weight, bias, kind))
        ctx.kinds = kinds
        ctx.save_for_backward(*seen, *weights[::2])
        return seen[-1]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = gradients
        n_layers = len(ctx.kinds)
        seen, weights = ctx.saved_tensors[: n_layers + 1], ctx.saved_tensors[n_layers + 1 :]
        found: list[Tensor | None] = []
        for k in reversed(range(n_layers)):
            gradient = _derived(gradient, seen[k + 1], ctx.kinds[k])
            found = [_by_weight(gradient, seen[k], weights[k]), gradient.sum(1), *found]
            if k or ctx.needs_input_grad[1]:
                gradient = torch.bmm(gradient, weights[k])
        return None, gradient if ctx.needs_input_grad[1] else None, *found


def _layer(rows: Tensor, weight: Tensor, bias: Tensor, activation: str | None) -> Tensor:
    """Return f(x W^T + b) with as few passes over memory as there can be."""
    if activation == "tanh" and rows.device.type == "cpu":
        half = torch.baddbmm(bias[:, None], rows, weight.mT, beta=2, alpha=2).sigmoid_()
        return torch.sub(half, 0.5, out=half).mul_(2)
    plain = torch.baddbmm(bias[:, None], rows, weight.mT)
    if activation == "tanh":
        return plain.tanh_()
    return plain.relu_() if activation == "relu" else plain


def _derived(gradient: Tensor, y: Tensor, activation: str | None) -> Tensor:
    """Return the gradient before an activation from that after it, whose value is y."""
    if activation == "tanh":
        return torch.ops.aten.tanh_backward(gradient, y)
    return torch.ops.aten.threshold_backward(gradient, y, 0) if activation == "relu" else gradient


def _by_weight(gradient: Tensor, rows: Tensor, weight: Tensor) -> Tensor:
    """Return g^T x [S, outputs, inputs], as the product with the fewer rows.

    With one or two columns, those of a head's outputs, it takes five times as long.
    """
    outputs, inputs = weight.shape[1:]
    return gradient.mT @ rows if outputs <= inputs else (rows.mT @ gradient).mT
