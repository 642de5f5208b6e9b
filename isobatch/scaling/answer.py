"""The answer to "what do I change?": what moves and stays, the updates, the ways, what to expect.

The sentences are data first (`Answer`); `layout` prints them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NamedTuple

from isobatch.recipe import Recipe
from isobatch.scaling import expect
from isobatch.scaling.factors import Factors
from isobatch.scaling.keep import WAYS, Keep
from isobatch.scaling.limits import Caution, by_importance
from isobatch.scaling.record import mean_area, measured
from isobatch.scaling.rules import Change, Moved
from isobatch.scaling.ways import Updates, Way
from isobatch.text import counted, number

FEW_ITERATIONS = 30
"""In docs/results/scale-up.md 24 iterations, where there had been 195, cost Acrobot 0.2 of area."""
NAMED = 3
"""Settings that the first sentence names; the table has them all."""
BATCH = ("n_envs", "n_steps", "n_minibatches", "n_epochs")
ORDER = (*BATCH[:2], "minibatch_size", *BATCH[2:], "learning_rate")


class Setting(NamedTuple):
    """A setting before and after."""

    name: str
    old: Any
    new: Any
    derived: bool = False
    """True for what follows from the others."""


@dataclass(frozen=True)
class Library:
    """The library asked from, whose names the answer uses."""

    names: Mapping[str, str]
    """Its name for a recipe's field."""
    settings: Sequence[Setting]
    """Those that move, and those of the batch."""


@dataclass(frozen=True)
class Asked:
    """What an answer depends on beside the two recipes."""

    way: Keep | None = None
    """The way taken, None where the request is no way to another N."""
    advised: Keep | None = None
    why: str = ""
    """Why that way is advised."""
    library: Library | None = None
    """None: the recipe's own names."""
    budget: str = ""
    """Where the budget is an assumption: whose."""
    notes: tuple[Caution, ...] = ()
    """What is to be said beside the limits of the rules."""
    paste_title: str = ""
    paste: str = ""


class Answer(NamedTuple):
    """The parts of an answer, in order; rules and details are for those who ask for them."""

    headline: str
    moves: list[Setting]
    stays: list[Setting]
    budget: str
    ways: list[Way]
    fits: list[str]
    expect: list[str]
    notes: list[Caution]
    paste_title: str
    paste: str
    rules: list[str]
    record: list[tuple[str, ...]]


def answer(tuned: Recipe, moved: Moved, ways: Sequence[Way], asked: Asked) -> Answer:
    """Return what to change and what comes of it, in the names of the library asked from."""
    new, names = moved.recipe, asked.library.names if asked.library else {}

    def named(text: str) -> str:
        return translated(text, names)

    settings = _settings(tuned, new, moved.changes, asked.library)
    moves = [each for each in settings if each.old != each.new]
    differs = Factors(tuned.batch, new.batch).differ or bool(moved.changes)
    return Answer(
        headline=_headline(moves, asked, named),
        moves=moves,
        stays=[each for each in settings if each.old == each.new],
        budget=named(_budget(tuned, new, asked.budget)),
        ways=list(ways) if differs else [],
        fits=[named(_fits(way, tuned, new)) for way in ways] if differs else [],
        expect=list(map(named, expect.expectation(tuned, new, asked.way))) if differs else [],
        notes=[Caution(named(each.text), each.matters) for each in notes(tuned, moved, asked)],
        paste_title=asked.paste_title,
        paste=asked.paste,
        rules=_rules(tuned, new, moved.changes) if differs else [],
        record=expect.table(tuned, new, asked.way),
    )


def notes(tuned: Recipe, moved: Moved, asked: Asked) -> list[Caution]:
    """Return all that is to be warned of, the most important first."""
    return by_importance([*_few(tuned, moved.recipe), *asked.notes, *moved.cautions])


def translated(text: str, names: Mapping[str, str]) -> str:
    """Return a sentence with the recipe's fields under their names there."""
    if not names:
        return text
    # `minibatch-size` and `n_envs_x` are other words.
    pattern = rf"(?<![\w-])({'|'.join(map(re.escape, names))})(?![\w-])"
    return re.sub(pattern, lambda match: names[match[1]], text)


