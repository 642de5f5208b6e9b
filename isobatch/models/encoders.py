"""Encoders: observations to features."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from isobatch.envs.spaces import ObservationLayout
from isobatch.errors import UserError, one_line
from isobatch.models.layers import ACTIVATIONS, initialise, linear, stacked
from isobatch.models.own import EncoderFactory, find, made
from isobatch.recipe import Model

Init = str


class Encoder(nn.Module):
    """A module from observations to features [B, n_features]."""

    n_features: int

    def activations(self, observation: Any) -> list[Tensor]:
        """Return what hidden layers give after their nonlinearity, [B, H] or [B, C, ...] each.

        The features are the last, if there is a layer. Of a module that nothing is known of they
        are all there is.
        """
        return [self(observation)]


def _normed(rows: Tensor, norm: nn.Module) -> Tensor:
    """Return rows normalised by a layer, whose weights may be stacked like those of `linear`."""
    if isinstance(norm, nn.LayerNorm) and norm.weight.ndim == 2:
        plain = functional.layer_norm(rows, rows.shape[-1:], eps=norm.eps)
        return torch.addcmul(norm.bias[:, None], plain, norm.weight[:, None])
    return norm(rows)


class MlpEncoder(Encoder):
    """Linear layers with an activation after each; [B, D] -> [B, widths[-1]], without any [B, D].

    With the weights of S such encoders stacked (`linear`), [S, B, D] -> [S, B, widths[-1]].
    """

    def __init__(self, n_inputs: int, widths: Sequence[int], model: Model) -> None:
        super().__init__()
        sizes = (n_inputs, *widths)
        self.layers = nn.ModuleList(
            initialise(nn.Linear(before, after), model.init) for before, after in pairwise(sizes)
        )
        self.norms = _norms(sizes[1:], model.layer_norm)
        self.activation = ACTIVATIONS[model.activation]
        self.n_features = sizes[-1]

    def forward(self, vector: Tensor) -> Tensor:
        """Encode vectors; plain functions, as nested modules cost more than they compute here."""
        linears = self.linears
        if not linears:
            return vector
        if self.is_plain and linears[0].weight.ndim == 3:
            return stacked(vector, linears, activation=self.activation.__name__)
        return self.activations(vector)[-1]

    def activations(self, observation: Tensor) -> list[Tensor]:
        """Return each layer's outputs."""
        found = [observation]
        for k, layer in enumerate(self.linears):
            hidden = linear(found[-1], layer)
            if self.norms is not None:
                hidden = _normed(hidden, self.norms[k])
            found.append(self.activation(hidden))
        return found[1:]

    @property
    def is_plain(self) -> bool:
        """Say whether it is nothing but layers and tanh or ReLU, which have faster ways."""
        return self.norms is None and self.activation.__name__ in ("tanh", "relu")

    @property
    def linears(self) -> list[nn.Linear]:
        """The layers, first to last."""
        return [layer for layer in self.layers if isinstance(layer, nn.Linear)]


def _norms(widths: Sequence[int], wanted: bool) -> nn.ModuleList | None:
    return nn.ModuleList(nn.LayerNorm(width) for width in widths) if wanted else None


