"""isobatch probe."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from isobatch import envs, files
from isobatch.batch import Shape
from isobatch.cli.flags import Parser, add_env_flag, whole_between
from isobatch.envs.catalog import require_trusted
from isobatch.envs.seeds import evaluation_seeds
from isobatch.errors import UserError, shown
from isobatch.presets import preset
from isobatch.probe import laboratory
from isobatch.probe.answer import answer
from isobatch.probe.laboratory import Findings, Progress
from isobatch.probe.plan import Question, check
from isobatch.probe.record import record
from isobatch.probe.tables import tables
from isobatch.recipe import Recipe
from isobatch.registry import ALGORITHMS
from isobatch.run import policy
from isobatch.state import TrainState
from isobatch.text import say

MOST_BATCHES, MOST_SAMPLES, MOST_SEED = 1_000, 1 << 24, 1 << 62


def probe(arguments: list[str]) -> int:
    """Measure bias and variance of a policy's gradient."""
    parser = Parser(
        prog="isobatch probe",
        description="Measure bias and variance of the gradient, and find the shape N x T "
        "(environments x steps) with the smallest error at the same number of samples.",
        usage="isobatch probe RUN [options], or isobatch probe ENV --policy random",
    )
    parser.add_argument("source", metavar="RUN|ENV", help="run directory, or environment id")
    parser.add_argument(
        "--at",
        metavar="FRACTION,...",
        help="points of the run to probe, as fractions of its budget (default: its end)",
    )
    parser.add_argument(
        "--policy", choices=["random"], help="with ENV: the preset's networks, untrained"
    )
    parser.add_argument(
        "--algo", choices=list(ALGORITHMS), default="ppo", help="with ENV: the algorithm"
    )
    parser.add_argument(
        "--shapes", metavar="NxT,...", help="shapes to decompose (default: the recipe's)"
    )
    parser.add_argument(
        "--batches",
        type=whole_between(1, MOST_BATCHES),
        metavar="K",
        help="independent batches of each shape (default: 5, for images 2)",
    )
    parser.add_argument(
        "--of",
        choices=["policy", "value"],
        default="policy",
        help="gradient of the policy loss or of the value loss (default: policy)",
    )
    parser.add_argument(
        "--lambdas", metavar="X,...", help="further GAE lambdas to measure the bias for"
    )
    parser.add_argument(
        "--no-speed", dest="speed", action="store_false", help="do not time the shapes"
    )
    parser.add_argument(
        "--seed",
        type=whole_between(0, MOST_SEED),
        default=0,
        metavar="N",
        help="seed of the probe's environments (default: 0)",
    )
    add_env_flag(parser)
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="results (default: probe.json in the run)"
    )
    parser.add_argument(
        "--page", type=Path, metavar="FILE", help="HTML page (default: probe.html in the run)"
    )
    parsed = parser.parse_args(arguments)
    question = Question(
        shapes=_shapes(parsed.shapes),
        batches=parsed.batches,
        of=parsed.of,
        lambdas=_fractions(parsed.lambdas, "--lambdas"),
        speed=parsed.speed,
        seed=parsed.seed,
    )
    policies = _policies(parsed, question)
    for line in warnings(question):
        say(f"! {line}")
    reason = laboratory.untimed(policies[0].recipe) if question.speed else None
    if reason is not None:
        say(f"! shapes are not timed: {reason}")
    found: list[Findings] = []
    for each in policies:
        say(headline(each, parsed.policy))
        with _progress_bar() as progress:
            findings = laboratory.investigate(each, question, progress=progress)
        found.append(findings)
        for line in answer(findings):
            say(line)
        say()
        say("\n".join(tables(findings)))
        say()
    folder = Path(parsed.source) if Path(parsed.source).is_dir() else None
    data = record(found, folder.resolve().name if folder else None)
    folder = folder or Path()
    _write(data, parsed.json or folder / "probe.json", parsed.page or folder / "probe.html")
    return 0


