"""Is the advice right? How often each rule speaks where a run ends badly, and where it ends well.

    python benchmarks/advice.py STUDY|RUN|FOLDER ... [--envs CartPole-v1 ...] [--notes] [--json F]

Every run is looked at as it was at 10%, 25% and 50% of its budget. Recall is the share of bad runs
in which a rule spoke, false alarms the share of good ones. A run is bad where its score is below
half of the way from the random policy's to the median of the best arm in that environment.
Environments in which all runs are bad, or none, tell nothing and are left out. Whether a rule is
better than chance is Fisher's exact test, one-sided, stratified by environment (some have more bad
runs than others) and Bonferroni-adjusted for the three moments. It takes runs for independent;
those of one arm in one environment are not quite.

Of studies whose first arm is sound and whose others have one setting off, a second table says which
finding stands first at the end of the bad runs of each arm, and whether it brings that setting back
towards the first arm's. It leaves out environments in which the first arm itself ends badly.

Thresholds are set on some environments and the table is made on others: --envs says which.
"""

from __future__ import annotations

import argparse
import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from isobatch import advice
from isobatch.advice import RULES, Finding, History
from isobatch.errors import UserError
from isobatch.recipe import Recipe

MOMENTS = (0.1, 0.25, 0.5)
HALF = 0.5
SIGNIFICANT = 0.05
ANY = "any above a note"


@dataclass(frozen=True)
class Scored:
    """A run and the score it came to."""

    env: str
    score: float
    history: History
    arm: str = ""
    sound: Recipe | None = None
    """The recipe of the study's first arm."""

    @property
    def is_sound(self) -> bool:
        """Whether it is a run of the study's first arm."""
        return self.sound == self.history.recipe


@dataclass(frozen=True)
class Scale:
    """What counts as nothing and as all in an environment."""

    random: float
    best: float

    def is_bad(self, score: float) -> bool:
        """Say whether a score is below half of the way."""
        return score < self.random + HALF * (self.best - self.random)


@dataclass(frozen=True)
class Judged:
    """Whether a run ended badly, and what spoke at each moment."""

    bad: bool
    spoke: dict[float, set[str]]
    env: str = ""


class Stratum(NamedTuple):
    """One environment's bad and good runs, and how many of either a rule spoke of."""

    bad: int
    good: int
    spoke_bad: int
    spoke_good: int


@dataclass(frozen=True)
class Counted:
    """How often a rule spoke at each moment, environment by environment."""

    rule: str
    strata: tuple[tuple[Stratum, ...], ...]
    """At each moment those of all environments."""

    @property
    def bad(self) -> int:
        """How many bad runs there are."""
        return sum(each.bad for each in self.strata[0])

    @property
    def good(self) -> int:
        """How many good runs there are."""
        return sum(each.good for each in self.strata[0])

    @property
    def recall(self) -> tuple[int, ...]:
        """Of how many bad runs it spoke at each moment."""
        return tuple(sum(each.spoke_bad for each in then) for then in self.strata)

    @property
    def false_alarms(self) -> tuple[int, ...]:
        """Of how many good runs it spoke at each moment."""
        return tuple(sum(each.spoke_good for each in then) for then in self.strata)

    @property
    def p(self) -> float:
        """The chance of speaking so much more of bad runs without knowing which they are."""
        return min(1.0, len(self.strata) * min(map(exact_p, self.strata)))

    @property
    def silent(self) -> bool:
        """Whether it never spoke."""
        return not any((*self.recall, *self.false_alarms))

    @property
    def verdict(self) -> str:
        """Whether it is better than chance."""
        if self.p < SIGNIFICANT:
            return f"better than chance, p = {self.p:.1g}"
        more = any(
            k * self.good > m * self.bad
            for k, m in zip(self.recall, self.false_alarms, strict=True)
        )
        return f"not significant, p = {self.p:.2g}" if more else "no better than chance"


