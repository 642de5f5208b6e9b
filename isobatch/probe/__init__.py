"""The gradient laboratory: where the noise of an update comes from.

decompose(gradients)         the variance of a batch's gradient: single samples, correlation
noise_scale(gradients)       the batch size beyond which more samples stop helping
investigate(policy, ...)     both, and the iso-batch curve, of a policy in its environment
"""

from isobatch.probe.laboratory import Findings, Question, ShapeOf, investigate
from isobatch.probe.noise import noise_scale
from isobatch.probe.variance import Decomposition, decompose

__all__ = [
    "Decomposition",
    "Findings",
    "Question",
    "ShapeOf",
    "decompose",
    "investigate",
    "noise_scale",
]
