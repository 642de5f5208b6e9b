"""Study directories as their workers leave them, without training."""

import json
from collections.abc import Callable
from pathlib import Path

from isobatch.run.store import EVALUATIONS
from isobatch.study.design import Cell, Study
from isobatch.study.queue import Queue
from isobatch.study.records import Result, sha256


def finish_study(
    root: Path,
    study: Study,
    score: Callable[[Cell], float],
    columns: Callable[[Cell, int], dict[str, float | None]] = lambda cell, part: {},
) -> Queue:
    """Write every run of a study with the scores given; its curve climbs to the score.

    `columns` are those that the row at a quarter of the budget has beside.
    """
    queue = Queue.create(root, study)
    while (claim := queue.claim()) is not None:
        path, final = queue.run_path(claim.cell), score(claim.cell)
        path.mkdir(parents=True)
        (path / "recipe.toml").write_text(study.recipe(claim.cell).to_toml())
        rows = [
            {
                "env_steps": study.budget * part // 4,
                "iterations": part,
                "episode_return": None if part == 1 else final * part / 4,
                "entropy": 1 / part,
                "time": "2026-01-01",
                **columns(claim.cell, part),
            }
            for part in (1, 2, 3, 4)
        ]
        (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        marks = [
            {"mark": study.budget * part // 4, "episode_return": final * part / 4}
            for part in range(5)
        ]
        (path / EVALUATIONS).write_text("".join(json.dumps(row) + "\n" for row in marks))
        claim.finish(
            Result(
                score=final,
                training_return=final,
                env_steps=study.budget,
                seconds=1.0,
                restarts=0,
                metrics_sha256=sha256(path / "metrics.jsonl"),
                recipe_sha256=sha256(path / "recipe.toml"),
                evaluations_sha256=sha256(path / EVALUATIONS),
            )
        )
    return queue
