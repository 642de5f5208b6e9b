"""The batch as a picture: rollout -> minibatches -> updates, in text and as SVG."""

from __future__ import annotations

import textwrap
from html import escape
from typing import NamedTuple

from isobatch.batch import Batch
from isobatch.recipe import Recipe
from isobatch.text import counted

BOXES = 8
"""Environments, minibatches and rollouts drawn at most; more of them are hinted at."""
MOST_STEPS, MOST_EPOCHS = 4096, 64
"""Gradient steps and epochs drawn one by one. Beyond it a step is narrower than a pixel."""
MOST_MARKS, MOST_LINES = 40, 12
"""The same in a terminal, for the gradient steps of an epoch and for epochs."""
COLUMNS = 80
"""The width of a terminal."""
DARK = (
    "@media (prefers-color-scheme: dark) { .batch-paper { fill: #15181c } .batch-ink { fill: "
    "#e4e7eb } .batch-faint { fill: #9da7b1 } .batch-box { fill: #1d2126; stroke: #59636e } "
    ".batch-arrow { stroke: #9da7b1 } .batch-part { fill: #6aa5dc } }"
)
"""What a dark page has instead of the colours written beside each shape."""


class Step(NamedTuple):
    """One box of the diagram."""

    name: str
    size: str
    """What it holds, in numbers."""
    then: str
    """What happens to it next."""