def warnings(question: Question) -> list[str]:
    """Say what of the question cannot be compared."""
    sizes = {shape.samples for shape in question.shapes}
    if len(sizes) <= 1:
        return []
    named = ", ".join(f"{shape.name} = {shape.samples:,}" for shape in question.shapes)
    first = question.shapes[0]
    return [
        f"the shapes differ in size ({named}): their variances are not comparable; the iso-batch "
        f"curve is for {first.samples:,} samples"
    ]


def headline(each: policy.Policy, kind: str | None) -> str:
    """Say whose gradient is measured."""
    recipe = each.recipe
    if kind:
        return f"{recipe.algo} on {recipe.env}, untrained"
    part = each.env_steps / recipe.total_timesteps
    return (
        f"{recipe.algo} on {recipe.env}, at {each.env_steps:,} env steps ({part:.0%} of its budget)"
    )


def untrained(recipe: Recipe) -> policy.Policy:
    """Return the policy a recipe begins with: its networks as they are initialised."""
    env = envs.make(recipe, evaluation_seeds(recipe.seed, 1, 0))
    try:
        layouts = env.observation_layout, env.action_layout
    finally:
        env.close()
    state = TrainState.begin(recipe, *layouts, torch.device("cpu"))
    return policy.Policy(recipe, *layouts, state.model, state.observation_normalizer)


def _policies(parsed: Any, question: Question) -> list[policy.Policy]:
    path = Path(parsed.source)
    if parsed.policy is not None:
        if path.is_dir():
            raise UserError(f"{path} is a run, which has its own policy: leave out --policy")
        if parsed.at is not None:
            raise UserError("--at needs a run: an untrained policy has no budget")
        recipe = preset(parsed.source, parsed.algo)
        check(recipe, question)
        return [untrained(recipe)]
    if not path.is_dir():
        raise UserError(
            f"there is no run {path}; train one, or probe an environment with --policy random"
        )
    if not (path / "recipe.toml").is_file():
        raise UserError(f"{path} holds no run (there is no recipe.toml in it)")
    recipe = Recipe.load(path / "recipe.toml")
    require_trusted(recipe.env, parsed.env)
    check(recipe, question)
    envs.maker_of(recipe)  # One that is not registered is said before anything is done.
    parts = _fractions(parsed.at, "--at")
    loaded = [policy.load(path, at=part) for part in parts] if parts else [policy.load(path)]
    return list({each.env_steps: each for each in loaded}.values())


def _shapes(text: str | None) -> tuple[Shape, ...]:
    if text is None:
        return ()
    shapes = tuple(dict.fromkeys(Shape.parse(part, "--shapes") for part in text.split(",")))
    for shape in shapes:
        if shape.samples > MOST_SAMPLES:
            raise UserError(f"--shapes {shape} is more than {MOST_SAMPLES:,} samples")
    return shapes


def _fractions(text: str | None, flag: str) -> tuple[float, ...]:
    if text is None:
        return ()
    try:
        values = tuple(float(part) for part in text.split(","))
    except ValueError:
        raise UserError(f"{flag} must be numbers such as 0.5,1.0, got {shown(text)}") from None
    for value in values:
        if not 0 <= value <= 1:
            raise UserError(f"{flag} must lie in [0, 1], got {value:g}", field=flag)
    return values


def _write(data: dict[str, Any], path: Path, page: Path) -> None:
    from isobatch.probe.page import render

    for each in (path, page):
        if not each.parent.is_dir():
            raise UserError(f"there is no folder {each.parent} to write {each.name} to")
    files.save(path, json.dumps(data, allow_nan=False).encode())
    files.save(page, render(data).encode(errors="replace"))
    say(f"written to {path} and {page}")


@contextmanager
def _progress_bar() -> Iterator[Progress]:
    """Show the progress of the probe: a bar in a terminal, nothing elsewhere."""
    if not sys.stdout.isatty():
        yield lambda what, done, total: None
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    with Progress(
        TextColumn("{task.description:22}"),
        BarColumn(bar_width=20),
        TextColumn("{task.completed:,.0f}"),
        TimeRemainingColumn(compact=True),
        transient=True,
    ) as bar:
        task = bar.add_task("starting", total=None)

        def show(what: str, done: int, total: int) -> None:
            bar.update(task, description=what, completed=done, total=total or None)

        yield show
