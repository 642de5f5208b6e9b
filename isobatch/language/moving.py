"""What to change for another batch of language-model RL: settings read, moved, and said."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, Literal, NamedTuple

from isobatch.errors import UserError, nearest
from isobatch.language.areal import Areal
from isobatch.language.batch import SequenceBatch
from isobatch.language.cautions import cautions
from isobatch.language.library import Learner, Library, Setup
from isobatch.language.openrlhf import OpenRlhf
from isobatch.language.settings import Settings, hint
from isobatch.language.trl import Trl
from isobatch.language.verl import Verl
from isobatch.language.words import Given, flatten
from isobatch.recipe import USERS_OWN, Recipe
from isobatch.scaling import Factors, layout
from isobatch.scaling.answer import Answer, Setting, sizes_sentence, value, what_to_change
from isobatch.scaling.factors import center_of_mass, decay_of_mass
from isobatch.scaling.limits import Caution, by_importance
from isobatch.scaling.rules import BATCH_RULE, Change, Options, move

Keep = Literal["batch", "per-device"]
LIBRARIES: dict[str, Library] = {each.name: each for each in (Verl(), Trl(), OpenRlhf(), Areal())}
MOST_UNKNOWN = 5
"""Keys without meaning that a warning names."""


class Moved(NamedTuple):
    """A setting that a rule moves."""

    key: str
    old: Any
    new: Any
    rule: str
    reason: str


@dataclasses.dataclass(frozen=True)
class Resized:
    """A configuration at another batch: what it means, what moves, and what to know about it."""

    library: Library
    old: Setup
    new: Setup
    moved: list[Moved]
    changes: dict[str, Any]
    """All settings that change, the moved ones included."""
    answer: Answer

    @property
    def factors(self) -> Factors:
        """c_opt and c_iter."""
        return Factors(self.old.batch.batch, self.new.batch.batch)

    @property
    def warnings(self) -> list[str]:
        """What is not kept the same, the most important first."""
        return [note.text for note in self.answer.notes]

    def text(self, verbose: bool = False) -> str:
        """Return the answer in 80 columns; all rules and warnings with `verbose`."""
        return layout.text(self.answer, verbose)

    def __str__(self) -> str:
        return self.text()

    def _repr_html_(self) -> str:
        return layout.html(self.answer)


def find(name: str) -> Library:
    """Return a library by its name."""
    if name not in LIBRARIES:
        known = list(LIBRARIES)
        raise UserError(f"unknown library {name!r}; {', '.join(known)}.{nearest(name, known)}")
    return LIBRARIES[name]


def read(library: str, given: Mapping[str, Any]) -> SequenceBatch:
    """Return the batch that settings make; tables in each other or dotted keys."""
    found = find(library)
    return found.read(found.settings(Given(flatten(dict(given))))).batch


def rescale(
    library: str,
    given: Given | Mapping[str, Any],
    *,
    devices: int | None = None,
    after: Given | Mapping[str, Any] | None = None,
    whole: bool = False,
    keep: Keep | None = None,
    betas: bool = False,
    grad_norm: bool = False,
) -> Resized:
    """Return what to change in a configuration for other devices or another batch.

    `given` and `after` are settings in the library's own keys; what `after` leaves out stays as
    given, or with `whole` has the library's default. `keep` says what happens to the batch with
    other devices: batch (it stays), per-device (it grows with them); None is what the library
    does if nothing else is touched. `betas` and `grad_norm` move these too.
    """
    found = find(library)
    before = found.settings(_given(given))
    asked = _given(after or {})
    if devices is None and not asked.flat:
        raise UserError("to which batch? Give devices (--devices N), or settings after --after")
    base = found.settings(asked) if whole else before.over(asked.flat)
    old = found.read(before)
    changes: dict[str, Any] = {}
    held = devices is not None and keep is not None and (keep == "batch") == found.per_device
    if devices is not None:
        if held:
            changes = found.instead(base, Fraction(devices, old.batch.devices))
        changes |= found.on_devices(base.over(changes), devices)
    settings = base.over(changes)
    new = found.read(settings)
    factors = Factors(old.batch.batch, new.batch.batch)
    moved = _moves(old, new, factors, Options(betas, grad_norm))
    differing = _differing(before, settings, asked.flat.keys() | changes.keys())
    final = differing | {each.key: _rounded(each.new) for each in moved}
    answer = _answer(found, before, old, new, moved, differing, held)
    notes = _disagreements(moved, asked, before) + _unknown(found, settings) + answer.notes
    paste = found.paste(final) if final else ""
    said = answer._replace(notes=by_importance(notes), paste=paste)
    return Resized(found, old, new, moved, final, said)


def _rounded(number: Any) -> Any:
    """Return a number, or a list of them, as it is to be pasted."""
    if isinstance(number, list):
        return [_rounded(each) for each in number]
    return float(f"{number:.6g}") if isinstance(number, float) else number


def _given(given: Given | Mapping[str, Any]) -> Given:
    return given if isinstance(given, Given) else Given(flatten(dict(given)))


def _differing(before: Settings, after: Settings, keys: Any) -> dict[str, Any]:
    """Return the settings that are not as they were, in the order they were asked for."""
    return {
        key: after.value(key) for key in after.given if key in keys and _differs(before, after, key)
    }


def _differs(before: Settings, after: Settings, key: str) -> bool:
    old, new = before.value(key), after.value(key)
    return old != new and str(old) != str(new)


def _moves(old: Setup, new: Setup, factors: Factors, options: Options) -> list[Moved]:
    """Return what the rules move: step sizes, averages, and what counts updates."""
    pairs = [(old.policy, new.policy)]
    if old.critic is not None and new.critic is not None:
        pairs.append((old.critic, new.critic))
    found = [each for pair in pairs for each in _learner(old, new, *pair, options)]
    for average in old.averages:
        age = center_of_mass(average.decay) * factors.opt * factors.epochs
        decay = decay_of_mass(age)
        if decay != average.decay:
            reason = f"the average is {age:.4g} gradient steps old, as many sequences as before"
            found.append(Moved(average.key, average.decay, decay, "centre of mass x c_opt", reason))
    for count in old.counts:
        factor = factors.iter if count.iterations else factors.opt * factors.epochs
        rule = "x c_iter" if count.iterations else "x c_opt"
        wanted = max(1, round(count.value * factor))
        if wanted != count.value:
            found.append(Moved(count.key, count.value, wanted, rule, "covers as many sequences"))
    return found


def _learner(
    old: Setup, new: Setup, before: Learner, after: Learner, options: Options
) -> list[Moved]:
    """Return what an optimiser's rules move, as those of a recipe with the same batch."""
    if before.optimizer not in ("adam", "sgd"):
        return []
    batch = dataclasses.replace(old.batch, minibatch=before.minibatch, epochs=before.epochs).batch
    target = dataclasses.replace(new.batch, minibatch=after.minibatch, epochs=after.epochs).batch
    recipe = Recipe(env=USERS_OWN).replace(
        optimizer=before.optimizer, **dataclasses.asdict(batch), **before.values
    )
    changes = move(recipe, dataclasses.asdict(target), options=options).changes
    return _in_their_keys(before, [each for each in changes if each.rule != BATCH_RULE])


