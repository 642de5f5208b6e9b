"""Rows of real runs in four digits: of presets that learn, and of runs broken on purpose.

PYTHONPATH=. python tests/advice/recorded_runs.py [NAME ...]   # trains and records them again
"""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from isobatch.advice import Actions, History
from isobatch.advice.history import numbers
from isobatch.presets import family_preset
from isobatch.recipe import Recipe

FOLDER = Path(__file__).parent / "recorded"
HEALTHY = {
    "cartpole": ("classic", "CartPole-v1", {"total_timesteps": 100_000, "eval_marks": 10}),
    "acrobot": ("classic", "Acrobot-v1", {"total_timesteps": 100_000}),
    "minigrid": ("minigrid", "MiniGrid-Empty-5x5-v0", {"total_timesteps": 100_000}),
    "lunarlander": ("box2d", "LunarLander-v3", {"total_timesteps": 200_000}),
    "frozenlake": ("toy-text", "FrozenLake8x8-v1", {"total_timesteps": 100_000}),
}
"""Presets, at budgets that fit."""
BROKEN = {
    "step-size-100x": (
        "classic",
        "CartPole-v1",
        {"learning_rate": 0.1, "total_timesteps": 20_000},
    ),
    "step-size-tiny": (
        "classic",
        "CartPole-v1",
        {"learning_rate": 1e-5, "total_timesteps": 20_480},
    ),
    "entropy-bonus-1": ("classic", "Acrobot-v1", {"ent_coef": 1.0, "total_timesteps": 30_720}),
    "vf-coef-1000": ("classic", "Acrobot-v1", {"vf_coef": 1000.0, "total_timesteps": 30_720}),
    "target-kl-tiny": (
        "classic",
        "CartPole-v1",
        {"target_kl": 0.0005, "total_timesteps": 20_480},
    ),
    "one-large-minibatch": (
        "classic",
        "CartPole-v1",
        {
            "n_envs": 256,
            "n_steps": 32,
            "n_minibatches": 1,
            "probe_every": 2,
            "total_timesteps": 200_000,
        },
    ),
    "shared-network": (
        "classic",
        "Acrobot-v1",
        {"architecture": "shared", "total_timesteps": 40_000},
    ),
    "no-reward": ("classic", "MountainCar-v0", {"n_epochs": 2, "total_timesteps": 20_000}),
    "large-steps-relu": (
        "minigrid",
        "MiniGrid-Empty-5x5-v0",
        {"activation": "relu", "learning_rate": 0.01, "total_timesteps": 60_000},
    ),
    "large-returns": ("classic", "Pendulum-v1", {"total_timesteps": 60_000}),
    "no-gradient-clipping": (
        "classic",
        "Pendulum-v1",
        {
            "learning_rate": 0.3,
            "learning_rate_schedule": "constant",
            "max_grad_norm": None,
            "activation": "relu",
            "total_timesteps": 40_000,
        },
    ),
    "diverging": (
        "classic",
        "Pendulum-v1",
        {
            "optimizer": "sgd",
            "activation": "relu",
            "learning_rate": 1.0,
            "max_grad_norm": None,
            "on_divergence": "skip",
            "total_timesteps": 8192,
        },
    ),
    "no-ratio-clipping": (
        "classic",
        "Pendulum-v1",
        {
            "learning_rate": 0.03,
            "learning_rate_schedule": "constant",
            "clip_range": 100.0,
            "max_ratio": 3.0,
            "n_steps": 64,
            "normalize_rewards": True,
            "total_timesteps": 20_480,
        },
    ),
    "evaluated-too-soon": (
        "classic",
        "CartPole-v1",
        {
            "learning_rate": 1e-6,
            "n_epochs": 2,
            "eval_marks": 20,
            "eval_episodes": 100,
            "total_timesteps": 10_240,
        },
    ),
    "many-gradient-steps": (
        "classic",
        "CartPole-v1",
        {"n_epochs": 40, "n_minibatches": 16, "total_timesteps": 6144},
    ),
    "rare-rewards": (
        "toy-text",
        "FrozenLake8x8-v1",
        {"n_envs": 4, "n_steps": 64, "total_timesteps": 10_240},
    ),
    "one-episode-each": (
        "classic",
        "Pendulum-v1",
        {"n_envs": 256, "n_steps": 8, "n_epochs": 2, "total_timesteps": 60_000},
    ),
    "no-episode": (
        "classic",
        "Pendulum-v1",
        {"n_envs": 256, "n_steps": 4, "n_epochs": 2, "total_timesteps": 20_000},
    ),
    "small-steps": (
        "classic",
        "CartPole-v1",
        {
            "learning_rate": 1e-4,
            "learning_rate_schedule": "constant",
            "n_epochs": 2,
            "total_timesteps": 20_000,
        },
    ),
    "one-environment": (
        "classic",
        "CartPole-v1",
        {"n_envs": 1, "n_steps": 512, "n_epochs": 1, "total_timesteps": 10_000},
    ),
}
NOTED = {
    "step-size-20x": (
        "classic",
        "CartPole-v1",
        {
            "learning_rate": 0.02,
            "n_epochs": 20,
            "learning_rate_schedule": "constant",
            "total_timesteps": 30_000,
        },
    ),
    "taxi": ("toy-text", "Taxi-v3", {"total_timesteps": 50_000}),
}
"""Only notes are said of these: the first learns all the same."""
RUNS = HEALTHY | BROKEN | NOTED


def recipe_of(name: str) -> Recipe:
    fields: dict[str, Any]
    family, env, fields = RUNS[name]
    return family_preset(family, env, **fields)


def history_of(name: str) -> History:
    kept = json.loads((FOLDER / f"{name}.json").read_text())
    columns = kept["columns"]
    rows = [
        {key: values[k] for key, values in columns.items() if values[k] is not None}
        for k in range(len(columns["env_steps"]))
    ]
    return History(recipe_of(name), rows, kept["evaluations"], Actions(*kept["actions"]))


def record(name: str, run: Path) -> None:
    """Keep the rows of a run, column by column."""
    from isobatch import advice
    from isobatch.run.reading import read_evaluations, read_metrics

    rows = [numbers(row) for row in read_metrics(run)]
    names = dict.fromkeys(key for row in rows for key in row)
    columns = {key: [_digits(row.get(key)) for row in rows] for key in names}
    played = [
        {key: row[key] for key in ("mark", "episode_return", "seconds")}
        for row in read_evaluations(run)
    ]
    kept = {"actions": advice.read(run).actions, "evaluations": played, "columns": columns}
    FOLDER.mkdir(exist_ok=True)
    lines = json.dumps(kept, separators=(",", ":")).replace('],"', '],\n"')
    (FOLDER / f"{name}.json").write_text(lines + "\n")


def _digits(value: float | None) -> float | None:
    if value is None or value == int(value):
        return value if value is None else int(value)
    return float(f"{value:.4g}")


if __name__ == "__main__":
    import isobatch

    for each in sys.argv[1:] or RUNS:
        with tempfile.TemporaryDirectory() as scratch:
            isobatch.train(recipe=recipe_of(each), out=Path(scratch) / each, quiet=True)
            record(each, Path(scratch) / each)
