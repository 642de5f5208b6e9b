"""A run directory as if it had been trained, with every column a page can draw."""

import json
import math
from pathlib import Path
from typing import Any

from isobatch.advice import Finding
from isobatch.recipe import Recipe

SPARSE = (
    "weight_norm_actor", "weight_norm_critic", "gradient_kurtosis_actor", "policy_variance",
    "importance_ess", "feature_rank_actor", "feature_rank_critic", "dormant_fraction_actor",
    "state_coverage",
)  # fmt: skip
"""Measured every MEASURED iterations, null in the others."""
MEASURED = 5
RECIPE = Recipe(env="CartPole-v1").replace(
    n_envs=8, n_steps=128, n_minibatches=4, n_epochs=10, total_timesteps=61_440, eval_marks=12
)


FINDINGS = [
    Finding(
        "problem", 0.0612, 0.02, "approximate KL 0.061, over 0.02: the policy moves far",
        "take smaller steps", {"learning_rate": 0.0005}, "kl-high", "arXiv 2506.03404", 20_480,
    ),
    Finding(
        "warning", 2, 4, "a minibatch has rows of 2 environments", "use more environments",
        {"n_envs": 16}, "few-environments", "rule of thumb", 1024,
    ),
    Finding("note", 0.61, 0.5, "environments take 61% of the time", "use threads"),
]  # fmt: skip


def write_run(path: Path, rows: int = 60, recipe: Recipe = RECIPE, tilt: float = 1.0) -> Path:
    """Write a run of so many iterations; return its path."""
    path.mkdir(parents=True)
    (path / "recipe.toml").write_text(recipe.to_toml())
    size = recipe.batch.rollout_size
    metrics = [row(k, size, tilt) for k in range(1, rows + 1)]
    (path / "metrics.jsonl").write_text("".join(json.dumps(each) + "\n" for each in metrics))
    evaluations = [evaluation(k, size, tilt) for k in range(0, rows + 1, MEASURED)]
    (path / "evaluations.jsonl").write_text(
        "".join(json.dumps(each) + "\n" for each in evaluations)
    )
    (path / "profile.json").write_text(json.dumps(profile(rows)))
    return path


def row(k: int, size: int, tilt: float) -> dict[str, Any]:
    along = k / 60
    return {
        "env_steps": k * size,
        "iterations": k,
        "epochs": 10 * k,
        "grad_steps": 40 * k,
        "episodes": 7 * k,
        "episode_return": None if k == 1 else 20 + 450 * tilt * along / (1 + along) + 8 * (k % 3),
        "policy_loss": -0.01 + 0.003 * math.sin(k),
        "value_loss": 40 * tilt / k,
        "entropy": 0.69 - 0.3 * along,
        "approx_kl": 0.004 + 0.05 * along**3 * tilt,
        "clip_fraction": 0.05 + 0.1 * along,
        "explained_variance": 1 - 1 / k,
        "grad_norm": 3 + math.cos(k),
        "learning_rate": 0.001 * (1 - k / 61),
        "env_seconds": 0.05 + 0.0001 * k,
        "acting_seconds": 0.02,
        "learning_seconds": 0.1 + 0.01 * math.sin(k),
        "other_seconds": 0.003,
        **{
            name: (place + 1) * tilt + along if k % MEASURED == 1 else None
            for place, name in enumerate(SPARSE)
        },
        "n_envs": 8,
        "n_steps": 128,
        "n_minibatches": 4,
        "n_epochs": 10,
        "seconds": round(0.17 * k, 6),
        "steps_per_second": 6000.5,
        "time": f"2026-11-16T22:{k // 60:02d}:{k % 60:02d}.000+00:00",
    }


def evaluation(k: int, size: int, tilt: float) -> dict[str, Any]:
    return {
        "mark": k * size,
        "env_steps": k * size,
        "iterations": k,
        "episodes": 4,
        "episode_return": 20.25 + 7.5 * k * tilt,
        "episode_return_std": 12.5,
        "returns": [1.0, 2.0],
        "lengths": [1, 2],
        "seconds": 0.05,
    }


def profile(rows: int) -> dict[str, Any]:
    parts = {"environments": 0.05 * rows, "gradient": 0.1 * rows, "other": 0.02 * rows}
    lap = {"seconds": 0.17 * rows, "parts": parts}
    short = {"seconds": 0.5, "parts": {"imports": 0.5}}
    return {
        "iterations": rows + 1, "start_up": short, "first_iteration": short,
        "later_iterations": lap, "end": short,
    }  # fmt: skip