def steps(recipe: Recipe) -> list[Step]:
    """Return the steps of one iteration, from rollout to updates."""
    batch = recipe.batch
    iterations = max(1, recipe.total_timesteps // batch.rollout_size)
    by = "whole environments" if recipe.objective.minibatches_by == "envs" else "transitions"
    found = [
        Step(
            "rollout",
            f"{counted(batch.n_envs, 'environment')} x {counted(batch.n_steps, 'step')} = "
            f"{counted(batch.rollout_size, 'transition')}",
            f"{by} reshuffled every epoch",
        ),
        Step(
            "minibatches",
            f"{batch.n_minibatches:,} of {counted(batch.minibatch_size, 'transition')}",
            "one gradient step each",
        ),
        Step(
            "updates",
            f"{batch.n_minibatches:,} x {counted(batch.n_epochs, 'epoch')} = "
            f"{counted(batch.grad_steps_per_iteration, 'gradient step')} per iteration",
            f"{counted(iterations, 'full iteration')}: "
            f"{counted(iterations * batch.grad_steps_per_iteration, 'gradient step')} in "
            f"{recipe.total_timesteps:,} environment steps",
        ),
    ]
    return found + [_auxiliary(recipe)] * recipe.is_phasic


def _auxiliary(recipe: Recipe) -> Step:
    settings, batch = recipe.phasic, recipe.batch
    rows = settings.n_policy_iterations * batch.rollout_size
    segments = settings.segments(batch.n_envs)
    return Step(
        "auxiliary phase",
        f"{counted(settings.n_policy_iterations, 'rollout')} = {rows:,} transitions, "
        f"{counted(settings.n_aux_epochs, 'epoch')}",
        f"minibatches of {segments} x {batch.n_steps:,} transitions: whole segments (one "
        "environment's part of a rollout)",
    )


def text(recipe: Recipe) -> str:
    """Draw the batch for a terminal."""
    batch = recipe.batch
    drawings = {
        "rollout": [
            f"{'env ' + str(n):8}" + "=" * 40 for n in range(min(3, batch.n_envs))
        ] + (["..."] if batch.n_envs > 3 else []),
        "minibatches": [_boxes(batch.n_minibatches, batch.minibatch_size)],
        "updates": _epochs(batch),
        "auxiliary phase": [_boxes(recipe.phasic.n_policy_iterations, batch.rollout_size)],
    }  # fmt: skip
    lines = [f"{recipe.algo} on {recipe.env}", ""]
    for step in steps(recipe):
        arrow = "     |  " if step.name in ("rollout", "minibatches") else "  "
        lines.append(f"{step.name}: {step.size}")
        lines += [f"  {line}" for line in drawings[step.name]]
        rest = " " * len(arrow)
        lines += textwrap.wrap(step.then, COLUMNS, initial_indent=arrow, subsequent_indent=rest)
    return "\n".join(lines)


def _boxes(count: int, rows: int) -> str:
    box, total = f"[{rows:,}]", f" ... {count:,} in total"
    shown = min(count, BOXES, (COLUMNS - len(total) - 2) // len(box))
    return box * shown + total * (shown < count)


def _epochs(batch: Batch) -> list[str]:
    """Draw a line for each epoch, a mark for each gradient step."""
    more = f" ... {batch.n_minibatches:,}" if batch.n_minibatches > MOST_MARKS else ""
    marks = "|" * min(batch.n_minibatches, MOST_MARKS) + more
    shown = min(batch.n_epochs, MOST_LINES)
    lines = [f"{f'epoch {epoch}':8}  {marks}" for epoch in range(1, shown + 1)]
    return lines + [f"... {batch.n_epochs:,} epochs"] * (batch.n_epochs > shown)


def svg(recipe: Recipe, width: int = 720) -> str:
    """Draw the batch as an SVG image, light or dark as its reader's screen is."""
    batch = recipe.batch
    counts = {
        "rollout": batch.n_envs,
        "minibatches": batch.n_minibatches,
        "auxiliary phase": recipe.phasic.n_policy_iterations,
    }
    top, parts = 32.0, []
    found = steps(recipe)
    for step in found:
        if step.name == "updates":
            drawing, height = _grid(batch, width)
            step = step._replace(then=step.then + _left_out(batch))
        else:
            drawing, height = _pieces(counts[step.name], width, wide=step.name == "rollout")
        box, below = _box(step, drawing, height, width)
        parts.append(f'<g transform="translate(0 {top:.1f})">{"".join(box)}</g>')
        top += below
        if len(parts) < 2 * len(found) - 1:
            parts.append(
                f'<path class="batch-arrow" d="M {width / 2} {top:.1f} v 20 m -5 -6 l 5 6 l 5 -6" '
                'stroke="#333333" fill="none"/>'
            )
            top += 26
    total = f"{top + 16:.0f}"
    name = f"{recipe.algo} on {recipe.env}"
    begin = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {total}" width="{width}" '
        f'height="{total}" font-family="sans-serif" font-size="13" role="img">',
        f"<title>The batch of {escape(name)}</title>",
        f"<style>{DARK}</style>",
        f'<rect class="batch-paper" width="{width}" height="{total}" fill="#ffffff"/>',
        '<text class="batch-ink" x="16" y="20" font-weight="bold" fill="#1b1f24">'
        f"{escape(name)}</text>",
    ]
    return "\n".join([*begin, *parts, "</svg>"]) + "\n"


def _box(step: Step, drawing: list[str], height: float, width: int) -> tuple[list[str], float]:
    """Return a box with its words above and below its drawing, and how high it is."""
    above = _lines(f"{step.name}: {step.size}", width)
    below = _lines(step.then, width)
    down = 18 * len(above) + 12
    words = [_words(line, 18 * place + 20, "ink", "#1b1f24") for place, line in enumerate(above)]
    words[0] = words[0].replace(
        step.name, f'<tspan font-weight="bold">{escape(step.name)}</tspan>', 1
    )
    start = down + height + 16
    words += [
        _words(line, start + 18 * place, "faint", "#555555") for place, line in enumerate(below)
    ]
    total = start + 18 * (len(below) - 1) + 12
    box = (
        f'<rect class="batch-box" x="16" y="0" width="{width - 32}" height="{total:.1f}" rx="6" '
        'fill="#f4f6f8" stroke="#8a94a0"/>'
    )
    return [box, *words, f'<g transform="translate(32 {down})">', *drawing, "</g>"], total


def _lines(words: str, width: int) -> list[str]:
    # A letter of this size is about 7 pixels wide.
    return textwrap.wrap(words, (width - 64) // 7)


def _words(line: str, y: float, kind: str, colour: str) -> str:
    return f'<text class="batch-{kind}" x="32" y="{y:.1f}" fill="{colour}">{escape(line)}</text>'


def _pieces(count: int, width: int, wide: bool) -> tuple[list[str], float]:
    """Draw as many parts as fit, the last one faint where there are more: wide ones, or pieces."""
    inner, shown = width - 64, min(count, BOXES)
    drawn = []
    for k in range(shown):
        if wide:
            box = (0, k * 40 / shown, inner, 34 / shown)
        else:
            box = (k * inner / shown, 0, inner / shown - 4, 32)
        x, y, across, down = (f"{value:.1f}" for value in box)
        opacity = 0.9 if k + 1 < shown or count <= BOXES else 0.35
        drawn.append(
            f'<rect class="batch-part" x="{x}" y="{y}" width="{across}" height="{down}" '
            f'fill="#4878a8" fill-opacity="{opacity}"/>'
        )
    return drawn, 40.0 if wide else 32.0


def _grid(batch: Batch, width: int) -> tuple[list[str], float]:
    """Draw every gradient step of an iteration, a line of them for each epoch."""
    left, inner = 62, width - 126
    epochs, steps = _drawn(batch)
    line = max(4.0, min(18.0, 200 / epochs))
    across, down = inner / steps, line - min(4.0, line / 4)
    gap = min(4.0, across / 4) if steps > 1 else 0.0
    drawn, every = [], 1 if line >= 12 else epochs - 1
    for epoch in range(epochs):
        y = epoch * line
        cells = "".join(
            f"M{left + k * across:.2f} {y:.1f}h{across - gap:.2f}v{down:.1f}h{gap - across:.2f}z"
            for k in range(steps)
        )
        drawn.append(f'<path class="batch-part" d="{cells}" fill="#4878a8" fill-opacity="0.9"/>')
        # Where lines are too close for all their names, the first and the last have one.
        if epoch % every == 0:
            drawn.append(
                f'<text class="batch-faint" x="0" y="{y + down - (down - 9) / 2:.1f}" '
                f'font-size="12" fill="#555555">epoch {epoch + 1}</text>'
            )
    return drawn, (epochs - 1) * line + down


def _drawn(batch: Batch) -> tuple[int, int]:
    """Return the epochs that are drawn, and the gradient steps of each: all, or one bar of them."""
    epochs = min(batch.n_epochs, MOST_EPOCHS)
    return epochs, batch.n_minibatches if epochs * batch.n_minibatches <= MOST_STEPS else 1


def _left_out(batch: Batch) -> str:
    """Say what of the gradient steps is not drawn."""
    epochs, steps = _drawn(batch)
    bars = f" (a bar is an epoch of {batch.n_minibatches:,} gradient steps)"
    rest = f" ({epochs} of {batch.n_epochs:,} epochs are drawn)"
    return bars * (steps < batch.n_minibatches) + rest * (epochs < batch.n_epochs)
