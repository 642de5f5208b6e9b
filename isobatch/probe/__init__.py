"""The gradient probe: which shape has the smallest error, and where its noise comes from.

run(run_or_path, ...)        the answer of `isobatch probe`: prints as it, renders in a notebook
investigate(policy, ...)     what it rests on, of a policy in its environment
decompose(gradients)         the variance of a batch's gradient: single samples, correlation
noise_scale(gradients)       the batch size beyond which more samples stop helping
"""

from isobatch.batch import Shape
from isobatch.noise.scale import noise_scale
from isobatch.noise.variance import Decomposition, decompose
from isobatch.probe.findings import Findings
from isobatch.probe.laboratory import investigate
from isobatch.probe.plan import Question
from isobatch.probe.probing import Probe, run

__all__ = [
    "Decomposition",
    "Findings",
    "Probe",
    "Question",
    "Shape",
    "decompose",
    "investigate",
    "noise_scale",
    "run",
]
