"""What a library of language-model RL is: its keys, and the batch that they make."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple

from isobatch.errors import UserError
from isobatch.language.batch import SequenceBatch
from isobatch.language.settings import Settings, shipped
from isobatch.language.words import Given
from isobatch.scaling.limits import Caution

NOTHING: Mapping[str, Any] = MappingProxyType({})


class Count(NamedTuple):
    """A setting that counts updates: what it covers in sequences changes with the batch."""

    key: str
    value: int
    iterations: bool = False
    """True: it counts iterations, otherwise gradient steps."""


class Average(NamedTuple):
    """A decay per gradient step of an average of policies."""

    key: str
    decay: float


@dataclass(frozen=True)
class Learner:
    """An optimiser, and the sequences of its steps."""

    minibatch: int
    epochs: int
    optimizer: str
    """adam or sgd, or the library's name of one that has no rule here."""
    keys: Mapping[str, str]
    """The library's key for a field of a recipe's optimiser."""
    values: Mapping[str, Any]
    """The value of each such field."""
    decay: tuple[str, float] = ("", 0.0)
    """The key of the decoupled weight decay, and its value."""


@dataclass(frozen=True)
class Setup:
    """A configuration as the rules need it: the batch, who learns from it, and what else counts."""

    batch: SequenceBatch
    policy: Learner
    sizes: Mapping[str, Any]
    """The settings that make the batch, in the order they are shown."""
    critic: Learner | None = None
    counts: tuple[Count, ...] = ()
    averages: tuple[Average, ...] = ()
    epochs: str = ""
    """The keys of what the cautions are about; '' where the library has none or it is off."""
    samples: str = ""
    staleness: str = ""
    group: str = ""
    """The setting that makes advantages relative to the samples of one prompt, with its value."""
    own_sample: bool = False
    """True where a sample is part of its group's mean."""
    over_batch: str = ""
    """The setting that normalises advantages or rewards over all sequences of an iteration."""
    token_mean: str = ""
    """The setting by which a loss is averaged over the tokens of only a part of a gradient step."""
    part: float | None = None
    """Sequences of that part."""
    scale: float = 1.0
    """The gradient over the mean over its gradient step's rows, where the library's own is not."""
    scale_key: str = ""
    reference: str = ""
    """The penalty towards a reference policy, with its coefficient."""
    clip: str = ""
    """The bound of the ratio, with its value."""
    decoupled: bool = False
    """True where the step is limited from a recomputed policy, not from the one that generated."""
    assumed: str = ""
    """What the settings do not say, and is taken to be so."""
    notes: tuple[Caution, ...] = ()


class Library(ABC):
    """A library: which commands and keys are its own, and what they say."""

    name: ClassVar[str]
    title: ClassVar[str]
    per_device: ClassVar[bool]
    """True where batch sizes are per device, so that more devices make a larger batch."""
    programs: ClassVar[str]
    """A pattern for the programs whose settings these are."""
    expected: ClassVar[str]
    """Those programs, in words."""
    read_keys: ClassVar[tuple[str, ...]]
    """The keys of the batch, which a misspelt key is compared with."""

    @property
    def version(self) -> str:
        """The commit whose keys and defaults are known, and its day."""
        return shipped()["versions"][self.name]

    def settings(self, given: Given) -> Settings:
        """Return the settings; those of another trainer are refused."""
        self.refuse_other(given)
        return Settings(self.name, given.flat, shipped()["keys"][self.name])

    def refuse_other(self, given: Given) -> None:
        """Refuse a command that runs another program."""
        if given.program and not re.search(self.programs, given.program):
            raise UserError(
                f"{self.name}: {given.program} is no trainer that is read here; expected "
                f"{self.expected}"
            )

    @abstractmethod
    def read(self, settings: Settings) -> Setup:
        """Return what the settings say."""

    @abstractmethod
    def on_devices(self, settings: Settings, devices: int) -> dict[str, Any]:
        """Return the settings to change for another number of devices, and for no other reason."""

    @abstractmethod
    def instead(self, settings: Settings, ratio: Fraction) -> dict[str, Any]:
        """Return what more to change for the opposite of what `ratio` times the devices do.

        Where batch sizes are per device, the batch is held; where they are global, it grows.
        """

    @abstractmethod
    def paste(self, changes: Mapping[str, Any]) -> str:
        """Return changed settings as the library takes them."""


def times(name: str, key: str, value: int, ratio: Fraction) -> int:
    """Return a whole setting, `ratio` times as large."""
    found = value * ratio
    if found.denominator != 1:
        raise UserError(f"{name}: {key} {value} cannot be made {ratio} times as large")
    return int(found)


def largest_divisor(total: int, most: int) -> int:
    """Return the largest divisor of `total` that is at most `most`."""
    return next(each for each in range(min(total, most), 0, -1) if total % each == 0)
