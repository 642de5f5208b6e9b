"""How often the probe has been right: its predictions against training, environment by environment.

A prediction is written down before training is looked at: the shapes of one size, ordered by their
predicted error over ten updates. Training then orders them by the area under the evaluation curve
at one data budget. To add a study, add its rows here and name its page in `SOURCE`; everything that
quotes the record follows.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from isobatch.estimate import Estimate
from isobatch.text import counted, interval


@dataclass(frozen=True)
class Prediction:
    """What the probe predicted for one environment, and what training gave."""

    env: str
    predicted: str
    """The shape with the smallest predicted error."""
    trained: str
    """The shape that trained best."""
    correlation: Estimate
    """Spearman's rank correlation, over the shapes, of predicted and trained order; 95% interval
    over seeds."""
    hits: int
    """Pairs of shapes that training ordered as predicted."""
    pairs: int
    """Pairs of shapes that training told apart: 0 is outside the 95% interval over seeds."""
    longer: int
    """Those pairs that always preferring the longer rollout would have ordered right."""


SOURCE = "docs/results/probe.md"
RECORD = (
    Prediction("FrozenLake8x8-v1", "4x256", "4x256", Estimate(1.0, 0.5, 1.0), 2, 2, 2),
    Prediction("LunarLander-v3", "4x256", "8x128", Estimate(0.7, 0.6, 1.0), 7, 7, 7),
    Prediction("Pendulum-v1", "4x256", "8x128", Estimate(0.9, 0.7, 1.0), 7, 7, 7),
    Prediction("HalfCheetah-v4", "4x256", "32x32", Estimate(0.6, 0.1, 0.9), 3, 3, 3),
    Prediction("Reacher-v4", "4x256", "8x128", Estimate(0.9, 0.7, 1.0), 8, 8, 8),
    Prediction("FingerSpin-v1", "8x128", "32x32", Estimate(0.6, 0.0, 0.9), 3, 3, 3),
)
"""As answered: against Monte-Carlo returns, on LunarLander and Pendulum GAE. Ten seeds."""


def said(record: Sequence[Prediction] = RECORD) -> str:
    """Return the record as a sentence."""
    if not record:
        return "Record: this prediction is not yet tested against training."
    hits, pairs, longer = (
        sum(getattr(row, name) for row in record) for name in ("hits", "pairs", "longer")
    )
    best = sum(each.predicted == each.trained for each in record)
    return (
        f"Record: right for {hits} of {counted(pairs, 'pair')} of shapes that training told apart "
        f"(always preferring longer rollouts: {longer}) and for the best shape in {best} of "
        f"{counted(len(record), 'environment')}; mean rank correlation "
        f"{interval(mean_correlation(record), '.2f')} ({SOURCE})."
    )


def mean_correlation(record: Sequence[Prediction]) -> Estimate:
    """Return the mean over environments, with Student's 95% interval where there are several."""
    values = [each.correlation.value for each in record]
    mean = statistics.fmean(values)
    if len(values) < 2:
        return Estimate(mean)
    from scipy.stats import t as student  # Half a second to import: only where it is used.

    error = statistics.stdev(values) / math.sqrt(len(values))
    reach = float(student.ppf(0.975, len(values) - 1)) * error
    return Estimate(mean, max(-1.0, mean - reach), min(1.0, mean + reach))
