"""Gymnasium spaces as the networks see them: images and one vector in, flat actions out."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from isobatch.errors import UserError

SMALLEST_IMAGE = 32
"""Grids with a shorter side (MiniGrid's 7x7) are read as vectors."""
UNBOUNDED = 1e30
"""Box bounds beyond this mean no bound."""


@dataclass(frozen=True)
class Leaf:
    """One array of an observation and where it goes."""

    path: tuple[str, ...]
    kind: Literal["image", "vector", "onehot"]
    size: int
    """Channels of an image, entries of a vector."""
    shape: tuple[int, ...]
    """The array's own shape, without the batch."""
    channels_last: bool = False
    start: tuple[int, ...] = ()
    counts: tuple[int, ...] = ()

    def stacked(self, frames: int) -> Leaf:
        """Return the same array of several observations, the newest last."""
        shape = self.shape or (1,)
        if self.kind == "image" and len(shape) == 2:
            shape = (1, *shape)
        axis = len(shape) - 1 if self.channels_last else 0
        shape = (*shape[:axis], shape[axis] * frames, *shape[axis + 1 :])
        return replace(
            self,
            size=self.size * frames,
            shape=shape,
            start=self.start * frames,
            counts=self.counts * frames,
        )


@dataclass(frozen=True)
class ObservationLayout:
    """How an observation space becomes at most one image and one vector.

    Dict entries are concatenated: images along their channels, everything else into the vector;
    Discrete entries are one-hot.
    """

    leaves: tuple[Leaf, ...]
    image: tuple[int, int, int] | None
    """(C, H, W), or None."""
    image_dtype: str
    """'uint8', kept until the encoder, or 'float32'."""
    vector: int | None
    """D, or None."""

    @classmethod
    def of(cls, space: spaces.Space, name: str) -> ObservationLayout:
        """Lay out `space`, the space of a single environment called `name`."""
        arrays = list(_entries(space, (), name))
        leaves = tuple(leaf for leaf, _, _ in arrays)
        sizes = {shape for _, shape, _ in arrays if shape}
        dtypes = {dtype for leaf, _, dtype in arrays if leaf.kind == "image"}
        if len(sizes) > 1 or len(dtypes) > 1:
            raise UserError(
                f"{name}: images of different sizes or dtypes are not supported: {space}"
            )
        channels = sum(leaf.size for leaf in leaves if leaf.kind == "image")
        entries = sum(leaf.size for leaf in leaves if leaf.kind != "image")
        height, width = next(iter(sizes), (0, 0))
        if not channels and not entries:
            raise UserError(f"{name}: the observation space {space} is empty")
        return cls(
            leaves=leaves,
            image=(channels, height, width) if sizes else None,
            image_dtype=dtypes.pop() if dtypes else "uint8",
            vector=entries or None,
        )

    def stacked(self, frames: int) -> ObservationLayout:
        """Return the layout of so many observations at once: each array's along one axis.

        Images along their channels, everything else along its first axis.
        """
        if frames == 1:
            return self
        leaves = tuple(leaf.stacked(frames) for leaf in self.leaves)
        image = (self.image[0] * frames, *self.image[1:]) if self.image else None
        vector = self.vector * frames if self.vector else None
        return ObservationLayout(leaves, image, self.image_dtype, vector)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> ObservationLayout:
        """Rebuild from `to_json`."""
        plain: Any = _tuples(data)
        leaves = tuple(Leaf(**leaf) for leaf in plain["leaves"])
        return cls(leaves, plain["image"], plain["image_dtype"], plain["vector"])

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return asdict(self)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of each encoded part, without the batch."""
        parts: dict[str, tuple[int, ...]] = {}
        if self.image:
            parts["image"] = self.image
        if self.vector:
            parts["vector"] = (self.vector,)
        return parts

    @property
    def dtypes(self) -> dict[str, torch.dtype]:
        """Type of each encoded part."""
        kinds = {"image": getattr(torch, self.image_dtype), "vector": torch.float32}
        return {part: kinds[part] for part in self.shapes}

    def encode(self, observation: Any) -> dict[str, Tensor]:
        """Turn a batch [N, ...] (arrays or tensors, nested dicts) into its encoded parts."""
        ready = isinstance(observation, np.ndarray) and observation.dtype == np.float32
        if self._is_plain and ready:
            return {"vector": torch.from_numpy(observation)}
        images, vectors = [], []
        for leaf in self.leaves:
            value = observation
            for key in leaf.path:
                value = value[key]
            tensor = value if isinstance(value, Tensor) else torch.from_numpy(np.asarray(value))
            if leaf.kind == "image":
                images.append(self._as_image(tensor, leaf))
            elif leaf.kind == "vector":
                vectors.append(tensor.reshape(len(tensor), leaf.size).to(torch.float32))
            else:
                vectors.append(_one_hot(tensor, leaf))
        parts = {}
        if images:
            parts["image"] = images[0] if len(images) == 1 else torch.cat(images, 1)
        if vectors:
            parts["vector"] = vectors[0] if len(vectors) == 1 else torch.cat(vectors, 1)
        return parts

    @cached_property
    def _is_plain(self) -> bool:
        """True where the observation is one flat vector, which small environments give fast."""
        leaf = self.leaves[0]
        return (
            len(self.leaves) == 1
            and leaf.kind == "vector"
            and not leaf.path
            and (len(leaf.shape) == 1)
        )

    def _as_image(self, tensor: Tensor, leaf: Leaf) -> Tensor:
        if leaf.channels_last:
            tensor = tensor.movedim(-1, 1)
        elif tensor.ndim == 3:
            tensor = tensor.unsqueeze(1)
        return tensor.to(getattr(torch, self.image_dtype))


@dataclass(frozen=True)
class ActionLayout:
    """How a flat action of the policy becomes the environment's own.

    Policy form: `categorical` int64 [N, K] (one column per choice: Discrete has K = 1),
    `binary` int64 [N, K], `gaussian` float32 [N, K].
    """

    kind: Literal["categorical", "binary", "gaussian"]
    counts: tuple[int, ...]
    """Choices per column of a categorical; (2, ...) for binary; (1, ...) for a gaussian."""
    shape: tuple[int, ...]
    """Shape of one environment's own action."""
    start: tuple[int, ...]
    """First value of each categorical column."""
    low: tuple[float, ...]
    high: tuple[float, ...]
    """Bounds a gaussian's actions are clipped to on their way to the environment."""

    @classmethod
    def of(cls, space: spaces.Space, name: str) -> ActionLayout:
        """Lay out `space`, the action space of a single environment called `name`."""
        if isinstance(space, spaces.Discrete):
            return cls("categorical", (int(space.n),), (), (int(space.start),), (), ())
        if isinstance(space, spaces.MultiDiscrete):
            starts = tuple(int(value) for value in np.ravel(space.start))
            counts = tuple(int(value) for value in np.ravel(space.nvec))
            return cls("categorical", counts, tuple(space.shape), starts, (), ())
        if isinstance(space, spaces.MultiBinary):
            shape = tuple(space.shape)
            return cls("binary", (2,) * int(np.prod(shape)), shape, (), (), ())
        if isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.integer):
            low, high = np.ravel(space.low).astype(int), np.ravel(space.high).astype(int)
            counts = tuple(int(value) for value in high - low + 1)
            if max(counts) <= 4096:
                starts = tuple(int(value) for value in low)
                return cls("categorical", counts, tuple(space.shape), starts, (), ())
        elif isinstance(space, spaces.Box):
            low, high = np.ravel(space.low).astype(float), np.ravel(space.high).astype(float)
            # EnvPool writes no bounds as the smallest and the largest positive number.
            absent = (high > UNBOUNDED) & (low > 0) & (low < 1 / UNBOUNDED)
            low = np.where((low < -UNBOUNDED) | absent, -np.inf, low)
            high = np.where(high > UNBOUNDED, np.inf, high)
            ones = (1,) * len(low)
            return cls("gaussian", ones, tuple(space.shape), (), tuple(low), tuple(high))
        raise UserError(
            f"{name}: the action space {_short(space)} is not supported; "
            "Discrete, Box, MultiDiscrete and MultiBinary are"
        )

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> ActionLayout:
        """Rebuild from `to_json`."""
        bounds: Any = {key: tuple(map(float, data[key])) for key in ("low", "high")}
        return cls(**(_tuples(data) | bounds))

    def to_json(self) -> dict[str, Any]:
        """Return plain data; infinite bounds as text, which JSON can hold."""
        data = asdict(self)
        return data | {key: [str(value) for value in data[key]] for key in ("low", "high")}

    def native(self, actions: np.ndarray) -> np.ndarray:
        """Turn policy actions [N, K] into the environment's own, validated: [N, *shape].

        Discrete actions out of range and actions that are not finite are errors: EnvPool takes
        the first silently and answers the second with a reward that is not a number.
        """
        if actions.ndim != 2 or actions.shape[1] != len(self.counts):
            raise ValueError(f"actions {actions.shape} should be [N, {len(self.counts)}]")
        if self.kind == "gaussian":
            if not np.isfinite(actions).all():
                raise ActionNotFinite("the policy gave an action that is not finite")
            return np.clip(actions, *self._bounds).reshape(-1, *self.shape)
        # Read without a sign, what is below 0 is far above every count: one pass, not two.
        tops = actions.astype(np.int64, copy=False).view(np.uint64).max(0).tolist()
        if any(top >= n for top, n in zip(tops, self.counts, strict=True)):
            raise ValueError(f"an action is outside its {self.counts} choices")
        if any(self.start):
            actions = actions + np.asarray(self.start)
        return actions.reshape(-1, *self.shape)

    @cached_property
    def _bounds(self) -> tuple[np.ndarray, np.ndarray]:
        return np.array(self.low, np.float32), np.array(self.high, np.float32)

    def native_tensor(self, actions: Tensor) -> Tensor:
        """As `native`, on the actions' own device, for environments that take tensors.

        Checked once per rollout by the environments' answers: a check here would make a graphics
        card wait for the CPU at every step.
        """
        if self.kind == "gaussian":
            low, high = (actions.new_tensor(bound) for bound in (self.low, self.high))
            return torch.clamp(actions, low, high).reshape(-1, *self.shape)
        if any(self.start):
            actions = actions + actions.new_tensor(self.start)
        return actions.reshape(-1, *self.shape)


