"""Probing a run: which of its policies, and what was found, for Python and the command line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any, Literal

import torch

from isobatch import envs
from isobatch.batch import Shape
from isobatch.envs import MakeEnv
from isobatch.envs.catalog import require_trusted
from isobatch.envs.seeds import evaluation_seeds
from isobatch.errors import UserError
from isobatch.noise.samples import Loss
from isobatch.presets import preset
from isobatch.probe.answer import answer, headline, warnings
from isobatch.probe.details import details
from isobatch.probe.findings import Findings
from isobatch.probe.laboratory import Progress, investigate
from isobatch.probe.page import render
from isobatch.probe.plan import Question, check
from isobatch.probe.record import record
from isobatch.probe.tables import tables
from isobatch.recipe import Recipe
from isobatch.run import policy as policies
from isobatch.run import store
from isobatch.run.policy import Policy
from isobatch.run.result import Run
from isobatch.state import TrainState
from isobatch.text import wrapped

MIDDLE = 0.5
"""Of the budget: early policies change fast, and of late ones no gradient may be left."""
MOST_SAMPLES = 1 << 24


@dataclass(frozen=True, repr=False)
class Probe:
    """What a probe found: prints as the command's answer, and renders in a notebook."""

    findings: list[Findings]
    """One for each policy probed."""
    run: str | None = None
    """The run's name."""
    passed_over: list[str] = field(default_factory=list)
    """Of the policies tried first, why they were skipped."""

    def __str__(self) -> str:
        return "\n\n".join("\n".join(wrapped("\n".join(part))) for part in self._parts())

    def __repr__(self) -> str:
        return f"<Probe of {len(self.findings)}: print it for its answer>"

    def _repr_html_(self) -> str:
        return "".join(
            f"<h4>{escape(first)}</h4>" + "".join(f"<p>{escape(line)}</p>" for line in rest)
            for first, *rest in self._parts()
        )

    def verbose(self) -> str:
        """Return the answer, what it rests on, and the tables."""
        parts = []
        for part, found in zip(self._parts(), self.findings, strict=True):
            lines = [*part, "", *(f"- {line}" for line in details(found))]
            parts.append("\n".join([*wrapped("\n".join(lines)), "", *tables(found)]))
        return "\n\n".join(parts)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain data: what probe.json holds."""
        return record(self.findings, self.run, self.passed_over)

    def page(self) -> str:
        """Return the HTML page."""
        return render(self.to_dict())

    def _parts(self) -> list[list[str]]:
        """Return the lines of each policy's answer, unwrapped."""
        notes = [f"{line}." for line in self.passed_over]
        return [
            [
                headline(each.policy),
                *(notes if each is self.findings[-1] else []),
                *answer(each),
                *(f"! {line}" for line in warnings(each)),
            ]
            for each in self.findings
        ]


def run(
    source: Run | Policy | str | Path,
    *,
    shapes: str | Iterable[Shape | str] = (),
    at: float | Iterable[float] | None = None,
    batches: int | None = None,
    loss: Loss = "policy",
    lambdas: Iterable[float] = (),
    speed: bool = True,
    seed: int = 0,
    policy: Literal["random"] | None = None,
    algo: str = "ppo",
    env: str | None = None,
    make_env: MakeEnv | None = None,
    progress: Progress = lambda what, done, total: None,
) -> Probe:
    """Measure the gradient of a run's policy: which shape N x T, and is the batch too small?

    `source` is a run, its directory, or a `Policy`; with `policy="random"` an environment's id.
    `shapes` are those to compare, such as "8x128,128x8". `at` names fractions of the budget;
    without it the policy nearest to half of the budget is probed, and where that has no gradient
    to measure, earlier ones in turn (the task may be solved), then later ones (nothing may be
    learned yet). `env` confirms an environment id that names a module;
    `make_env` makes the environment, whose shapes are then not timed.
    """
    question = Question(_shapes(shapes), batches, loss, tuple(lambdas), speed, seed)
    places = (float(at),) if isinstance(at, int | float) else None if at is None else tuple(at)

    def found(each: Policy) -> Findings:
        return investigate(each, question, make_env=make_env, progress=progress)

    if isinstance(source, Policy):
        return Probe([found(source)])
    path = Path(source.path if isinstance(source, Run) else source)
    if policy is not None:
        return Probe([found(_random(source, path, algo, places, question))])
    _check_run(path, question, env, make_env)
    name = path.resolve().name
    if places is not None:
        loaded = [policies.load(path, at=each) for each in places]
        return Probe([found(each) for each in {p.env_steps: p for p in loaded}.values()], name)
    tried: list[Findings] = []
    for each in _from_the_middle(path):
        tried.append(found(each))
        if tried[-1].has_advice:
            break
    reported = tried[-1] if tried[-1].has_advice else tried[0]
    passed = [_passed_over(each, reported) for each in tried if each is not reported]
    return Probe([reported], name, passed)


