import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from isobatch.errors import DamagedFile, UserError
from isobatch.study import queue as queue_module
from isobatch.study import records
from isobatch.study.design import from_toml, with_seeds
from isobatch.study.queue import LeaseLost, Queue, read_study
from isobatch.study.records import Result, sha256
from isobatch.study.together import is_doubtful

TOML = """
[study]
envs = ["CartPole-v1"]
budget = 64
seeds = 3
[arms]
a = { n_envs = 2, n_steps = 8 }
b = { n_envs = 4, n_steps = 4 }
"""
STUDY = from_toml(TOML, "small")


@pytest.fixture
def queue(tmp_path):
    return Queue.create(tmp_path / "study", STUDY)


def finish(claim, score=1.0):
    """Leave what a run leaves, and record it."""
    path = claim.queue.run_path(claim.cell)
    path.mkdir(parents=True, exist_ok=True)
    for name in ("metrics.jsonl", "recipe.toml"):
        (path / name).write_text(name)
    hashes = {"metrics_sha256": sha256(path / "metrics.jsonl")}
    hashes["recipe_sha256"] = sha256(path / "recipe.toml")
    claim.finish(Result(score, score, 64, 1.0, 0, **hashes))


def take(queue):
    claim = queue.claim()
    assert claim is not None
    return claim


def test_every_cell_is_handed_out_once(queue):
    taken = [queue.claim() for _ in range(7)]
    assert [claim.cell for claim in taken[:6]] == STUDY.cells
    assert taken[6] is None
    assert set(queue.states().values()) == {"running"}


def test_finished_cells_are_done_and_released_ones_free(queue):
    first, second = take(queue), take(queue)
    finish(first)
    second.release()
    states = queue.states()
    assert (states[first.cell], states[second.cell]) == ("done", "free")
    assert take(queue).cell == second.cell
    assert queue.result(first.cell).score == 1.0


def test_all_done_or_failed_is_finished(queue):
    for _ in STUDY.cells[1:]:
        finish(take(queue))
    assert not queue.is_finished
    take(queue).fail("it cannot work")
    assert queue.is_finished
    assert "it cannot work" in queue.failure(STUDY.cells[-1])


def test_errors_are_tried_again_until_they_are_too_many(queue):
    cell = STUDY.cells[0]
    for attempt in range(queue_module.MAX_ERRORS):
        assert queue.states()[cell] == "free"
        claim = take(queue)
        assert claim.cell == cell
        claim.error(f"reason {attempt}")
    assert queue.states()[cell] == "failed"
    assert "reason 2" in queue.failure(cell)
    assert [each["reason"] for each in queue.attempts(cell)] == ["reason 0", "reason 1", "reason 2"]
    assert queue.retry_failed() == 1
    assert queue.states()[cell] == "free"


