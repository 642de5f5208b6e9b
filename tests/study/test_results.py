import dataclasses
import json

import numpy as np
import pytest
from fakes import finish_study

from isobatch.errors import UserError
from isobatch.scores import constants
from isobatch.study.design import Cell, from_toml
from isobatch.study.queue import Queue
from isobatch.study.records import Result, sha256
from isobatch.study.results import Results

STUDY = from_toml(
    """
    [study]
    envs = ["CartPole-v1", "gymnasium:Blackjack-v1"]
    budget = 400
    seeds = 3
    [arms]
    a = { n_envs = 2, n_steps = 8 }
    b = { n_envs = 4, n_steps = 4 }
    """,
    "small",
)
SCALED = dataclasses.replace(
    STUDY, scores={"gymnasium:Blackjack-v1": {"random": 0, "reference": 100}}
)


def score(cell):
    return {"a": 100.0, "b": 200.0}[cell.arm] + 10 * cell.seed + len(cell.env)


@pytest.fixture
def root(tmp_path):
    finish_study(tmp_path / "study", STUDY, score)
    return tmp_path / "study"


@pytest.fixture
def scaled(tmp_path):
    finish_study(tmp_path / "study", SCALED, score)
    return tmp_path / "study"


def test_scores_are_normalised_by_the_environments_constants(scaled):
    results = Results.load(scaled)
    scale = constants("CartPole-v1")
    assert scale is not None
    scores = results.scores("a", [1, 3])
    assert scores.shape == (2, 2)
    expected = (score(Cell("a", "CartPole-v1", 3)) - scale.low) / (scale.high - scale.low)
    assert scores[1, 0] == pytest.approx(expected)


def test_without_a_known_scale_scores_are_not_normalised_and_a_line_says_so(root):
    results = Results.load(root)
    assert results.unscaled == ["gymnasium:Blackjack-v1"]
    assert set(results.scales) == {"CartPole-v1"}
    with pytest.raises(UserError, match=r"Blackjack-v1 cannot be normalised.*\[scores\]"):
        results.scores("a", [1, 2])
    raw = results.scores("a", [1, 2], normalise=False)
    assert raw.tolist() == [[score(Cell("a", env, seed)) for env in STUDY.envs] for seed in (1, 2)]


def test_scores_the_study_gives_are_its_scale_and_win_over_the_table(tmp_path):
    given = {"gymnasium:Blackjack-v1": {"random": 100, "reference": 300}}
    given["CartPole-v1"] = {"random": 0, "reference": 500}
    study = dataclasses.replace(STUDY, scores=given)
    finish_study(tmp_path / "study", study, score)
    results = Results.load(tmp_path / "study")
    assert results.unscaled == []
    cells = [Cell("a", env, 2) for env in STUDY.envs]
    expected = [score(cells[0]) / 500, (score(cells[1]) - 100) / 200]
    assert results.scores("a", [2])[0].tolist() == pytest.approx(expected)


def test_scores_may_be_given_when_the_study_has_begun(root):
    given = {"gymnasium:Blackjack-v1": {"random": -1, "reference": 1}}
    Queue.create(root, dataclasses.replace(STUDY, scores=given))
    assert Results.load(root).unscaled == []
    with pytest.raises(UserError, match="another study"):
        Queue.create(root, dataclasses.replace(STUDY, budget=500))


def test_a_gain_is_the_difference_by_seed(scaled):
    results = Results.load(scaled)
    gain = results.scores(("b", "a"), [1, 2, 3])
    expected = results.scores("b", [1, 2, 3]) - results.scores("a", [1, 2, 3])
    np.testing.assert_allclose(gain, expected)
    assert (gain > 0).all()


def test_the_curve_is_its_mean_height(root):
    # Evaluated at 0, 100 ... 400 of 400 steps: 0, s/4 ... s.
    expected = score(Cell("a", "CartPole-v1", 2)) / 2
    assert Results.load(root).raw("a", "CartPole-v1", "curve")[2] == pytest.approx(expected)


