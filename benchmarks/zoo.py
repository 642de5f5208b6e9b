"""Train the RL Zoo's entries by Stable-Baselines3 and by Isobatch, on the same environments.

    python -m benchmarks.zoo train ppo.yml HalfCheetah-v4 --steps 300_000 --out zoo.csv
    python -m benchmarks.zoo table zoo.csv

ppo.yml is the zoo's. Stable-Baselines3 has the entry's numbers as the zoo gives them to it, on
EnvPool's environments (`EnvPoolVecEnv`), and Isobatch what `isobatch train --from zoo` makes of
them. Both are cut to the same budget, and evaluated alike at ten moments of it: 20 episodes of
environments that were not trained on, deterministic or sampled as the zoo publishes. What counts is
the mean of the last five: with these settings both libraries' policies come and go within a few
thousand steps (docs/results/zoo.md), so that the score at the very end is a matter of luck. A row
is a run.
"""

import argparse
import ast
import csv
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
import yaml
from gymnasium.spaces import Box
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import VecEnv, VecNormalize
from torch import nn

import isobatch
from benchmarks.peers.sb3_envpool import EnvPoolVecEnv, seeds_of
from isobatch import envs
from isobatch.experience.play import play

EPISODES = 20
UNSEEN = 10_000
"""The seed of environments that were not trained on: all runs play from the same states."""
MOMENTS = 10
"""Evaluations of a run, evenly spread over its budget."""
COUNTED = 5
"""Of these the last ones, whose mean is the run's score."""
FIELDS = ("env", "steps", "library", "seed", "score", "evaluations", "training", "seconds")
ATARI = "NoFrameskip-v4"


def main() -> None:
    """Train or tabulate."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    training = commands.add_parser("train")
    training.add_argument("zoo", type=Path)
    training.add_argument("env")
    training.add_argument("--steps", type=int, required=True)
    training.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    training.add_argument("--libraries", nargs="+", default=["isobatch", "sb3"])
    training.add_argument("--out", type=Path, required=True)
    tabulating = commands.add_parser("table")
    tabulating.add_argument("rows", type=Path)
    args = parser.parse_args()
    if args.command == "table":
        for line in table(args.rows):
            print(line)
        return
    torch.set_num_threads(1)
    libraries = {"isobatch": by_isobatch, "sb3": by_sb3}
    for seed in args.seeds:
        for library in args.libraries:
            began = time.perf_counter()
            found, training = libraries[library](args.zoo, args.env, args.steps, seed)
            seconds = time.perf_counter() - began
            score = np.mean(found[-COUNTED:])
            row = (args.env, args.steps, library, seed, f"{score:.4g}",
                   " ".join(f"{each:.4g}" for each in found), f"{training:.4g}",
                   round(seconds))  # fmt: skip
            print(*row, flush=True)
            new = not args.out.exists()
            with args.out.open("a", newline="") as file:
                csv.writer(file).writerows([FIELDS, row] if new else [row])


def is_sampled(env: str) -> bool:
    """Say whether the zoo publishes scores of sampled actions."""
    return env.endswith(ATARI) or env.startswith("MiniGrid")


def by_isobatch(zoo: Path, env: str, steps: int, seed: int) -> tuple[list[float], float]:
    """Return the evaluations and the mean return of the last 100 episodes of training."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        subprocess.run(
            [sys.executable, "-m", "isobatch", "train", env, "--from", "zoo", zoo,
             "--total-timesteps", str(steps), "--seed", str(seed), "--threads", "1",
             "--keep-policies", str(MOMENTS), "--out", out, "--quiet"],
            check=True, stdout=subprocess.DEVNULL,
        )  # fmt: skip
        run = isobatch.Run(out)
        seeds = seeds_of(UNSEEN, EPISODES)
        found = []
        for moment in range(1, MOMENTS + 1):
            policy = isobatch.load(out, at=moment / MOMENTS)
            arena = envs.make(run.recipe, seeds, training=False)
            actor = policy.actor(deterministic=not is_sampled(env))
            found.append(play(actor, arena, EPISODES).mean)
            arena.close()
        return found, run.metrics[-1]["episode_return"]


def by_sb3(zoo: Path, env: str, steps: int, seed: int) -> tuple[list[float], float]:
    """Return the same of Stable-Baselines3, set up as the zoo does it."""
    entry = read(zoo, env)
    env_id = env.replace(ATARI, "-v5")
    options = {"episodic_life": True, "reward_clip": True} if env.endswith(ATARI) else {}
    trained: VecEnv = made(env_id, entry.pop("n_envs", 1), seed, **options)
    normalize = entry.pop("normalize", None)
    if normalize is not None:
        trained = VecNormalize(trained, gamma=entry.get("gamma", 0.99), **normalize)
    agent = PPO(entry.pop("policy"), trained, seed=seed, device="cpu", **entry)
    watch = Evaluations(env_id, steps, deterministic=not is_sampled(env))
    agent.learn(steps, callback=watch)
    watch.finish()
    training = float(np.mean([each["r"] for each in agent.ep_info_buffer or []]))
    trained.close()
    return watch.found, training


def made(env_id: str, n_envs: int, seed: int, **options: Any) -> EnvPoolVecEnv:
    """Return environments as the zoo shows them to SB3."""
    make = FlatMiniGrid if env_id.startswith("MiniGrid") else EnvPoolVecEnv
    return make(env_id, n_envs, seed, **options)


