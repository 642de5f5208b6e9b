import json
import math

import pytest
import torch

from isobatch import Recipe, UserError
from isobatch.errors import DamagedFile
from isobatch.run.sealed import sealed
from isobatch.run.store import (
    RunDirectory,
    read_metrics,
    read_policy,
    read_sealed,
    refuse_taken,
    safe_name,
    write_sealed,
)

TENSORS = {
    "weights": torch.arange(6.0).reshape(2, 3),
    "count": torch.tensor(7),
    "precise": torch.tensor([1 / 3], dtype=torch.float64),
    "frame": torch.arange(4, dtype=torch.uint8),
    "flags": torch.tensor([True, False]),
}
DATA = {"counters": {"env_steps": 10}, "name": "Grüße", "list": [1, 2.5, None]}


@pytest.fixture
def run(tmp_path):
    directory = RunDirectory.create(tmp_path / "run", Recipe("CartPole-v1"))
    yield directory
    directory.release()


def saved(path):
    write_sealed(path, TENSORS, DATA)
    return path


def files_under(path):
    return {str(file.relative_to(path)) for file in path.rglob("*")}


def flip(path, place, bit=0):
    content = bytearray(path.read_bytes())
    content[place] ^= 1 << bit
    path.write_bytes(content)


def test_a_sealed_file_gives_back_what_was_put_in(tmp_path):
    tensors, data = read_sealed(saved(tmp_path / "file"))
    assert data == DATA
    assert tensors.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert tensors[name].dtype == tensor.dtype
        assert torch.equal(tensors[name], tensor)


def test_a_sealed_file_does_not_depend_on_how_tensors_lie_in_memory(tmp_path):
    image = torch.randn(2, 3, 4, 5)
    last = image.to(memory_format=torch.channels_last)
    parts = {"last": last, "transposed": image.transpose(1, 2), "view": image[1]}
    write_sealed(tmp_path / "file", parts, {})
    tensors, _ = read_sealed(tmp_path / "file")
    assert all(torch.equal(tensors[name], part) for name, part in parts.items())


def test_every_flipped_bit_of_a_sealed_file_is_noticed(tmp_path):
    path = tmp_path / "file"
    write_sealed(path, {"weights": torch.arange(6.0), "count": torch.tensor(7)}, {"env_steps": 10})
    content = path.read_bytes()
    for place in range(len(content)):
        flip(path, place, bit=place % 8)
        with pytest.raises(DamagedFile):
            read_sealed(path)
        path.write_bytes(content)
    read_sealed(path)


@pytest.mark.parametrize("kept", [0, 4, 100, -1])
def test_a_sealed_file_cut_short_is_noticed(tmp_path, kept):
    path = saved(tmp_path / "file")
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(DamagedFile):
        read_sealed(path)


def test_a_sealed_file_is_safetensors_and_holds_no_pickle(tmp_path):
    content = saved(tmp_path / "file").read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    assert header.keys() == {*TENSORS, "__metadata__"}
    assert len(content) == 8 + length + sum(t.numel() * t.element_size() for t in TENSORS.values())


def test_writing_again_replaces_the_file_and_leaves_nothing_beside(tmp_path):
    path = saved(tmp_path / "file")
    write_sealed(path, {"other": torch.zeros(1)}, {})
    assert read_sealed(path)[0].keys() == {"other"}
    assert files_under(tmp_path) == {"file"}


def test_numbers_that_are_not_finite_cannot_be_sealed_unnoticed(tmp_path):
    with pytest.raises(ValueError, match="JSON"):
        write_sealed(tmp_path / "file", TENSORS, {"mean": math.nan})
    assert files_under(tmp_path) == set()


def test_a_new_run_holds_its_recipe_and_nothing_is_left_beside_it(tmp_path, run):
    assert run.recipe == Recipe("CartPole-v1")
    assert run.metrics() == []
    assert {file.split("/")[0] for file in files_under(tmp_path)} == {"run"}


def test_a_run_may_be_made_in_an_empty_directory(tmp_path):
    (tmp_path / "run").mkdir()
    RunDirectory.create(tmp_path / "run", Recipe("CartPole-v1")).release()
    assert (tmp_path / "run" / "recipe.toml").is_file()


def test_a_directory_with_another_run_is_refused_and_left_alone(tmp_path, run):
    before = files_under(tmp_path)
    with pytest.raises(UserError, match="another run"):
        RunDirectory.create(run.path, Recipe("Acrobot-v1"))
    assert files_under(tmp_path) == before
    assert run.recipe.env == "CartPole-v1"


def test_a_directory_with_anything_in_it_is_refused(tmp_path):
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(UserError, match="not an empty directory"):
        refuse_taken(tmp_path)
    with pytest.raises(UserError, match="not an empty directory"):
        refuse_taken(tmp_path / "thesis.tex")


def test_a_path_through_a_file_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="cannot make"):
        RunDirectory.create(tmp_path / "file" / "run", Recipe("CartPole-v1"))