def _in_their_keys(learner: Learner, changes: Sequence[Change]) -> list[Moved]:
    """Return changes under the library's keys; both betas may share one."""
    found: dict[str, Moved] = {}
    for change in changes:
        key = learner.keys.get(change.field)
        if key is None:
            continue
        each = Moved(key, change.old, change.new, change.rule, change.reason)
        if key in found:
            first = found[key]
            each = each._replace(old=[first.old, each.old], new=[first.new, each.new])
        found[key] = each
    return list(found.values())


def _answer(
    library: Library,
    before: Settings,
    old: Setup,
    new: Setup,
    moved: Sequence[Moved],
    differing: Mapping[str, Any],
    held: bool,
) -> Answer:
    keys = dict.fromkeys([*old.sizes, *new.sizes])
    rows = [Setting(key, old.sizes.get(key), new.sizes.get(key)) for key in keys]
    rates = {each.keys["learning_rate"]: each.values["learning_rate"]
             for each in (old.policy, old.critic) if each is not None}  # fmt: skip
    named = {each.key for each in moved}
    rows += [Setting(key, rate, rate) for key, rate in rates.items() if key not in named]
    rows += [Setting(each.key, each.old, each.new) for each in moved]
    rows += [
        Setting(key, before.value(key), new_value)
        for key, new_value in differing.items()
        if key not in keys and key not in named
    ]
    rows += [
        Setting(label, each(old.batch), each(new.batch), derived=True)
        for label, each in DERIVED.items()
    ]
    moves = [each for each in rows if each.old != each.new]
    return Answer(
        headline=what_to_change(moves),
        moves=moves,
        stays=[each for each in rows if each.old == each.new],
        budget=_meaning(library, before, old, new, held),
        ways=[],
        fits=[],
        expect=[],
        notes=cautions(old, new, Factors(old.batch.batch, new.batch.batch)),
        paste_title=f"Settings to paste ({library.title}):",
        paste="",
        rules=[
            f"{each.key} {value(each.old)} -> {value(each.new)}: {each.rule}; {each.reason}"
            for each in moved
        ],
        record=[],
    )


