"""Is the advice right? How often each rule speaks where a run ends badly, and where it ends well.

    python benchmarks/advice.py STUDY|RUN|FOLDER ... [--envs CartPole-v1 ...] [--notes] [--json F]

Every run is looked at as it was at 10%, 25% and 50% of its budget. Recall is the share of bad runs
in which a rule spoke, false alarms the share of good ones. A run is bad where its final score is
below half of the way from the random policy's to a good one's (the table that studies normalise
by), or in an environment that is not in that table from the worst to the best of the runs given.
Thresholds are set on some environments and the table is made on others: --envs says which.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from isobatch import advice
from isobatch.advice import RULES, History
from isobatch.errors import UserError

MOMENTS = (0.1, 0.25, 0.5)
HALF = 0.5
ANY = "any above a note"


@dataclass(frozen=True)
class Scored:
    """A run and the score it came to."""

    env: str
    score: float
    history: History


@dataclass(frozen=True)
class Judged:
    """Whether a run ended badly, and what spoke at each moment."""

    bad: bool
    spoke: dict[float, set[str]]


@dataclass(frozen=True)
class Counted:
    """How often a rule spoke at each moment, in shares of the bad and of the good runs."""

    rule: str
    recall: tuple[float, ...]
    false_alarms: tuple[float, ...]

    @property
    def informs(self) -> bool:
        """Whether it is better than chance: at some moment it speaks more of bad runs."""
        return any(a > b for a, b in zip(self.recall, self.false_alarms, strict=True))

    @property
    def silent(self) -> bool:
        """Whether it never spoke."""
        return not any((*self.recall, *self.false_alarms))


def scored_in(path: Path) -> list[Scored]:
    """Return the finished runs of a study, of a run directory, or of a folder of either."""
    if (path / "study.json").exists():
        from isobatch.study.results import Results

        done = Results.load(path).having("done")
        return [
            Scored(each.cell.env, each.result.score, advice.read(each.path))
            for each in done
            if each.result is not None
        ]
    if not (path / "recipe.toml").exists():
        inner = sorted(each for each in path.iterdir() if each.is_dir())
        return [found for each in inner for found in scored_in(each)]
    history = advice.read(path)
    played = [row.get("episode_return") for row in history.evaluations]
    score = played[-1] if played else history.last("episode_return")
    return [] if score is None else [Scored(history.recipe.env, float(score), history)]


def is_bad(runs: Sequence[Scored]) -> list[bool]:
    """Say of each run whether its score is below half of the way in its environment."""
    from isobatch.study.scores import constants

    bad = []
    for run in runs:
        scale = constants(run.env)
        if scale is not None:
            bad.append(scale.normalized(run.score) < HALF)
        else:
            scores = [each.score for each in runs if each.env == run.env]
            bad.append(run.score < min(scores) + HALF * (max(scores) - min(scores)))
    return bad


def judge(run: Scored, bad: bool, notes: bool) -> Judged:
    """Ask every rule about a run at each moment."""
    spoke = {}
    for moment in MOMENTS:
        then = run.history.until_part(moment)
        found = [each for rule in RULES if (each := rule(then)) is not None]
        heard = {each.rule for each in found if notes or each.is_grave}
        spoke[moment] = heard | ({ANY} if any(each.is_grave for each in found) else set())
    return Judged(bad, spoke)


def count(judged: Iterable[Judged]) -> list[Counted]:
    """Return the shares for each rule, and for all of them together first."""
    judged = list(judged)
    table = []
    for name in (ANY, *(rule.name for rule in RULES)):
        shares = [
            tuple(
                _share([name in each.spoke[moment] for each in judged if each.bad is bad])
                for moment in MOMENTS
            )
            for bad in (True, False)
        ]
        table.append(Counted(name, *shares))
    return table


def _share(said: list[bool]) -> float:
    return sum(said) / len(said) if said else 0.0


def markdown(table: list[Counted], bad: int, good: int) -> list[str]:
    """Return the table; rules that never spoke are named below it."""
    parts = [f"{moment:.0%}" for moment in MOMENTS]
    lines = [
        f"{bad} bad runs and {good} good ones.",
        "",
        f"| rule | recall at {', '.join(parts)} | false alarms at {', '.join(parts)} | |",
        "|---|---|---|---|",
    ]
    for each in table:
        if not each.silent:
            recall, alarms = (
                ", ".join(f"{share:.0%}" for share in shares)
                for shares in (each.recall, each.false_alarms)
            )
            verdict = "" if each.informs else "no better than chance"
            lines.append(f"| {each.rule} | {recall} | {alarms} | {verdict} |")
    silent = [each.rule for each in table if each.silent]
    return [*lines, "", f"Never spoke: {', '.join(silent) or 'none'}."]


def main() -> None:
    """Read, judge, count, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("paths", nargs="+", type=Path)
    parser.add_argument("--envs", nargs="*", help="only runs in these environments")
    parser.add_argument("--notes", action="store_true", help="count notes too")
    parser.add_argument("--json", type=Path, help="also write the shares")
    parsed = parser.parse_args()
    runs = [run for path in parsed.paths for run in scored_in(path)]
    runs = [run for run in runs if not parsed.envs or run.env in parsed.envs]
    if not runs:
        raise UserError("no finished runs there")
    bad = is_bad(runs)
    table = count(judge(run, each, parsed.notes) for run, each in zip(runs, bad, strict=True))
    for line in markdown(table, sum(bad), len(bad) - sum(bad)):
        print(line)
    if parsed.json:
        shares = {each.rule: [each.recall, each.false_alarms] for each in table}
        parsed.json.write_text(json.dumps(shares, indent=1) + "\n")


if __name__ == "__main__":
    main()
