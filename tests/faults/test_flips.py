"""Every kilobyte of every file of a run, flipped: found by `check`, and no resuming in silence."""

import shutil
import warnings

import pytest

import isobatch
from isobatch import UserError
from isobatch.run.examine import examine
from isobatch.run.store import read_policy

PIECE = 1024


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "run"
    isobatch.train(
        "CartPole-v1", algo="ppg", n_envs=4, n_steps=8, n_policy_iterations=4, n_aux_epochs=1,
        hidden_sizes=(16,), compile="off", threads=1, env_threads=1, total_timesteps=160,
        eval_marks=2, eval_episodes=2, exact_resume=True, checkpoint_seconds=1e-9, out=path,
        quiet=True,
    )  # fmt: skip
    return path


def flipped(content, place):
    return content[:place] + bytes([content[place] ^ 1 << place % 8]) + content[place + 1 :]


def files_of(path):
    return sorted(str(f.relative_to(path)) for f in path.rglob("*") if f.is_file())


def test_every_flipped_kilobyte_is_found(whole, tmp_path):
    run = shutil.copytree(whole, tmp_path / "run")
    assert all(each.is_whole for each in examine(run))
    flips = 0
    for name in files_of(run):
        content = (run / name).read_bytes()
        for start in range(0, len(content), PIECE):
            place = min(start + start // PIECE * 97 % PIECE, len(content) - 1)
            (run / name).write_bytes(flipped(content, place))
            assert not all(each.is_whole for each in examine(run)), f"{name}, byte {place}"
            flips += 1
        (run / name).write_bytes(content)
    assert flips > 40


ENDS = {
    "empty": lambda content: b"",
    "truncated": lambda content: content[: len(content) // 2],
    "flipped": lambda content: flipped(content, len(content) // 2),
    "foreign": lambda content: b"#!/bin/sh\n" * 40,
}


def outcome(run):
    """Resume; return what was said, or the weights where nothing was."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", UserWarning)
        try:
            isobatch.resume(run, total_timesteps=192, quiet=True)
        except UserError as error:
            return f"refused: {error}"
    if said:
        return f"warned: {said[0].message}"
    tensors, _ = read_policy(run)
    return {name: each.numpy().tobytes() for name, each in tensors.items()}


@pytest.mark.long
@pytest.mark.parametrize("end", ENDS)
def test_resuming_says_what_is_damaged_unless_it_needs_nothing_of_it(whole, tmp_path, end):
    expected = outcome(shutil.copytree(whole, tmp_path / "control"))
    said = {}
    for name in files_of(whole):
        content = (whole / name).read_bytes()
        if not content:
            continue
        run = shutil.copytree(whole, tmp_path / "run")
        (run / name).write_bytes(ENDS[end](content))
        found = outcome(run)
        if isinstance(found, str):
            assert "\n" not in found
            said[name] = found
        else:
            assert found == expected, name
        shutil.rmtree(run)
    newest = max(name for name in said if name.startswith("checkpoints/"))
    assert said[newest].startswith("warned: checkpoint")
    assert all(said[name] for name in ("recipe.toml", "metrics.jsonl", "evaluations.jsonl"))
