"""Compiled functions: computed as they stand, kept for the next run, and trusted only when safe."""

import os

import pytest
import torch

from isobatch.update import ahead
from isobatch.update.ahead import Ahead, CompilationFailed, kept_in


class Counted:
    """3 x + y, which counts how often it is called as Python."""

    def __init__(self):
        self.calls = 0

    def __call__(self, x, y):
        self.calls += 1
        return 3 * x + y, x.sum()[None]


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv(ahead.FOLDER, str(tmp_path / "cache"))
    return tmp_path / "cache"


def call(function, name: str | None = "three x plus y", rows=4):
    x, y = torch.arange(float(rows)), torch.ones(rows)
    found, total = Ahead(function, name)(x, y)
    assert found.tolist() == (3 * x + y).tolist()
    assert total.tolist() == [float(x.sum())]


def test_what_was_compiled_is_loaded_by_the_next(cache):
    first, second = Counted(), Counted()
    call(first)
    assert first.calls
    call(second)
    assert not second.calls


@pytest.mark.long
def test_a_damaged_function_is_compiled_again(cache):
    call(Counted())
    (kept,) = cache.glob("*.pt2")
    kept.write_bytes(kept.read_bytes()[:1000])
    again, after = Counted(), Counted()
    call(again)
    assert again.calls
    call(after)
    assert not after.calls


def test_other_shapes_names_and_threads_are_other_functions():
    names = {ahead._digest(parts) for parts in (["a", "(4,)"], ["a", "(5,)"], ["b", "(4,)"])}
    before = torch.get_num_threads()
    torch.set_num_threads(before + 1)
    names.add(ahead._digest(["a", "(4,)"]))
    torch.set_num_threads(before)
    assert len(names) == 4


@pytest.mark.long
def test_without_a_name_nothing_is_kept(cache):
    call(Counted(), name=None)
    assert not cache.exists()


def test_a_folder_that_others_can_write_to_is_not_used(cache):
    cache.mkdir()
    cache.chmod(0o777)
    assert kept_in() is None
    cache.chmod(0o700)
    assert kept_in() == cache


def test_a_folder_that_cannot_be_made_is_no_reason_to_fail(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(ahead.FOLDER, str(tmp_path / "file" / "cache"))
    assert kept_in() is None


def test_the_oldest_are_forgotten(cache, monkeypatch):
    monkeypatch.setattr(ahead, "MOST_KEPT", 2)
    cache.mkdir()
    for age, name in enumerate(("new", "newer", "old", "older")):
        (cache / f"{name}.pt2").write_text("")
        os.utime(cache / f"{name}.pt2", (1000 - age, 1000 - age))
    ahead._forget_old(cache)
    assert {path.stem for path in cache.iterdir()} == {"new", "newer"}


def test_what_cannot_be_compiled_says_so(cache):
    def by_value(x):
        return (x + 1 if float(x.sum()) > 0 else x,)

    def failing(x):
        raise ValueError("not this one")

    for function in (by_value, failing):
        with pytest.raises(CompilationFailed, match="the update could not be compiled"):
            Ahead(function, "none")(torch.ones(2))
    assert list(cache.glob("*.pt2")) == []