class FlatMiniGrid(EnvPoolVecEnv):
    """EnvPool's MiniGrid, its observations flattened by MiniGrid's own FlatObsWrapper.

    So SB3 has the zoo's observation, and not by the code that it is compared with.
    """

    def __init__(self, env_id: str, n_envs: int, seed: int, **options: Any) -> None:
        from minigrid.wrappers import FlatObsWrapper

        # Only its encoding is used: the environment that it wraps is never stepped.
        self.wrapper = FlatObsWrapper(gymnasium.make(env_id))
        super().__init__(env_id, n_envs, seed, **options)
        # Not uint8: SB3 2.9.2 keeps what VecNormalize gives in a rollout buffer of the space's own
        # type, which would cut it to whole numbers from 0 to 255.
        self.observation_space = Box(0, 255, self.wrapper.observation_space.shape, np.float32)

    def flat(self, observations: Any) -> np.ndarray:
        """Return [N, 2835]: the image, and each character of the mission as one of 28."""
        missions = [bytes(each).rstrip(b"\0").decode() for each in observations["mission"]]
        return np.stack(
            [
                self.wrapper.observation({"image": image, "mission": mission})
                for image, mission in zip(observations["image"], missions, strict=True)
            ]
        )


class Evaluations(BaseCallback):
    """Evaluates an agent of Stable-Baselines3 before the first update past each moment."""

    def __init__(self, env_id: str, steps: int, deterministic: bool) -> None:
        super().__init__()
        self.env_id, self.steps, self.deterministic = env_id, steps, deterministic
        self.found: list[float] = []

    def _on_step(self) -> bool:
        return True

    def _on_rollout_start(self) -> None:
        while self.num_timesteps >= self.steps * (len(self.found) + 1) / MOMENTS:
            self.found.append(self._evaluated())

    def finish(self) -> None:
        """Evaluate the last policy for the moments that are left."""
        while len(self.found) < MOMENTS:
            self.found.append(self._evaluated())

    def _evaluated(self) -> float:
        """Return the mean score of the first episode of every environment."""
        assert isinstance(self.model, PPO)
        env, trained = made(self.env_id, EPISODES, UNSEEN), self.training_env
        scores = np.full(env.num_envs, np.nan)
        observations: Any = env.reset()
        while np.isnan(scores).any():
            if isinstance(trained, VecNormalize):
                observations = trained.normalize_obs(observations)
            actions, _ = self.model.predict(observations, deterministic=self.deterministic)
            observations, _, _, infos = env.step(actions)
            for k, info in enumerate(infos):
                if "episode" in info and np.isnan(scores[k]):
                    scores[k] = info["episode"]["r"]
        env.close()
        return float(scores.mean())


def read(zoo: Path, env: str) -> dict[str, Any]:
    """Return an entry as arguments of SB3's PPO, with `n_envs` and `normalize` beside them."""
    entries = yaml.safe_load(zoo.read_text())
    entry = dict(entries["atari" if env.endswith(ATARI) else env])
    for name in ("n_timesteps", "env_wrapper", "frame_stack"):
        entry.pop(name, None)  # EnvPool's environments have these built in.
    for name in ("learning_rate", "clip_range"):
        if isinstance(given := entry.get(name), str):
            entry[name] = _falling(float(given.removeprefix("lin_")))
    if isinstance(given := entry.get("policy_kwargs"), str):
        entry["policy_kwargs"] = _value(ast.parse(given.strip(), mode="eval").body)
    given = entry.get("normalize")
    if isinstance(given, bool):
        entry["normalize"] = {} if given else None
    elif isinstance(given, str):
        entry["normalize"] = _value(ast.parse(given, mode="eval").body)
    return entry


def _falling(first: float) -> Any:
    return lambda left: first * left


def _value(node: ast.expr) -> Any:
    """Return what the zoo's Python stands for: dict(...), nn.ReLU, lists and plain values."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "dict":
        return {each.arg: _value(each.value) for each in node.keywords}
    if isinstance(node, ast.Attribute):
        return getattr(nn, node.attr)
    if isinstance(node, ast.List):
        return [_value(each) for each in node.elts]
    return ast.literal_eval(node)


def table(rows: Path) -> list[str]:
    """Return Markdown: each environment's evaluations by seed, and whether ranges overlap."""
    with rows.open(newline="") as file:
        found = list(csv.DictReader(file))
    grouped: dict[tuple[str, str], dict[str, list[dict[str, str]]]] = defaultdict(dict)
    for row in found:
        grouped[row["env"], row["steps"]].setdefault(row["library"], []).append(row)
    lines = [
        "| entry | env steps | Isobatch, by seed | SB3, by seed | within SB3's range |",
        "|---|---|---|---|---|",
    ]
    for (env, steps), libraries in grouped.items():
        scores = {name: [float(each["score"]) for each in runs] for name, runs in libraries.items()}
        ours, theirs = scores.get("isobatch", []), scores.get("sb3", [])
        cells = (env, f"{int(steps):,}", _listed(ours), _listed(theirs), _place(ours, theirs))
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _place(ours: list[float], theirs: list[float]) -> str:
    """Say where the mean of some scores lies in the range of others."""
    if not ours or not theirs:
        return "-"
    mean = np.mean(ours)
    return "below" if mean < min(theirs) else "above" if mean > max(theirs) else "yes"


def _listed(scores: list[float]) -> str:
    return ", ".join(f"{each:.4g}" for each in scores)


if __name__ == "__main__":
    main()
