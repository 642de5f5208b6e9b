"""Trained policies of other libraries as run directories, and run directories as theirs.

    landed = weights.from_sb3("model.zip", "CartPole-v1", "runs/mine")
    weights.to_sb3("runs/mine", "back.zip")

Files are read without running them: tensors by PyTorch's `weights_only`, pickles as records.
"""

from isobatch.weights.cleanrl import from_cleanrl
from isobatch.weights.landing import Landed
from isobatch.weights.sb3 import from_sb3
from isobatch.weights.sb3_export import Exported, to_sb3

__all__ = ["Exported", "Landed", "from_cleanrl", "from_sb3", "to_sb3"]