class ActionNotFinite(ValueError):
    """A NaN or infinite action, stopped before it reaches the environment."""


def _entries(space: Any, path: tuple[str, ...], name: str):
    """Yield (leaf, image size or (), dtype) for every array in `space`."""
    if isinstance(space, spaces.Dict):
        for key, inner in space.spaces.items():
            yield from _entries(inner, (*path, key), name)
    elif isinstance(space, spaces.Discrete):
        start, count = (int(space.start),), (int(space.n),)
        yield Leaf(path, "onehot", count[0], (), start=start, counts=count), (), ""
    elif isinstance(space, spaces.MultiDiscrete):
        counts = tuple(int(value) for value in np.ravel(space.nvec))
        starts = tuple(int(value) for value in np.ravel(space.start))
        yield Leaf(path, "onehot", sum(counts), space.shape, start=starts, counts=counts), (), ""
    elif isinstance(space, spaces.MultiBinary):
        yield Leaf(path, "vector", int(np.prod(space.shape)), tuple(space.shape)), (), ""
    elif isinstance(space, spaces.Box):
        yield _box_entry(space, path)
    else:
        raise UserError(
            f"{name}: the observation space {_short(space)} is not supported; "
            "Box, Discrete, MultiDiscrete, MultiBinary and Dicts of them are"
        )