DERIVED = {
    "devices": lambda batch: batch.devices,
    "prompts per generation": lambda batch: batch.prompts,
    "sequences per generation": lambda batch: batch.sequences,
    "sequences per gradient step": lambda batch: batch.minibatch,
    "gradient steps per generation": lambda batch: batch.steps_per_iteration,
}


def _meaning(library: Library, before: Settings, old: Setup, new: Setup, held: bool) -> str:
    """Say how much larger the batch is, and what other devices have to do with it.

    `held`: settings were changed for the opposite of what devices alone do.
    """
    factors = Factors(old.batch.batch, new.batch.batch)
    sizes = sizes_sentence(factors, "sequences per generation")
    said = f"{sizes[0].upper()}{sizes[1:]}."
    was, now = old.batch.devices, new.batch.devices
    if was == now:
        return said
    meant = "per device" if library.per_device else "over all devices"
    ratio, devices = now / was, f"{now} devices instead of {was}"
    grows = f"{ratio:.3g} times as large"
    said += f" {library.title}'s batch sizes are {meant}: "
    if library.per_device:
        said += f"{devices} alone make the batch {grows}"
        keep, other = "batch", "these settings hold it" if held else "holds it"
    else:
        share, then = new.batch.minibatch / new.batch.ranks, old.batch.minibatch / old.batch.ranks
        said += f"{devices} alone leave the batch as it is"
        if not held:
            said += f", {share:g} sequences of a gradient step on each instead of {then:g}"
        keep, other = "per-device", f"these settings make it {grows}" if held else "lets it grow"
    if held:
        return f"{said}; {other}."
    try:
        more = library.instead(before, Fraction(now, was))
    except UserError:
        return f"{said}."
    settings = ", ".join(f"{key}={value(each)}" for key, each in more.items())
    return f"{said}. --keep {keep} {other} ({settings})."


def _disagreements(moved: Sequence[Moved], asked: Given, before: Settings) -> list[Caution]:
    """Say where the settings asked for have another value than the rules give."""
    return [
        Caution(f"{each.key} {asked.flat[each.key]} is asked for; the rules give {value(each.new)}")
        for each in moved
        if each.key in asked.flat and str(asked.flat[each.key]) != str(each.new)
    ]


def _unknown(library: Library, settings: Settings) -> list[Caution]:
    names = settings.unknown()
    meant = {name: hint(name, library.read_keys) for name in names}
    whose = f"{library.title} ({library.version})"
    notes = [Caution(f"{whose} has no {name}.{each}") for name, each in meant.items() if each]
    rest = [name for name, each in meant.items() if not each]
    if rest:
        more = f" and {len(rest) - MOST_UNKNOWN} more" if len(rest) > MOST_UNKNOWN else ""
        shown = ", ".join(rest[:MOST_UNKNOWN])
        notes.append(Caution(f"not known of {whose}: {shown}{more}", False))
    return notes
