"""The gradient laboratory: where the noise of an update comes from.

decompose(gradients)         the variance of a batch's gradient: single samples, correlation
noise_scale(gradients)       the batch size beyond which more samples stop helping
investigate(policy, ...)     both, and the iso-batch curve, of a policy in its environment
"""

from isobatch.batch import Shape
from isobatch.noise.scale import noise_scale
from isobatch.noise.variance import Decomposition, decompose
from isobatch.probe.laboratory import Findings, investigate
from isobatch.probe.plan import Question

__all__ = [
    "Decomposition",
    "Findings",
    "Question",
    "Shape",
    "decompose",
    "investigate",
    "noise_scale",
]
