"""What a study compares: arms, environments, seeds, one data budget, and the claims it tests."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from importlib import resources
from pathlib import Path
from typing import Annotated, Any

from isobatch import files, plain
from isobatch.batch import Shape
from isobatch.envs.catalog import require_trusted
from isobatch.errors import UserError, nearest, refuse_unknown, shown
from isobatch.presets import preset
from isobatch.recipe import Recipe, check_budget, toml
from isobatch.recipe.checks import Bound, Count, Names, Whole, as_field, refuse_misfits
from isobatch.run.store import safe_name
from isobatch.scaling import SIZES
from isobatch.scores import given_scale
from isobatch.study.checks import (
    MOST_ARMS,
    MOST_SEEDS,
    RESCALING,
    refuse_arms,
    refuse_control,
    refuse_doubles,
    refuse_reference,
    refuse_sizes,
    scaled_envs,
)
from isobatch.study.claims import Claim, read_claims

SCALES = ("laptop", "paper")
MARKS = 16
"""Evaluations of every run while it trains, beside that of its start."""
Seeds = Annotated[
    tuple[int, ...],
    Bound(
        lambda x: 0 < len(x) <= MOST_SEEDS and min(x) >= 0,
        f"must be a number of them or a list, {MOST_SEEDS:,} at most",
    ),
]


@dataclass(frozen=True)
class Cell:
    """One run of a study."""

    arm: str
    env: str
    seed: int

    @property
    def key(self) -> str:
        """Its name on disk."""
        return f"{safe_name(self.arm)}--{safe_name(self.env)}--{self.seed}"

    def __str__(self) -> str:
        return f"{self.arm}, {self.env}, seed {self.seed}"


@dataclass(frozen=True)
class Study:
    """A design: every arm in every environment with every seed, each for the same env steps."""

    name: str
    envs: Names
    budget: Count
    """Environment steps of every run."""
    seeds: Seeds
    arms: dict[str, dict[str, Any]]
    """Recipe fields each arm sets, by arm. With `rescale_from`, another arm's name, that arm's
    recipe at this arm's batch: `scale_envs` times its environments, or sizes as they are named;
    `keep` is what then stays of the batch (isobatch rescale --keep), and `hold` names fields that
    stay as they were."""
    algo: str = "ppo"
    base: dict[str, Any] = field(default_factory=dict)
    """Recipe fields all arms share."""
    evaluate: Whole = 100
    """Episodes the final policy plays for its score; 0 takes those of the last mark."""
    claims: tuple[Claim, ...] = ()
    title: str = ""
    note: str = ""
    scores: dict[str, Any] = field(default_factory=dict)
    """By environment, {random, reference}: the returns that count as 0 and as 1, in place of those
    of Isobatch's table."""
    cohorts: bool = True
    """Whether runs that are alike are trained together."""

    def __post_init__(self) -> None:
        refuse_misfits(self)
        for name in ("name", "title", "note", "algo"):
            refuse_control(getattr(self, name), name, printed=name in ("name", "algo"))
        for env in self.envs:
            refuse_control(env, "envs")
        refuse_arms(self.arms)
        refuse_doubles(envs=self.envs, seeds=self.seeds, arms=list(self.arms))
        refuse_sizes(self.envs, self.seeds, self.arms)
        for env, numbers in self.scores.items():
            given_scale(env, numbers)
        for name in ("total_timesteps", "seed", "env"):
            for arm, fields in ({"[base]": self.base} | self.arms).items():
                if name in fields:
                    owner = "budget" if name == "total_timesteps" else f"{name}s"
                    raise UserError(
                        f"arm {shown(arm)} sets {name}: all arms of a study share its {owner}",
                        field="arms",
                    )
        for arm, fields in self.arms.items():
            refuse_reference(self.arms, arm, fields)
            for name in ("eval_marks", "eval_every", "eval_episodes"):
                if name in fields:
                    raise UserError(
                        f"arm {shown(arm)} sets {name}: all arms must be evaluated "
                        "in the same way; set it in [base]",
                        field="arms",
                    )
        if self.base.get("eval_every") or self.base.get("eval_marks", MARKS) == 0:
            raise UserError("a study needs eval_marks: its curves compare at marks", field="base")
        for claim in self.claims:
            for arm in claim.arms:
                if arm not in self.arms:
                    raise UserError(
                        f"a claim names the arm {shown(arm)}, which does not exist."
                        f"{nearest(arm, list(self.arms))}",
                        field="claims",
                    )

    @cached_property
    def cells(self) -> list[Cell]:
        """Every run, seed by seed, so that a study stopped half-way has compared all arms."""
        return [
            Cell(arm, env, seed)
            for seed, env, arm in itertools.product(self.seeds, self.envs, self.arms)
        ]

    def recipe(self, cell: Cell) -> Recipe:
        """Return a cell's recipe: the environment's preset, the base, then the arm."""
        try:
            recipe = self._arm(cell.arm, cell.env).replace(
                total_timesteps=self.budget, seed=cell.seed
            )
            check_budget(recipe)
        except UserError as error:
            raise UserError(f"arm {shown(cell.arm)} in {shown(cell.env)}: {error}") from None
        return recipe

    def _arm(self, arm: str, env: str) -> Recipe:
        """Return an arm's recipe: fields over the preset, or another arm's at another batch."""
        # One thread to a run: several runs at once use the cores better than one run does. And
        # marks always, at the same environment steps in every arm: other curves do not compare.
        alike = {"threads": 1, "env_threads": 1, "eval_marks": MARKS}
        own = self.arms[arm]
        if "rescale_from" not in own:
            fields: dict[str, Any] = {**alike, **self.base, **own}
            algo = fields.pop("algo", self.algo)
            if not isinstance(algo, str):
                raise UserError(f"algo must be a text, got {shown(algo)}", field="algo")
            return preset(env, algo).replace(**fields)
        tuned, held = self._arm(own["rescale_from"], env), own.get("hold", [])
        sizes = {name: own[name] for name in SIZES if name in own}
        if "scale_envs" in own:
            sizes["n_envs"] = scaled_envs(tuned.batch.n_envs, own["scale_envs"])
        rest = {name: own[name] for name in own if name not in (*SIZES, *RESCALING)}
        moved = tuned.rescale(**sizes, keep=own.get("keep")).recipe
        known = tuned.values
        for name in held:
            if name not in known:
                raise UserError(f"it holds {shown(name)}.{nearest(name, list(known))}", field=name)
        return moved.replace(**{**{name: known[name] for name in held}, **rest})

    def check(self, trusted: tuple[str, ...] = ()) -> None:
        """Make every recipe, so that a mistake is found before the first run."""
        for env in self.envs:
            require_trusted(env, env if env in trusted else None)
        for env, arm in itertools.product(self.envs, self.arms):
            self.recipe(Cell(arm, env, self.seeds[0]))

    def to_json(self) -> str:
        """Return the whole design as text, the same for the same study."""
        return json.dumps(dataclasses.asdict(self), indent=1)

    @classmethod
    def from_json(cls, text: str, source: str = "the study") -> Study:
        """Read what `to_json` wrote."""
        data = plain.from_json(text, source)
        if not isinstance(data, dict):
            raise UserError(f"{source} is not a table")
        names = {item.name for item in dataclasses.fields(cls)}
        refuse_unknown(data, names, source, "field")
        missing = sorted({"name", "envs", "budget", "seeds", "arms", "claims"} - data.keys())
        if missing:
            raise UserError(f"{source}: {missing[0]} is missing", field=missing[0])
        read = {name: as_field(data[name]) for name in ("envs", "seeds")}
        return cls(**{**data, **read, "claims": read_claims(data["claims"])})


