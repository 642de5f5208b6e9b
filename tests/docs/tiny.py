"""The pages' commands at a tiny budget: flags that are added, and bounds within the process.

What a page teaches stays as it stands: its batch, its files, its flags. Only budgets, seeds and
measurements are cut, and the batch of image environments, whose networks are slow.
"""

import os
import sys
from dataclasses import replace
from pathlib import Path

STEPS, MORE_STEPS, FEW_STEPS = 2048, 3072, 10_000
"""Of a run, of one that is resumed with a larger budget, and what stays as it is there."""
IMAGES = ("CoinrunEasy-v0", "StarpilotHard-v0")
SMALL_BATCH = ["--n-envs", "2", "--n-steps", "16", "--n-minibatches", "2", "--n-epochs", "1"]
FLAGS = {
    "eval": ["--episodes", "2"],
    "study": ["--seeds", "2", "--jobs", "1"],
    "probe": ["--batches", "2", "--no-speed"],
    "verify": ["--iterations", "2"],
}
"""The last of a flag that is given twice counts."""


def shortened(words, folder):
    """Return a command's words with flags for a tiny budget."""
    if words[0] != "isobatch" or "--help" in words or "--list" in words:
        return words
    command = words[1]
    if command == "train":
        return [*words, *_training(words, folder)]
    if command == "resume":
        if "--total-timesteps" not in words:
            return words
        asked = int(words[words.index("--total-timesteps") + 1])
        return words if asked <= FEW_STEPS else [*words, "--total-timesteps", str(MORE_STEPS)]
    return [*words, *FLAGS.get(command, [])]


def _training(words, folder):
    steps = ["--total-timesteps", str(STEPS)]
    if "--seeds" in words:
        steps += ["--seeds", "2"]
    text = " ".join(words)
    if "--recipe" in words:
        text += (folder / words[words.index("--recipe") + 1]).read_text(encoding="utf-8")
    if any(env in text for env in IMAGES):
        return [*SMALL_BATCH, "--total-timesteps", "64"]
    return steps


def bound():
    """Bound what no flag of a command bounds, in this process."""
    import isobatch
    from isobatch.cli import study as study_command
    from isobatch.noise import clusters
    from isobatch.probe import Shape, plan, probing
    from isobatch.run import throughput
    from isobatch.study import design

    sys.path.append(str(Path(__file__).parents[1] / "faults"))
    from inside import Here  # pyright: ignore[reportMissingImports]

    sys.path.pop()
    train, load, measure = isobatch.train, design.load, throughput.measure
    shapes = probing._shapes

    def tiny_train(*given, **settings):
        asked = settings.get("total_timesteps", STEPS)
        return train(*given, **settings | {"total_timesteps": min(asked, STEPS)})

    def tiny_study(*given):
        study = load(*given)
        return replace(study, envs=study.envs[:1], budget=STEPS, evaluate=4)

    def tiny_shapes(given):
        """A quarter of the environments and of the steps, two at least: 2x32 for 8x128."""
        return tuple(Shape(max(2, n // 4), max(2, t // 4)) for n, t in shapes(given))

    os.environ["WANDB_MODE"] = "offline"
    clusters.RESAMPLES = 50
    plan.FEWEST_ENVS, plan.MOST_ROWS, plan.MOST_AHEAD = 16, 1 << 11, 64
    probing._shapes = tiny_shapes
    isobatch.train = tiny_train
    design.load = tiny_study
    study_command._executor = lambda *_: Here()  # A worker would import PyTorch anew.
    throughput.measure = lambda recipe, **settings: measure(recipe, seconds=0.1, **settings)
