"""Seeds for environments: spread out, and never shared between runs.

EnvPool would give environment i the seed s + i, so that runs with seeds 0 and 1 would share all
but one of their environments.
"""

from __future__ import annotations

import numpy as np
import torch

from isobatch.errors import UserError

RUNS = 1 << 15
"""Run seeds below this get disjoint environment seeds, by construction."""
ENVIRONMENTS = 1 << 16
"""Environments one run may ever make, those made again on resuming included."""
EVALUATION = ENVIRONMENTS // 2
"""The upper half of a run's seeds belongs to evaluation."""
EVALUATIONS = 1 << 11
"""Evaluations with seeds below this share no environment, at 16 environments each."""
MASK = (1 << 31) - 1


def env_seeds(run_seed: int, count: int, first: int = 0, stride: int = 1) -> list[int]:
    """Return 31-bit seeds for a run's environments number first, first + stride, ...

    For run seeds below 2^15 the map (run seed, environment number) -> seed is one to one, so two
    runs, or two stretches of one run, never share a seed. Larger run seeds are hashed first, and
    then differ only with overwhelming probability. Numbers below 2^15 are for training, those
    above for evaluation; each half begins again at its end.
    """
    if run_seed >= RUNS:
        run_seed = int(np.random.SeedSequence(run_seed).generate_state(1)[0]) % RUNS
    begin = EVALUATION if first >= EVALUATION else 0
    numbers = begin + (first - begin + stride * np.arange(count, dtype=np.int64)) % EVALUATION
    return [_scramble(int(number) * RUNS + run_seed) for number in numbers]


def evaluation_seeds(run_seed: int, count: int, seed: int) -> list[int]:
    """Return seeds for evaluation number `seed` of a run, none of them a training seed."""
    if seed < 0:
        raise UserError(f"the evaluation's seed must not be negative, got {seed}", field="seed")
    if seed >= EVALUATIONS:
        seed = int(np.random.SeedSequence(seed).generate_state(1)[0]) % EVALUATIONS
    first = seed * (ENVIRONMENTS - EVALUATION) // EVALUATIONS
    numbers = (first + np.arange(count)) % (ENVIRONMENTS - EVALUATION)
    return [env_seeds(run_seed, 1, EVALUATION + int(number))[0] for number in numbers]


def mixed_generator(*numbers: int, device: torch.device | str = "cpu") -> torch.Generator:
    """Return random numbers that depend on all of `numbers`, and on nothing else."""
    mixed = np.random.SeedSequence(numbers).generate_state(1, np.uint64)
    return torch.Generator(device).manual_seed(int(mixed[0]))


def _scramble(value: int) -> int:
    """A bijection of the 31-bit numbers: odd products and xor-shifts both invert."""
    value ^= 0x5BD1E995 & MASK
    for factor in (0x2C1B3C6D, 0x297A2D39):
        value ^= value >> 16
        value = value * factor & MASK
    return value ^ value >> 15
