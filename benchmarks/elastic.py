"""Train runs whose workers go from 4 to 2 and back to 4, beside undisturbed ones.

    python -m benchmarks.elastic train FOLDER --seeds 1 2 3
    python -m benchmarks.elastic table FOLDER

The recipe is the reference of the study `invariance`: PPO-EWMA tuned at 64 environments. For the
middle third of the budget there are two workers, with half of the environments: by
`--elastic rescale`; or with the same batches and all else as it was, which is what the rules are
for. At the same shards the number of processes changes no bit, so one process computes the shards
of all workers here; `--processes` trains by real ones, many times slower for a batch so small, and
`same FOLDER OTHER` compares what both wrote.
"""

import argparse
from collections.abc import Callable, Mapping
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import scipy.stats
import torch

from isobatch import Run, scores
from isobatch.presets import preset
from isobatch.recipe import Recipe
from isobatch.run import training
from isobatch.run.store import CLOCK_COLUMNS
from isobatch.run.training import with_workers
from isobatch.workers.agent import launch
from isobatch.workers.membership import Group, join, membership

ENVS = ("CartPole-v1", "Acrobot-v1")
BUDGET = 120_000
MARKS = 12
"""Evaluations of a run, evenly spread over its budget."""
EPISODES = 20
COURSE = ((4, 1 / 3), (2, 2 / 3), (4, 1.0))
"""How many workers there are until which part of the budget."""
BEGUN = COURSE[0][0]
ARMS = ("undisturbed", "rescale", "batch only")
MARGIN = 0.05