def dead_claim(root):
    """Take a cell in a process that ends at once."""
    code = (
        "import sys; from isobatch.study.queue import Queue; "
        "print(Queue.open(sys.argv[1]).claim().cell.key)"
    )
    command = [sys.executable, "-c", code, str(root)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_a_cell_whose_process_is_dead_is_handed_out_again(queue):
    key = dead_claim(queue.root)
    assert STUDY.cells[0].key == key
    assert queue.states()[STUDY.cells[0]] == "running"
    assert take(queue).cell == STUDY.cells[0]
    assert [each["kind"] for each in queue.attempts(STUDY.cells[0])] == ["lost"]


def test_a_stopped_workers_cell_is_free_again_and_not_counted_as_lost(queue):
    mine = take(queue)
    key = dead_claim(queue.root)
    assert key == STUDY.cells[1].key
    queue.forget_dead()
    assert queue.states()[STUDY.cells[1]] == "free"
    assert queue.attempts(STUDY.cells[1]) == []
    assert queue.states()[mine.cell] == "running"


def test_a_claim_of_another_machine_is_stale_only_after_the_lease(queue, monkeypatch):
    monkeypatch.setattr(records.socket, "gethostname", lambda: "elsewhere")
    claim = take(queue)
    monkeypatch.undo()
    assert take(queue).cell != claim.cell
    before = time.time() - queue_module.LEASE_SECONDS - 1
    os.utime(queue._file(claim.cell, "claim"), (before, before))
    assert take(queue).cell == claim.cell


def test_a_heartbeat_keeps_the_claim(queue, monkeypatch):
    monkeypatch.setattr(records.socket, "gethostname", lambda: "elsewhere")
    claim = take(queue)
    monkeypatch.undo()
    before = time.time() - queue_module.LEASE_SECONDS - 1
    os.utime(queue._file(claim.cell, "claim"), (before, before))
    claim.beat()
    assert take(queue).cell != claim.cell


@pytest.mark.parametrize("act", ["beat", "release", "fail", "error", "finish"])
def test_a_worker_that_lost_its_cell_changes_nothing(queue, act, monkeypatch):
    monkeypatch.setattr(records.socket, "gethostname", lambda: "elsewhere")
    slow = take(queue)
    monkeypatch.undo()
    before = time.time() - queue_module.LEASE_SECONDS - 1
    os.utime(queue._file(slow.cell, "claim"), (before, before))
    other = take(queue)
    assert other.cell == slow.cell
    acts = {"finish": lambda: finish(slow, score=99.0), "fail": lambda: slow.fail("why")}
    acts |= {"error": lambda: slow.error("why"), "beat": slow.beat, "release": slow.release}
    with pytest.raises(LeaseLost):
        acts[act]()
    assert queue.states()[slow.cell] == "running"
    finish(other, score=2.0)
    assert queue.result(slow.cell).score == 2.0


def test_a_run_that_keeps_killing_its_workers_is_given_up(queue, monkeypatch):
    monkeypatch.setattr(queue_module, "MAX_LOSSES", 2)
    dead_claim(queue.root)
    dead_claim(queue.root)
    assert take(queue).cell == STUDY.cells[1]
    assert queue.states()[STUDY.cells[0]] == "failed"
    assert "disappeared" in queue.failure(STUDY.cells[0])


def test_kills_of_a_run_that_goes_on_all_the_same_are_not_counted(queue, monkeypatch):
    monkeypatch.setattr(queue_module, "MAX_LOSSES", 2)
    cell = STUDY.cells[0]
    checkpoints = queue.run_path(cell) / "checkpoints"
    checkpoints.mkdir(parents=True)
    for iterations in (3, 5, 8, 12):
        dead_claim(queue.root)
        (checkpoints / f"{iterations:09d}.safetensors").touch()
    assert take(queue).cell == cell


def arm_of(cell):
    return cell.arm


def taken(queue, **settings):
    return [(each.cell.arm, each.cell.seed) for each in queue.claim_alike(arm_of, **settings)]


def test_cells_of_one_kind_are_taken_together_in_the_order_of_the_study(tmp_path):
    queue = Queue.create(tmp_path / "study", with_seeds(STUDY, 8))
    assert taken(queue, most=5) == [("a", seed) for seed in range(1, 6)]
    assert taken(queue, most=5) == [("b", seed) for seed in range(1, 6)]
    assert taken(queue, most=5) == [("a", seed) for seed in range(6, 9)]
    claims = queue.claim_alike(lambda cell: None, most=5)
    assert [(each.cell.arm, each.cell.seed) for each in claims] == [("b", 6)]


def test_few_cells_are_dealt_out_to_all_workers(queue):
    """Six cells, four workers: two at most to each."""
    assert taken(queue, most=5, workers=4) == [("a", 1), ("a", 2)]
    assert taken(queue, most=5, workers=4) == [("b", 1), ("b", 2)]
    assert taken(queue, most=5, workers=4) == [("a", 3)]
    assert taken(queue, most=5, workers=4) == [("b", 3)]
    assert taken(queue, most=5, workers=4) == []


def test_too_few_to_be_worth_it_are_taken_one_by_one(queue):
    assert taken(queue, least=3, most=5, workers=3) == [("a", 1)]
    assert taken(queue, least=3, most=5, workers=1) == [("b", 1), ("b", 2), ("b", 3)]
    assert taken(queue, least=3, most=5, workers=1) == [("a", 2)]


def test_what_others_work_on_already_is_part_of_their_share(tmp_path):
    queue = Queue.create(tmp_path / "study", with_seeds(STUDY, 5))
    assert len(taken(queue, most=5, workers=2)) == 5
    assert len(taken(queue, most=5, workers=2)) == 5


def test_the_cells_of_a_dead_worker_are_taken_together_again(queue):
    code = (
        "import sys; from isobatch.study.queue import Queue; "
        "Queue.open(sys.argv[1]).claim_alike(lambda cell: cell.arm, most=5)"
    )
    for doubtful in (False, True):
        subprocess.run([sys.executable, "-c", code, str(queue.root)], check=True)
        assert len(taken(queue, most=5)) == 3
        assert [is_doubtful(queue, cell) for cell in STUDY.cells[:2]] == [doubtful, False]
        for cell in STUDY.cells[::2]:
            queue._remove(cell, "claim")


def test_a_cell_that_met_an_error_is_doubtful(queue):
    take(queue).error("why")
    assert [is_doubtful(queue, cell) for cell in STUDY.cells[:2]] == [True, False]
    queue._file(STUDY.cells[1], "attempts").write_text("[1]\n")
    assert is_doubtful(queue, STUDY.cells[1])


def test_many_takers_at_once_never_share_a_cell(tmp_path):
    study = with_seeds(STUDY, 20)
    queue = Queue.create(tmp_path / "study", study)
    taken = []

    def taker():
        mine = Queue.open(queue.root)
        while (claim := mine.claim()) is not None:
            taken.append(claim.cell)

    threads = [threading.Thread(target=taker) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(map(str, taken)) == sorted(map(str, study.cells))


@pytest.mark.parametrize("name", ["metrics.jsonl", "recipe.toml"])
@pytest.mark.parametrize("damage", ["changed", "gone"])
def test_a_finished_run_whose_files_changed_is_damaged_and_set_aside(queue, name, damage):
    claim = take(queue)
    finish(claim)
    file = queue.run_path(claim.cell) / name
    if damage == "changed":
        file.write_text(file.read_text() + " ")
    else:
        file.unlink()
    with pytest.raises(DamagedFile, match=name):
        queue.result(claim.cell)
    moved = queue.set_aside_damaged()
    assert len(moved) == 1
    assert str(claim.cell) in moved[0]
    assert queue.states()[claim.cell] == "free"
    assert not queue.run_path(claim.cell).exists()
    assert list((queue.root / "set-aside").iterdir())


def test_a_result_that_cannot_be_read_is_damaged(queue):
    claim = take(queue)
    finish(claim)
    (queue.root / "queue" / f"{claim.cell.key}.done").write_text("{")
    with pytest.raises(DamagedFile):
        queue.result(claim.cell)
    assert len(queue.set_aside_damaged()) == 1


def test_whole_runs_are_left_where_they_are(queue):
    finish(take(queue))
    assert queue.set_aside_damaged() == []


def test_another_study_in_the_directory_is_refused(queue):
    other = from_toml(TOML.replace("budget = 64", "budget = 128"), "small")
    with pytest.raises(UserError, match="another study"):
        Queue.create(queue.root, other)
    assert read_study(queue.root) == STUDY


def test_the_same_study_goes_on_and_may_grow_by_seeds(queue):
    finish(take(queue))
    again = Queue.create(queue.root, STUDY)
    assert list(again.states().values()).count("done") == 1
    grown = Queue.create(queue.root, with_seeds(STUDY, 5))
    assert len(grown.states()) == 10
    with pytest.raises(UserError, match="another study"):
        Queue.create(queue.root, with_seeds(STUDY, 2))


def test_a_directory_with_other_things_in_it_is_refused(tmp_path):
    (tmp_path / "photo.jpg").write_text("x")
    with pytest.raises(UserError, match="holds no study"):
        Queue.create(tmp_path, STUDY)
    assert [each.name for each in tmp_path.iterdir()] == ["photo.jpg"]


def test_no_study_and_a_broken_one_are_told_apart(tmp_path):
    with pytest.raises(UserError, match="holds no study"):
        Queue.open(tmp_path)
    Path(tmp_path / "study.json").write_text(json.dumps({"name": "half"}))
    with pytest.raises(UserError, match="cannot be read"):
        Queue.open(tmp_path)
