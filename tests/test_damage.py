"""Run directories as strangers, accidents and crashes leave them: found, said, nothing touched."""

import os
import shutil

import pytest
import torch

import isobatch
from isobatch import Recipe, UserError
from isobatch.run.store import RunDirectory, read_metrics, read_sealed, write_sealed

TINY = {"n_envs": 4, "n_steps": 4, "n_minibatches": 2, "n_epochs": 1, "hidden_sizes": (4,),
        "compile": "off", "threads": 1, "env_threads": 1}  # fmt: skip


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "run"
    isobatch.train(
        "CartPole-v1", **TINY, total_timesteps=96, eval_marks=2, eval_episodes=2,
        checkpoint_seconds=1e-9, out=path, quiet=True,
    )  # fmt: skip
    return path


@pytest.fixture
def run(trained, tmp_path):
    return shutil.copytree(trained, tmp_path / "run")


def content(folder):
    return {file.name: file.read_bytes() for file in folder.rglob("*") if file.is_file()}


NAMES = ["metrics.jsonl", "recipe.toml", "policy.safetensors", "evaluations.jsonl"]


@pytest.mark.parametrize("name", [f".{name}.new" for name in NAMES])
def test_a_link_under_a_temporary_name_is_not_written_through(run, tmp_path, name):
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (run / name).symlink_to(victim)
    isobatch.resume(run, total_timesteps=128, quiet=True)
    assert victim.read_text() == "precious"


@pytest.mark.parametrize("name", [".lock", *NAMES])
def test_a_link_in_a_files_place_is_not_written_through(run, tmp_path, name):
    victim = tmp_path / "victim"
    victim.write_bytes((run / name).read_bytes())
    before = victim.read_bytes()
    (run / name).unlink()
    (run / name).symlink_to(victim)
    try:
        isobatch.resume(run, total_timesteps=128, quiet=True)
    except UserError as error:
        assert "symbolic link" in str(error)  # noqa: PT017
    assert victim.read_bytes() == before


@pytest.mark.parametrize("name", ["checkpoints", "policies"])
def test_a_linked_folder_keeps_its_files(run, tmp_path, name):
    elsewhere = tmp_path / "elsewhere"
    (run / name).rename(elsewhere)
    (run / name).symlink_to(elsewhere)
    before = content(elsewhere)
    with pytest.raises(UserError, match="not a directory of its own"):
        isobatch.resume(run, total_timesteps=128, quiet=True)
    assert content(elsewhere) == before


@pytest.mark.parametrize("name", ["metrics.jsonl", "evaluations.jsonl", ".lock"])
def test_a_fifo_does_not_block(run, name):
    (run / name).unlink()
    os.mkfifo(run / name)
    with pytest.raises(UserError, match="not a regular file"):
        isobatch.resume(run, total_timesteps=128, quiet=True)


def emptied(lines):
    return []


def backwards(lines):
    return lines[::-1]


def doubled(lines):
    return lines + lines


def shortened(lines):
    return lines[:-1]


def changed(lines):
    return [lines[0].replace(b"env_steps", b"env_stepz"), *lines[1:]]


@pytest.mark.parametrize("change", [emptied, backwards, changed, lambda lines: lines[1:]])
@pytest.mark.parametrize("name", ["metrics.jsonl", "evaluations.jsonl"])
def test_rows_that_are_not_the_checkpoints_are_refused_and_left(run, change, name):
    lines = (run / name).read_bytes().splitlines(keepends=True)
    (run / name).write_bytes(b"".join(change(lines)))
    before = content(run)
    with pytest.raises(UserError, match=rf"{name} (was changed|has [\d,]+ of the)"):
        isobatch.resume(run, total_timesteps=128, quiet=True)
    assert content(run) == before


def test_rows_written_twice_are_cut(run):
    rows = read_metrics(run)
    text = (run / "metrics.jsonl").read_bytes()
    (run / "metrics.jsonl").write_bytes(doubled(text))
    isobatch.resume(run, total_timesteps=128, quiet=True)
    after = read_metrics(run)
    assert after[: len(rows)] == rows
    assert [row["iterations"] for row in after] == list(range(1, len(after) + 1))