def _settings(
    tuned: Recipe, new: Recipe, changes: Sequence[Change], library: Library | None
) -> list[Setting]:
    """Return what of the batch and the step size there is, and whatever else moves."""
    old = {"minibatch_size": tuned.batch.minibatch_size, **tuned.values}
    now = {"minibatch_size": new.batch.minibatch_size, **new.values}
    if library is None:
        names = dict.fromkeys((*ORDER, *(change.field for change in changes)))
        rows = [Setting(name, old[name], now[name]) for name in names]
    else:
        rows = list(library.settings)
        rows += [
            Setting(label, old[field], now[field], derived=True)
            for field, label in (
                ("n_minibatches", "minibatches per epoch"),
                ("minibatch_size", "minibatch size"),
            )
            if field not in library.names
        ]
    rollout = Setting(
        "rollout (transitions)", tuned.batch.rollout_size, new.batch.rollout_size, derived=True
    )
    return [*rows, rollout]


def what_to_change(moves: Sequence[Setting]) -> str:
    """Return the first sentence of an answer: what to change, from what to what."""
    chosen = [each for each in moves if not each.derived and each.name != "minibatch_size"]
    if not chosen:
        return "Change nothing: this is the batch it has."
    shown = [f"{each.name} from {value(each.old)} to {value(each.new)}" for each in chosen[:NAMED]]
    rest = len(chosen) - NAMED
    if rest > 0:
        shown.append(f"{counted(rest, 'other setting')} (below)")
    *first, last = shown
    text = f"Change {', '.join(first)} and {last}" if first else f"Change {last}"
    return text + ("; keep all other settings." if rest <= 0 else ".")


def _headline(moves: Sequence[Setting], asked: Asked, named: Any) -> str:
    """Say what to change in a sentence, and in another why this way."""
    text = what_to_change(moves)
    if asked.advised is None or text.startswith("Change nothing"):
        return text
    if asked.way == asked.advised:
        return f"{text} Recommended because {named(asked.why)}."
    return f"{text} Recommended instead: --keep {asked.advised}, because {named(asked.why)}."


def _budget(tuned: Recipe, new: Recipe, assumed: str) -> str:
    before, after = _updates(Updates.of(tuned)), _updates(Updates.of(new))
    steps = f"In a budget of {counted(new.total_timesteps, 'step')}"
    if assumed:
        steps += f" ({assumed})"
    if before == after:
        return f"{steps}: {before}, before and after."
    return f"{steps}: {before} -> {after}."


def _updates(updates: Updates) -> str:
    return (
        f"{counted(updates.iterations, 'iteration')}, "
        f"{counted(updates.grad_steps, 'gradient step')}"
    )


def _few(tuned: Recipe, new: Recipe) -> list[Caution]:
    """Say that the budget holds few iterations, and what would hold more."""
    before, after = Updates.of(tuned).iterations, Updates.of(new).iterations
    if after >= FEW_ITERATIONS:
        return []
    text = f"the budget holds only {counted(after, 'iteration')}"
    if before > after:
        text += f", where there were {before:,}"
    return [Caution(f"{text}; a larger budget or a smaller rollout holds more")]


def _fits(way: Way, tuned: Recipe, new: Recipe) -> str:
    """Say what a way does, when it fits, and what it cost where it was measured."""
    factor = new.batch.n_envs / tuned.batch.n_envs
    rows = measured(way.keep, factor, tuned.algo) if factor != 1 else []
    area = mean_area(rows) if rows else None
    text = f"{way.keep}: {WAYS[way.keep]}"
    if way.refusal:
        return f"{text} Not possible here: {way.refusal}."
    if area is None:
        return text
    of = f"n_envs x {Fraction(rows[0].factor)}, {counted(len(rows), 'task')}"
    return f"{text} Measured ({of}): area {area:+.2f}."


def _rules(tuned: Recipe, new: Recipe, changes: Sequence[Change]) -> list[str]:
    """Return both factors, and each change with its rule and reason."""
    factors = Factors(tuned.batch, new.batch)
    return [
        sizes_sentence(factors),
        *(
            f"{change.field} {value(change.old)} -> {value(change.new)}: {change.rule}; "
            f"{change.reason}"
            for change in changes
        ),
    ]


def sizes_sentence(factors: Factors, rollout: str = "rollout") -> str:
    """Return how much larger or smaller both batches are."""
    return (
        f"minibatch {_scaled(factors.opt)} (c_opt {number(factors.opt)}), {rollout} "
        f"{_scaled(factors.iter)} (c_iter {number(factors.iter)})"
    )


def _scaled(factor: float) -> str:
    """Return /8 for a batch that is eight times smaller, x8 for a larger one."""
    if factor == 1:
        return "unchanged"
    return f"/{number(factor)}" if factor > 1 else f"x{number(1 / factor)}"


def value(each: Any) -> str:
    """Return a setting's value as a person reads it."""
    if isinstance(each, bool) or not isinstance(each, int | float):
        return "none" if each is None else str(each)
    return number(each)