def test_training_returns_are_no_part_of_the_curve(root):
    cell = Cell("a", "CartPole-v1", 2)
    path = Queue.open(root).run_path(cell)
    rows = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    bent = [row | {"episode_return": 1e6} for row in rows]
    (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in bent))
    done = Queue.open(root)._file(cell, "done")
    hashed = {"metrics_sha256": sha256(path / "metrics.jsonl")}
    done.write_text(json.dumps(json.loads(done.read_text()) | hashed))
    assert Results.load(root).raw(*cell_key(cell), "curve")[2] == pytest.approx(score(cell) / 2)


def cell_key(cell):
    return cell.arm, cell.env


def test_metrics_between_rows_are_interpolated_and_unknown_before_the_first(root):
    cell = Cell("b", "CartPole-v1", 1)
    curve = Results.load(root).curve(cell, "episode_return", np.array([150.0, 250.0, 400.0]))
    assert np.isnan(curve[0])
    np.testing.assert_allclose(curve[1:], [0.625 * score(cell), score(cell)])
    assert Results.load(root).columns == ["env_steps", "iterations", "episode_return", "entropy"]


def test_failed_missing_and_damaged_runs_are_told_and_left_out(root):
    queue = Queue.open(root)
    failed, missing, damaged = (Cell("a", "CartPole-v1", seed) for seed in (1, 2, 3))
    for cell in (failed, missing):
        queue._file(cell, "done").unlink()
    claim = queue.claim()
    assert claim is not None
    assert claim.cell == failed
    claim.fail("it diverged")
    with (queue.run_path(damaged) / "metrics.jsonl").open("a") as file:
        file.write("{}\n")
    results = Results.load(root)
    outcomes = {cell: results.records[cell].outcome for cell in (failed, missing, damaged)}
    assert outcomes == {failed: "failed", missing: "missing", damaged: "damaged"}
    assert "it diverged" in results.records[failed].problem
    assert "metrics.jsonl" in results.records[damaged].problem
    assert len(results.having("done")) == 9
    assert results.seeds(["a"]) == []
    assert results.seeds(["b"]) == [1, 2, 3]
    assert results.raw("a", "CartPole-v1") == {}


def test_a_seed_counts_where_every_run_of_the_arms_is_done(root):
    queue = Queue.open(root)
    queue._file(Cell("a", "gymnasium:Blackjack-v1", 2), "done").unlink()
    results = Results.load(root)
    assert results.seeds(["a"]) == [1, 3]
    assert results.seeds(["a", "b"]) == [1, 3]


def test_metrics_of_any_row_count_but_the_flags_do_not(root):
    queue = Queue.open(root)
    for cell in STUDY.cells:
        path = queue.run_path(cell) / "metrics.jsonl"
        rows = path.read_text().splitlines()
        rows[1] = rows[1].replace('"time"', '"clip_fraction": 0.1, "resumed": true, "time"')
        path.write_text("\n".join(rows) + "\n")
        done = queue._file(cell, "done")
        result = dataclasses.replace(
            Result(**json.loads(done.read_text())), metrics_sha256=sha256(path)
        )
        done.write_text(json.dumps(dataclasses.asdict(result)))
    assert "clip_fraction" in Results.load(root).columns
    assert "resumed" not in Results.load(root).columns


def test_long_metrics_are_thinned_out_and_keep_their_last_row(root, monkeypatch):
    monkeypatch.setattr("isobatch.study.results.MOST_ROWS", 2)
    rows = Results.load(root).metrics(STUDY.cells[0])
    assert [row["iterations"] for row in rows] == [2, 4]


CELL = Cell("a", "CartPole-v1", 2)


def rewrite(root, kind, content):
    """Replace a file of a run, its hash in the result included: as one who can write would."""
    queue = Queue.open(root)
    done = queue._file(CELL, "done")
    if kind == "done":
        done.write_text(content)
        return done
    file = queue.run_path(CELL) / f"{kind}.jsonl"
    file.write_text(content)
    hashed = {f"{kind}_sha256": sha256(file)}
    done.write_text(json.dumps(json.loads(done.read_text()) | hashed))
    return file


