"""How much of the state space was seen: distinct observations per environment step. Ours.

An observation is made whole numbers, hashed to 64 bits, and hashes are counted: all of them by
`state_coverage`, those of a long run by `StateCoverage` in 16 KB. Integers (images, ids) count as
they are. Floats are rounded to bins, since no two of them are ever the same:

    bin = round(asinh(x / unit) / width)

A bin is width * unit wide near zero and grows with |x| from there, to about width * |x|: small and
large coordinates both have some. No data decides the bins, so that runs of one environment
compare, whatever their batch and their policy.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache

import numpy as np
import torch
from torch import Tensor

Rows = Tensor | Mapping[str, Tensor]
"""Observations [B, ...], or parts of them by name."""

UNIT = 0.1
"""Below it bins are of equal width, beyond they grow with the coordinate."""
WIDTH = 0.5
"""Of a bin: 0.05 near zero, half the coordinate beyond the unit."""
INDEX_BITS = 14
"""Of a hash, those that choose one of the 16,384 registers: a standard error of 0.8%."""
REST_BITS = 64 - INDEX_BITS
WORDS_AT_ONCE = 32768
"""Hashed in one go: 256 KB, which stay in the cache."""


@torch.no_grad()
def visited_entropy(ids: Tensor) -> float:
    """Entropy in nats of how often each state was visited, exactly; ids [B], or rows [B, ...].

    H = -sum_s p_s log p_s,  p_s = visits of s / B

    0 where one state was visited only, log S where S states were visited equally often.
    """
    if not len(ids) or bool(ids.isnan().any()):
        return math.nan
    # Of numbers without `dim`, which sorts them as rows and takes fifty times as long.
    _, counts = ids.unique(dim=0 if ids.ndim > 1 else None, return_counts=True)
    return float(torch.special.entr(counts.double() / len(ids)).sum())


@torch.no_grad()
def state_coverage(observations: Rows, width: float = WIDTH) -> float:
    """Share of the rows [B, ...] that are distinct: 1 where no state was seen twice.

    distinct / B
    """
    parts = _parts(observations)
    if not len(parts[0]):
        return math.nan
    hashes = _hashes(parts, width)
    return len(np.unique(hashes)) / len(hashes)


class StateCoverage:
    """Distinct observations per environment step over a whole run, however long, in 16 KB.

    Hashes are counted by HyperLogLog (Flajolet et al. 2007) with the estimator of Ertl 2017: each
    of 2^14 registers keeps the longest run of leading zeros among the hashes that fell to it. The
    standard error is 0.8%, less for small counts; the same rows give the same number, in any order.
    """

    def __init__(self, width: float = WIDTH) -> None:
        self.width = width
        self.steps = 0
        """Rows taken in."""
        self._registers = np.zeros(2**INDEX_BITS, np.uint8)

    def update(self, observations: Rows) -> np.ndarray:
        """Take in rows [B, ...]; return their hashes [B]."""
        hashes = self.hashes(observations)
        self.count(hashes)
        return hashes

    @torch.no_grad()
    def hashes(self, observations: Rows) -> np.ndarray:
        """Return a hash of each of the rows [B, ...]."""
        parts = _parts(observations)
        return _hashes(parts, self.width) if len(parts[0]) else np.zeros(0, np.uint64)

    def count(self, hashes: np.ndarray) -> None:
        """Take in rows by their hashes [B]."""
        self.steps += len(hashes)
        index = (hashes >> np.uint64(REST_BITS)).astype(np.intp)
        rest = hashes & np.uint64(2**REST_BITS - 1)
        # The exponent of a float is the number of bits, exactly, up to 53 of them.
        zeros = REST_BITS - np.frexp(rest.astype(np.float64))[1]
        np.maximum.at(self._registers, index, (zeros + 1).astype(np.uint8))

    @property
    def distinct(self) -> float:
        """Estimate of the number of distinct observations, never above `steps`.

        n = m^2 / (2 ln 2 (m sigma(C_0 / m) + sum_{k > 0} C_k 2^-k))
        sigma(x) = x + sum_{k > 0} x^(2^k) 2^(k - 1)

        C_k of the m registers hold k. No run fills a register's 50 bits, so that Ertl's second
        correction is left out.
        """
        if not self.steps:
            return 0.0
        size = len(self._registers)
        counts = np.bincount(self._registers)
        empty = counts[0] / size
        k = np.arange(1.0, 40.0)
        sigma = empty + (empty ** (2**k) * 2 ** (k - 1)).sum()
        filled = (counts[1:] * 0.5 ** np.arange(1, len(counts))).sum()
        return min(float(size**2 / (2 * math.log(2) * (size * sigma + filled))), float(self.steps))

    @property
    def coverage(self) -> float:
        """Distinct observations per step, nan before the first."""
        return self.distinct / self.steps if self.steps else math.nan

    def state_dict(self) -> dict[str, Tensor]:
        """Return what a checkpoint keeps."""
        return {
            "registers": torch.from_numpy(self._registers.copy()),
            "steps": torch.tensor(self.steps),
        }

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore from `state_dict`."""
        self._registers = state["registers"].cpu().numpy().copy()
        self.steps = int(state["steps"])


