"""Trackers: what TensorBoard and W&B are given is what the run's own files hold."""

import json
import os
import socket
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from busy import soon
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import plugin_data_pb2
from wandb.proto import wandb_internal_pb2

import isobatch
from isobatch.cli import main
from isobatch.run import trackers
from isobatch.run.seeds import seed_paths, train_seeds
from isobatch.run.store import CLOCK_COLUMNS, read_evaluations, read_metrics

TINY = {
    "n_envs": 2, "n_steps": 8, "n_minibatches": 2, "n_epochs": 1, "total_timesteps": 48,
    "quiet": True,
}  # fmt: skip
HPARAMS = getattr(plugin_data_pb2, "HParamsPluginData")  # noqa: B009 (types know nothing of it)
RECORD = getattr(wandb_internal_pb2, "Record")  # noqa: B009
LOG_BLOCK = 1 << 15
"""W&B's files are LevelDB logs: blocks of this size, of records with a header of 7 bytes."""


@pytest.fixture(autouse=True)
def offline(tmp_path, monkeypatch):
    """In an empty directory, without a key, and without a network to use one on."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("NETRC", str(tmp_path / "no-netrc"))
    monkeypatch.delenv("WANDB_API_KEY", raising=False)


def events(run):
    return EventAccumulator(str(run / "tensorboard")).Reload()


def tensorboard_numbers(run):
    """Return {(name, step): value} of a run's event files."""
    found = events(run)
    return {
        (name, each.step): each.value
        for name in found.Tags()["scalars"]
        for each in found.Scalars(name)
    }


def wandb_records(folder):
    """Return what a run's offline file holds, once W&B's own process has closed it."""
    (path,) = folder.glob("*.wandb")
    deadline = time.monotonic() + soon(30)
    while True:
        records = list(parsed_log(path.read_bytes()))
        if any(each.WhichOneof("record_type") == "exit" for each in records):
            return records
        assert time.monotonic() < deadline, "W&B's file is not whole"
        time.sleep(0.05)