def exact_p(strata: Sequence[Stratum]) -> float:
    """Return P(K >= k) of the bad runs spoken of, were the runs spoken of drawn by chance.

    K is the sum of one hypergeometric count for each environment: their laws are convolved.
    """
    import numpy as np
    from scipy.stats import hypergeom

    law = np.ones(1)
    for bad, good, a, b in strata:
        law = np.convolve(law, hypergeom.pmf(range(a + b + 1), bad + good, bad, a + b))
    return float(law[sum(each.spoke_bad for each in strata) :].sum())


def scored_in(path: Path) -> list[Scored]:
    """Return the finished runs of a study, of a run directory, or of a folder of either."""
    if (path / "study.json").exists():
        from isobatch.study.design import Cell
        from isobatch.study.results import Results

        results = Results.load(path)
        first = next(iter(results.study.arms))
        return [
            Scored(
                each.cell.env,
                each.result.score,
                advice.read(each.path),
                each.cell.arm,
                results.study.recipe(Cell(first, each.cell.env, each.cell.seed)),
            )
            for each in results.having("done")
            if each.result is not None
        ]
    if not (path / "recipe.toml").exists():
        inner = sorted(each for each in path.iterdir() if each.is_dir())
        return [found for each in inner for found in scored_in(each)]
    history = advice.read(path)
    played = [row.get("episode_return") for row in history.evaluations]
    score = played[-1] if played else history.last("episode_return")
    return [] if score is None else [Scored(history.recipe.env, float(score), history)]


def scales(runs: Sequence[Scored]) -> dict[str, Scale]:
    """Return the scale of each environment in which runs ended both well and badly."""
    found = {}
    for env in dict.fromkeys(run.env for run in runs):
        here = [run for run in runs if run.env == env]
        arms = {run.arm: [each.score for each in here if each.arm == run.arm] for run in here}
        scale = Scale(_random(env, here), max(map(median, arms.values())))
        if 0 < sum(scale.is_bad(run.score) for run in here) < len(here):
            found[env] = scale
    return found


def _random(env: str, runs: Sequence[Scored]) -> float:
    """Return the random policy's score: the studies' table's, or that of untrained policies."""
    from isobatch.scores import constants

    scale = constants(env)
    if scale is not None:
        return scale.low
    untrained = [
        float(row["episode_return"])
        for run in runs
        for row in run.history.evaluations
        if row["mark"] == 0
    ]
    return median(untrained) if untrained else min(run.score for run in runs)


def judge(run: Scored, bad: bool, notes: bool) -> Judged:
    """Ask every rule about a run at each moment."""
    spoke = {}
    for moment in MOMENTS:
        then = run.history.until_part(moment)
        found = [each for rule in RULES if (each := rule(then)) is not None]
        heard = {each.rule for each in found if notes or each.is_grave}
        spoke[moment] = heard | ({ANY} if any(each.is_grave for each in found) else set())
    return Judged(bad, spoke, run.env)


def count(judged: Iterable[Judged]) -> list[Counted]:
    """Return the counts for each rule, and for all of them together first."""
    judged = list(judged)
    envs = [[each for each in judged if each.env == env] for env in {each.env for each in judged}]

    def stratum(name: str, moment: float, runs: list[Judged]) -> Stratum:
        bad, good = ([each for each in runs if each.bad is side] for side in (True, False))
        spoke = (sum(name in each.spoke[moment] for each in side) for side in (bad, good))
        return Stratum(len(bad), len(good), *spoke)

    return [
        Counted(name, tuple(tuple(stratum(name, then, runs) for runs in envs) for then in MOMENTS))
        for name in (ANY, *(rule.name for rule in RULES))
    ]


def markdown(table: list[Counted]) -> list[str]:
    """Return the table; rules that never spoke are named below it."""
    parts = ", ".join(f"{moment:.0%}" for moment in MOMENTS)
    bad, good = table[0].bad, table[0].good
    lines = [
        f"| rule | of {bad} bad runs at {parts} | of {good} good runs at {parts} | |",
        "|---|---|---|---|",
    ]
    for each in table:
        if not each.silent:
            recall, alarms = (", ".join(map(str, k)) for k in (each.recall, each.false_alarms))
            lines.append(f"| {each.rule} | {recall} | {alarms} | {each.verdict} |")
    silent = [each.rule for each in table if each.silent]
    return [*lines, "", f"Never spoke: {', '.join(silent) or 'none'}."]