def main() -> None:
    """Train, as one of the workers too, tabulate or compare."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    for command in ("train", "part", "table", "same"):
        each = commands.add_parser(command)
        each.add_argument("folder", type=Path)
        if command == "same":
            each.add_argument("other", type=Path)
        if command in ("train", "part"):
            each.add_argument("--seeds", type=int, nargs="+", required=True)
        if command == "train":
            each.add_argument("--processes", action="store_true")
        if command == "part":
            each.add_argument("--stage", type=int, required=True)
    args = parser.parse_args()
    if args.command == "train":
        for stage, (workers, _) in enumerate(COURSE):
            if args.processes:
                lead(args.folder, args.seeds, stage, workers)
            else:
                train(args.folder, args.seeds, stage, None)
    elif args.command == "part":
        member = membership()
        assert member is not None
        group = join(member)
        train(args.folder, args.seeds, args.stage, group)
        group.close()
    elif args.command == "table":
        for line in table(args.folder):
            print(line)
    else:
        compare(args.folder, args.other)


def lead(folder: Path, seeds: list[int], stage: int, workers: int) -> None:
    """Start the workers of one stage, which train all runs in turn."""
    words = ["part", str(folder), "--stage", str(stage), "--seeds", *map(str, seeds)]
    if code := launch(workers, words, 0, module="benchmarks.elastic"):
        raise SystemExit(code)


def train(folder: Path, seeds: list[int], stage: int, group: Group | None) -> None:
    """Train all runs to the end of a stage; undisturbed ones to the end in the first."""
    torch.set_num_threads(1)
    workers, end = COURSE[stage]
    for env, seed, arm in product(ENVS, seeds, ARMS):
        path = folder / arm.replace(" ", "-") / f"{env}-{seed}"
        training.with_workers = partial(batch_only if arm == "batch only" else ruled, workers)
        options: Any = {"quiet": True, "group": group}
        if arm != "undisturbed":
            options["on_iteration"] = stop_at(end, late=group is None)
        if not stage:
            elastic = "hold" if arm == "undisturbed" else "rescale"
            training.train(recipe=tuned(env, seed).replace(elastic=elastic), out=path, **options)
        elif arm != "undisturbed":
            training.resume(path, **options)


def ruled(workers: int, recipe: Recipe, numbers: Mapping[str, Any] | None, given: int) -> Recipe:
    """Stand in for `with_workers` where one process, `given`, does the work of several."""
    assert numbers is not None
    counters = {**numbers["counters"], "workers": BEGUN}
    return with_workers(recipe, {**numbers, "counters": counters}, workers)


def batch_only(workers: int, recipe: Recipe, *_: Any) -> Recipe:
    """Stand in for `with_workers`: the batch follows the workers, and nothing follows the batch."""
    share = {name: recipe.values[name] // BEGUN * workers for name in ("n_envs", "shards")}
    return recipe.replace(**share)


def tuned(env: str, seed: int) -> Recipe:
    """Return the reference of `isobatch/study/presets/invariance.toml`, evaluated at marks."""
    return preset(
        env, "ppo-ewma", n_envs=64, n_steps=16, n_minibatches=16, n_epochs=1, learning_rate=6e-3,
        proximal_decay=0.94118, advantage_normalization="ewma", advantage_decay=0.0,
        max_grad_norm=1e6, stagger=True, total_timesteps=BUDGET, seed=seed, shards=4,
        eval_marks=MARKS, eval_episodes=EPISODES,
    )  # fmt: skip


def stop_at(part: float, late: bool) -> Callable[[dict[str, Any]], bool]:
    """Return what stops a run at a part of its budget; a row `late`, as several workers stop."""
    reached = [0]

    def go_on(row: dict[str, Any]) -> bool:
        reached[0] += row["env_steps"] >= part * BUDGET
        return reached[0] <= late

    return go_on


def table(folder: Path) -> list[str]:
    """Return Markdown: scores by arm, and each arm against the undisturbed runs, seed by seed.

    Until the first change a seed's runs are the same, so differences are taken within seeds, of the
    mean over all evaluations after it: at the end CartPole is at its highest score in every arm.
    """
    seeds = sorted({int(path.name.rpartition("-")[2]) for path in folder.glob(f"*/{ENVS[0]}-*")})
    later, finals = ({arm: np.empty((len(seeds), len(ENVS))) for arm in ARMS} for _ in range(2))
    for (row, seed), (column, env), arm in product(enumerate(seeds), enumerate(ENVS), ARMS):
        played = Run(folder / arm.replace(" ", "-") / f"{env}-{seed}").evaluations
        curve = [each["episode_return"] for each in played]
        finals[arm][row, column] = curve[-1]
        later[arm][row, column] = np.mean(curve[1 + round(MARKS * COURSE[0][1]) :])
    lines = [
        f"| workers 4, 2, 4 | {' | '.join(f'{env}, after the change | final' for env in ENVS)} |",
        "|---|" + "---|" * 2 * len(ENVS),
    ]
    for arm in ARMS:
        cells = [spread(each[arm][:, k]) for k in range(len(ENVS)) for each in (later, finals)]
        lines.append(f"| {arm} | {' | '.join(cells)} |")
    lines += ["", "| less undisturbed, by seed | env | difference | equivalent within 0.05, p |"]
    lines += ["|---|---|---|---|"]
    for arm, (column, env) in product(ARMS[1:], enumerate(ENVS)):
        apart = (normalized(later[arm]) - normalized(later[ARMS[0]]))[:, column]
        low, high = scipy.stats.t.interval(
            0.95, len(apart) - 1, apart.mean(), scipy.stats.sem(apart)
        )
        lines.append(
            f"| {arm} | {env} | {apart.mean():+.3f} [{low:+.3f}, {high:+.3f}] "
            f"| {equivalence(apart):.2g} |"
        )
    return lines


def equivalence(apart: np.ndarray) -> float:
    """Return the p-value of two one-sided t-tests: differences [seeds] are within the margin."""
    above = scipy.stats.ttest_1samp(apart, -MARGIN, alternative="greater").pvalue
    below = scipy.stats.ttest_1samp(apart, MARGIN, alternative="less").pvalue
    return max(above, below)


def compare(folder: Path, other: Path) -> None:
    """Say which runs of two folders wrote the same numbers."""
    for path in sorted(folder.glob("*/*/metrics.jsonl")):
        name = path.parent.relative_to(folder)
        same = rows(path.parent) == rows(other / name)
        print(f"{name}: {'the same' if same else 'other'} numbers in {len(rows(path.parent))} rows")


def rows(path: Path) -> list[dict[str, Any]]:
    """Return a run's metrics but for the clock's."""
    return [
        {name: value for name, value in row.items() if name not in CLOCK_COLUMNS}
        for row in Run(path).metrics
    ]


def normalized(found: np.ndarray) -> np.ndarray:
    """Return scores [seeds, environments] on each environment's scale."""
    scales = [scores.table()[env] for env in ENVS]
    return np.stack([scale.normalized(found[:, k]) for k, scale in enumerate(scales)], 1)  # pyright: ignore[reportArgumentType, reportCallIssue]


def spread(values: np.ndarray) -> str:
    """Return mean and standard deviation."""
    return f"{values.mean():.4g} +- {values.std(ddof=1):.2g}"


if __name__ == "__main__":
    main()