class NatureEncoder(Encoder):
    """Three convolutions and 512 features (Mnih et al. 2015); [B, C, H, W] -> [B, 512]."""

    def __init__(self, shape: tuple[int, int, int], init: Init, layer_norm: bool = False) -> None:
        super().__init__()
        channels, height, width = shape
        layers: list[nn.Module] = []
        for before, after, kernel, stride in ((channels, 32, 8, 4), (32, 64, 4, 2), (64, 64, 3, 1)):
            layers.append(initialise(nn.Conv2d(before, after, kernel, stride=stride), init))
            if layer_norm:
                layers.append(nn.GroupNorm(1, after))  # One group: the whole layer.
            layers.append(nn.ReLU(inplace=True))
        self.convolutions = nn.Sequential(*layers)
        for kernel, stride in ((8, 4), (4, 2), (3, 1)):
            height, width = (height - kernel) // stride + 1, (width - kernel) // stride + 1
        self.dense = initialise(nn.Linear(64 * height * width, 512), init)
        self.norm = nn.LayerNorm(512) if layer_norm else nn.Identity()
        self.n_features = 512

    def forward(self, image: Tensor) -> Tensor:
        """Encode images of bytes, or of floats in [0, 1]."""
        return self.activations(image)[-1]

    def activations(self, observation: Tensor) -> list[Tensor]:
        """Return the convolutions' outputs and the features."""
        first, *layers, last = self.convolutions
        assert isinstance(first, nn.Conv2d)
        if fits_blocks(first, observation):
            x = _add_bias(_weigh_blocks(first, observation), first)
        else:
            x = _add_bias(_weigh(first, scaled(observation)), first)
        found = list[Tensor]()
        for layer in layers:
            convolves = isinstance(layer, nn.Conv2d)
            x = _add_bias(_weigh(layer, x), layer) if convolves else layer(x)
            if isinstance(layer, nn.ReLU):
                found.append(x)
        # Flat first: a ReLU whose gradient lies in another order than its output is slow.
        flat = last(x.flatten(1))
        features = functional.relu(self.norm(self.dense(flat)))
        return [*found, flat.view(x.shape), features]


BLOCK = 4
"""Pixels of a block's side: as many bytes are one int32, and DQN's first stride."""


def fits_blocks(layer: nn.Conv2d, image: Tensor) -> bool:
    """Say whether a layer convolves images by blocks: bytes on a CPU, of whole blocks.

    Not a single one: per-sample gradients, which see one at a time, could not look at its bytes
    as whole numbers.
    """
    return (
        image.dtype == torch.uint8
        and image.device.type == "cpu"
        and len(image) > 1
        and image.is_contiguous()
        and layer.stride == (BLOCK, BLOCK)
        and all(size % BLOCK == 0 for size in (*layer.kernel_size, *image.shape[2:]))
        and image.storage_offset() % BLOCK == 0
    )