def mends(found: Finding, recipe: Recipe, sound: Recipe) -> bool:
    """Say whether a finding brings a setting that is off back towards the sound recipe's."""
    now, right = recipe.values, sound.values
    return any(
        now[name] != right[name]
        and _distance(value, right[name]) < _distance(now[name], right[name])
        for name, value in found.changes.items()
    )


def _distance(value: Any, right: Any) -> float:
    """How far a setting is from the right one: a factor's logarithm, or 0 and 1."""
    if isinstance(value, bool | str | None) or isinstance(right, bool | str | None):
        return float(value != right)
    if value > 0 and right > 0:
        return abs(math.log(value / right))
    return abs(value - right)


def where_sound(runs: Sequence[tuple[Scored, bool]]) -> list[tuple[Scored, bool]]:
    """Return the runs in environments where most of the first arm's ended well."""
    ended = {
        env: [bad for run, bad in runs if run.env == env and run.is_sound]
        for env in {run.env for run, _ in runs}
    }
    sound = {env for env, bad in ended.items() if bad and sum(bad) < HALF * len(bad)}
    return [(run, bad) for run, bad in runs if run.env in sound]


def first_findings(runs: Iterable[tuple[Scored, bool]]) -> list[str]:
    """Return what stands first at the end of each arm's runs, as a table."""
    lines = [
        "| arm | bad runs | first finding of those | it names the setting |",
        "|---|---|---|---|",
    ]
    arms: dict[str, list[tuple[Scored, bool]]] = {}
    for run, bad in runs:
        arms.setdefault(run.arm, []).append((run, bad))
    for arm, here in arms.items():
        said: Counter[str] = Counter()
        named = 0
        for run, bad in here:
            if bad:
                top = next((each for each in advice.look(run.history) if each.is_grave), None)
                said[top.rule if top else "nothing"] += 1
                named += bool(top and run.sound and mends(top, run.history.recipe, run.sound))
        bad = said.total()
        first = ", ".join(f"{name} {k}" for name, k in said.most_common())
        lines.append(f"| {arm} | {bad} of {len(here)} | {first or '-'} | {named} of {bad} |")
    return lines


def described(scale: Mapping[str, Scale], runs: Sequence[Scored]) -> list[str]:
    """Say of each environment what counted as 0 and 1, and how many runs were bad."""
    lines = ["| environment | random | best arm's median | bad runs |", "|---|---|---|---|"]
    for env in dict.fromkeys(run.env for run in runs):
        here = [run for run in runs if run.env == env]
        if env in scale:
            low, high = scale[env].random, scale[env].best
            bad = sum(scale[env].is_bad(run.score) for run in here)
            lines.append(f"| {env} | {low:.4g} | {high:.4g} | {bad} of {len(here)} |")
        else:
            lines.append(f"| {env} | | | all alike, left out ({len(here)} runs) |")
    return lines


def main() -> None:
    """Read, judge, count, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("paths", nargs="+", type=Path)
    parser.add_argument("--envs", nargs="*", help="only runs in these environments")
    parser.add_argument("--notes", action="store_true", help="count notes too")
    parser.add_argument("--json", type=Path, help="also write the counts")
    parsed = parser.parse_args()
    runs = [run for path in parsed.paths for run in scored_in(path)]
    runs = [run for run in runs if not parsed.envs or run.env in parsed.envs]
    scale = scales(runs)
    kept = [(run, scale[run.env].is_bad(run.score)) for run in runs if run.env in scale]
    if not kept:
        raise UserError("no finished runs there, or all of them ended alike")
    table = count(judge(run, bad, parsed.notes) for run, bad in kept)
    named = first_findings(where_sound(kept))
    for line in (*described(scale, runs), "", *markdown(table), "", *named):
        print(line)
    if parsed.json:
        counts = {each.rule: [each.recall, each.false_alarms] for each in table}
        parsed.json.write_text(json.dumps(counts, indent=1) + "\n")


if __name__ == "__main__":
    main()