def untrained(recipe: Recipe) -> Policy:
    """Return the policy a recipe begins with: its networks as they are initialised."""
    env = envs.make(recipe, evaluation_seeds(recipe.seed, 1, 0))
    try:
        layouts = env.observation_layout, env.action_layout
    finally:
        env.close()
    state = TrainState.begin(recipe, *layouts, torch.device("cpu"))
    return Policy(recipe, *layouts, state.model, state.observation_normalizer)


def _random(
    source: Run | str | Path,
    path: Path,
    algo: str,
    places: Sequence[float] | None,
    question: Question,
) -> Policy:
    if path.is_dir():
        raise UserError(f"{path} is a run, which has its own policy: leave out --policy")
    if places is not None:
        raise UserError("--at needs a run: an untrained policy has no budget")
    recipe = preset(str(source), algo)
    check(recipe, question)
    return untrained(recipe)


def _check_run(path: Path, question: Question, env: str | None, make_env: MakeEnv | None) -> None:
    if not path.is_dir():
        raise UserError(
            f"there is no run {path}; train one, or probe an environment with --policy random"
        )
    if not (path / "recipe.toml").is_file():
        raise UserError(f"{path} holds no run (there is no recipe.toml in it)")
    recipe = Recipe.load(path / "recipe.toml")
    require_trusted(recipe.env, env)
    check(recipe, question)
    if make_env is None:
        envs.maker_of(recipe)  # One that is not registered is said before anything is done.


def _from_the_middle(path: Path) -> Iterator[Policy]:
    """Yield the policy nearest to half of the budget, those before it backwards, those after it."""
    middle = policies.load(path, at=MIDDLE)
    yield middle
    total, kept = middle.recipe.total_timesteps, sorted(store.kept_policies(path))
    before = [steps for steps in reversed(kept) if steps < middle.env_steps]
    after = [steps for steps in kept if steps > middle.env_steps]
    for steps in (*before, *after):
        yield policies.load(path, at=min(1.0, steps / total))


def _passed_over(findings: Findings, reported: Findings) -> str:
    """Say why a policy was not reported, and which side of it the one is that was."""
    steps, total = findings.policy.env_steps, findings.policy.recipe.total_timesteps
    why = (
        "has collapsed"
        if findings.has_collapsed
        else "has no gradient distinguishable from its noise"
    )
    if not reported.has_advice:
        side = ""
    elif reported.policy.env_steps < steps:
        side = ": probed an earlier one"
    else:
        side = ": probed a later one"
    return f"The policy at {steps:,} env steps ({steps / total:.0%}) {why}{side}"


def _shapes(shapes: str | Iterable[Shape | str]) -> tuple[Shape, ...]:
    words = shapes.split(",") if isinstance(shapes, str) else shapes
    found = (Shape.parse(each, "--shapes") if isinstance(each, str) else each for each in words)
    unique = tuple(dict.fromkeys(found))
    for shape in unique:
        if shape.samples > MOST_SAMPLES:
            raise UserError(f"--shapes {shape} is more than {MOST_SAMPLES:,} transitions")
    return unique