GOOD = {
    "score": 1.0, "training_return": None, "env_steps": 400, "seconds": 1.0, "restarts": 0,
    "metrics_sha256": "", "recipe_sha256": "",
}  # fmt: skip
MARKS = [(100 * part, 1.0) for part in range(5)]


def marks(rows):
    return "".join(json.dumps({"mark": mark, "episode_return": mean}) + "\n" for mark, mean in rows)


DAMAGED = [
    ("done", "[]"),
    ("done", "[" * 100_000),
    ("done", "9" * 5000),
    ("done", '{"score": 1}'),
    ("done", json.dumps(GOOD | {"extra": 1})),
    *[("done", json.dumps(GOOD | {"score": bad})) for bad in
      (None, "1", True, [1], float("nan"), float("inf"), 1e200, 10**400)],
    *[("done", json.dumps(GOOD | {"env_steps": bad})) for bad in (None, "4", float("nan"))],
    ("done", json.dumps(GOOD | {"training_return": "x"})),
    ("done", json.dumps(GOOD | {"seconds": {}})),
    ("metrics", "3\n"),
    ("metrics", "{}\n"),
    ("metrics", "[" * 100_000 + "\n"),
    ("metrics", '{"env_steps": "x"}\n'),
    ("metrics", '{"env_steps": 8}\n{"env_steps": 4}\n'),
    ("evaluations", "3\n"),
    ("evaluations", "{}\n"),
    ("evaluations", '{"mark": 0}\n'),
    ("evaluations", marks([(0, None), *MARKS[1:]])),
    ("evaluations", marks([(0, "x"), *MARKS[1:]])),
    ("evaluations", marks([(0, float("nan")), *MARKS[1:]])),
    ("evaluations", marks([*MARKS[:-1], (400, 10**400)])),
    ("evaluations", marks([MARKS[1], MARKS[0], *MARKS[2:]])),
    ("evaluations", marks([*MARKS[:-1], (500, 1.0)])),
    ("evaluations", marks([("0", 1.0), *MARKS[1:]])),
    ("evaluations", marks(MARKS[:-1])),
    ("evaluations", marks([(0, 1.0), (50, 1.0), *MARKS[1:]])),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "content"), DAMAGED)
def test_what_no_run_leaves_is_a_damaged_run_named_and_left_out(scaled, kind, content):
    file = rewrite(scaled, kind, content)
    results = Results.load(scaled)
    record = results.records[CELL]
    assert record.outcome == "damaged"
    assert (str(file) if kind == "done" else str(file.parent)) in record.problem
    assert record.problem.isprintable()
    assert record.result is None
    assert len(results.having("done")) == 11
    assert results.seeds(["a"]) == [1, 3]
    assert 2 not in results.raw("a", "CartPole-v1", "curve")


def test_a_sound_run_stays_one(scaled):
    rewrite(scaled, "evaluations", marks(MARKS))
    rewrite(scaled, "metrics", '{"env_steps": 4, "odd": "text"}\n{"env_steps": 8, "odd": 1}\n')
    results = Results.load(scaled)
    assert results.records[CELL].outcome == "done"
    assert results.curve(CELL, "odd", np.array([8.0])).tolist() == [1.0]
    assert results.marks(CELL)[0].tolist() == [0, 100, 200, 300, 400]


@pytest.mark.parametrize("text", ["[" * 100_000, '{"reason": ["\\u001b"]}', "3", "\x00"])
def test_a_failure_that_is_none_is_said_in_a_line(scaled, text):
    queue = Queue.open(scaled)
    queue._file(CELL, "done").unlink()
    queue._file(CELL, "failed").write_text(text)
    record = Results.load(scaled).records[CELL]
    assert record.outcome == "failed"
    assert record.problem.isprintable()
