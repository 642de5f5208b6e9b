"""What happens inside the networks and the data, in numbers: the diagnostics of 2506.03404.

Pure functions: no gradient flows, no random number is drawn, nothing given is changed. Each returns
a Python float, nan where the quantity is not defined (an empty batch, numbers that are none).
"""

from isobatch.diagnostics.coverage import (
    StateCoverage,
    VisitCounts,
    state_coverage,
    visited_entropy,
)
from isobatch.diagnostics.gradients import gradient_kurtosis, gradient_norm_kurtosis, kurtosis
from isobatch.diagnostics.networks import dormant_fraction, weight_norm
from isobatch.diagnostics.policies import importance_ess, policy_variance
from isobatch.diagnostics.ranks import effective_rank, feature_rank, singular_values, srank
from isobatch.diagnostics.seen import Seen

__all__ = [
    "Seen",
    "StateCoverage",
    "VisitCounts",
    "dormant_fraction",
    "effective_rank",
    "feature_rank",
    "gradient_kurtosis",
    "gradient_norm_kurtosis",
    "importance_ess",
    "kurtosis",
    "policy_variance",
    "singular_values",
    "srank",
    "state_coverage",
    "visited_entropy",
    "weight_norm",
]
