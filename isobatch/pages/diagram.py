"""The batch as a picture: rollout -> minibatches -> updates, in text and as SVG."""

from __future__ import annotations

from html import escape
from typing import NamedTuple

from isobatch.recipe import Recipe
from isobatch.text import counted

BOXES = 8
"""Parts drawn at most; more of them are hinted at."""


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
    by = "whole environments" if recipe.objective.minibatches_by == "envs" else "rows"
    found = [
        Step(
            "rollout",
            f"{batch.n_envs:,} environments x {batch.n_steps:,} steps = "
            f"{batch.rollout_size:,} rows",
            f"{by} reshuffled every epoch",
        ),
        Step(
            "minibatches",
            f"{batch.n_minibatches:,} of {batch.minibatch_size:,} rows",
            "one gradient step each",
        ),
        Step(
            "updates",
            f"{batch.n_minibatches:,} x {counted(batch.n_epochs, 'epoch')} = "
            f"{counted(batch.grad_steps_per_iteration, 'gradient step')} per iteration",
            f"{counted(iterations, 'iteration')}: "
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
        f"{counted(settings.n_policy_iterations, 'rollout')} = {rows:,} rows, "
        f"{counted(settings.n_aux_epochs, 'epoch')}",
        f"minibatches of {segments} x {batch.n_steps:,} rows: whole segments (one environment's "
        "rows of one rollout)",
    )


def text(recipe: Recipe) -> str:
    """Draw the batch for a terminal."""
    batch = recipe.batch
    drawings = {
        "rollout": [
            f"{'env ' + str(n):8}" + "=" * 40 for n in range(min(3, batch.n_envs))
        ] + (["..."] if batch.n_envs > 3 else []),
        "minibatches": [_boxes(batch.n_minibatches, batch.minibatch_size)],
        "updates": [_boxes(batch.grad_steps_per_iteration, None)],
        "auxiliary phase": [_boxes(recipe.phasic.n_policy_iterations, batch.rollout_size)],
    }  # fmt: skip
    lines = [f"{recipe.algo} on {recipe.env}", ""]
    for step in steps(recipe):
        arrow = "     |  " if step.name in ("rollout", "minibatches") else "  "
        lines.append(f"{step.name}: {step.size}")
        lines += [f"  {line}" for line in drawings[step.name]]
        lines.append(f"{arrow}{step.then}")
    return "\n".join(lines)


def _boxes(count: int, rows: int | None) -> str:
    shown = f"[{rows:,}]" if rows is not None else "[step]"
    return shown * min(count, BOXES) + (f" ... {count:,} in total" if count > BOXES else "")


def svg(recipe: Recipe) -> str:
    """Draw the batch as an SVG image."""
    width, height, gap = 720, 92, 26
    found = steps(recipe)
    total = len(found) * (height + gap) + 30
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {total}" '
        f'width="{width}" height="{total}" font-family="sans-serif" font-size="13">',
        f'<rect width="{width}" height="{total}" fill="#ffffff"/>',
        f'<text x="16" y="20" font-weight="bold">{escape(recipe.algo)} on '
        f"{escape(recipe.env)}</text>",
    ]
    counts = (
        recipe.batch.n_envs, recipe.batch.n_minibatches, recipe.batch.grad_steps_per_iteration,
        recipe.phasic.n_policy_iterations,
    )  # fmt: skip
    for place, (step, count) in enumerate(zip(found, counts, strict=False)):
        top = 32 + place * (height + gap)
        parts += _box(step, count, top, width, height, wide=step.name == "rollout")
        if place + 1 < len(found):
            parts.append(
                f'<path d="M {width / 2} {top + height} v {gap - 6} m -5 -6 l 5 6 l 5 -6" '
                'stroke="#333333" fill="none"/>'
            )
    return "\n".join([*parts, "</svg>"]) + "\n"


def _box(step: Step, count: int, top: int, width: int, height: int, wide: bool) -> list[str]:
    """Return a box with its words and as many parts as fit: rows of a rollout, or pieces."""
    inner = width - 64
    parts = [
        f'<rect x="16" y="{top}" width="{width - 32}" height="{height}" rx="6" fill="#f4f6f8" '
        'stroke="#8a94a0"/>',
        f'<text x="32" y="{top + 20}"><tspan font-weight="bold">{escape(step.name)}</tspan>  '
        f"{escape(step.size)}</text>",
        f'<text x="32" y="{top + height - 10}" fill="#555555">{escape(step.then)}</text>',
    ]
    shown = min(count, BOXES)
    for k in range(shown):
        if wide:
            box = (32, top + 28 + k * 40 / shown, inner, 34 / shown)
        else:
            box = (32 + k * inner / shown, top + 30, inner / shown - 4, 32)
        x, y, across, down = (f"{value:.1f}" for value in box)
        parts.append(
            f'<rect x="{x}" y="{y}" width="{across}" height="{down}" fill="#4878a8" '
            f'fill-opacity="{0.9 if k + 1 < shown or count <= BOXES else 0.35}"/>'
        )
    return parts
