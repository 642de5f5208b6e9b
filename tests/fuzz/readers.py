"""What is fuzzed: each kind of file that may come from elsewhere, a good one, and what reads it."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from report import made_up_run
from study.fakes import finish_study

from isobatch import exchange, report
from isobatch.recipe import Recipe
from isobatch.run.store import EVALUATIONS
from isobatch.scaling import SIZES
from isobatch.study.design import from_toml, load
from isobatch.study.queue import Queue
from isobatch.study.records import sha256
from isobatch.study.results import Results
from isobatch.study.verdict import verdicts

RECIPE = (
    Recipe(env="CartPole-v1")
    .replace(
        batch_schedule="0:8x128, 50k:16x128x8", target_kl=0.02, env_options=("a=1",), eval_marks=4
    )
    .to_toml()
)
STUDY = """
[study]
title = "Shapes"
note = "One budget."
envs = ["CartPole-v1", "Acrobot-v1"]
budget = 4_096
seeds = 2
algo = "ppo"
evaluate = 10
[laptop]
seeds = [3, 4]
[laptop.base]
gamma = 0.9
[base]
n_epochs = 2
eval_marks = 4
[arms]
narrow = { n_envs = 8, n_steps = 128 }
wide = { n_envs = 128, n_steps = 8, algo = "ppo-ewma" }
moved = { rescale_from = "narrow", scale_envs = 2, keep = "rollout", hold = ["learning_rate"] }
[grid]
n_envs = [2, 4]
n_steps = [8]
[scores]
"CartPole-v1" = { random = 20, reference = 475.5 }
[[claims]]
text = "Wide is better."
better = "wide"
than = "narrow"
source = "a book"
[[claims]]
text = "It gains more."
better = ["wide", "narrow"]
than = ["moved", "narrow"]
measure = "curve"
[[claims]]
text = "They are alike."
better = "wide"
than = "narrow"
margin = 0.1
"""
SMALL = from_toml(
    """
    [study]
    envs = ["CartPole-v1"]
    budget = 400
    seeds = 5
    [arms]
    a = { n_envs = 2, n_steps = 8 }
    b = { n_envs = 4, n_steps = 4 }
    [[claims]]
    text = "B is better."
    better = "b"
    than = "a"
    measure = "curve"
    """,
    "small",
)
ZOO = """
atari: &defaults
  policy: CnnPolicy
  n_envs: 8
  n_timesteps: !!float 1e7
  env_wrapper: [stable_baselines3.common.atari_wrappers.AtariWrapper]
  frame_stack: 4
CartPole-v1:
  <<: *defaults
  normalize: "dict(norm_obs=True, norm_reward=False)"
  policy: MlpPolicy
  n_steps: 32
  batch_size: 256
  learning_rate: lin_0.001
  clip_range: 0.2
  policy_kwargs: "dict(net_arch=[dict(pi=[64, 64], vf=[64, 64])], activation_fn=nn.ReLU)"
"""
FORMATS: dict[str, tuple[str, str]] = {
    "zoo": (".yml", ZOO),
    "sb3": (
        ".json",
        json.dumps(
            {"env": "CartPole-v1", "n_envs": 8, "n_steps": 128, "batch_size": 256, "n_epochs": 4,
             "learning_rate": "lin_3e-4", "clip_range": 0.2, "target_kl": None, "gamma": 0.99,
             "policy_kwargs": {"net_arch": {"pi": [64], "vf": [64]},
                               "optimizer_kwargs": {"eps": 1e-5, "betas": [0.9, 0.99]}},
             "total_timesteps": 1e5, "device": "cpu", "seed": 3, "max_grad_norm": 0.5},
        ),
    ),
    "cleanrl": (
        ".json",
        json.dumps(
            {"exp_name": "ppo_continuous_action", "env_id": "Hopper-v4", "num_envs": 1,
             "num_steps": 2048, "num_minibatches": 32, "update_epochs": 10, "anneal_lr": True,
             "learning_rate": 3e-4, "total_timesteps": 1000000, "target_kl": 0.03,
             "batch_size": 2048, "minibatch_size": 64, "clip_vloss": True, "seed": 1},
        ),
    ),
    "rsl_rl": (
        ".json",
        json.dumps(
            {"num_envs": 4096, "seed": 1, "runner": {"num_steps_per_env": 24, "max_iterations": 10},
             "algorithm": {"num_learning_epochs": 5, "num_mini_batches": 4, "gamma": 0.99,
                           "schedule": "adaptive", "entropy_coef": 0.01, "learning_rate": 1e-3},
             "policy": {"actor_hidden_dims": [512, 256], "critic_hidden_dims": [512, 256],
                        "activation": "elu"}},
        ),
    ),
    "rl_games": (
        ".yaml",
        """params:
  algo: {name: a2c_continuous}
  network:
    mlp: {units: [64, 32], activation: elu, initializer: {name: default}}
    space: {continuous: {fixed_sigma: true, sigma_init: {name: const_initializer, val: 0}}}
  config: {num_actors: 16, horizon_length: 32, minibatch_size: 128, mini_epochs: 4, gamma: 0.99,
           tau: 0.95, learning_rate: 3e-4, lr_schedule: adaptive, kl_threshold: 0.008, e_clip: 0.2,
           entropy_coef: 0.0, critic_coef: 2, clip_value: true, normalize_advantage: true,
           normalize_input: true, reward_shaper: {scale_value: 0.1}, grad_norm: 1.0, max_epochs: 9}
