"""What a matrix of short runs comes to, bit for bit: a change that should change nothing changes
no line of this.

    python benchmarks/fingerprint.py before.json             # in the old checkout
    python benchmarks/fingerprint.py after.json              # in the new one, same machine
    python benchmarks/fingerprint.py --compare before.json after.json

A run's fingerprint is a hash of its metrics without the clock's columns, and of its policy.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import isobatch
from isobatch.run.store import CLOCK_COLUMNS

SMALL = {"total_timesteps": 6_000, "compile": "off"}
IMAGES = {"n_envs": 4, "n_steps": 16, "n_minibatches": 2, "n_epochs": 2, "threads": 2}

CASES: dict[str, dict[str, Any]] = {
    **{
        algo: {"env": "CartPole-v1", "algo": algo, **SMALL}
        for algo in ("ppo", "ppo-ewma", "a2c", "reinforce", "pqn")
    },
    "ppg": {"env": "CartPole-v1", "algo": "ppg", "n_policy_iterations": 2, **SMALL},
    "ppg-ewma": {"env": "CartPole-v1", "algo": "ppg-ewma", "n_policy_iterations": 2, **SMALL},
    "continuous": {"env": "Pendulum-v1", "normalize_observations": True, **SMALL},
    "kl exact": {
        "env": "CartPole-v1", "algo": "ppo-ewma", "objective": "kl", "kl_estimator": "exact",
        **SMALL,
    },
    "kl": {"env": "Acrobot-v1", "algo": "ppg", "objective": "kl", **SMALL},
    "target_kl": {"env": "CartPole-v1", "target_kl": 0.005, **SMALL},
    "value epochs": {"env": "CartPole-v1", "n_value_epochs": 2, **SMALL},
    "no baseline": {"env": "CartPole-v1", "algo": "reinforce", "baseline": False, **SMALL},
    "by envs, by minibatch": {
        "env": "LunarLander-v3", "minibatches_by": "envs", "advantage_normalization": "minibatch",
        **SMALL, "n_minibatches": 8,
    },
    "radam": {"env": "CartPole-v1", "optimizer": "radam", **SMALL},
    "sgd": {"env": "CartPole-v1", "optimizer": "sgd", "momentum": 0.9, **SMALL},
    **{
        f"stale {loss}": {"env": "CartPole-v1", "staleness": 2, "staleness_loss": loss, **SMALL}
        for loss in ("decoupled", "behavior", "proximal")
    },
    "schedule": {
        "env": "CartPole-v1", "algo": "ppo-ewma",
        "batch_schedule": "0:8x64, 1k:16x64x8, 50%:4x128", **SMALL,
    },
    "schedule held": {
        "env": "CartPole-v1", "algo": "ppg", "n_policy_iterations": 2, "rescale": False,
        "batch_schedule": "0:8x64, 3k:16x64", **SMALL,
    },
    "schedule stale": {
        "env": "CartPole-v1", "staleness": 1, "batch_schedule": "0:8x64, 3k:16x32", **SMALL,
    },
    "schedule reinforce": {
        "env": "CartPole-v1", "algo": "reinforce", "batch_schedule": "0:8x64, 3k:16x32", **SMALL,
    },
    "schedule pqn": {
        "env": "CartPole-v1", "algo": "pqn", "batch_schedule": "0:8x64x4, 3k:16x32", **SMALL,
    },
    "probed": {"env": "CartPole-v1", "probe_every": 2, **SMALL},
    "adaptive": {
        "env": "CartPole-v1", "algo": "ppo-ewma", "batch_schedule": "adaptive", "probe_every": 1,
        "n_steps": 32, **SMALL, "total_timesteps": 12_000,
    },
    "compiled": {"env": "CartPole-v1", **SMALL, "total_timesteps": 3_000, "compile": "on"},
    "gymnasium": {"env": "gymnasium:Acrobot-v1", **SMALL},
    "tensor": {"env": "tensor:CartPole-v1", **SMALL, "total_timesteps": 100_000},
    "minigrid": {"env": "MiniGrid-DoorKey-5x5-v0", **SMALL},
    "procgen": {
        "env": "StarpilotHard-v0", "algo": "ppo", **SMALL, **IMAGES, "total_timesteps": 256,
    },
    "procgen ppg": {
        "env": "CoinrunEasy-v0", "algo": "ppg-ewma", "n_policy_iterations": 2, **SMALL, **IMAGES,
        "total_timesteps": 256,
    },
    "atari": {"env": "Breakout-v5", **SMALL, **IMAGES, "total_timesteps": 512},
    "atari pqn": {
        "env": "Breakout-v5", "algo": "pqn", **SMALL, **IMAGES, "total_timesteps": 256,
    },
}  # fmt: skip
RESUMED = ("ppo", "ppo-ewma", "ppg", "pqn", "schedule", "adaptive", "probed", "continuous")
"""Cases that are also stopped at half their budget and resumed."""


def fingerprint(path: Path) -> dict[str, str]:
    """Return the hashes of a run's metrics, column by column, and of its policy's numbers."""
    rows = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    columns: dict[str, list[Any]] = {}
    for row in rows:
        for name, value in row.items():
            if name not in CLOCK_COLUMNS:
                columns.setdefault(name, []).append([row["iterations"], value])
    found = {name: _hash(json.dumps(values).encode()) for name, values in columns.items()}
    return {"rows": str(len(rows)), **found, "policy": _policy(path)}


def _policy(path: Path) -> str:
    from safetensors import safe_open

    with safe_open(path / "policy.safetensors", framework="np") as file:
        parts = {name: file.get_tensor(name) for name in sorted(file.keys())}
    return _hash(b"".join(name.encode() + value.tobytes() for name, value in parts.items()))


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def run(name: str, folder: Path) -> dict[str, dict[str, str]]:
    """Run a case, and its resumed form where it has one."""
    fields = dict(CASES[name])
    recipe = isobatch.preset(fields.pop("env"), fields.pop("algo", "ppo")).replace(**fields)
    plain = isobatch.train(recipe=recipe, out=folder / "plain", quiet=True)
    found = {name: fingerprint(plain.path)}
    if name in RESUMED:
        half = recipe.replace(total_timesteps=recipe.total_timesteps // 2)
        isobatch.train(recipe=half, out=folder / "resumed", quiet=True)
        again = isobatch.resume(
            folder / "resumed", total_timesteps=recipe.total_timesteps, quiet=True
        )
        found[f"{name}, resumed"] = fingerprint(again.path)
    return found


def compare(before: dict[str, dict[str, str]], after: dict[str, dict[str, str]]) -> int:
    """Say which cases differ and in which columns; return how many do."""
    differing = 0
    for name in sorted({*before, *after}):
        old, new = before.get(name, {}), after.get(name, {})
        columns = [each for each in {**old, **new} if old.get(each) != new.get(each)]
        if columns:
            differing += 1
            print(f"{name}: {', '.join(columns)}")
    print(f"{len({*before, *after}) - differing} cases the same to the bit, {differing} not")
    return differing


def main() -> int:
    """Write the fingerprints, or compare two files of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--compare", action="store_true")
    parser.add_argument("--only", nargs="*", help="these cases alone")
    parsed = parser.parse_args()
    if parsed.compare:
        before, after = (json.loads(path.read_text()) for path in parsed.files)
        return int(compare(before, after) > 0)
    found: dict[str, dict[str, str]] = {}
    for name in parsed.only or CASES:
        with TemporaryDirectory() as folder:
            found |= run(name, Path(folder))
        print(name, file=sys.stderr, flush=True)
    parsed.files[0].write_text(json.dumps(found, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