def preset_names() -> list[str]:
    """Return the studies that come with Isobatch."""
    folder = resources.files("isobatch.study") / "presets"
    return sorted(
        file.name.removesuffix(".toml") for file in folder.iterdir() if file.name.endswith(".toml")
    )


def load(source: str, scale: str | None = None) -> Study:
    """Read a study: the name of a preset, or a TOML file."""
    if source.endswith(".toml") or Path(source).is_file():
        return from_toml(files.read_text(source, "the study"), Path(source).stem, scale, source)
    if source not in preset_names():
        raise UserError(
            f"unknown study {shown(source)}; there are {', '.join(preset_names())}, or give a "
            f".toml file.{nearest(source, preset_names())}"
        )
    text = (resources.files("isobatch.study") / "presets" / f"{source}.toml").read_text("utf-8")
    return from_toml(text, source, scale or "laptop", source)


@dataclass(frozen=True)
class Settings:
    """The table [study] of a file, and those of [laptop] or [paper] over it."""

    envs: Names
    budget: Count
    seeds: Seeds
    algo: str = "ppo"
    evaluate: Whole = 100
    title: str = ""
    note: str = ""
    cohorts: bool = True
    base: dict[str, Any] = field(default_factory=dict)


def from_toml(text: str, name: str, scale: str | None = None, source: str = "study") -> Study:
    """Build a study from TOML: [study], [arms] or [grid], [base], [scores], [[claims]].

    A table named after a scale, [laptop] or [paper], replaces fields of [study]; its own
    [laptop.base] adds to [base]. Where it has arms or claims of its own, [laptop.arms] and
    [[laptop.claims]], these are the scale's instead of the others.
    """
    tables = plain.from_toml(text, source)
    known = {"study", "arms", "grid", "base", "scores", "claims", *SCALES}
    refuse_unknown(tables, known, source, "table")
    for each in known - {"claims"}:
        if not isinstance(tables.get(each, {}), dict):
            line = toml.line_of(text, "", each)
            raise UserError(f"{source}, line {line}: {each} must be a table [{each}]", field=each)
    if scale is not None and scale not in tables:
        raise UserError(f"{source} has no [{scale}] scale")
    own = dict(tables[scale]) if scale else {}
    design = {name: own.pop(name) for name in ("arms", "claims") if name in own}
    given = {
        **_settings(tables.get("study", {}), text, source, "study"),
        **_settings(own, text, source, scale or ""),
    }
    settings: Settings = toml.make(Settings, given, text, source, "study")
    try:
        everywhere = {**tables.get("arms", {}), **_grid(tables.get("grid", {}))}
        shared = {item.name: getattr(settings, item.name) for item in dataclasses.fields(settings)}
        return Study(
            **{**shared, "base": tables.get("base", {}) | settings.base},
            name=name,
            arms=design.get("arms", everywhere),
            claims=read_claims(design.get("claims", tables.get("claims", []))),
            scores=tables.get("scores", {}),
        )
    except UserError as error:
        home = scale if scale and error.field in own else "study" if error.field in given else ""
        raise toml.located(error, text, source, home, error.field or "") from None