""",
    ),
    "ppo-ewma": (
        ".json",
        json.dumps(
            {"env_name": "coinrun", "distribution_mode": "hard", "num_envs": 64, "nstep": 256,
             "nminibatch": 8, "n_epoch_pi": 1, "n_epoch_vf": 1, "kl_ewma_decay": 0.889,
             "clip_param": 0.2, "n_pi": 32, "aux_mbsize": 4, "workers": 2, "imp_samp_max": 100.0},
        ),
    ),
}  # fmt: skip


def read_recipe(file: Path) -> None:
    """A recipe, rescaled and written again."""
    recipe = Recipe.load(file)
    recipe.to_toml().encode()
    if recipe.batch.n_envs <= 1 << 20:
        recipe.rescale(**{SIZES[0]: recipe.batch.n_envs * 2})


def read_study(file: Path) -> None:
    """A study's file: every recipe of it, and its text."""
    for scale in (None, "laptop"):
        study = load(str(file), scale)
        study.check()
        study.to_json()


def read_format(name: str) -> Callable[[Path], None]:
    """Another library's file: the recipe it says, in that library's words again."""

    def read(file: Path) -> None:
        given = exchange.arguments(name, [str(file)])
        env = "CartPole-v1" if name == "zoo" else None
        recipe = exchange.read(name, given, env).recipe
        recipe.to_toml().encode()
        exchange.write(name, recipe, given)

    return read


def read_in_a_run(name: str) -> Callable[[Path], None]:
    """A file of a run, and the page that is made of it."""

    def read(file: Path) -> None:
        run = file.parent / "run"
        if not run.exists():
            made_up_run.write_run(run, rows=4)
        good = (run / name).read_bytes()
        try:
            (run / name).write_bytes(file.read_bytes())
            report.render([report.read(run)])
        finally:
            (run / name).write_bytes(good)

    return read


def _rows(make: Callable[[int, int, float], dict[str, Any]]) -> bytes:
    return b"".join(json.dumps(make(k, 1024, 1.0)).encode() + b"\n" for k in range(1, 4))


@dataclasses.dataclass(frozen=True)
class Place:
    """A study directory, one of whose files is replaced."""

    root: Path
    kind: str

    @classmethod
    def make(cls, root: Path, kind: str) -> "Place":
        if not root.exists():
            finish_study(root, SMALL, lambda cell: float(cell.seed + len(cell.arm)))
        return cls(root, kind)

    @property
    def file(self) -> Path:
        """The file."""
        queue, cell = Queue(self.root, SMALL), SMALL.cells[0]
        return {
            "study.json": self.root / "study.json",
            "result": queue._file(cell, "done"),
            "failure": queue._file(cell, "failed"),
            "metrics": queue.run_path(cell) / "metrics.jsonl",
            "evaluations": queue.run_path(cell) / EVALUATIONS,
        }[self.kind]

    @property
    def good(self) -> bytes:
        """What it holds where nothing was done to it."""
        failure = b'{"kind": "error", "reason": "x"}'
        return failure if self.kind == "failure" else self.file.read_bytes()

    def read(self, content: bytes) -> None:
        """Read the study with the file's content replaced, then put back what was there."""
        done = Queue(self.root, SMALL)._file(SMALL.cells[0], "done")
        saved = {file: file.read_bytes() for file in {self.file, done} if file.exists()}
        try:
            self.file.write_bytes(content)
            if self.kind in ("metrics", "evaluations"):
                # As one would who can change a file at all: the hash agrees.
                name = f"{self.kind}_sha256"
                done.write_text(json.dumps(json.loads(saved[done]) | {name: sha256(self.file)}))
            if self.kind == "failure":
                done.unlink()
            _use(Results.load(self.root))
        finally:
            self.file.unlink()
            for file, bytes_ in saved.items():
                file.write_bytes(bytes_)


def _use(results: Results) -> None:
    """Ask what a report and a verdict ask."""
    grid = np.linspace(0, results.study.budget, 5)
    for record in results.having("done"):
        results.learning_curve(record.cell, grid)
        for column in results.columns[:5]:
            results.curve(record.cell, column, grid)
    for record in results.records.values():
        assert record.problem.isprintable()
    verdicts(results)


Reader = Callable[[Path], Any]
FILES: dict[str, tuple[str, bytes, Reader]] = {
    "recipe": (".toml", RECIPE.encode(), read_recipe),
    "study": (".toml", STUDY.encode(), read_study),
    **{
        name: (suffix, text.encode(), read_format(name)) for name, (suffix, text) in FORMATS.items()
    },
    "page of metrics": (".jsonl", _rows(made_up_run.row), read_in_a_run("metrics.jsonl")),
    "page of evaluations": (
        ".jsonl",
        _rows(made_up_run.evaluation),
        read_in_a_run("evaluations.jsonl"),
    ),
    "page of a profile": (
        ".json",
        json.dumps(made_up_run.profile(4)).encode(),
        read_in_a_run("profile.json"),
    ),
}
"""By kind: the suffix, a good file, and what reads it."""
PLACES = ("study.json", "result", "failure", "metrics", "evaluations")