def parsed_log(content):
    part, place = b"", 7
    while place + 7 <= len(content):
        left = LOG_BLOCK - place % LOG_BLOCK
        if left < 7:
            place += left
            continue
        _, length, kind = struct.unpack("<IHB", content[place : place + 7])
        part += content[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # Whole, or its last part.
            yield RECORD.FromString(part)
            part = b""


def wandb_numbers(folder):
    """Return {(name, step): value} of a run's offline file."""
    return {
        (name, record.history.step.num): json.loads(item.value_json)
        for record in wandb_records(folder)
        if record.WhichOneof("record_type") == "history"
        for item in record.history.item
        if not (name := "/".join(item.nested_key)).startswith("_")
    }


def wandb_config(folder):
    (run,) = [
        record.run for record in wandb_records(folder) if record.WhichOneof("record_type") == "run"
    ]
    return run, {each.key: json.loads(each.value_json) for each in run.config.update}


def own_numbers(run):
    """Return the same of the run's own files, without what is no number."""
    numbers = {}
    for row in read_metrics(run):
        for name, value in row.items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                numbers[f"{trackers.group_of(name)}/{name}", row["env_steps"]] = value
    for row in read_evaluations(run):
        for name in ("episodes", "episode_return", "episode_return_std", "episode_length"):
            numbers[f"eval/{name}", row["mark"]] = row[name]
        numbers["eval/seconds", row["mark"]] = row["seconds"]
    return {place: value for place, value in numbers.items() if not place[0].endswith("/env_steps")}


def without_clock(run):
    rows = read_metrics(run)
    return [{key: row[key] for key in row if key not in CLOCK_COLUMNS} for row in rows]


def test_both_have_the_runs_own_numbers_and_change_none():
    run = isobatch.train(
        "CartPole-v1", out="run", eval_marks=2, track=["tensorboard", "wandb"], **TINY
    )
    own = own_numbers(run.path)
    names = {name for name, _ in own}
    assert {"rollout/episode_return", "train/approx_kl", "batch/n_envs"} <= names
    assert {"time/seconds", "eval/episode_return"} <= names

    kept = tensorboard_numbers(run.path)
    assert kept == {place: np.float32(value) for place, value in own.items()}

    (folder,) = Path("run/wandb").glob("offline-run-*")
    assert wandb_numbers(folder) == own

    alone = isobatch.train("CartPole-v1", out="alone", eval_marks=2, **TINY)
    assert without_clock(alone.path) == without_clock(run.path)


def test_hyperparameters_and_what_computed_the_run_are_with_it():
    run = isobatch.train(
        "CartPole-v1", out="runs/one", learning_rate=0.002, track=["wandb", "tensorboard"], **TINY
    )
    found = events(run.path)
    (text,) = found.Tensors("system/text_summary")
    (system,) = text.tensor_proto.string_val
    assert f"isobatch {isobatch.__version__}".encode() in system
    begun = found.summary_metadata["_hparams_/session_start_info"].plugin_data.content
    values = HPARAMS.FromString(begun).session_start_info.hparams
    assert values["learning_rate"].number_value == 0.002
    assert values["env"].string_value == "CartPole-v1"

    (folder,) = Path("runs/one/wandb").glob("offline-run-*")
    known, config = wandb_config(folder)
    assert (known.project, known.display_name) == ("isobatch", "runs/one")
    assert config["learning_rate"] == 0.002
    assert {"isobatch", "torch", "cpu", "threads", "python"} <= set(config["system"])


def test_a_resumed_run_goes_on_under_its_name_and_its_rows_are_shown_once():
    class Cut(Exception):
        pass

    def cut(row):
        if row["iterations"] == 2:
            raise Cut  # Its rows are written, but no checkpoint has them.

    both = ["tensorboard", "wandb"]
    with pytest.raises(Cut):
        isobatch.train("CartPole-v1", out="run", track=both, on_iteration=cut, **TINY)
    assert len(read_metrics("run")) == 2
    isobatch.resume("run", track=both, quiet=True)  # From the start.
    run = isobatch.resume("run", track=both, total_timesteps=64, quiet=True)
    own = own_numbers(run.path)
    assert tensorboard_numbers(run.path) == {place: np.float32(each) for place, each in own.items()}
    sittings = sorted(Path("run/wandb").glob("offline-run-*"))
    assert len({wandb_config(each)[0].run_id for each in sittings}) == 1
    last = wandb_numbers(sittings[-1])
    assert last == {place: own[place] for place in last}
    assert {step for _, step in last} == {row["env_steps"] for row in run.metrics[3:]}


def test_runs_of_several_seeds_have_trackers_of_their_own():
    recipe = isobatch.preset("CartPole-v1").replace(
        **{name: value for name, value in TINY.items() if name != "quiet"}
    )
    jobs = seed_paths(recipe, 2, "two")
    train_seeds(jobs, quiet=True, track=("tensorboard", "wandb"))
    names = set()
    for _, path in jobs:
        assert read_metrics(path)[0]["cohort_width"] == 2
        own = own_numbers(path)
        assert tensorboard_numbers(path) == {place: np.float32(each) for place, each in own.items()}
        (folder,) = (path / "wandb").glob("offline-run-*")
        assert wandb_numbers(folder) == own
        names.add(wandb_config(folder)[0].run_id)
    assert len(names) == 2


def test_columns_are_grouped():
    row = {
        "env_steps": 8, "episode_return": 1.5, "policy_loss": None, "value_loss": float("nan"),
        "n_envs": 2, "seconds": 0.5, "my_own": 3, "resumed": True, "time": "now",
        "critic_feature_rank": 4.0, "noise_scale": 5.0, "entropy": float("inf"),
    }  # fmt: skip
    assert trackers.named(row) == {
        "rollout/episode_return": 1.5, "batch/n_envs": 2, "time/seconds": 0.5, "train/my_own": 3,
        "diagnostics/critic_feature_rank": 4.0, "diagnostics/noise_scale": 5.0,
    }  # fmt: skip


@pytest.mark.parametrize("words", [["train", "CartPole-v1"], ["train", "CartPole-v1", "--seeds=2"]])
@pytest.mark.parametrize("name", ["tensorboard", "wandb"])
def test_one_that_is_not_installed_is_named_with_its_extra(name, words, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, name, None)
    assert main([*words, "--track", name, "--out", "run"]) == 2
    complaint = capsys.readouterr().err
    assert complaint == f"isobatch: {name} is not installed: pip install 'isobatch[{name}]'\n"
    assert not Path("run").exists()


def test_one_that_is_not_known_is_refused():
    with pytest.raises(isobatch.UserError, match=r"unknown tracker 'tensorbord'.*tensorboard\?"):
        isobatch.train("CartPole-v1", track="tensorbord", out="run", **TINY)
    assert not Path("run").exists()


def test_one_that_fails_is_reported_once(capsys):
    class InTheWay(isobatch.Sink):
        def start(self, recipe, path, env_steps):
            (Path(path) / "tensorboard").write_text("no folder")

    isobatch.train("CartPole-v1", out="run", sinks=[InTheWay()], track="tensorboard", **TINY)
    assert len(read_metrics("run")) == 3
    complaint = capsys.readouterr().err
    assert complaint.startswith("isobatch: the sink TensorBoard failed (FileExistsError: ")
    assert complaint.count("\n") == 1


class Stuck(trackers.Tracker):
    """Waits for a server that does not answer."""

    def __init__(self):
        self.answered = threading.Event()

    def _open(self, about):
        self.answered.wait(600)

    def _write(self, env_steps, values): ...

    def _close(self): ...


def test_one_that_hangs_holds_a_run_up_for_a_bounded_time(monkeypatch, capsys):
    monkeypatch.setattr(trackers, "PATIENCE", 0.2)
    stuck, began = Stuck(), time.monotonic()
    isobatch.train("CartPole-v1", out="run", sinks=[stuck], **TINY)
    assert time.monotonic() - began < soon(30)
    stuck.answered.set()
    assert len(read_metrics("run")) == 3
    assert "the sink Stuck failed (TimeoutError: " in capsys.readouterr().err


def test_a_sink_hears_evaluations_and_need_not():
    class Old:
        """Of the time before evaluations were told."""

        def __init__(self):
            self.rows = []

        def start(self, recipe, path, env_steps): ...
        def note(self, text): ...
        def stop(self): ...
        def row(self, row):
            self.rows.append(row)

    class New(isobatch.Sink):
        def __init__(self):
            self.marks = []

        def evaluation(self, row):
            self.marks.append(row["mark"])

    old: Any = Old()
    new = New()
    isobatch.train("CartPole-v1", out="run", eval_marks=2, sinks=[old, new], **TINY)
    assert len(old.rows) == 3
    assert new.marks == [row["mark"] for row in read_evaluations("run")] == [0, 24, 48]


def run_apart(program, **environment):
    """Run a program in a process of its own, with no W&B service of these tests."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("WANDB")}
    return subprocess.run(
        [sys.executable, "-c", program], env=kept | environment, text=True, capture_output=True,
        check=True,
    )  # fmt: skip


@pytest.mark.parametrize("mode", ["offline", None])
def test_wandb_without_a_key_neither_asks_nor_connects(mode):
    """The server it would talk to is here, and hears nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"http://127.0.0.1:{server.getsockname()[1]}"
        chosen = {"WANDB_MODE": mode} if mode else {}
        done = run_apart(
            f"import isobatch; isobatch.train('CartPole-v1', out='run', track='wandb', **{TINY})",
            WANDB_BASE_URL=address, http_proxy=address, https_proxy=address, **chosen,
        )  # fmt: skip
        server.setblocking(False)
        with pytest.raises(BlockingIOError):
            server.accept()
    assert len(list(Path("run/wandb").glob("offline-run-*"))) == 1
    said = done.stderr.splitlines()
    if mode:
        assert said == []
    else:
        (line,) = said
        assert line.startswith("W&B: no API key is configured, so the run is kept offline")


def test_nothing_is_imported_unasked():
    found = run_apart(
        "import sys, isobatch; "
        f"isobatch.train('CartPole-v1', out='run', **{TINY}); "
        "print([name for name in ('tensorboard', 'wandb') if name in sys.modules])"
    )
    assert found.stdout.strip() == "[]"