def test_a_directory_without_a_run_cannot_be_opened(tmp_path):
    with pytest.raises(UserError, match="holds no run"):
        RunDirectory.open(tmp_path)
    assert files_under(tmp_path) == set()


def test_a_run_is_held_by_one_at_a_time(run):
    with pytest.raises(UserError, match="in use"):
        RunDirectory.open(run.path)
    run.release()
    RunDirectory.open(run.path).release()


def test_rows_come_back_in_order_and_as_they_were(run):
    rows = [{"iterations": n, "loss": 0.1 * n, "resumed": True} for n in (1, 2, 3)]
    for row in rows:
        run.append(row)
    assert read_metrics(run.path) == rows


def test_a_number_that_is_not_finite_becomes_null(run):
    run.append({"iterations": 1, "loss": math.nan, "ratio": math.inf, "kl": 0.5})
    assert read_metrics(run.path) == [{"iterations": 1, "loss": None, "ratio": None, "kl": 0.5}]


def save(run, n):
    """Save a checkpoint after the iteration `n`, of one step each."""
    counters = {"iterations": n, "env_steps": n}
    run.save_checkpoint({"step": torch.tensor(n)}, {"counters": counters}, n)


def train(run, iterations):
    for n in iterations:
        run.append({"iterations": n, "env_steps": n})
        save(run, n)


def found(run):
    checkpoint = run.last_checkpoint()
    assert checkpoint is not None
    return checkpoint


def test_rows_after_the_checkpoint_are_cut(run):
    train(run, (1, 2))
    run.append({"iterations": 3})
    run.release()
    again = RunDirectory.open(run.path)
    again.go_on_from(found(again))
    again.append({"iterations": 3, "env_steps": 3, "resumed": True})
    save(again, 3)
    assert [row["iterations"] for row in read_metrics(run.path)] == [1, 2, 3]
    written = (run.path / "metrics.jsonl").stat().st_size
    assert found(again).numbers["metrics"]["bytes"] == written
    again.release()


@pytest.mark.parametrize("half", ['{"iterat', '{"iterations": 2}'])
def test_a_half_written_last_row_is_dropped(run, half):
    train(run, (1,))
    whole = (run.path / "metrics.jsonl").read_bytes()
    with (run.path / "metrics.jsonl").open("a") as file:
        file.write(half)
    assert [row["iterations"] for row in read_metrics(run.path)] == [1]
    run.go_on_from(found(run))
    assert (run.path / "metrics.jsonl").read_bytes() == whole


def test_the_last_checkpoint_is_the_one_given_and_two_are_kept(run):
    train(run, (1, 2, 3, 10))
    last = found(run)
    assert int(last.tensors["step"]) == last.numbers["counters"]["iterations"] == 10
    assert len(list((run.path / "checkpoints").iterdir())) == 2


def test_a_run_without_checkpoints_and_rows_has_none(run):
    assert run.last_checkpoint() is None


def test_a_damaged_checkpoint_gives_way_to_the_one_before_and_is_named(run):
    train(run, (1, 2))
    newest = max((run.path / "checkpoints").iterdir())
    flip(newest, -1)
    last = found(run)
    assert last.numbers["counters"]["iterations"] == 1
    assert "hash does not match" in last.skipped[newest.name]
    run.go_on_from(last)
    assert not newest.exists(), "or it would count among the last two"
    assert len(read_metrics(run.path)) == 1


def test_where_every_checkpoint_is_damaged_nothing_starts_over(run):
    train(run, (1, 2))
    for file in list((run.path / "checkpoints").iterdir()):
        flip(file, -1)
    before = files_under(run.path)
    with pytest.raises(DamagedFile, match=r"no checkpoint to resume from.*--from-scratch"):
        run.last_checkpoint()
    assert files_under(run.path) == before


def test_what_was_trained_is_kept_aside(run):
    train(run, (1, 2))
    assert run.set_aside() == "set-aside-1"
    assert run.last_checkpoint() is None
    assert (run.path / "set-aside-1" / "metrics.jsonl").stat().st_size
    train(run, (1,))
    assert run.set_aside() == "set-aside-2"


def test_equal_content_gives_equal_bytes():
    assert len({sealed(TENSORS, DATA) for _ in range(20)}) == 1


def test_a_damaged_policy_is_one_clear_error(run):
    run.save_policy(TENSORS, DATA)
    flip(run.path / "policy.safetensors", -3)
    with pytest.raises(UserError, match=r"policy\.safetensors is damaged"):
        read_policy(run.path)


def test_a_directory_without_a_policy_is_one_clear_error(tmp_path):
    with pytest.raises(UserError, match="holds no policy"):
        read_policy(tmp_path)


@pytest.mark.parametrize(
    "text", ["../../etc/passwd", "a/b\\c:d e", "...", "", "/absolute", "~", "naïve\n", "-rf"]
)
def test_a_name_from_outside_stays_one_name_inside(text):
    name = safe_name(text)
    assert name
    assert not name.startswith((".", "-", "~"))
    assert not set(name) & set("/\\:\n ")
