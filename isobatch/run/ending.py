"""How a run ended, in sentences: what it learned, and what an adaptive batch measured."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from isobatch.run.result import Run
from isobatch.run.sinks import began_at
from isobatch.scaling.adaptive import PROBES_PER_MOVE, UNDECIDED
from isobatch.text import counted

EPISODES = 100
"""Training's return is a mean over the last so many."""
Row = dict[str, Any]


def learned(run: Run) -> str:
    """Return the run's return and how far it came: mean return 500.00 over ... after ..."""
    rows = run.metrics
    last = rows[-1] if rows else {}
    score = last.get("episode_return")
    found = "no episode ended"
    if score is not None:
        episodes = counted(min(last["episodes"], EPISODES), "episode")
        found = f"mean return {score:.2f} over the last {episodes}"
    return f"{found} after {counted(last.get('env_steps', 0), 'env step')}"


def batch_changes(run: Run) -> list[str]:
    """Say what an adaptive batch measured and what it changed; of other runs nothing."""
    if not run.recipe.reshape.is_adaptive:
        return []
    rows = run.metrics
    probed = [row for row in rows if row.get("gradient_signal") is not None]
    moved = [row for row in rows if row.get("reshaped")]
    changes = counted(len(moved), "change") if moved else "nothing changed"
    lines = [f"adaptive batch: {counted(len(probed), 'probe')}, {changes}"]
    lines += [f"  at {began_at(row):,} env steps: {row['reshaped']}" for row in moved]
    if not moved:
        lines.append(f"  {_why_not(rows, len(probed))}")
    if probed:
        lines.append(f"  {_noise(probed[-1])}")
    return lines


def _why_not(rows: Sequence[Row], probes: int) -> str:
    """Say why the batch is what it was."""
    if probes < PROBES_PER_MOVE:
        return f"the first decision needs {PROBES_PER_MOVE} probes: lower --probe-every"
    undecided = sum((row.get("decision") or "").startswith(UNDECIDED) for row in rows)
    if undecided:
        return (
            f"{counted(undecided, 'decision')} undecided: the squared gradient was not "
            "significantly different from zero"
        )
    return "no other size was better by enough, within the bounds and what divides evenly"


def _noise(row: Row) -> str:
    """Say the noise scale that was measured last, beside the minibatches it is held against."""
    scale, size = row.get("noise_scale"), row["minibatch_size"]
    if scale is None:
        return "noise scale: not measurable, the gradient is lost in its noise"
    return f"noise scale at the end: {scale:,.0f} transitions (minibatches of {size:,})"
