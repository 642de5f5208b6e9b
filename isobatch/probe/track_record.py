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


@dataclass(frozen=True)
class Doubling:
    """What the noise model said doubling costs, and what it did; step size by the rules."""

    env: str
    what: str
    predicted: float
    """Transitions to the same progress, over those of the recipe."""
    trained: Estimate
    """Env steps to the same evaluation, over those of the recipe; 95% interval over seeds."""

    @property
    def agrees(self) -> bool:
        """True where the prediction lies in the interval of training."""
        return self.trained.low <= self.predicted <= self.trained.high


NEVER = math.inf
DOUBLINGS = (
    Doubling("FrozenLake8x8-v1", "minibatch", 1.01, Estimate(0.91, 0.61, 1.51)),
    Doubling("FrozenLake8x8-v1", "rollout", 1.04, Estimate(1.09, 0.88, 1.80)),
    Doubling("LunarLander-v3", "minibatch", 1.03, Estimate(NEVER, 0.97, NEVER)),
    Doubling("LunarLander-v3", "rollout", 1.11, Estimate(NEVER, 1.12, NEVER)),
    Doubling("Pendulum-v1", "minibatch", 1.08, Estimate(1.35, 1.16, 1.56)),
    Doubling("Pendulum-v1", "rollout", 1.28, Estimate(1.28, 1.04, 1.42)),
    Doubling("HalfCheetah-v4", "minibatch", 1.01, Estimate(1.03, 0.86, 1.26)),
    Doubling("HalfCheetah-v4", "rollout", 1.05, Estimate(1.04, 0.87, 1.26)),
    Doubling("Reacher-v4", "minibatch", 1.30, Estimate(1.11, 1.04, 1.37)),
    Doubling("Reacher-v4", "rollout", 1.64, Estimate(1.12, 1.07, 1.40)),
    Doubling("FingerSpin-v1", "minibatch", 1.02, Estimate(1.36, 0.91, NEVER)),
    Doubling("FingerSpin-v1", "rollout", 1.06, Estimate(1.40, 0.98, NEVER)),
)
"""Five seeds each."""


def said_of_doubling(record: Sequence[Doubling] = DOUBLINGS) -> str:
    """Return what training made of the noise model, as a sentence."""
    return (
        f"In training the env steps agreed with it in {sum(each.agrees for each in record)} of "
        f"{counted(len(record), 'case')}; with the step size kept it was slower ({SOURCE})."
    )


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
    from scipy.special import stdtrit  # Slow to import: only where it is used.

    error = statistics.stdev(values) / math.sqrt(len(values))
    reach = float(stdtrit(len(values) - 1, 0.975)) * error
    return Estimate(mean, max(-1.0, mean - reach), min(1.0, mean + reach))
