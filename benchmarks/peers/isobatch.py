"""Isobatch as a peer: run in the project's own Python."""

import io
import tempfile
from contextlib import redirect_stdout, suppress
from pathlib import Path
from typing import Any

from benchmarks.peers.cases import ADAM_EPS, Case
from benchmarks.peers.record import Cannot, Task, Watch, one_by_one, serve


def settings(case: Case, compile_update: str) -> dict[str, Any]:
    """Return the case as recipe fields by their flat names; none is left to the preset."""
    atari = case.encoder == "nature"
    return {
        "algo": "ppo",
        "n_envs": case.n_envs,
        "n_steps": case.n_steps,
        "n_minibatches": case.n_minibatches,
        "n_epochs": case.n_epochs,
        "total_timesteps": case.total_timesteps,
        "encoder": case.encoder,
        "architecture": "dual" if case.encoder == "mlp" else "shared",
        "hidden_sizes": list(case.hidden_sizes),
        "activation": "tanh",
        "learning_rate": case.learning_rate,
        "learning_rate_schedule": "constant",
        "adam_eps": ADAM_EPS,
        "gamma": case.gamma,
        "gae_lambda": case.gae_lambda,
        "clip_range": case.clip_range,
        "clip_range_schedule": "constant",
        "ent_coef": case.ent_coef,
        "vf_coef": case.vf_coef,
        "max_grad_norm": case.max_grad_norm,
        "advantage_normalization": "minibatch",
        "normalize_observations": case.normalize,
        "normalize_rewards": case.normalize,
        "reward_gamma": case.gamma,
        "episodic_life": atari,
        "sign_rewards": atari,
        "compile": compile_update,
    }


def train_one(task: Task, seed: int) -> float | None:
    """Train one seed in this process."""
    import isobatch

    compile_update = task.options.get("compile", "auto")
    if compile_update == "on" and task.case.encoder != "mlp":
        raise Cannot("only the update of small networks is compiled")

    class Marks(isobatch.Sink):
        def start(self, recipe: isobatch.Recipe, path: str, env_steps: int) -> None:
            task.watch.begin(task.case.warm_up)

        def row(self, row: dict[str, Any]) -> None:
            task.watch.mark(row["env_steps"])

    with tempfile.TemporaryDirectory() as folder:
        run = isobatch.train(
            task.case.env,
            seed=seed,
            out=Path(folder) / "run",
            quiet=True,
            sinks=[Marks()],
            **settings(task.case, compile_update),
        )
        return run.metrics[-1]["episode_return"]


def train_together(task: Task) -> list[float | None]:
    """Train all seeds in this one process by `isobatch train --seeds`."""
    from isobatch.cli import main

    with redirect_stdout(io.StringIO()) as text, suppress(SystemExit):
        main(["train", "--help"])
    if "--seeds" not in text.getvalue():
        raise Cannot("this version has no isobatch train --seeds")
    if task.seeds != list(range(1, len(task.seeds) + 1)):
        raise Cannot("isobatch train --seeds counts from 1")
    choice = task.options.get("compile", "auto")
    with tempfile.TemporaryDirectory() as folder:
        words = ["train", task.case.env, "--seeds", str(len(task.seeds)), "--quiet"]
        words += ["--out", str(Path(folder) / "runs"), *flags(settings(task.case, choice))]
        with redirect_stdout(io.StringIO()):
            code = main(words)
        if code:
            raise RuntimeError(f"isobatch {' '.join(words)} ended with {code}")
        return read_together(Path(folder), task.case.warm_up, task.watch)


def flags(fields: dict[str, Any]) -> list[str]:
    """Return recipe fields as flags of the command line."""
    words = []
    for name, value in fields.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            values = value if isinstance(value, list) else [value]
            words += [f"--{flag}", *map(str, values)]
    return words


def read_together(folder: Path, warm_up: int, watch: Watch) -> list[float | None]:
    """Read the runs below a folder that were trained side by side; mark the watch by their rows.

    An iteration ends for all of them when it has ended for the last; rows carry the time of day,
    and their `seconds` say how long before the first row the training began.
    """
    import time
    from datetime import datetime

    from isobatch.run.reading import read_metrics

    paths = sorted(folder.rglob("metrics.jsonl"))
    runs = [read_metrics(path.parent) for path in paths]
    to_monotonic = time.monotonic() - time.time()

    def ended(row: dict[str, Any]) -> float:
        return datetime.fromisoformat(row["time"]).timestamp() + to_monotonic

    watch.begin(warm_up, at=min(ended(rows[0]) - rows[0]["seconds"] for rows in runs))
    for rows in zip(*runs, strict=False):
        watch.mark(sum(row["env_steps"] for row in rows), at=max(map(ended, rows)))
    return [rows[-1]["episode_return"] for rows in runs]


def train(task: Task) -> list[float | None]:
    """Train the seeds: together if there are several and one process is to do them all at once."""
    together = task.options.get("together") and len(task.seeds) > 1
    return train_together(task) if together else one_by_one(train_one)(task)


if __name__ == "__main__":
    serve(train, ("isobatch", "torch", "numpy", "envpool"))