def _box_entry(space: spaces.Box, path: tuple[str, ...]):
    shape = space.shape
    dtype = "uint8" if space.dtype == np.uint8 else "float32"
    if len(shape) == 2 and min(shape) >= SMALLEST_IMAGE:
        return Leaf(path, "image", 1, shape), shape, dtype
    if len(shape) == 3 and min(shape[1:]) >= SMALLEST_IMAGE:
        return Leaf(path, "image", shape[0], shape), shape[1:], dtype
    if len(shape) == 3 and min(shape[:2]) >= SMALLEST_IMAGE:
        return Leaf(path, "image", shape[2], shape, channels_last=True), shape[:2], dtype
    return Leaf(path, "vector", int(np.prod(shape)), shape), (), ""


def _one_hot(tensor: Tensor, leaf: Leaf) -> Tensor:
    flat = tensor.reshape(len(tensor), len(leaf.counts)).long()
    columns = [
        torch.nn.functional.one_hot(flat[:, k] - leaf.start[k], count)
        for k, count in enumerate(leaf.counts)
    ]
    return torch.cat(columns, 1).to(torch.float32)


def _tuples(data: Any) -> Any:
    """Return plain data with its lists made tuples again, which JSON does not know."""
    if isinstance(data, dict):
        return {key: _tuples(value) for key, value in data.items()}
    return tuple(_tuples(value) for value in data) if isinstance(data, list) else data


def add_batch_axis(observation: Any) -> Any:
    """Return one environment's observation as a batch of one."""
    if isinstance(observation, dict):
        return {key: add_batch_axis(value) for key, value in observation.items()}
    return np.asarray(observation)[None]


def _short(space: Any) -> str:
    text = " ".join(str(space).split())
    return text if len(text) <= 80 else text[:77] + "..."
