"""A program for workers: train a few small runs together, one after the other.

`python -m several TASK FOLDER`; under an agent as one of its workers, else alone.
"""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from isobatch.advantages import AdvantageMoments
from isobatch.experience.shards import Shards
from isobatch.normalize import moments_of
from isobatch.presets import preset
from isobatch.recipe import Recipe
from isobatch.run import training
from isobatch.workers.membership import Group, join, membership

SMALL: Any = {
    "n_envs": 8, "n_steps": 16, "total_timesteps": 800, "shards": 4, "hidden_sizes": (16,),
}  # fmt: skip
FEW: Any = {"n_epochs": 2}
"""Steps of the optimiser, each of which the workers wait for."""
NORMALIZED: Any = {"normalize_observations": True, "normalize_rewards": True}
RECIPES = {
    # A KL stop that fires, a schedule, the probe, all diagnostics.
    "ppo": lambda: preset(
        "CartPole-v1", "ppo", **SMALL, **NORMALIZED, target_kl=0.002, learning_rate=3e-3,
        learning_rate_schedule="linear", probe_every=2, diagnostics="full",
        batch_schedule="0:4x16, 300:8x16", eval_marks=2, eval_episodes=2,
    ),
    "ppo-ewma": lambda: preset(
        "Pendulum-v1", "ppo-ewma", **SMALL, **FEW, **NORMALIZED, staleness=1, stagger=True,
        advantage_normalization="ewma", advantage_decay=0.5,
    ),
    "minibatch": lambda: preset(
        "CartPole-v1", "ppo", **SMALL, **FEW, advantage_normalization="minibatch",
        minibatches_by="envs",
    ),
    "pqn": lambda: preset("CartPole-v1", "pqn", **SMALL),
    "reinforce": lambda: preset("CartPole-v1", "reinforce", **SMALL),
    "ppg": lambda: preset(
        "CoinrunHard-v0", "ppg-ewma", n_envs=4, n_steps=8, total_timesteps=130, shards=4,
        n_policy_iterations=2, n_aux_epochs=1, diagnostics="full",
    ),
}  # fmt: skip


def train(group: Group | None, folder: Path) -> None:
    """Train each recipe."""
    for name, recipe in RECIPES.items():
        training.train(recipe=recipe(), out=folder / name, quiet=True, group=group)


def exactly() -> dict[str, Recipe]:
    """Return recipes whose runs resume exactly; but for the first, rollouts wait between."""
    more: Any = {"total_timesteps": 1100, "exact_resume": True}
    phases: Any = {"n_policy_iterations": 3, "n_aux_epochs": 1}
    return {
        "ppo": RECIPES["minibatch"]().replace(**more, **NORMALIZED, probe_every=2),
        "stale": RECIPES["ppo-ewma"]().replace(**more, staleness=2, stagger=False),
        "reinforce": RECIPES["reinforce"]().replace(**more),
        "ppg": preset("CartPole-v1", "ppg-ewma", **SMALL | more, **phases),
    }


def begin(group: Group | None, folder: Path) -> None:
    """Train for four iterations, which is in the middle of a phase."""
    for name, recipe in exactly().items():
        out = folder / name
        training.train(recipe=recipe, out=out, quiet=True, group=group, on_iteration=until(4))


def go_on(group: Group | None, folder: Path) -> None:
    """Resume for three iterations."""
    first = 4
    for name in exactly():
        training.resume(folder / name, quiet=True, group=group, on_iteration=until(first + 3))


def finish(group: Group | None, folder: Path) -> None:
    """Resume to the end."""
    for name in exactly():
        training.resume(folder / name, quiet=True, group=group)


def until(iterations: int) -> Callable[[dict[str, Any]], bool]:
    """Return what stops a run after so many iterations, of which the others are told a row late."""
    return lambda row: row["iterations"] < iterations


def wrong(group: Group | None, folder: Path) -> None:
    """Train as others do it: moments of a worker's own rows instead of everyone's."""
    recipe = preset("CartPole-v1", "ppo", **SMALL, **NORMALIZED)
    recipe = recipe.replace(advantage_normalization="batch")
    training.train(recipe=recipe, out=folder / "right", quiet=True, group=group)
    right = AdvantageMoments.update, Shards.vector_moments
    rank = 0 if group is None else group.rank

    def own_advantages(self: AdvantageMoments, advantages: Any, valid: Any = None) -> None:
        half = advantages.shape[1] // 2
        columns = slice(rank * half, (rank + 1) * half)
        right[0](self, advantages[:, columns], valid[:, columns])

    AdvantageMoments.update = own_advantages
    training.train(recipe=recipe, out=folder / "advantages", quiet=True, group=group)
    AdvantageMoments.update = right[0]

    def own_observations(self: Shards, valid: Any) -> Any:
        return [
            moments_of(seen["vector"][:-1][valid[:, self.columns(place)]])
            for place, seen in self.own.items()
        ]

    Shards.vector_moments = own_observations
    training.train(recipe=recipe, out=folder / "observations", quiet=True, group=group)
    Shards.vector_moments = right[1]


TASKS = {each.__name__: each for each in (train, begin, go_on, finish, wrong)}


def main() -> int:
    """Run a task with whoever takes part."""
    member = membership()
    group = None if member is None else join(member)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    TASKS[sys.argv[1]](group, Path(sys.argv[2]))
    if group is not None:
        group.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
