"""An answer on the page: as text of 80 columns, and as HTML for notebooks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from isobatch.scaling.answer import Answer, Setting, value
from isobatch.scaling.ways import Way
from isobatch.text import columns, counted, number, wrapped

LONGEST = 22
"""Characters of a value in the table; what is to be pasted has it whole."""


def text(answer: Answer, verbose: bool = False) -> str:
    """Return the answer in lines of at most 80 columns, but for what is to be pasted."""
    sections = [
        wrapped(answer.headline),
        _settings(answer),
        wrapped(answer.budget),
        _ways(answer),
        _titled("What to expect", [each for line in answer.expect for each in wrapped(line)]),
        _notes(answer, verbose),
    ]
    if verbose:
        rules = [each for line in answer.rules for each in wrapped(line, hanging="  ")]
        sections += [_titled("Rules (arXiv 2110.00641, section 4)", rules)]
        sections += [_titled("Measured: rescaled minus tuned", _columns(answer.record))]
    if answer.paste:
        sections.append([*wrapped(answer.paste_title), *answer.paste.splitlines()])
    return "\n\n".join("\n".join(lines) for lines in sections if lines)


def html(answer: Answer) -> str:
    """Return the answer as paragraphs and tables."""
    parts = [
        _paragraph(answer.headline),
        _table([("setting", "old", "new"), *_pairs([*answer.moves, *answer.stays])]),
        _paragraph(answer.budget),
        _table(_way_rows(answer.ways)) if answer.ways else "",
        *map(_paragraph, answer.expect),
        *(_paragraph(f"! {note.text}") for note in answer.notes if note.matters),
    ]
    if answer.paste:
        parts.append(f"{_paragraph(answer.paste_title)}<pre>{escape(answer.paste)}</pre>")
    return "\n".join(part for part in parts if part)


def _titled(title: str, lines: Sequence[str]) -> list[str]:
    return [f"{title}:", *lines] if lines else []


def _settings(answer: Answer) -> list[str]:
    """Lay out what moves and what stays, in the same columns."""
    moves, stays = _pairs(answer.moves), _pairs(answer.stays)
    rows = columns([("", "old", "new"), *moves, *stays])
    lines = []
    if moves:
        # The heading of the columns takes its first words.
        lines += ["What moves" + rows[0][len("What moves") :], *rows[1 : len(moves) + 1]]
    if stays:
        lines += ["What stays", *rows[len(moves) + 1 :]]
    return lines


def _pairs(settings: Iterable[Setting]) -> list[tuple[str, str, str]]:
    return [(f"  {each.name}", _cell(each, each.old), _cell(each, each.new)) for each in settings]


def _cell(setting: Setting, number: Any) -> str:
    """Return a value for the table: what nobody types may have commas, and what is long is cut."""
    text = f"{number:,}" if setting.derived else value(number)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."


def _ways(answer: Answer) -> list[str]:
    if not answer.ways:
        return []
    fits = [each for line in answer.fits for each in wrapped(line, hanging="  ")]
    return ["Options (* recommended):", *columns(_way_rows(answer.ways)), *fits]


def _way_rows(ways: Sequence[Way]) -> list[tuple[str, ...]]:
    heading = ("  --keep", "batch", "step size", "iterations", "grad steps")
    return [heading, *map(_way_row, ways)]


def _way_row(way: Way) -> tuple[str, ...]:
    name = f"{'* ' if way.recommended else '  '}{way.keep}"
    if way.recipe is None or way.updates is None:
        return (name, "not possible", "", "", "")
    batch = way.recipe.batch
    return (
        name,
        f"{batch.n_envs}x{batch.n_steps} in {batch.n_minibatches} of {batch.minibatch_size}",
        number(way.recipe.optimizer.learning_rate),
        f"{way.updates.iterations:,}",
        f"{way.updates.grad_steps:,}",
    )


def _notes(answer: Answer, verbose: bool) -> list[str]:
    """Return the warnings that matter, or all of them, and how many are left out."""
    shown = [note for note in answer.notes if note.matters or verbose]
    lines = [each for note in shown for each in wrapped(f"! {note.text}")]
    hidden = len(answer.notes) - len(shown)
    if hidden:
        lines.append(f"{counted(hidden, 'more note')} with --verbose.")
    return lines


def _columns(rows: Sequence[Sequence[str]]) -> list[str]:
    return columns(rows) if rows else []


def _paragraph(line: str) -> str:
    return f"<p>{escape(line)}</p>" if line else ""


def _table(rows: Sequence[Sequence[str]]) -> str:
    head, *body = rows
    lines = ["".join(f"<th>{escape(cell.strip())}</th>" for cell in head)]
    lines += ["".join(f"<td>{escape(cell.strip())}</td>" for cell in row) for row in body]
    return f"<table>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"