class VisitCounts:
    """How often each state was visited over a whole run, exactly, while there are few states."""

    MOST = 65_536
    """Distinct states; beyond, nothing is counted any more."""

    def __init__(self) -> None:
        self._states, self._counts = np.zeros(0, np.uint64), np.zeros(0, np.int64)
        self._too_many = False

    def update(self, hashes: np.ndarray) -> None:
        """Take in visits, by their states' hashes [B]."""
        if self._too_many:
            return
        new, counts = np.unique(hashes, return_counts=True)
        self._states, places = np.unique(np.concatenate([self._states, new]), return_inverse=True)
        both = np.concatenate([self._counts, counts])
        self._counts = np.bincount(places, both, len(self._states)).astype(np.int64)
        if len(self._states) > self.MOST:
            self.__init__()
            self._too_many = True

    @property
    def entropy(self) -> float:
        """Entropy of the visits in nats, as `visited_entropy`; nan where there are too many."""
        if not len(self._counts):
            return math.nan
        shares = torch.from_numpy(self._counts / self._counts.sum())
        return float(torch.special.entr(shares).sum())

    def state_dict(self) -> dict[str, Tensor]:
        """Return what a checkpoint keeps."""
        return {
            "states": torch.tensor(self._states.view(np.int64)),
            "counts": torch.tensor(self._counts),
            "too_many": torch.tensor(self._too_many),
        }

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore from `state_dict`."""
        self._states = state["states"].cpu().numpy().view(np.uint64).copy()
        self._counts = state["counts"].cpu().numpy().copy()
        self._too_many = bool(state["too_many"])


def _parts(observations: Rows) -> list[Tensor]:
    """Return an observation's parts [B, D], on the CPU, in the order of their names."""
    if isinstance(observations, Tensor):
        observations = {"": observations}
    parts = [observations[name] for name in sorted(observations)]
    return [each.cpu().reshape(len(each), each[:1].numel()) for each in parts]


def _vectors(parts: list[Tensor]) -> Tensor:
    """Return the float parts side by side, [B, D], float32."""
    vectors = [each.float() for each in parts if each.is_floating_point()]
    return torch.cat(vectors, 1) if vectors else torch.zeros(len(parts[0]), 0)


def _hashes(parts: list[Tensor], width: float) -> np.ndarray:
    """Return a 64-bit hash of each row, [B]."""
    bins = (_vectors(parts) / UNIT).asinh_().div_(width).round_()
    # What is no number has a bin of its own, beyond all others.
    bins = bins.clamp_(-(2.0**30), 2.0**30).nan_to_num_(nan=-(2.0**31)).int()
    whole = [each for each in parts if not each.is_floating_point()]
    hashes = np.zeros(len(bins), np.uint64)
    for part in (bins, *whole):
        hashes = _mixed(hashes ^ _hashed(part.numpy()))
    return hashes


def _hashed(rows: np.ndarray) -> np.ndarray:
    """Hash the bytes of rows [B, D] to 64 bits: sum_j m_j mix(w_j) over words of eight bytes.

    The multipliers m are odd, so that rows that differ in one word never collide; `mix` is one to
    one and carries the high bits down, which the sum modulo 2^64 would not.
    """
    data = np.ascontiguousarray(rows).view(np.uint8).reshape(len(rows), -1)
    data = np.pad(data, ((0, 0), (0, -data.shape[1] % 8))) if data.shape[1] % 8 else data
    words = data.view("<u8")
    multipliers = _multipliers(words.shape[1])
    hashes = np.empty(len(words), np.uint64)
    step = max(1, WORDS_AT_ONCE // max(1, words.shape[1]))
    for first in range(0, len(words), step):
        part = words[first : first + step]
        part = part ^ (part >> np.uint64(32))
        part *= np.uint64(0x9E3779B97F4A7C15)
        part ^= part >> np.uint64(29)
        hashes[first : first + step] = part @ multipliers
    return hashes


@cache
def _multipliers(count: int) -> np.ndarray:
    """Return odd numbers [count] that look random and are the same everywhere."""
    return _mixed(np.arange(1, count + 1, dtype=np.uint64)) | np.uint64(1)


def _mixed(numbers: np.ndarray) -> np.ndarray:
    """Spread every bit of 64-bit numbers over all 64: SplitMix64 (Steele et al. 2014)."""
    numbers = numbers + np.uint64(0x9E3779B97F4A7C15)
    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return numbers ^ (numbers >> np.uint64(31))