def _settings(table: Mapping[str, Any], text: str, source: str, header: str) -> dict[str, Any]:
    """Return the fields of [study] or of a scale, checked, the seeds as a list."""
    try:
        counted = {"seeds": _counted(table["seeds"])} if "seeds" in table else {}
    except UserError as error:
        raise toml.located(error, text, source, header, "seeds") from None
    return toml.read_fields(Settings, {**table, **counted}, text, source, header)


def with_seeds(study: Study, count: int) -> Study:
    """Return the study with seeds 1 ... count."""
    return dataclasses.replace(study, seeds=_counted(count))


def _grid(grid: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return an arm for every combination of the listed values."""
    if not grid:
        return {}
    for name, values in grid.items():
        if not isinstance(values, list) or not values:
            raise UserError(f"[grid] {shown(name)} must be a list of values", field="grid")
    count = math.prod(len(values) for values in grid.values())
    if count > MOST_ARMS:
        raise UserError(f"[grid]: {count:,} arms are more than {MOST_ARMS:,}", field="grid")
    arms = {}
    for values in itertools.product(*grid.values()):
        fields = dict(zip(grid, values, strict=True))
        arms[grid_arm(fields)] = fields
    return arms


def grid_arm(fields: dict[str, Any]) -> str:
    """Return the name of a grid's arm: 8x128 for n_envs and n_steps, name=value for others."""
    rest = dict(fields)
    shape = ""
    if "n_envs" in rest and "n_steps" in rest:
        shape = Shape(rest.pop("n_envs"), rest.pop("n_steps")).name
    return " ".join([shape, *(f"{name}={value}" for name, value in rest.items())]).strip()


def _counted(seeds: Any) -> Any:
    """Return seeds 1 ... n for a number of them; all else as it is."""
    if isinstance(seeds, int) and not isinstance(seeds, bool):
        if seeds > MOST_SEEDS:
            raise UserError(f"{seeds:,} seeds are more than {MOST_SEEDS:,}", field="seeds")
        return tuple(range(1, seeds + 1))
    return seeds