def _weigh_blocks(layer: nn.Conv2d, image: Tensor) -> Tensor:
    """Convolve images / 255 of bytes [B, C, H, W] by blocks of 4x4 pixels, without the bias.

    With stride 4 a kernel of 8x8 over C channels is one of 2x2 with stride 1 over 16 C: a block's
    pixels. Bytes are brought into that order before they are floats, and the division is the
    weights'.
    """
    n_out, channels, *kernel = layer.weight.shape
    down, across = (size // BLOCK for size in kernel)
    weight = (layer.weight / 255).view(n_out, channels, down, BLOCK, across, BLOCK)
    weight = weight.permute(0, 2, 4, 1, 3, 5).reshape(n_out, down, across, -1)
    return functional.conv2d(_blocks(image).permute(0, 3, 1, 2), weight.permute(0, 3, 1, 2))


def _blocks(image: Tensor) -> Tensor:
    """Return bytes [B, C, H, W] as floats [B, H / 4, W / 4, 16 C], a block's pixels together.

    The four bytes of a block's row move as one int32, and in two transpositions: all axes at once
    take PyTorch twice as long.
    """
    n_rows, channels, height, width = image.shape
    down, across = height // BLOCK, width // BLOCK
    rows = image.view(torch.int32).view(n_rows, channels, down, BLOCK, across)
    lines = rows.transpose(1, 2).reshape(n_rows * down, channels * BLOCK, across)
    pixels = lines.transpose(1, 2).contiguous().view(torch.uint8)
    return pixels.view(n_rows, down, across, -1).float()


def _weigh(layer: nn.Conv2d, x: Tensor) -> Tensor:
    """Convolve without the bias, whose gradient takes oneDNN as long as the weights' does."""
    padding: tuple[int, ...] = layer.padding  # pyright: ignore[reportAssignmentType]
    return functional.conv2d(x, layer.weight, None, layer.stride, padding)


def _add_bias(x: Tensor, layer: nn.Conv2d) -> Tensor:
    assert layer.bias is not None
    return x.add_(layer.bias.view(-1, 1, 1))


class _Pooled(nn.Module):
    """Convolution, then the largest of 3x3 at every other place."""

    def __init__(self, channels: int, channels_out: int, init: Init) -> None:
        super().__init__()
        self.convolution = initialise(nn.Conv2d(channels, channels_out, 3, padding=1), init)

    def forward(self, x: Tensor) -> Tensor:
        largest = functional.max_pool2d(_weigh(self.convolution, x), 3, stride=2, padding=1)
        # max(x + b) = max(x) + b, on a quarter of the places.
        return _add_bias(largest, self.convolution)


class _Residual(nn.Module):
    """x + conv(relu(conv(relu(x))))."""

    def __init__(self, channels: int, init: Init, scale: float) -> None:
        super().__init__()
        part = math.sqrt(scale)
        self.first = initialise(nn.Conv2d(channels, channels, 3, padding=1), init, scale=part)
        self.second = initialise(nn.Conv2d(channels, channels, 3, padding=1), init, scale=part)

    def forward(self, x: Tensor) -> Tensor:
        hidden = _add_bias(_weigh(self.first, functional.relu(x)), self.first)
        return x + _add_bias(_weigh(self.second, functional.relu_(hidden)), self.second)


class ImpalaEncoder(Encoder):
    """Three stages of convolution, pooling and residual blocks (Espeholt et al. 2018).

    [B, C, H, W] -> [B, 256]; 16, 32, 32 channels, 2 blocks a stage, as in the Procgen papers.
    """

    CHANNELS, BLOCKS, FEATURES = (16, 32, 32), 2, 256

    def __init__(self, shape: tuple[int, int, int], init: Init, layer_norm: bool = False) -> None:
        super().__init__()
        channels, height, width = shape
        # Each residual sum keeps its variance near one: the reference divides by both counts.
        scale = 1 / math.sqrt(len(self.CHANNELS)) / math.sqrt(self.BLOCKS)
        stages: list[nn.Module] = []
        for width_out in self.CHANNELS:
            stages.append(_Pooled(channels, width_out, init))
            stages.extend(_Residual(width_out, init, scale) for _ in range(self.BLOCKS))
            if layer_norm:
                stages.append(nn.GroupNorm(1, width_out))
            channels, height, width = width_out, (height + 1) // 2, (width + 1) // 2
        self.stages = nn.Sequential(*stages)
        self.dense = initialise(
            nn.Linear(channels * height * width, self.FEATURES), init, scale=1.4
        )
        self.norm = nn.LayerNorm(self.FEATURES) if layer_norm else nn.Identity()
        self.n_features = self.FEATURES

    def forward(self, image: Tensor) -> Tensor:
        """Encode images of bytes, or of floats in [0, 1]."""
        hidden = functional.relu(self.stages(scaled(image)))
        return functional.relu(self.norm(self.dense(hidden.flatten(1))))

    def activations(self, observation: Tensor) -> list[Tensor]:
        """Return the outputs of pooled convolutions and residual blocks, and the features."""
        found, x = list[Tensor](), scaled(observation)
        for stage in self.stages:
            x = stage(x)
            found.append(functional.relu(x))
        return [*found, functional.relu(self.norm(self.dense(found[-1].flatten(1))))]


class ObservationEncoder(Encoder):
    """Encode whatever parts an observation has: the image by a CNN, the vector by an MLP.

    With both, their features are concatenated. uint8 images are scaled by the CNN, not before.
    """

    def __init__(self, layout: ObservationLayout, model: Model) -> None:
        super().__init__()
        self.image = _image_encoder(layout.image, model) if layout.image else None
        self.vector = (
            MlpEncoder(layout.vector, model.hidden_sizes, model) if layout.vector else None
        )
        self.n_features = sum(part.n_features for part in (self.image, self.vector) if part)

    def forward(self, observation: dict[str, Tensor]) -> Tensor:
        """Return features [B, n_features]."""
        features = []
        if self.image is not None:
            features.append(self.image(observation["image"]))
        if self.vector is not None:
            features.append(self.vector(observation["vector"]))
        return features[0] if len(features) == 1 else torch.cat(features, 1)

    def activations(self, observation: dict[str, Tensor]) -> list[Tensor]:
        """Return those of both parts, and the features."""
        vector = list[Tensor]()
        if self.vector is not None:
            vector = self.vector.activations(observation["vector"])
        if self.image is None:
            return vector
        *image, last = self.image.activations(observation["image"])
        beside = vector[-1:] if vector or self.vector is None else [observation["vector"]]
        return [*image, *vector[:-1], torch.cat([last, *beside], 1)]


def only_mlp(encoder: nn.Module) -> MlpEncoder | None:
    """Return the MLP that an encoder of vectors is, None of any other."""
    if isinstance(encoder, ObservationEncoder) and encoder.image is None:
        return encoder.vector
    return None


def headed(
    encoder: nn.Module, own: MlpEncoder, head: nn.Linear, observation: dict[str, Tensor]
) -> Tensor:
    """Return head(own(encoder(observation))), of stacked MLPs by one operation."""
    mlp = only_mlp(encoder)
    if mlp is not None and mlp.is_plain and head.weight.ndim == 3:
        layers = [*mlp.linears, *own.linears]
        return stacked(observation["vector"], layers, head, mlp.activation.__name__)
    return linear(own(encoder(observation)), head)


class CustomEncoder(Encoder):
    """A user's module: it gets the one tensor there is, or the dict of both parts."""

    def __init__(self, module: nn.Module, layout: ObservationLayout) -> None:
        super().__init__()
        self.module = module
        self.n_features = _output_width(self, layout)

    def forward(self, observation: dict[str, Tensor]) -> Tensor:
        """Return the module's features [B, n_features]."""
        parts = dict(observation)
        if "image" in parts:
            parts["image"] = scaled(parts["image"])
        return self.module(next(iter(parts.values())) if len(parts) == 1 else parts)


def make_encoder(
    observations: ObservationLayout, model: Model, custom: EncoderFactory | nn.Module | None
) -> Encoder:
    """Return the recipe's encoder, or a copy of the user's own, given or registered."""
    custom = find(model.encoder) if custom is None else custom
    if isinstance(custom, nn.Module):
        return CustomEncoder(copy.deepcopy(custom), observations)
    if custom is not None:
        return CustomEncoder(made(custom, observations), observations)
    if observations.image is None and model.encoder in ("nature", "impala"):
        raise UserError(f"encoder {model.encoder} needs images; the observations are vectors")
    if observations.image is not None and model.encoder == "mlp":
        raise UserError("encoder mlp needs vectors; the observations have images")
    if observations.image and min(observations.image[1:]) < 36 and model.encoder != "impala":
        raise UserError(f"encoder nature needs images of 36x36 at least, got {observations.image}")
    return ObservationEncoder(observations, model)


def scaled(image: Tensor) -> Tensor:
    """Bring uint8 images to [0, 1] floats, channels last in memory, which CPUs convolve faster.

    A single image stays as it lies: nothing is gained, and per-sample gradients, which see one at
    a time, could not change it.
    """
    layout = torch.preserve_format if len(image) == 1 else torch.channels_last
    if image.dtype == torch.uint8:
        image = image.to(torch.float32, memory_format=layout)
        return image.mul_(1 / 255)
    return image if len(image) == 1 else image.contiguous(memory_format=layout)


def _image_encoder(shape: tuple[int, int, int], model: Model) -> NatureEncoder | ImpalaEncoder:
    if model.encoder == "impala":
        return ImpalaEncoder(shape, model.init, model.layer_norm)
    return NatureEncoder(shape, model.init, model.layer_norm)


def _output_width(encoder: nn.Module, layout: ObservationLayout) -> int:
    blank = {
        part: torch.zeros(2, *shape, dtype=layout.dtypes[part])
        for part, shape in layout.shapes.items()
    }
    shapes = ", ".join(str(tuple(part.shape)) for part in blank.values())
    try:
        with torch.no_grad():
            features = encoder(blank)
    except Exception as error:
        raise UserError(
            f"the encoder fails on two observations of zeros, {shapes}: {one_line(error)}",
            field="encoder",
        ) from error
    if features.ndim != 2:
        raise UserError(
            f"the encoder gives {tuple(features.shape)} for two observations; "
            "it must give [B, features]: flatten it"
        )
    return features.shape[1]