def test_a_lost_last_row_takes_the_checkpoint_before(run):
    lines = (run / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    (run / "metrics.jsonl").write_bytes(b"".join(shortened(lines)))
    with pytest.warns(UserWarning, match="skipped"):
        isobatch.resume(run, total_timesteps=128, quiet=True)
    after = read_metrics(run)
    assert [row["iterations"] for row in after] == list(range(1, len(after) + 1))
    assert after[len(lines) - 1]["resumed"]


def test_files_of_another_run_are_refused(run, tmp_path):
    other = tmp_path / "other"
    isobatch.train(
        "CartPole-v1", **TINY, seed=2, total_timesteps=96, checkpoint_seconds=1e-9, out=other,
        quiet=True,
    )  # fmt: skip
    for file in (run / "checkpoints").iterdir():
        file.unlink()
    for file in (other / "checkpoints").iterdir():
        shutil.copy(file, run / "checkpoints")
    with pytest.raises(UserError, match="another recipe: seed was 2"):
        isobatch.resume(run, total_timesteps=128, quiet=True)
    shutil.copy(other / "policy.safetensors", run)
    with pytest.raises(UserError, match="another recipe: seed was 2"):
        isobatch.load(run)


def numbers_without(key):
    def change(tensors, numbers):
        del numbers[key]

    return change


def tensors_without(key):
    def change(tensors, numbers):
        del tensors[key]

    return change


def other_width(tensors, numbers):
    for name in list(tensors):
        if name.endswith("weight"):
            tensors[name] = torch.zeros(3, 3)


def text_for_counts(tensors, numbers):
    numbers["counters"] = "many"


def unknown_counter(tensors, numbers):
    numbers["counters"]["sheep"] = 1


@pytest.mark.parametrize(
    "change",
    [
        numbers_without("counters"), numbers_without("batch"), numbers_without("episodes"),
        numbers_without("evaluations"), tensors_without("generator.action"), other_width,
        text_for_counts, unknown_counter,
    ],
)  # fmt: skip
def test_a_well_sealed_checkpoint_of_another_form_is_one_clear_error(run, change):
    for file in (run / "checkpoints").iterdir():
        tensors, numbers = read_sealed(file)
        change(tensors, numbers)
        write_sealed(file, tensors, numbers)
    with pytest.raises(UserError, match="cannot be understood") as error:
        isobatch.resume(run, total_timesteps=128, quiet=True)
    assert "\n" not in str(error.value)


def test_names_that_only_look_like_checkpoints_are_left_alone(run):
    for name in ("checkpoints/1x.safetensors", "policies/1x.safetensors", "policies/1 2"):
        (run / name).write_text("mine")
    isobatch.resume(run, total_timesteps=128, quiet=True)
    isobatch.load(run, at=0.5)
    assert (run / "policies" / "1x.safetensors").read_text() == "mine"


@pytest.mark.parametrize(
    "line", [b"5\n", b"[1]\n", b"\xff\n", b"[" * 100_000 + b"\n", b'{"iterations": NaN}\n']
)
def test_rows_that_are_none_are_one_clear_error(run, line):
    (run / "metrics.jsonl").write_bytes(line)
    with pytest.raises(UserError, match=r"metrics\.jsonl, line 1"):
        read_metrics(run)


def test_what_a_killed_process_was_writing_is_swept_away(run):
    litter = [run / f".{name}.0123456789abcdef.new" for name in NAMES]
    litter.append(run / "checkpoints" / ".000000001.safetensors.0123456789abcdef.new")
    for file in litter:
        file.write_text("half")
    isobatch.resume(run, total_timesteps=128, quiet=True)
    assert not any(file.exists() for file in litter)


def test_what_a_killed_creation_left_is_swept_away_but_not_a_living_one(tmp_path):
    alive = RunDirectory.create(tmp_path / ".run-aaaaaaaa", Recipe("CartPole-v1"))
    dead = tmp_path / ".run-bbbbbbbb"
    dead.mkdir()
    (dead / "recipe.toml").write_text("half")
    RunDirectory.create(tmp_path / "run", Recipe("CartPole-v1")).release()
    assert alive.path.exists()
    assert not dead.exists()
    alive.release()


@pytest.mark.parametrize("name", ["metrics.jsonl", "checkpoints/000000006.safetensors"])
def test_the_checkpoint_of_the_start_is_none_to_fall_back_to(tmp_path, name):
    run = tmp_path / "run"
    isobatch.train("CartPole-v1", **TINY, total_timesteps=90, out=run, quiet=True)
    assert sorted(file.name for file in (run / "checkpoints").iterdir()) == [
        "000000000.safetensors",
        "000000006.safetensors",
    ]
    (run / name).write_bytes(b"{]\n" + (run / name).read_bytes())
    before = content(run)
    with pytest.raises(UserError, match="no checkpoint to resume from"):
        isobatch.resume(run, total_timesteps=128, quiet=True)
    assert content(run) == before
